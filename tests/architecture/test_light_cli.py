"""Interactive commands import no library that takes seconds to load."""

import re
import subprocess
import sys

import pytest

HEAVY = {
    "fsspec",
    "grpc",
    "hivemind",
    "httpx",
    "huggingface_hub",
    "matplotlib",
    "numpy",
    "prometheus_client",
    "safetensors",
    "scipy",
    "simulations",
    "starlette",
    "sympy",
    "tokenizers",
    "torch",
    "transformers",
    "uvicorn",
    "uvloop",
}
NOT_FOR_HELP = HEAVY | {"cryptography", "msgpack", "structlog"}


def imported(*arguments, environment):
    """Return the top-level packages and the commands that a CLI run imports."""
    command = [sys.executable, "-X", "importtime", "-m", "node.cli.main", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    names = re.findall(r"^import time:.*\| +(\S+)$", done.stderr, re.MULTILINE)
    assert "typer" in names
    return {name.partition(".")[0] for name in names} | {
        name for name in names if name.startswith("node.cli.commands.")
    }


@pytest.fixture
def environment(tmp_path):
    return {"HOME": str(tmp_path), "PATH": "", "PRIME_NODE_DATA_DIR": str(tmp_path / "data")}


@pytest.mark.parametrize("arguments", [["--help"], ["nonsense"]])
def test_help_and_mistakes(arguments, environment):
    names = imported(*arguments, environment=environment)
    assert not names & NOT_FOR_HELP
    assert not any(name.startswith("node.cli.commands.") for name in names)


@pytest.mark.parametrize("command", ["init", "id", "status", "peers", "why", "version"])
def test_commands(command, environment):
    assert not imported(command, "--json", environment=environment) & HEAVY


@pytest.mark.parametrize("arguments", [["show", "--json"], ["install", "--python", "3.99"]])
def test_commands_about_scoring(arguments, environment):
    assert not imported("scoring", *arguments, environment=environment) & HEAVY


def test_a_daemon_imports_no_library_that_computes():
    """Hivemind's packages are registered without running their ``__init__``."""
    code = (
        "import pkgutil, sys, node\n"
        "for one in pkgutil.walk_packages(node.__path__, 'node.'): __import__(one.name)\n"
        "import roles.engines.subprocess.client\n"
        "assert 'hivemind.dht.node' in sys.modules\n"
        "print({'torch', 'transformers', 'safetensors'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout.strip() == "set()"


def test_a_node_that_cannot_start(environment):
    assert not imported("--role", "inference", environment=environment) & HEAVY
