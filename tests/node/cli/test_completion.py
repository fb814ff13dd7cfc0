"""Bash completion, invoked as bash does on TAB."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from protocol.core.types import Role
from roles.environments.base import ENVIRONMENTS

ROOT = Path(__file__).resolve().parents[3]

RECIPES = {path.stem for path in (ROOT / "configs/runs").glob("*.toml")}
SCENARIOS = {path.stem for path in (ROOT / "simulations/scenarios").glob("*.toml")} - {"recipe"}
KINDS = {
    point.name
    for group in ("prime_node.attacks", "prime_node.behaviours")
    for point in entry_points(group=group)
}

OFFERED = {
    "prime-node --role ": set(Role),
    "prime-node --role relay,v": {"relay,validator"},
    "prime-node --role relay,inference,": {"relay,inference,validator", "relay,inference,trainer"},
    "prime-node --role relay --role t": {"trainer"},
    "prime-node --device ": {"auto", "cpu", "cuda"},
    "prime-node --engine ": {"builtin", "vllm"},
    "prime-node --log-format ": {"auto", "console", "json"},
    "prime-node --log-level ": {"debug", "info", "warning", "error"},
    "prime-node testnet --environment ": set(ENVIRONMENTS),
    "prime-node testnet --recipe ": RECIPES,
    "prime-node testnet --engine v": {"vllm"},
    "prime-node run create --model m --recipe tiny": {"tiny-qwen3-bpe"},
    "prime-node run recipe small": {"small-text"},
    "prime-node scoring install --python ": {"3.11", "3.12", "3.13"},
    "prime-node scoring install --recipe tiny": {"tiny-qwen3-bpe"},
    "prime-node calibrate model --recipe ": RECIPES,
    "prime-node simulate run ": SCENARIOS,
    "prime-node simulate sweep byz": {name for name in SCENARIOS if name.startswith("byz")},
    "prime-node adversary ": KINDS,
    "prime-node sta": {"status"},
    "prime-node testnet --recipe ./": set(),  # bash then completes files itself
}

HEAVY = ("grpc", "hivemind", "matplotlib", "scipy", "torch", "transformers", "uvicorn")


def words_of(line):
    """Return the words before the one to complete, and this one."""
    *before, last = line.split(" ")
    return before, last


IN_CHILDREN = """
import json, os, sys
from node.cli.main import main

for number, asked in enumerate(json.load(sys.stdin)):
    child = os.fork()
    if child == 0:
        os.dup2(os.open(f"{number}.offered", os.O_CREAT | os.O_WRONLY), 1)
        os.environ.update(asked)
        try:
            main([])
        finally:
            sys.stdout.flush()
            packages = {name.partition(".")[0] for name in sys.modules}
            with open(f"{number}.packages", "w") as file:
                json.dump(sorted(packages), file)
            os._exit(0)
    os.waitpid(child, 0)
"""
"""Program that answers each line in a child: starting Python and typer takes half a second."""


@pytest.fixture
def environment(tmp_path):
    return environment_of(tmp_path)


def environment_of(home):
    return {"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Return the completions of each line, and the packages that they import."""
    folder, asked = tmp_path_factory.mktemp("answers"), []
    for line in OFFERED:
        before, last = words_of(line)
        asked.append(
            {
                "_PRIME_NODE_COMPLETE": "complete_bash",
                "COMP_WORDS": "\n".join([*before, last]),
                "COMP_CWORD": str(len(before)),
            }
        )
    subprocess.run(
        [sys.executable, "-c", IN_CHILDREN],
        input=json.dumps(asked),
        cwd=folder,
        text=True,
        timeout=300,
        check=True,
        env=environment_of(folder),
    )
    return {
        line: (
            set((folder / f"{number}.offered").read_text().split()),
            set(json.loads((folder / f"{number}.packages").read_text())),
        )
        for number, line in enumerate(OFFERED)
    }


@pytest.mark.parametrize("line", OFFERED)
def test_what_is_offered(answers, line):
    offered, packages = answers[line]
    assert offered == OFFERED[line]
    assert "typer" in packages
    assert not packages.intersection(HEAVY)


def test_the_script_that_bash_is_given(environment, tmp_path):
    """A bash sources the script and calls its function as on TAB."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("bash is not installed")
    program = tmp_path / "prime-node"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m node.cli.main "$@"\n')
    program.chmod(0o755)
    asked = """
        source <(prime-node --show-completion bash)
        COMP_WORDS=(prime-node testnet --environment "") COMP_CWORD=3
        $(complete -p prime-node | sed 's/.*-F \\([^ ]*\\).*/\\1/') prime-node
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        [bash, "--norc", "-c", asked],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        env=environment | {"PATH": f"{tmp_path}:{environment['PATH']}"},
    )
    assert set(done.stdout.split()) == set(ENVIRONMENTS), done.stderr
