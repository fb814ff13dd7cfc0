"""Import contracts of ``[tool.importlinter]`` in pyproject.toml, and light modules."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"
HEAVY = ("torch", "transformers", "hivemind", "vllm", "matplotlib")


def test_imports_keep_every_contract():
    contracts = tomllib.loads(CONFIG.read_text())["tool"]["importlinter"]["contracts"]
    assert len(contracts) >= 9
    # A process of its own: the linter reconfigures logging and disables other tests' loggers.
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--config", CONFIG, "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("module", ["protocol.replica.replica", "roles.runtime.context"])
def test_light_modules_load_nothing_heavy(module):
    program = f"import sys, {module}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & set(HEAVY) == set()
