"""Seccomp filter that allows threads and blocks new processes.

Memory is limited per process, so allowing one process bounds a program's total memory.
``RLIMIT_NPROC`` cannot do this: it counts threads and processes alike.
"""

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FLAGS = 0, 4, 16
"""Offsets in ``struct seccomp_data``; the first argument of ``clone`` is its flags."""

_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
"""Makes the C library fall back from ``clone3``, whose flags a filter cannot read, to ``clone``."""

_CLONE_THREAD = 0x10000
_X32 = 0x40000000
"""Lowest system call number of the x32 ABI."""


@dataclass(frozen=True, slots=True)
class _Calls:
    architecture: int
    clone: int
    clone3: int
    forks: tuple[int, ...] = ()


_CALLS: Mapping[str, _Calls] = {
    "x86_64": _Calls(architecture=0xC000003E, clone=56, clone3=435, forks=(57, 58)),
    "aarch64": _Calls(architecture=0xC00000B7, clone=220, clone3=435),
}


def one_process(machine: str) -> bytes:
    """Return the filter for an architecture in the notation of ``uname -m``.

    Creating a process fails with EPERM. Raises ``ValueError`` for an unknown architecture.
    """
    if machine not in _CALLS:
        raise ValueError(f"no system call filter for {machine}, only for {', '.join(_CALLS)}")
    calls = _CALLS[machine]
    refused = [(_EQUAL, number) for number in calls.forks]
    tests = [*refused, (_AT_LEAST, _X32)]
    program = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, calls.architecture),
        (_RETURN, 0, 0, _REFUSE),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for operation, value in tests:
        program += [(operation, 0, 1, value), (_RETURN, 0, 0, _REFUSE)]
    program += [
        (_EQUAL, 0, 1, calls.clone3),
        (_RETURN, 0, 0, _UNKNOWN),
        (_EQUAL, 0, 3, calls.clone),
        (_LOAD, 0, 0, _FLAGS),
        (_ANY_BIT, 1, 0, _CLONE_THREAD),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
