"""Questions to a checker, each answered by a child of its own.

The checker is imported once. A child begins in the state after that, whatever was asked before, so
its answer and what it uses follow from the question; and the kernel can end it alone.
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
"""What a program in a jail writes first, so that a jail that could not be made is no answer."""

LENGTH_BYTES = 4
"""In front of a question and of a reply, big-endian; both are JSON."""

REPLY_BYTES_MAX = 1 << 16
_RESERVE_BYTES = 1024
"""For what a reply says besides the answer."""


_SCRATCH = ("/tmp", "/dev/shm")  # noqa: S108 - the jail's own


def take_output() -> int:
    """Return the output for replies alone: what libraries print from now on goes nowhere."""
    output = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 1)
    os.close(nothing)
    return output


def serve(output: int, answer: Callable[[Any], Any], cpu_seconds_max: int) -> None:
    """Reply to questions until there are no more; what a child leaves in files is taken away.

    A reply holds the ``answer``, None when the checker raised; the ``status`` with which its child
    ended, as a shell gives it; and its ``cpu_seconds`` and ``memory_bytes``.
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
            os.dup2(1, 0)  # the next question is not for what it leaves behind
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
    """Answer in a child, and end it."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds_max, cpu_seconds_max))
    result = None
    try:
        result = answer(question)
    except BaseException:  # noqa: BLE001, S110 - whatever a checker raises, it has no answer
        pass
    finally:
        with os.fdopen(told_end, "wb") as told:
            told.write(json.dumps(result).encode())
        os._exit(0)


def _scratch() -> set[str]:
    return {entry.path for place in _SCRATCH for entry in os.scandir(place)}


def _remove(path: str) -> None:
    with suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):  # to open a pipe would wait for its other end
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)  # noqa: PTH108 - as scanned


def _understood(said: bytes) -> Any:
    try:
        return json.loads(said)
    except ValueError:  # cut off at the limit
        return None


def _read(count: int) -> bytes:
    """Return so many bytes, fewer at the end of the input."""
    parts = bytearray()
    while len(parts) < count and (part := os.read(0, count - len(parts))):
        parts += part
    return bytes(parts)
