"""Run pytest, end every process that it leaves behind, and report failures even if it is killed.

    python -m tests.supervise ARGUMENTS OF PYTEST

Linux hands the orphans of this process tree to the supervisor (a "child subreaper"), so nodes, p2pd
and engines of a crashed or interrupted test end with the run, however they were started. If pytest
ends without its own summary, the supervisor prints the failures and the slowest tests so far.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.worlds.leashed import leashed

RESULTS = "TEST_RESULTS"
"""The environment variable with the path of the file to which tests/conftest.py appends results."""

SUMMARIZED = {0, 1, 5}
"""Exit codes after which pytest has printed its summary: passed, failed, no tests."""

SLOWEST = 25
_PR_SET_CHILD_SUBREAPER = 36


def main(arguments: Sequence[str]) -> int:
    """Return the exit code of pytest, or 1 for a signal that ended it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    with tempfile.TemporaryDirectory(prefix="tests-") as folder:
        results = Path(folder) / "results"
        results.touch()
        pytest = subprocess.Popen(
            leashed(sys.executable, "-m", "pytest", *arguments),
            env=os.environ | {RESULTS: str(results)},
        )
        # A terminal sends SIGINT to pytest, too. Handlers, unlike SIG_IGN, are not inherited.
        signal.signal(signal.SIGINT, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda number, _: pytest.send_signal(number))
        code = exit_code_of(pytest.pid)
        left = end_descendants()
        if code not in SUMMARIZED:
            say(f"pytest ended with exit code {code}", *summary_of(results))
    if left:
        say("processes left by the tests, now killed:", *(f"  {line}" for line in left))
    return code if code >= 0 else 1


def say(*lines: str) -> None:
    sys.stdout.write("\n".join(["", *lines, ""]))
    sys.stdout.flush()


def exit_code_of(pid: int) -> int:
    """Wait until a child ends; reap all others that end before it."""
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def end_descendants() -> list[str]:
    """Kill and reap all processes below this one; return their command lines."""
    left = {}
    while below := psutil.Process().children(recursive=True):
        for process in below:
            with suppress(psutil.NoSuchProcess):
                if command := " ".join(process.cmdline()).strip():  # of a zombie it is empty
                    left[process.pid] = command[:120]
                process.kill()
        with suppress(ChildProcessError):
            os.wait()
    return list(left.values())


def summary_of(results: Path) -> Iterator[str]:
    """Yield lines that name the failures and the slowest tests of a file of results."""
    found = [json.loads(line) for line in results.read_text().splitlines()]
    slowest = sorted(found, key=lambda one: one["seconds"], reverse=True)[:SLOWEST]
    yield f"slowest of {len(found)} recorded results:"
    yield from (f"  {one['seconds']:8.2f} s {one['when']:8} {one['nodeid']}" for one in slowest)
    failed = [one for one in found if one["outcome"] == "failed"]
    yield f"failed: {len(failed)}"
    yield from (f"  FAILED {one['when']:8} {one['nodeid']}" for one in failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
