import os

import pytest

from node.local import interpreters, scoring_runtime
from node.local.config import runtime_directories
from node.local.errors import ExitCode, NodeError
from node.local.interpreters import find_interpreter
from node.local.scoring_runtime import install_runtime, installed_runtimes
from protocol.run.sections import RuntimeSection
from roles.environments.runtime import executable_in, name_of, own_interpreter
from tests.worlds.runtimes import OWN, pretend_installed, section

BARE = RuntimeSection(python=OWN)


def names(directory):
    return sorted(path.name for path in directory.iterdir() if path.name != ".lock")


def install(runtime, directory, named=None, said=None):
    return install_runtime(runtime, directory, named, [].append if said is None else said.append)


def test_a_runtime_is_made_once_and_readable_for_the_user_of_the_jail(tmp_path):
    place, said = tmp_path / "some" / "where", []
    before = os.umask(0o077)
    try:
        made = install(BARE, place, said=said)
    finally:
        os.umask(before)
    assert made.executable == executable_in(place / name_of(BARE))
    assert (made.minor, made.base_prefix) == (OWN, own_interpreter().base_prefix)
    for path in (place, place / name_of(BARE), made.prefix / "lib", made.prefix / "pyvenv.cfg"):
        assert path.stat().st_mode & 0o044 == 0o044
    written = (made.prefix / "pyvenv.cfg").stat().st_ino
    assert len(said) == 1
    assert install(BARE, place, said=said) == made
    assert (made.prefix / "pyvenv.cfg").stat().st_ino == written
    assert len(said) == 1
    assert names(place) == [name_of(BARE)]
    assert [found.executable for found in installed_runtimes([tmp_path / "none", place])] == [
        made.executable
    ]


def test_what_a_crash_left_is_removed_and_what_is_damaged_is_made_anew(tmp_path):
    (tmp_path / ".left" / "venv" / "bin").mkdir(parents=True)
    damaged = tmp_path / name_of(BARE)
    damaged.mkdir()
    assert install(BARE, tmp_path).fits(BARE)
    assert names(tmp_path) == [name_of(BARE)]
    executable_in(damaged).unlink()
    assert installed_runtimes([tmp_path]) == []
    assert install(BARE, tmp_path).fits(BARE)


def test_packages_that_cannot_be_had_leave_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    wanted = section("math/sums", mpmath="9.9").runtime
    with pytest.raises(NodeError, match=r"^pip could not install these versions") as raised:
        install(wanted, tmp_path / "runtimes")
    assert raised.value.exit_code == ExitCode.CRASH
    assert names(tmp_path / "runtimes") == []


def test_other_versions_than_asked_for_are_no_runtime(tmp_path, monkeypatch):
    wanted = section("math/sums", mpmath="9.9").runtime

    def installed(command, failed):
        run(command[:5], failed)
        if "install" in command:
            return
        pretend_installed(command[-1], wanted.packages | {"mpmath": "9.8"})

    run = scoring_runtime._run
    monkeypatch.setattr(scoring_runtime, "_run", installed)
    with pytest.raises(NodeError, match=r"^what was installed is not Python"):
        install(wanted, tmp_path)
    assert names(tmp_path) == []


def test_a_directory_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NodeError, match=r"^cannot write .*file") as raised:
        install(BARE, tmp_path / "file")
    assert raised.value.exit_code == ExitCode.LOCKED


# Interpreters


def program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def nowhere(monkeypatch):
    """Machine with our interpreter alone, outside of the searched places."""
    own = own_interpreter()
    moved = interpreters.own_interpreter().__class__(*[own.executable] * 3, own.version)
    monkeypatch.setattr(interpreters, "own_interpreter", lambda: moved)
    monkeypatch.setattr(interpreters, "USUAL_DIRECTORIES", ("/nowhere",))
    return own.bare


@pytest.mark.parametrize("place", ["path", "pyenv", "uv"])
def test_a_shim_that_fails_is_skipped(tmp_path, nowhere, place):
    name = f"python{OWN}"
    program(tmp_path / "shims" / name, "echo 'pyenv: not found' >&2; exit 127")
    real = {
        "path": tmp_path / "bin" / name,
        "pyenv": tmp_path / ".pyenv" / "versions" / f"{OWN}.4" / "bin" / name,
        "uv": tmp_path / ".local/share/uv/python" / f"cpython-{OWN}.4-linux" / "bin" / name,
    }[place]
    environment = {"PATH": f"{tmp_path / 'shims'}:{tmp_path / 'bin'}", "HOME": str(tmp_path)}
    with pytest.raises(NodeError, match=rf"^no Python {OWN} on this machine") as raised:
        find_interpreter(OWN, environment)
    assert raised.value.exit_code == ExitCode.CONFIG
    program(real, f'exec {nowhere} "$@"')
    assert find_interpreter(OWN, environment).executable == nowhere


def test_a_named_interpreter_is_the_one_that_is_used(tmp_path):
    with pytest.raises(NodeError, match=r"--interpreter /bin/sh is no CPython"):
        find_interpreter(OWN, {}, "/bin/sh")
    with pytest.raises(NodeError, match=r"no CPython 3\.10"):
        find_interpreter("3.10", {}, own_interpreter().executable)
    assert find_interpreter(OWN, {}, own_interpreter().executable).prefix == (
        own_interpreter().base_prefix
    )


def test_runtimes_are_where_their_user_keeps_data_and_roots_are_for_all(monkeypatch):
    machine = "/var/lib/prime-node-scoring"
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert list(map(str, runtime_directories({}))) == [machine]
    given = runtime_directories({"XDG_DATA_HOME": "/data"})
    assert list(map(str, given)) == ["/data/prime-node-scoring", machine]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/one")
    own = "/home/one/.local/share/prime-node-scoring"
    assert list(map(str, runtime_directories({}))) == [own, machine]
