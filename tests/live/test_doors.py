"""Usage errors: each ends a start with one line and its exit code, within seconds.

Each is tried on the installed command; nothing is downloaded before.
"""

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from node.local.errors import ExitCode
from protocol.core.crypto import Identity
from tests.node.local.run_files import run_toml, signed_run
from tests.worlds.leashed import leashed

pytestmark = pytest.mark.live

PRIME_NODE = str(Path(sys.executable).with_name("prime-node"))
NOBODY = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity(b'x' * 32).peer_id}"


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(run_toml(signed_run(Identity(bytes(32)))))
    return path


def refused(*arguments):
    """Return the exit code and the last line of standard error."""
    command = leashed(PRIME_NODE, *arguments)
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    lines = ended.stderr.rstrip("\n").split("\n")
    assert "Traceback" not in ended.stderr
    return ended.returncode, lines[-1]


@pytest.fixture
def door(run_file, tmp_path):
    """Start the only node of the run; return its exit."""
    data = tmp_path / "data"

    def start(*arguments, peers=NOBODY):
        joins = ["--initial-peers", peers] if peers else ["--new-swarm"]
        joined = ["--run", run_file, *joins, "--data-dir", data, "--host", "127.0.0.1"]
        code, told = refused(*arguments, *joined)
        assert told.startswith("prime-node: error: ")
        return code, told

    start.data = data
    return start


def test_a_role_of_named_keys_is_refused_to_another_key(door):
    code, told = door("--role", "trainer")
    peer = json.loads(
        subprocess.run(
            [PRIME_NODE, "id", "--json", "--data-dir", door.data], capture_output=True, check=True
        ).stdout
    )["peer_id"]
    assert code == 78
    assert f"this run names its trainers, and this key ({peer}) is none of them" in told


def test_a_device_that_is_not_here_is_refused_before_anything_is_fetched(door):
    if Path("/dev/nvidia0").exists():
        pytest.skip("needs a machine without an NVIDIA GPU")
    code, told = door("--role", "inference", "--device", "cuda")
    assert (code, "--device cuda: " in told) == (78, True)
    assert not door.data.exists()


def test_a_damaged_state_is_told_with_what_to_do(door):
    assert door("--role", "trainer")[0] == 78  # creates the directory
    (door.data / "state.sqlite").write_bytes(b"garbage" * 1000)
    code, told = door("--role", "relay")
    assert (code, f"{door.data}/state.sqlite is damaged" in told) == (78, True)
    assert "restore it from a backup, or move it" in told


@pytest.mark.parametrize("option", ["--port", "--api-port", "--http-port"])
def test_a_port_in_use_has_one_code(door, option):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, told = door("--role", "relay", option, port, peers="")
    assert code == 75
    assert f"cannot listen for {option} on 127.0.0.1:{port}: address already in use" in told
    assert f"choose another {option}, or 0" in told


def wait_for_api(process, data):
    """Return the port of the control API once the node has written it."""
    while process.poll() is None:
        try:
            return json.loads((data / "api.json").read_text())["port"]
        except (OSError, ValueError):
            time.sleep(0.005)
    raise AssertionError(f"it ended with {process.returncode}")


def answer(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as reply:
        return json.load(reply)


JOINING = (
    "joining",
    (
        "looking for peers; no bootstrap peer answers "
        "(/ip4/127.0.0.1/tcp/1 connection refused); trying again"
    ),
)


def test_a_start_is_never_silent(run_file, tmp_path):
    """From the first second on the API answers, and names the cause of waiting."""
    data, log = tmp_path / "data", tmp_path / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(
            leashed(
                *(PRIME_NODE, "--role", "inference", "--run", run_file, "--initial-peers", NOBODY),
                *("--data-dir", data, "--host", "127.0.0.1", "--log-format", "console"),
            ),
            stderr=stream,
        )
    try:
        port = wait_for_api(process, data)
        stages = []
        while stages[-1:] != [JOINING]:
            assert answer(port, "/healthz")["alive"]
            status = answer(port, "/status")
            stage = status["state"], status["reason"]
            stages += [stage] * (stage not in stages)
            time.sleep(0.02)
        own = status["loop"]["own_delay_seconds_max"]
        assert stages[0] == ("starting", "loading libraries"), stages
        # Waits for a core excluded: 0.02 s on an idle machine, 0.22 s at a load of 13 (measured).
        # An import of the libraries in the loop takes 2 s.
        assert own < 1.0, f"the loop stood still for {own} s"
        while "looking for peers" not in (text := log.read_text()):
            time.sleep(0.02)  # the log follows the stage within a second
        assert "starting " in text
        asked = subprocess.run(
            [PRIME_NODE, "status", "--data-dir", data], capture_output=True, text=True, check=True
        )
        assert "connection refused" in re.sub(r"\s+", " ", asked.stdout)
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0


def test_every_exit_code_is_documented():
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    section = page.partition("## Exit codes")[2].partition("\n## ")[0]
    told = subprocess.run([PRIME_NODE, "--help"], capture_output=True, text=True, check=True).stdout
    help_text = told.partition("Exit codes")[2]
    for code in ExitCode:
        assert f"| {int(code)} |" in section
        assert re.search(rf"(^|\s){int(code)}  ", help_text, re.MULTILINE), code
