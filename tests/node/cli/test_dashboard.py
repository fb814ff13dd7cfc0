import asyncio
import json
import signal
import subprocess
import sys
import threading
import urllib.request

import pytest

from node.api.server import ControlServer
from node.api.v1.recording import Recording, write_recording
from node.cli import main as cli
from node.cli.commands import dashboard
from node.local.datadir import open_data_dir
from node.local.errors import ExitCode
from tests.browser.states import ready
from tests.live.waiting import PATIENCE_SECONDS
from tests.node.api.status_examples import EXPLAINED, STATUS


@pytest.fixture
def data(tmp_path):
    return open_data_dir(tmp_path / "data")


@pytest.fixture
def running(data):
    """Port of a node's pages, served from a separate thread."""
    found, ends = [], threading.Event()

    async def serve():
        source = Recording(ready())
        server = ControlServer(lambda: STATUS, lambda: EXPLAINED, datadir=data, source=source)
        found.append(await server.start())
        started.set()
        await asyncio.to_thread(ends.wait)
        await server.stop()

    started = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert started.wait(PATIENCE_SECONDS)
    yield found[0]
    ends.set()
    thread.join()


def test_it_prints_the_address_and_how_to_reach_it_from_elsewhere(running, data, capsys):
    code = cli.main(["dashboard", "--data-dir", str(data.root), "--no-open"])
    url, tunnel, *_ = capsys.readouterr().out.splitlines()
    assert (code, url) == (0, f"http://127.0.0.1:{running}/")
    assert f"ssh -N -L {running}:127.0.0.1:{running} " in tunnel


def test_it_opens_a_browser_where_it_is_asked_to(running, data, monkeypatch, capsys):
    opened = []
    monkeypatch.setattr(dashboard.webbrowser, "open", opened.append)
    assert cli.main(["dashboard", "--data-dir", str(data.root), "--open"]) == 0
    assert opened == [capsys.readouterr().out.strip()]


@pytest.mark.parametrize("variable", ["SSH_CONNECTION", ""])
def test_no_browser_starts_where_nobody_would_see_it(variable, running, data, monkeypatch):
    opened = []
    monkeypatch.setattr(dashboard.webbrowser, "open", opened.append)
    command = ["dashboard", "--data-dir", str(data.root)]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv("DISPLAY", ":0")
        monkeypatch.setenv(variable, "1 2 3 4")
    assert cli.main(command) == 0
    assert opened == []
    if variable:
        monkeypatch.delenv(variable)
        assert cli.main(command) == 0
        assert opened == [f"http://127.0.0.1:{running}/"]


def test_json_for_programs(running, data, capsys):
    assert cli.main(["dashboard", "--data-dir", str(data.root), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["url"] == f"http://127.0.0.1:{running}/"


def test_without_a_daemon_it_says_so(data, capsys):
    assert cli.main(["dashboard", "--data-dir", str(data.root)]) == ExitCode.NO_DAEMON
    assert "no daemon is running" in capsys.readouterr().err


def test_a_directory_that_is_no_report_is_a_mistake(tmp_path, capsys):
    assert cli.main(["dashboard", str(tmp_path)]) == ExitCode.USAGE
    assert "no recording" in capsys.readouterr().err


def test_a_report_is_served_until_it_is_interrupted(tmp_path, interruptible):
    write_recording(tmp_path, ready())
    command = [sys.executable, "-m", "node.cli.main", "dashboard", str(tmp_path), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            lines = []
            while not lines or lines[-1].strip() != "}":
                lines.append(process.stdout.readline())
            url = json.loads("".join(lines))["url"]
            with urllib.request.urlopen(f"{url}api/v1/meta", timeout=PATIENCE_SECONDS) as answer:
                assert json.load(answer)["mode"] == "recorded"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
