"""Server of a checker that forks one child process per question.

The checker is imported once. Each child starts from the state after the import, so its answer and
resource use follow from the question alone, and the kernel can kill it separately.
"""

import json
import os
import resource
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from typing import Any

READY = b"ready\n"
"""First output of a program in a jail; without it the jail failed to start."""

LENGTH_BYTES = 4
"""Length prefix of questions and replies, big-endian; both are JSON."""

REPLY_BYTES_MAX = 1 << 16
_RESERVE_BYTES = 1024
"""Room in a reply for the fields besides the answer."""


_SCRATCH = ("/tmp", "/dev/shm")  # noqa: S108 - the jail's own


def take_output() -> int:
    """Reserve the output for replies and return it; later prints of libraries are discarded."""
    output = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.close(nothing)
    return output


def serve(output: int, answer: Callable[[Any], Any], cpu_seconds_max: int) -> None:
    """Reply to questions until the input ends; remove files that a child leaves behind.

    A reply holds the ``answer`` (None when the checker raised), the exit ``status`` of the child as
    in a shell, and its ``cpu_seconds`` and ``memory_bytes``.
    """
    kept = _scratch()
    os.write(output, READY)
    while header := _read(LENGTH_BYTES):
        question = json.loads(_read(int.from_bytes(header, "big")))
        result_end, told_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(result_end)
            os.close(output)
            os.dup2(1, 0)  # its leftover processes must not read the next question
            _answer(answer, question, told_end, cpu_seconds_max)
        os.close(told_end)
        with os.fdopen(result_end, "rb") as result:
            said = result.read(REPLY_BYTES_MAX - _RESERVE_BYTES)
        _, status, use = os.wait4(child, 0)
        for path in _scratch() - kept:
            _remove(path)
        code = os.waitstatus_to_exitcode(status)
        reply = {
            "answer": _understood(said) if code == 0 else None,
            "status": 128 - code if code < 0 else code,
            "cpu_seconds": use.ru_utime + use.ru_stime,
            "memory_bytes": use.ru_maxrss << 10,
        }
        encoded = json.dumps(reply).encode()
        os.write(output, len(encoded).to_bytes(LENGTH_BYTES, "big") + encoded)


def _answer(
    answer: Callable[[Any], Any], question: Any, told_end: int, cpu_seconds_max: int
) -> None:
    """Answer in a child process, and exit."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds_max, cpu_seconds_max))
    result = None
    try:
        result = answer(question)
    except BaseException:  # noqa: BLE001, S110 - any exception means no answer
        pass
    finally:
        with os.fdopen(told_end, "wb") as told:
            told.write(json.dumps(result).encode())
        os._exit(0)


def _scratch() -> set[str]:
    return {entry.path for place in _SCRATCH for entry in os.scandir(place)}


def _remove(path: str) -> None:
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):  # opening a pipe would block
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)  # noqa: PTH108 - as scanned


def _understood(said: bytes) -> Any:
    try:
        return json.loads(said)
    except ValueError:  # truncated at the limit
        return None


def _read(count: int) -> bytes:
    """Return ``count`` bytes, fewer at the end of the input."""
    parts = bytearray()
    while len(parts) < count and (part := os.read(0, count - len(parts))):
        parts += part
    return bytes(parts)
