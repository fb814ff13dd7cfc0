import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest

from protocol.run.recipe import EnvironmentSection
from protocol.run.sections import RuntimeSection, runtime_digest
from roles.environments import runtime as module
from roles.environments.registry import pinned_task, text_task
from roles.environments.runtime import (
    PACKAGES,
    NoRuntimeError,
    ask,
    completed,
    executable_in,
    interpreter_of,
    name_of,
    own_interpreter,
    required,
)
from roles.environments.usable_rows import PromptRoom
from simulations.runtime.loop import SimBackground
from tests.worlds.runtimes import OTHER, OWN, other_python, pretend_installed, section
from tests.worlds.text import byte_tokenizer, exchange, needs_jail, program_row, write_rows

ROOM = PromptRoom(None, ())
INSTALL = "run prime-node scoring install --run RUN.toml"


def venv(directory, python=sys.executable):
    subprocess.run([python, "-m", "venv", "--without-pip", directory], check=True)
    return directory


@pytest.mark.parametrize("name", ["code/sums", "math/sums", "reasoning-gym/gcd"])
def test_a_recipe_gets_the_versions_that_are_installed_here(name):
    runtime = completed(EnvironmentSection(name=name))
    assert runtime.python == OWN
    assert sorted(runtime.packages) == sorted(PACKAGES[name.partition("/")[0]])
    found = interpreter_of(EnvironmentSection(name=name, runtime=runtime), ())
    assert found.fits(runtime)
    assert found.digest == runtime_digest(found.version, runtime.packages)
    assert (found.version, found.bare) == (own_interpreter().version, own_interpreter().bare)


def test_what_a_recipe_names_stands():
    named = RuntimeSection(python=OTHER, packages={"mpmath": "9.9"})
    runtime = completed(EnvironmentSection(name="math/sums", runtime=named))
    assert (runtime.python, runtime.packages["mpmath"]) == (OTHER, "9.9")
    assert len(runtime.packages) == len(PACKAGES["math"])


def test_a_package_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(module.PACKAGES, "math", ("absent-package",))
    with pytest.raises(ValueError, match=r"^math/sums is scored by absent-package, which is not"):
        completed(EnvironmentSection(name="math/sums"))


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            section(python=OTHER),
            f"code/sums needs the scoring runtime Python {OTHER}; here is Python {OWN}: {INSTALL}",
        ),
        (
            section("reasoning-gym/gcd", bfi="0.9"),
            f"; here is Python {OWN} with bfi {version('bfi')}: {INSTALL}",
        ),
        (
            EnvironmentSection(name="verifiers/sums-env", runtime=RuntimeSection(python=OTHER)),
            f"here is Python {OWN}: start prime-node under that Python",
        ),
    ],
)
def test_a_runtime_that_is_not_here_is_told_in_one_line(asked, told, tmp_path):
    with pytest.raises(NoRuntimeError) as raised:
        interpreter_of(asked, [tmp_path])
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "runtime", "told"),
    [
        ("code/sums", None, "environment.runtime is missing"),
        ("code/sums", {"python": "3.10"}, "scores code/sums under 3.11, 3.12, 3.13"),
        ("code/sums", {"python": OWN, "packages": {"numpy": "2.0"}}, "must name none for code"),
        ("math/sums", {"python": OWN, "packages": {"sympy": "1.14.0"}}, "must name mpmath"),
    ],
)
def test_a_runtime_names_the_packages_of_its_task_and_no_others(name, runtime, told):
    made = None if runtime is None else RuntimeSection(**runtime)
    with pytest.raises(ValueError, match=told):
        required(EnvironmentSection(name=name, runtime=made))


def test_a_version_that_this_software_does_not_score_with_is_told(tmp_path):
    asked = section("math/sums", mpmath="1.2.0")
    place = venv(tmp_path / name_of(asked.runtime))
    pretend_installed(place, asked.runtime.packages)
    with pytest.raises(ValueError, match=r"names mpmath 1\.2\.0; this software scores with"):
        text_task(asked, tmp_path, None, SimBackground(), ROOM, [tmp_path])
    with pytest.raises(ValueError, match=r"names mpmath 1\.2\.0"):
        pinned_task(asked, [tmp_path])


def test_an_installed_runtime_is_asked_for_its_versions(tmp_path):
    asked = section("math/sums", mpmath="9.9")
    place = venv(tmp_path / "second" / name_of(asked.runtime))
    with pytest.raises(NoRuntimeError):  # right name, empty directory
        interpreter_of(asked, [tmp_path / "first", tmp_path / "second"])
    pretend_installed(place, asked.runtime.packages)
    found = interpreter_of(asked, [tmp_path / "first", tmp_path / "second"])
    assert found.executable == executable_in(place)
    assert found.packages == asked.runtime.packages
    own = interpreter_of(section("math/sums"), [tmp_path / "second"])
    assert own.digest != found.digest
    assert replace(own, version="3.99.1").digest != own.digest


def test_what_is_no_working_cpython_is_none(tmp_path):
    def program(text):
        path = tmp_path / "python"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    assert ask(tmp_path / "nothing") is None
    assert ask(program("echo 'pyenv: no such command' >&2; exit 127")) is None
    assert ask(program("echo '[]'")) is None
    assert ask(program('echo \'{"implementation": "pypy"}\'')) is None
    assert ask(program(f'exec {sys.executable} "$@"')).minor == OWN


PROGRAMS = {
    "print('right')": (1.0, 1.0),
    "from itertools import batched\nprint(*batched(['right'], 1).__next__())": (0.0, 1.0),
    'd = {"a": "right"}\nprint(f"{d["a"]}")': (0.0, 1.0),
}
"""Source, and its scores under 3.11 and under later versions."""


@needs_jail
@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
async def test_a_program_runs_under_the_python_of_the_run(python, tmp_path):
    asked = section(python=python)
    if python != OWN:
        venv(tmp_path / name_of(asked.runtime), other_python(python).bare)
    rows = write_rows(tmp_path / "rows", [program_row("Say it.", exchange("", "right"))])
    tokenizer = byte_tokenizer(tmp_path / "model")
    task = text_task(asked, rows, lambda: tokenizer, SimBackground(), ROOM, [tmp_path])
    await task.open()
    scores = [await task.grade(0, f"```python\n{source}\n```") for source in PROGRAMS]
    assert scores == [both[python != "3.11"] for both in PROGRAMS.values()]
