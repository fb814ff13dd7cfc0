"""Content of the installed wheel: one package, imported before others of the same names."""

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from node.local.errors import ExitCode

ROOT = Path(__file__).resolve().parents[2]
COMMON_WORDS = ("node", "protocol", "roles", "simulations")

RUN = """
import sys
sys.path += sys.argv[1:3]
del sys.argv[1:3]
import prime_node
sys.exit(prime_node.main())
"""

CHILD = """
import subprocess, sys
sys.path += sys.argv[1:3]
import prime_node
prime_node.find_packages_first()
prime_node.find_packages_first()
ask = "import node, roles; print(node.__file__, roles.__file__)"
print(subprocess.check_output([sys.executable, "-P", "-c", ask], text=True))
"""

RECIPE = """
import sys
sys.path += sys.argv[1:3]
import prime_node
prime_node.find_packages_first()
from node.founding.recipes import recipe_path
print(recipe_path("testnet").is_file())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Return a site folder with the wheel, and with foreign packages of the same names."""
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run([sys.executable, *build], cwd=ROOT, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    site = folder / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    for name in COMMON_WORDS:
        (site / name).mkdir()
        (site / name / "__init__.py").write_text("raise RuntimeError('of another distribution')\n")
    return site


def run(code, site, *arguments, exit_code=0):
    """Run code without the checkout on the path: ``-S`` reads no ``.pth`` file."""
    command = [sys.executable, "-S", "-P", "-c", code, site, sysconfig.get_path("purelib")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command), *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=site,
        env=environment,
    )
    assert done.returncode == exit_code, done.stderr
    return done.stdout


def test_an_installation_adds_one_name(installed):
    ours = {path.name for path in installed.iterdir() if path.name not in COMMON_WORDS}
    assert ours - {path for path in ours if path.endswith(".dist-info")} == {"prime_node"}


def test_the_installed_program_runs_beside_packages_of_its_parts_names(installed):
    assert "prime-node" in run(RUN, installed, "version")
    assert "quiet-20" in run(RUN, installed, "simulate", "list")


def test_the_installed_program_ends_with_its_exit_codes(installed):
    run(RUN, installed, "--no-such-option", exit_code=ExitCode.USAGE)


def test_its_child_processes_find_its_parts(installed):
    found = run(CHILD, installed)
    inside = installed / "prime_node"
    assert found.split() == [str(inside / name / "__init__.py") for name in ("node", "roles")]


def test_its_recipes_come_with_it(installed):
    assert run(RECIPE, installed).split() == ["True"]


def test_the_verifier_of_ledgers_comes_with_it_and_runs_alone(installed, tmp_path):
    script = installed / "prime_node" / "verify_ledger.py"
    export = tmp_path / "export.jsonl"
    export.write_text("text\n")
    done = subprocess.run(
        [sys.executable, script, export], check=False, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stderr) == (
        2,
        "unreadable: line 1: not the first line of an export\n",
    )
