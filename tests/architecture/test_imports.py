"""The import contracts of ``[tool.importlinter]`` in pyproject.toml, and what loads lightly."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]
CONFIG = ROOT / "pyproject.toml"
HEAVY = ("torch", "transformers", "hivemind", "vllm", "matplotlib")


def test_imports_keep_every_contract(capsys):
    contracts = tomllib.loads(CONFIG.read_text())["tool"]["importlinter"]["contracts"]
    assert len(contracts) >= 9
    failed = lint_imports(config_filename=str(CONFIG), no_cache=True)
    assert not failed, capsys.readouterr().out


@pytest.mark.parametrize("module", ["protocol.replica", "roles.flow"])
def test_light_modules_load_nothing_heavy(module):
    program = f"import sys, {module}; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert loaded & set(HEAVY) == set()
