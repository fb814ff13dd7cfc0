"""Memory peak and existence of other processes."""

import re
from pathlib import Path

import psutil

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_rss_bytes(pid: int | None) -> int:
    """Return the largest resident size of a process so far; 0 if it cannot be read.

    The peak of an ended process is lost, and without ``/proc`` only the current size is known, so
    callers sample while it runs.
    """
    if pid is None:
        return 0
    try:
        peak = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
        return int(peak[1]) * 1024 if peak else 0
    except OSError:
        pass
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
