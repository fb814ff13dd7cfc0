"""How much memory a process has used at most, and whether it is there at all."""

import re
from pathlib import Path

import psutil

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def peak_rss_bytes(pid: int | None) -> int:
    """Return the largest resident size a process ever had; 0 when it cannot be read.

    The peak of a process that is gone is lost, and without ``/proc`` only the present size is
    known, so callers sample while it runs.
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
