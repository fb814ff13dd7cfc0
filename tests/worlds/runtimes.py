"""Scoring runtimes for tests: real virtual environments, made without a registry."""

import os

import pytest

from node.local.errors import NodeError
from node.local.interpreters import find_interpreter
from protocol.run.recipe import EnvironmentSection
from protocol.run.sections import RuntimeSection
from roles.environments.runtime import completed, executable_in, own_interpreter

OWN = own_interpreter().minor
OTHER = "3.13" if OWN != "3.13" else "3.12"
"""Another minor version, which the machine may or may not have."""


def section(name="code/sums", python=OWN, **packages):
    """Return a task with the package versions installed here, except those given."""
    runtime = completed(EnvironmentSection(name=name))
    named = {key.replace("_", "-"): value for key, value in packages.items()}
    runtime = RuntimeSection(python=python, packages=runtime.packages | named)
    return EnvironmentSection(name=name, runtime=runtime)


def pretend_installed(directory, packages):
    """Make a virtual environment list packages of these versions, as installers do."""
    (libraries,) = executable_in(directory).parents[1].glob("lib/python*/site-packages")
    for name, version in packages.items():
        known = libraries / f"{name.replace('-', '_')}-{version}.dist-info"
        known.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (known / "METADATA").write_text(text)


def other_python(python):
    """Return the machine's interpreter of a minor version, or skip the test."""
    try:
        return find_interpreter(python, os.environ)
    except NodeError as error:
        pytest.skip(str(error))
