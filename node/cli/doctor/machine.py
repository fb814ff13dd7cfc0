"""The machine: memory, disk, devices, clock."""

import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from node.cli.doctor.finding import Finding, FindingLevel
from node.founding.needs import Needs
from node.local.hardware import gpus
from node.local.units import bytes_text
from protocol.core.types import Role

_UNSYNCHRONISED = 0x0040
"""``STA_UNSYNC`` of adjtimex(2)."""

_TIMEX_BYTES = 512
"""More than ``struct timex`` has on any architecture."""

_STATUS_OFFSET = 40
"""Of ``status`` in ``struct timex`` where a long has 8 bytes."""


def check_clock() -> Finding:
    """Ask the kernel whether something keeps its clock right: epochs are counted by it."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except AttributeError:  # not Linux
        state = -1
    if state < 0 or ctypes.sizeof(ctypes.c_long) != 8:
        advice = "see that the clock is within a second of the time"
        return Finding(
            "clock", FindingLevel.WARNING, "the kernel does not tell whether it is set", advice
        )
    status = int.from_bytes(buffer.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], "little")
    if status & _UNSYNCHRONISED:
        return Finding(
            "clock",
            FindingLevel.WARNING,
            "nothing keeps it right",
            "run chrony or systemd-timesyncd; some virtual machines are set from outside",
        )
    return Finding("clock", FindingLevel.OK, "synchronised")


def check_disk(root: Path, roles: tuple[Role, ...], needs: Needs | None) -> Finding:
    """Compare the room of a data directory with what the run will keep in it."""
    existing = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{bytes_text(free)} free at {root}"
    if not os.access(existing, os.W_OK):
        return Finding(
            "disk", FindingLevel.FAILURE, f"{root} cannot be written", "choose --data-dir"
        )
    if needs is None:
        return Finding("disk", FindingLevel.OK, found)
    needed = needs.disk_of(roles)
    level = FindingLevel.OK if free >= needed else FindingLevel.FAILURE
    advice = "" if free >= needed else "free some, or choose --data-dir on another disk"
    return Finding("disk", level, f"{found}, the run needs about {bytes_text(needed)}", advice)


def check_devices(device: str, roles: tuple[Role, ...], needs: Needs | None) -> Iterator[Finding]:
    """Yield what computes, and whether each role's memory fits; ``device`` as nodes take it."""
    cards = list(gpus())
    for number, card in enumerate(cards):
        room = f"{bytes_text(card.free_bytes)} of {bytes_text(card.memory_bytes)} free"
        yield Finding(
            f"GPU {number}", FindingLevel.OK, f"{card.name}, {room}, driver {card.driver}"
        )
    on_gpu = device.startswith("cuda") or (device == "auto" and bool(cards))
    number = int(device.partition(":")[2] or 0)
    if on_gpu and number >= len(cards):
        what = f"device {device}, and {len(cards)} GPUs are here"
        yield Finding(
            "device", FindingLevel.FAILURE, what, "install the driver, or take --device cpu"
        )
        return
    if not on_gpu:
        advice = "models of real size need a GPU" if needs and needs.weights > 10**8 else ""
        level = FindingLevel.WARNING if advice else FindingLevel.OK
        yield Finding("device", level, "engines compute on the CPU", advice)
    free = cards[number].free_bytes if on_gpu else psutil.virtual_memory().available
    where = f"of GPU {number}" if on_gpu else "of this machine"
    if needs is None:
        yield Finding("memory", FindingLevel.OK, f"{bytes_text(free)} free {where}")
        return
    for role in roles:
        if role is Role.RELAY:
            continue
        needed = needs.memory_of(role)
        found = f"{role} needs about {bytes_text(needed)}, {bytes_text(free)} {where} are free"
        level = FindingLevel.OK if free >= needed else FindingLevel.FAILURE
        advice = "" if free >= needed else "free some, or join a run with a smaller model"
        yield Finding("memory", level, found, advice)
