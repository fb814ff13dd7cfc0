import asyncio
import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import typer

from node.api.server import ControlServer
from node.api.v1.recording import Recording
from node.cli import loading
from node.cli import main as cli
from node.local.addresses import store_cached_peers
from node.local.datadir import load_identity, locked, open_data_dir
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import pin_run, pinned_run
from protocol.core.crypto import Identity
from protocol.core.types import Role
from tests.browser.states import STATES
from tests.live.waiting import PATIENCE_SECONDS
from tests.node.api.status_examples import COUNCIL, EXPLAINED, STATUS, WHY
from tests.node.local.run_files import run_toml, signed_run

CREATOR = Identity(bytes(32))
PEER = f"/ip4/127.0.0.1/tcp/31337/p2p/{CREATOR.peer_id}"
RUN = signed_run(CREATOR)
JOIN = ["--role", "relay", "--initial-peers", PEER]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Set a home directory per test, and unset our variables."""
    for name in [name for name in os.environ if name.startswith("PRIME_NODE_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("PRIME_NODE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """Configurations with which the main form would have started nodes."""
    configs = []

    def run_node(config):
        configs.append(config)
        return 0

    monkeypatch.setitem(sys.modules, "node.process.runner", SimpleNamespace(run_node=run_node))
    return configs


@pytest.fixture
def data(home):
    return open_data_dir(home / "data")


@pytest.fixture
def run_file(home):
    path = home / "run.toml"
    path.write_text(run_toml(RUN))
    return path


@pytest.fixture
def daemon(data):
    """Control API in a separate loop, as a daemon would serve it."""
    loop, ready = asyncio.new_event_loop(), threading.Event()
    stopping = asyncio.Event()

    async def serve():
        source = Recording(replace(STATES["ready"](), council=COUNCIL))
        server = ControlServer(lambda: STATUS, lambda: EXPLAINED, datadir=data, source=source)
        await server.start()
        ready.set()
        await stopping.wait()
        await server.stop()

    thread = threading.Thread(target=loop.run_until_complete, args=[serve()])
    thread.start()
    assert ready.wait(PATIENCE_SECONDS)
    yield
    loop.call_soon_threadsafe(stopping.set)
    thread.join(PATIENCE_SECONDS)
    loop.close()


def failure(capsys, *arguments):
    """Return (exit code, the one line on standard error)."""
    code = cli.main(list(arguments))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("prime-node: error: ")
    assert err.count("\n") == 1
    return code, err.removeprefix("prime-node: error: ").rstrip("\n")


def output(capsys, *arguments):
    assert cli.main(list(arguments)) == 0
    return capsys.readouterr().out


# The main form


def test_the_main_form_runs_a_node(started, home, capsys):
    arguments = ["--role", "relay,validator", "--role", "trainer", "--bootstrap", PEER]
    assert cli.main([*arguments, "--api_port", "7", "--upload-limit", "1MB/s"]) == 0
    (config,) = started
    assert config.roles == (Role.RELAY, Role.VALIDATOR, Role.TRAINER)
    assert config.initial_peers == (PEER,)
    assert (config.api_port, config.upload_limit) == (7, 1_000_000)
    assert load_identity(home / "data" / "identity.key").peer_id
    assert capsys.readouterr() == ("", "")


def test_a_page_of_a_join_command_is_checked_and_passed_on(started, capsys):
    page = f"240:{'AB' * 32}"
    assert cli.main([*JOIN, "--page", page]) == 0
    (config,) = started
    assert config.page == page.lower()
    code, line = failure(capsys, *JOIN, "--page", "240")
    assert (code, line) == (
        2,
        "--page: '240' is not a page, which is EPOCH:DIGEST of a join command",
    )


def test_the_name_of_the_operator_is_passed_on(started):
    assert cli.main([*JOIN, "--name", "Éva <b>"]) == cli.main(JOIN) == 0
    assert [config.name for config in started] == ["Éva <b>", ""]


def test_a_node_does_not_start_beside_a_proof_of_two_histories(started, data, capsys):
    data.conflict.write_bytes(b"proof")
    code, line = failure(capsys, *JOIN)
    assert code == 76
    assert line.startswith("two histories of this run are final: the proof is in ")
    assert str(data.conflict) in line
    data.conflict.unlink()
    assert cli.main(JOIN) == 0
    assert len(started) == 1


def test_a_group_without_a_command_shows_its_help_and_says_what_is_missing(capsys):
    assert cli.main(["run"]) == 2
    out, err = capsys.readouterr()
    assert "Usage: prime-node run" in out
    assert err == (
        "prime-node: error: run needs a command: create, succeed, show, recalibrate, recipes, "
        "recipe; see prime-node run --help\n"
    )


def test_a_wrong_option_names_the_help_of_its_command(capsys):
    code, told = failure(capsys, "run", "show", "--nonsense")
    assert (code, told.endswith("; see prime-node run show --help")) == (2, True)


def test_an_ascii_standard_output_is_written():
    """A separate process: the interpreter chooses encodings at its start."""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "node.cli.main", "--help"],
        env={**os.environ, **plain, "PYTHONIOENCODING": "ascii"},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "PRIME_NODE_ROLES ..." in done.stdout


def test_the_exit_code_is_the_node_s(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "node.process.runner", SimpleNamespace(run_node=lambda _: ExitCode.RETRY)
    )
    assert cli.main(JOIN) == 75


def test_an_engine_that_is_not_installed_is_told_before_a_node_starts(started, monkeypatch, capsys):
    # find_spec returns None for a missing package.
    monkeypatch.setattr("node.cli.preflight.find_spec", lambda name: None)
    code, told = failure(capsys, *JOIN, "--engine", "vllm")
    assert (code, started) == (78, [])
    assert "--engine-python" in told
    assert cli.main([*JOIN, "--engine", "vllm", "--engine-python", "/opt/vllm/bin/python"]) == 0
    monkeypatch.setattr("node.cli.preflight.find_spec", lambda name: name)
    assert cli.main([*JOIN, "--engine", "vllm", "--engine-gpus", "4"]) == 0
    assert [(one.engine, one.engine_gpus) for one in started] == [("vllm", 1), ("vllm", 4)]


def test_a_library_of_a_log_that_is_not_installed_is_told_too(started, monkeypatch, capsys):
    monkeypatch.setattr("node.api.step_logs.base.find_spec", lambda name: None)
    assert failure(capsys, *JOIN, "--log-to", "jsonl,wandb") == (
        78,
        (
            "--log-to wandb: the package wandb is not installed here; "
            "run: pip install 'prime-node[wandb]'"
        ),
    )
    assert started == []
    monkeypatch.setattr("node.api.step_logs.base.find_spec", lambda name: name)
    assert cli.main([*JOIN, "--log-to", "jsonl", "--log-to", "tensorboard"]) == 0
    assert [config.log_to for config in started] == [("jsonl", "tensorboard")]


def test_a_trainer_needs_each_of_its_devices(started, capsys):
    trainer = ["--role", "trainer", "--initial-peers", PEER]
    code, told = failure(capsys, *trainer, "--trainer-devices", "98,99")
    assert (code, started) == (78, [])
    assert "--trainer-devices cuda:98" in told
    assert cli.main([*JOIN, "--trainer-devices", "98"]) == 0, "a relay has no trainer"


@pytest.mark.parametrize("command", [[], ["testnet"]])
def test_wrong_ranks_are_one_line_from_the_node_and_from_a_testnet(started, capsys, command):
    code, told = failure(capsys, *(command or JOIN), "--trainer-ranks", "2000")
    assert (code, started) == (2, [])
    assert "--trainer-ranks: '2000': input should be less than or equal to 1024" in told


def test_a_relay_needs_no_device(started, capsys):
    worker = ["--role", "inference", "--initial-peers", PEER, "--device", "cuda:99"]
    assert failure(capsys, *worker)[0] == 78
    assert cli.main([*JOIN, "--device", "cuda:99"]) == 0
    assert [config.device for config in started] == ["cuda:99"]


def test_a_new_swarm_begins_with_a_run(started, run_file, data, capsys):
    arguments = ["--role", "trainer", "--new-swarm"]
    assert failure(capsys, *arguments) == (
        2,
        "--new-swarm needs a run: give its signed manifest with --run RUN.toml",
    )
    assert cli.main([*arguments, "--run", str(run_file)]) == 0
    assert pinned_run(data) == RUN
    assert cli.main(arguments) == 0
    assert [config.new_swarm for config in started] == [True, True]


def test_a_way_in_is_needed_until_peers_are_known(started, data, capsys):
    assert failure(capsys, "--role", "relay") == (
        2,
        (
            "no peer to join through: give one with --initial-peers ADDR, "
            "or start a new swarm with --new-swarm --run RUN.toml"
        ),
    )
    store_cached_peers(data, [PEER])
    assert cli.main(["--role", "relay"]) == 0
    assert len(started) == 1


def test_an_error_of_the_node_is_one_line(monkeypatch, capsys):
    def run_node(config):
        raise NodeError("the peers offer\nnothing", ExitCode.RETRY)

    monkeypatch.setitem(sys.modules, "node.process.runner", SimpleNamespace(run_node=run_node))
    assert failure(capsys, *JOIN) == (75, "the peers offer nothing")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (
            ["--role", "miner"],
            "--role: unknown role 'miner'; the roles are inference, validator, trainer, relay",
        ),
        (
            [],
            "no role given; choose with --role one or more of inference, validator, trainer, relay",
        ),
        (
            ["--rolle", "relay"],
            "No such option: --rolle (Possible options: --role); see prime-node --help",
        ),
        (["--port"], "Option '--port' requires an argument.; see prime-node --help"),
        (["statsu"], "no command 'statsu'; did you mean status?"),
        (["xyzzy"], "no command 'xyzzy'; see prime-node --help"),
        (
            ["--role", "relay", "status"],
            "--role is for running a node; put the options of status after that word",
        ),
        ([*JOIN, "--name", "Ada "], "--name: a name neither begins nor ends with a space"),
        (["--new-swarm", *JOIN], "--new-swarm and --initial-peers exclude each other"),
    ],
)
def test_a_wrong_command_line(started, capsys, arguments, line):
    assert failure(capsys, *arguments) == (2, line)
    assert started == []


# The same in a separate process, as an operator runs it


def process(*arguments):
    command = [sys.executable, "-m", "node.cli.main", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_unknown_role_exits_2():
    assert process("--role", "miner") == (
        2,
        (
            "prime-node: error: --role: unknown role 'miner'; "
            "the roles are inference, validator, trainer, relay\n"
        ),
    )


def test_key_open_to_others_exits_77(data):
    cli.main(["init"])
    data.identity.chmod(0o640)
    assert process(*JOIN) == (
        77,
        (
            f"prime-node: error: identity key {data.identity} is open to other users (mode 0640); "
            f"run: chmod 600 {data.identity}\n"
        ),
    )


def test_locked_data_dir_exits_73(data):
    with locked(data):
        assert process(*JOIN) == (
            73,
            (
                f"prime-node: error: data dir {data.root} is in use by process {os.getpid()}; "
                "stop it or choose another --data-dir\n"
            ),
        )


def test_an_invite_that_is_none_exits_2(capsys):
    code, line = failure(capsys, *JOIN, "--invite", "no-such-file")
    assert code == ExitCode.USAGE
    assert line == (
        "--invite: neither an invite, as prime-node invite prints it, nor a file with one"
    )


def test_misspelt_config_key_exits_78(home):
    (home / "node.toml").write_text('role = "relay"\n')
    assert process("--config", home / "node.toml") == (
        78,
        f"prime-node: error: {home}/node.toml: role: unknown key; did you mean roles?\n",
    )


def test_misspelt_manifest_key_exits_78(run_file):
    text = run_file.read_text()
    run_file.write_text(text.replace("[admission]", "[admission]\nworkerz = []"))
    assert process(*JOIN, "--run", run_file) == (
        78,
        f"prime-node: error: {run_file}: unknown key 'admission.workerz'\n",
    )


def test_no_daemon_exits_69(data):
    assert process("status") == (
        69,
        (
            f"prime-node: error: no daemon is running in {data.root}; "
            "start one with prime-node --role ROLE, or name its directory with --data-dir\n"
        ),
    )


# Commands


def test_init_is_idempotent(data, capsys):
    first = json.loads(output(capsys, "init", "--json"))
    again = json.loads(output(capsys, "init", "--json"))
    assert first["created"]
    assert again == first | {"created": False}
    assert first["data_dir"] == str(data.root)
    assert output(capsys, "init") == f"{first['peer_id']}\n"
    assert output(capsys, "id") == f"{first['peer_id']}\n"
    assert json.loads(output(capsys, "id", "--json")) == {"peer_id": first["peer_id"]}


def test_a_data_dir_before_or_after_the_command(home, capsys):
    there = str(home / "there")
    peer_id = output(capsys, "init", "--data-dir", there)
    assert output(capsys, "--data-dir", there, "id") == peer_id
    assert output(capsys, "id", "--identity-path", f"{there}/identity.key") == peer_id


def test_id_without_a_key(data, capsys):
    assert failure(capsys, "id") == (
        78,
        f"there is no key {data.identity} yet; prime-node init makes one",
    )


def test_the_views_of_a_daemon(daemon, capsys):
    assert json.loads(output(capsys, "status", "--json")) == json.loads(
        json.dumps(STATUS.to_json())
    )
    assert output(capsys, "status").startswith("inference  ● ready\n")
    assert len(json.loads(output(capsys, "peers", "--json"))["members"]) == 7
    assert output(capsys, "peers").startswith("7 members, 7 connected to this node\n")
    told = json.loads(output(capsys, "council", "--json"))
    assert told == json.loads(json.dumps(asdict(COUNCIL)))
    assert output(capsys, "council").startswith("● 3 members (6 seats, era 2), final page 3 s ago")
    found = json.loads(output(capsys, "contributors", "--json"))
    assert found == json.loads(json.dumps(asdict(STATES["ready"]().contributors)))
    assert output(capsys, "contributors").startswith("812 certified rollouts, 9.88 M tokens, 40")
    assert json.loads(output(capsys, "why", "--json")) == WHY
    assert "exponent" in output(capsys, "why", "ab12")
    assert "No rollout" in output(capsys, "why", "0000")


@pytest.mark.parametrize("command", ["status", "peers", "council", "contributors", "why"])
def test_commands_that_need_a_daemon(data, capsys, command):
    code, line = failure(capsys, command, "--json")
    assert code == 69
    assert line.startswith(f"no daemon is running in {data.root}; ")


def test_version(capsys):
    values = json.loads(output(capsys, "version", "--json"))
    assert set(values) == {"prime_node", "protocol", "python", "platform"}
    assert output(capsys, "version") == output(capsys, "--version")
    assert output(capsys, "version").startswith(f"prime-node {values['prime_node']} (protocol ")


def test_help_tells_the_exit_codes_and_every_option(capsys):
    text = output(capsys, "--help")
    for code in ExitCode:
        assert f"  {int(code)} " in text or code is ExitCode.INTERRUPTED
    for command in ("init", "id", "status", "peers", "council", "why", "version"):
        assert f"│ {command} " in text


# Commands of plugins


def entry(name, value):
    return loading.EntryPoint(name, value, loading.GROUP)


@pytest.fixture
def plugins(home, monkeypatch):
    (home / "good_plugin.py").write_text(
        '"""Do good.\n\nMore.\n"""\nimport typer\napp = typer.Typer()\n'
        "@app.command()\ndef good(count: int = 1) -> None:\n    print('good' * count)\n"
    )
    (home / "broken_plugin.py").write_text('"""Break."""\nimport does_not_exist\n')
    monkeypatch.syspath_prepend(home)
    monkeypatch.delitem(sys.modules, "good_plugin", raising=False)
    entries = [
        entry("good", "good_plugin:app"),
        entry("broken", "broken_plugin:app"),
        entry("gone", "gone_plugin:app"),
        entry("status", "good_plugin:app"),
    ]
    monkeypatch.setattr(loading, "entry_points", lambda group: entries)


def test_a_command_of_others_is_called(plugins, capsys):
    assert output(capsys, "good", "--count", "2") == "goodgood\n"


def test_a_broken_command_harms_nobody_else(plugins, capsys):
    assert failure(capsys, "broken") == (
        1,
        (
            "the command broken (broken_plugin:app) cannot be loaded: "
            "ModuleNotFoundError: No module named 'does_not_exist'"
        ),
    )
    assert failure(capsys, "gone")[0] == 1
    assert output(capsys, "version")
    text = output(capsys, "--help")
    lines = [" ".join(line.strip("│ ").split()) for line in text.splitlines()]
    assert {"good Do good.", "broken Break.", "gone (cannot be loaded)"} <= set(lines)


def test_nobody_replaces_our_commands(plugins, data, capsys):
    assert failure(capsys, "status")[0] == 69


def test_help_imports_no_command(plugins, capsys):
    output(capsys, "--help")
    assert "good_plugin" not in sys.modules


def test_a_crash_keeps_its_traceback(plugins, monkeypatch):
    def crash():
        raise RuntimeError("a defect")

    app = typer.Typer()
    app.command()(crash)
    monkeypatch.setattr(loading, "load", lambda _: typer.main.get_command(app))
    with pytest.raises(RuntimeError, match="a defect"):
        cli.main(["good"])


def test_ctrl_c_in_a_command(plugins, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    app = typer.Typer()
    app.command()(interrupted)
    monkeypatch.setattr(loading, "load", lambda _: typer.main.get_command(app))
    assert cli.main(["good"]) == 130


def test_a_pinned_run_of_another_id_exits_78(started, data, capsys):
    pin_run(data, RUN)
    code, line = failure(capsys, *JOIN, "--run-id", "00" * 32)
    assert code == 78
    assert line.startswith("--run-id asks for run 000000000000…, data dir ")
