"""Run a program like ``python answer.py``, and then its test lines.

Standard input is the concatenation of the program, the asserts, the mark and the program's own
input; the arguments are the lengths of the first three in bytes. With asserts the module name is
``answer``, and the mark on a separate line means that all asserts passed.

Random numbers, the number of processors and the size of thread stacks are the same on every run and
machine.
"""

import _thread
import builtins
import os
import random
import site
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

READY = b"ready\n"
DIRECTORY = "/tmp"  # noqa: S108 - the jail's own
FILES_MAX = 1 << 16
THREAD_STACK_BYTES = 8 << 20
"""Usual stack limit; by default each thread would map the 64 MiB of this jail."""

FRAMES_BELOW = 2 if sys.version_info < (3, 12) else 1
"""Stack frames below the program's first one, which count against its recursion limit: the frame of
this file and, before Python 3.12, that of ``exec``."""


def take_input() -> list[bytes]:
    """Return the parts of the standard input; the last part becomes the program's input.

    That input is a file, as with ``< input``: programs may get its size, seek and reopen it.
    """
    with open(0, "rb", closefd=False) as everything:
        data = everything.read()
    parts = []
    for length in map(int, sys.argv[1:]):
        if length > len(data):
            sys.exit(3)
        parts.append(data[:length])
        data = data[length:]
    given = os.memfd_create("input")
    os.dup2(given, 0)
    os.close(given)
    with open(0, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(0, 0, os.SEEK_SET)
    stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - open until the end
    stdin.buffer.raw.name = "<stdin>"  # type: ignore[attr-defined]
    sys.stdin = sys.__stdin__ = stdin  # type: ignore[misc]
    return parts


def zeros(size: int, flags: int = 0) -> bytes:
    """Return zero bytes in place of the system's random bytes."""
    del flags
    return bytes(size)


def fix_machine() -> None:
    """Make random numbers, processor count and file modes the same on every machine."""
    os.urandom = os.getrandom = random._urandom = zeros  # type: ignore[attr-defined]  # noqa: SLF001
    original = random.Random.seed

    def seed(self: random.Random, a: Any = None, version: int = 2) -> None:
        original(self, 0 if a is None else a, version)

    random.seed(0)
    random.Random.seed = seed  # type: ignore[method-assign]
    random.seed = random._inst.seed  # noqa: SLF001
    os.cpu_count = lambda: 1
    if hasattr(os, "process_cpu_count"):
        os.process_cpu_count = lambda: 1
    os.sched_getaffinity = lambda _: {0}
    os.closerange(3, FILES_MAX)
    os.umask(0o022)
    _thread.stack_size(THREAD_STACK_BYTES)
    sys.setrecursionlimit(sys.getrecursionlimit() + FRAMES_BELOW)


def make_module(source: bytes, name: str) -> ModuleType:
    """Write a program to its file and return its module."""
    path = Path(DIRECTORY, "answer.py")
    path.write_bytes(source)
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__loader__ = SourceFileLoader(name, str(path))
    module.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = sys.modules[name] = module
    sys.argv[:] = ["answer.py"]
    sys.path.insert(0, DIRECTORY)
    site.setquit()
    site.setcopyright()
    site.sethelper()
    return module


def tell(mark: bytes) -> None:
    """Write the mark on a separate line after the program's output."""
    for stream in {sys.stdout, sys.__stdout__}:
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    _write(1, b"\n" + mark + b"\n")


_write = os.write

if __name__ == "__main__":
    os.write(1, READY)
    program, asserts, mark = take_input()
    fix_machine()
    module = make_module(program, "answer" if asserts else "__main__")
    code = compile(program, str(module.__file__), "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - purpose of the jail
    if asserts:
        code = compile(asserts, "<asserts>", "exec", dont_inherit=True)
        exec(code, module.__dict__)  # noqa: S102 - as above
        tell(mark)
