import json
import os
import sys
from types import SimpleNamespace

import pytest

from node.cli.doctor import FindingLevel
from node.cli.doctor.task import check_scoring
from node.cli.main import main
from node.founding.found import manifest_toml
from node.local.config import load_config
from node.local.datadir import open_data_dir
from node.local.errors import ExitCode, NodeError
from node.local.run_pin import load_run, pin_run
from node.process.setup import about_us
from protocol.run.manifest import RunManifest, sign_manifest
from roles.environments.runtime import executable_in, interpreter_of, name_of
from tests.worlds.messages import identity, run_manifest
from tests.worlds.runtimes import OTHER, OWN, section

NEEDS = f"code/sums needs the scoring runtime Python {OTHER}; here is Python {OWN}"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Set directories per test, and unset our variables."""
    for name in [name for name in os.environ if name.startswith("PRIME_NODE_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.setenv("PRIME_NODE_DATA_DIR", str(tmp_path / "data"))
    return tmp_path


@pytest.fixture
def started(monkeypatch):
    """Configurations with which the main form would have started nodes."""
    configs = []
    module = SimpleNamespace(run_node=lambda config: configs.append(config) or 0)
    monkeypatch.setitem(sys.modules, "node.process.runner", module)
    return configs


def run_file(home, environment):
    """Write the manifest of a run with this task; return its path."""
    manifest = run_manifest()
    values = dict(manifest) | {"environment": environment}
    path = home / "run.toml"
    path.write_text(manifest_toml(sign_manifest(RunManifest(**values), identity("creator"))))
    return path


def errors(capsys):
    return capsys.readouterr().err.splitlines()


def run_node(path, role):
    return main(["--role", role, "--new-swarm", "--run", str(path)])


# Start of a node


@pytest.mark.parametrize("role", ["inference", "validator", "trainer", "relay,validator"])
def test_a_node_that_scores_does_not_start_without_the_runtime(home, capsys, started, role):
    path = run_file(home, section(python=OTHER))
    assert run_node(path, role) == ExitCode.CONFIG == 78
    line = f"prime-node: error: {NEEDS}: run prime-node scoring install --run {path}"
    assert errors(capsys) == [line]
    assert started == []


def test_a_relay_starts_without_it(home, started):
    path = run_file(home, section(python=OTHER))
    assert run_node(path, "relay") == 0
    assert len(started) == 1
    signed = load_run(path)
    assert about_us(started[0], signed).scoring == b""


def test_a_node_that_has_it_says_so_in_its_record(home, started):
    path = run_file(home, section())
    assert run_node(path, "validator") == 0
    found = interpreter_of(section(), ())
    assert about_us(started[0], load_run(path)).scoring == found.digest


def test_the_name_of_the_operator_is_in_its_record(home, monkeypatch, started):
    monkeypatch.setenv("PRIME_NODE_NAME", "Éva")
    path = run_file(home, section())
    assert run_node(path, "relay") == 0
    assert about_us(started[0], load_run(path)).name == "Éva"


def test_a_run_that_was_found_through_peers_is_named_by_its_data_directory(home):
    signed = load_run(run_file(home, section(python=OTHER)))
    config = load_config({"roles": ["validator"]}, os.environ)
    with pytest.raises(NodeError) as raised:
        about_us(config, signed)
    remedy = f"run prime-node scoring install --data-dir {home / 'data'}"
    assert (raised.value.message, raised.value.exit_code) == (f"{NEEDS}: {remedy}", 78)


def test_a_runtime_that_this_software_does_not_know_is_told_at_the_door(home, capsys, started):
    path = run_file(home, section(python="3.99"))
    assert run_node(path, "validator") == 78
    assert "environment.runtime.python is 3.99; this software scores" in errors(capsys)[-1]


def test_the_doctor_looks_for_it(home):
    def found(role, path):
        config = load_config({"roles": [role], "run": path}, os.environ)
        return check_scoring(config, load_run(path).manifest)

    path = run_file(home, section(python=OTHER))
    (missing,) = found("validator", path)
    assert (missing.level, missing.found) == (FindingLevel.FAILURE, NEEDS)
    assert missing.advice == f"run prime-node scoring install --run {path}"
    assert found("relay", path) == []
    (there,) = found("trainer", run_file(home, section()))
    assert there.level is FindingLevel.OK
    (unknown,) = found("trainer", run_file(home, section(python="3.99")))
    assert unknown.level is FindingLevel.FAILURE
    assert check_scoring(load_config({"roles": ["relay"]}, os.environ), None) == []


# The commands


def test_the_runtime_of_a_run_is_installed_and_shown(home, capsys):
    path = run_file(home, section())
    pin_run(open_data_dir(home / "data"), load_run(path))
    assert main(["scoring", "install"]) == 0  # the run of the data directory
    place = home / "home" / "prime-node-scoring" / name_of(section().runtime)
    assert capsys.readouterr().out == f"{executable_in(place)}\n"
    for options in (["--run", str(path)], ["--python", OWN]):
        assert main(["scoring", "install", *options, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["executable"] == str(executable_in(place))
    assert main(["scoring", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [one["executable"] for one in shown["installed"]] == [str(executable_in(place))]
    assert shown["run"]["runtime"] == {"python": OWN, "packages": {}}
    assert shown["run"]["found"]["executable"] == sys.executable
    assert main(["scoring", "show"]) == 0
    assert f"the run's Python {OWN} is {sys.executable} (" in capsys.readouterr().out


def test_a_runtime_that_is_not_here_is_shown_with_the_command(home, capsys):
    path = run_file(home, section(python=OTHER))
    assert main(["scoring", "show", "--run", str(path), "--json"]) == 78
    shown = json.loads(capsys.readouterr().out)
    assert shown["run"]["found"] is None
    assert shown["run"]["missing"] == f"{NEEDS}: run prime-node scoring install --run {path}"
    assert main(["scoring", "show", "--run", str(path)]) == 78
    assert NEEDS in capsys.readouterr().out
    assert main(["scoring", "show"]) == 0  # no run is known
    characters = run_file(home, run_manifest().environment)
    assert main(["scoring", "show", "--run", str(characters)]) == 0
    assert "needs no scoring runtime" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ([], 2, "belongs to no run yet: name one with --run RUN.toml"),
        (["--python", "3.10"], 2, "--python 3.10: use 3.11, 3.12, 3.13"),
        (["--run", "{run}", "--python", OWN], 2, "leave --recipe and --python out"),
        (["--recipe", "testnet"], 2, "arithmetic needs no scoring runtime"),
        (["--recipe", "nothing"], 78, "no recipe 'nothing'"),
        (["--run", "/nowhere.toml"], 78, "cannot read /nowhere.toml"),
        (["--python", OWN, "--interpreter", "/bin/sh"], 78, "is no CPython"),
        (["--run", "{run}"], 2, "verifiers/sums is scored beside the node"),
    ],
)
def test_mistakes_are_one_line(home, capsys, options, code, said):
    path = run_file(home, section("verifiers/sums"))
    options = [option.format(run=path) for option in options]
    assert main(["scoring", "install", *options]) == code
    (error,) = errors(capsys)
    assert said in error


def test_a_recipe_is_completed_with_what_is_installed_here(home, capsys, monkeypatch):
    asked = []

    def install(runtime, *_):
        asked.append(runtime)
        raise NodeError("stop", ExitCode.CRASH)

    monkeypatch.setattr("node.cli.commands.scoring.install_runtime", install)
    assert main(["scoring", "install", "--recipe", "qwen3-0.6b-math", "--python", OTHER]) == 1
    assert asked == [section("math/sums", python=OTHER).runtime]
