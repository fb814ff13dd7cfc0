"""Checks of clock, disk, devices and memory."""

import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psutil

from node.cli.doctor import Finding, FindingLevel
from node.founding.needs import Needs
from node.local.hardware import gpus
from node.local.units import bytes_text
from protocol.core.types import Role

_UNSYNCHRONISED = 0x0040
"""``STA_UNSYNC`` of adjtimex(2)."""

_TIMEX_BYTES = 512
"""More than ``struct timex`` has on any architecture."""

_STATUS_OFFSET = 40
"""Offset of ``status`` in ``struct timex`` with 8-byte longs."""


def check_clock() -> Finding:
    """Check that the kernel's clock is synchronised: epochs are counted by it."""
    buffer = ctypes.create_string_buffer(_TIMEX_BYTES)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(buffer)
    except AttributeError:  # not Linux
        state = -1
    if state < 0 or ctypes.sizeof(ctypes.c_long) != 8:
        advice = "make sure that the clock is right within a second"
        return Finding(
            "clock", FindingLevel.WARNING, "the kernel does not report its state", advice
        )
    status = int.from_bytes(buffer.raw[_STATUS_OFFSET : _STATUS_OFFSET + 4], "little")
    if status & _UNSYNCHRONISED:
        return Finding(
            "clock",
            FindingLevel.WARNING,
            "not synchronised",
            "run chrony or systemd-timesyncd; some virtual machines get their time from the host",
        )
    return Finding("clock", FindingLevel.OK, "synchronised")


def check_disk(root: Path, roles: tuple[Role, ...], needs: Needs | None) -> Finding:
    """Compare the free disk space of a data directory with the needs of the run."""
    existing = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    found = f"{bytes_text(free)} free at {root}"
    if not os.access(existing, os.W_OK):
        return Finding("disk", FindingLevel.FAILURE, f"{root} is not writable", "choose --data-dir")
    if needs is None:
        return Finding("disk", FindingLevel.OK, found)
    needed = needs.disk_of(roles)
    level = FindingLevel.OK if free >= needed else FindingLevel.FAILURE
    advice = "" if free >= needed else "free disk space, or choose --data-dir on another disk"
    return Finding("disk", level, f"{found}, the run needs about {bytes_text(needed)}", advice)


def check_ranks(devices: tuple[str, ...], needs: Needs | None) -> Iterator[Finding]:
    """Check the devices of a trainer of several ranks, and their memory together."""
    cards = list(gpus())
    numbers = [int(device.partition(":")[2] or 0) for device in devices if device != "cpu"]
    missing = [f"GPU {number}" for number in numbers if number >= len(cards)]
    if missing:
        what = f"{', '.join(missing)} missing: this machine has {len(cards)} GPUs"
        yield Finding("ranks", FindingLevel.FAILURE, what, "choose other --trainer-devices")
        return
    cores = psutil.cpu_count() or 1
    crowded = not numbers and len(devices) > cores
    yield Finding(
        "ranks",
        FindingLevel.WARNING if crowded else FindingLevel.OK,
        f"{len(devices)} processes train on {', '.join(dict.fromkeys(devices))}",
        f"this machine has {cores} cores: choose fewer --trainer-ranks" if crowded else "",
    )
    if needs is None:
        return
    free = sum(cards[number].free_bytes for number in numbers)
    yield from _check_memory(Role.TRAINER, needs, free if numbers else None, "of the ranks")


def check_devices(device: str, roles: tuple[Role, ...], needs: Needs | None) -> Iterator[Finding]:
    """Yield the devices, and a memory check of each role; ``device`` is the node's option."""
    cards = list(gpus())
    for number, card in enumerate(cards):
        room = f"{bytes_text(card.free_bytes)} of {bytes_text(card.memory_bytes)} free"
        yield Finding(
            f"GPU {number}", FindingLevel.OK, f"{card.name}, {room}, driver {card.driver}"
        )
    on_gpu = device.startswith("cuda") or (device == "auto" and bool(cards))
    number = int(device.partition(":")[2] or 0)
    if on_gpu and number >= len(cards):
        what = f"{device} is missing: this machine has {len(cards)} GPUs"
        yield Finding(
            "device", FindingLevel.FAILURE, what, "install the driver, or use --device cpu"
        )
        return
    if not on_gpu:
        advice = "a model of this size needs a GPU" if needs and needs.weights > 10**8 else ""
        level = FindingLevel.WARNING if advice else FindingLevel.OK
        yield Finding("device", level, "engines compute on the CPU", advice)
    free = cards[number].free_bytes if on_gpu else None
    where = f"of GPU {number}" if on_gpu else "of this machine"
    if needs is None:
        available = psutil.virtual_memory().available if free is None else free
        yield Finding("memory", FindingLevel.OK, f"{bytes_text(available)} free {where}")
        return
    for role in roles:
        if role is not Role.RELAY:
            yield from _check_memory(role, needs, free, where)


def _check_memory(role: Role, needs: Needs, free: int | None, where: str) -> Iterator[Finding]:
    """Check the memory of a role's device with ``free`` bytes, None for this machine's.

    A trainer of rounds needs memory of its host in addition.
    """
    needed, room = needs.memory_of(role), psutil.virtual_memory().available
    host_bytes = needs.host_bytes if role is Role.TRAINER else 0
    if free is None:
        yield _memory(role, needed + host_bytes, room, where)
        return
    yield _memory(role, needed, free, where)
    if host_bytes:
        yield _memory(role, host_bytes, room, "of this machine, for outer steps,")


def _memory(role: Role, needed: int, free: int, where: str) -> Finding:
    found = f"{role} needs about {bytes_text(needed)}, {bytes_text(free)} {where} is free"
    level = FindingLevel.OK if free >= needed else FindingLevel.FAILURE
    advice = "" if free >= needed else "free memory, or join a run with a smaller model"
    return Finding("memory", level, found, advice)
