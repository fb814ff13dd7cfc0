"""Self-test of a jail: try to break out, and print the successful attempts, or ``holds``.

Arguments: a directory that must be hidden, the limits of processes and threads, and the expected
environment variables.
"""

import _thread
import os
import resource
import socket
import sys
from collections.abc import Callable
from pathlib import Path

holes = []
processes_max, threads_max = int(sys.argv[2]), int(sys.argv[3])


def must_fail(what: str, attempt: Callable[[], object]) -> None:
    """Record a hole unless an attempt fails."""
    try:
        attempt()
    except (OSError, MemoryError, RuntimeError):
        return
    holes.append(what)


def flood() -> None:
    """Create one process too many."""
    children = []
    try:
        for _ in range(max(processes_max, threads_max)):
            child = os.fork()
            if child == 0:
                os.read(0, 1) or os._exit(0)
            children.append(child)
    finally:
        for child in children:
            os.waitpid(child, 0)


def start_threads(count: int) -> None:
    """Start threads that wait until this process ends."""
    _thread.stack_size(1 << 20)
    for _ in range(count):
        _thread.start_new_thread(lock.acquire, ())


if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
    holes.append("memory without a limit")
must_fail("memory without a limit", lambda: bytearray(resource.getrlimit(resource.RLIMIT_AS)[0]))
must_fail("a writable system", lambda: Path("/usr/hole").touch())
must_fail("a writable root", lambda: Path("/hole").touch())
must_fail("writable devices", lambda: Path("/dev/hole").touch())
must_fail("a home that is seen", lambda: [*Path(sys.argv[1], ".ssh").iterdir()])
must_fail("a network", lambda: socket.create_connection(("192.0.2.1", 9), 1))
if processes_max == 1:
    must_fail("processes of a program that may have one", os.fork)
    lock = _thread.allocate_lock()
    lock.acquire()
    try:
        start_threads(threads_max - 1)
    except RuntimeError:
        holes.append("fewer threads than anywhere else (Linux before 5.14 counts other jails')")
    else:
        must_fail("threads without a limit", lambda: start_threads(1))
else:
    must_fail("processes without a limit", flood)
if any(path.name.isdigit() and int(path.name) > 64 for path in Path("/proc").iterdir()):
    holes.append("processes of others that are seen")
if set(os.environ) - {"PWD", *sys.argv[4].split(",")}:
    holes.append("environment variables")
os.write(1, f"{', '.join(holes) or 'holds'}\n".encode())
os._exit(0)
