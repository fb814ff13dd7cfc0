"""Whether this machine has the device that engines shall compute on; torch is not imported."""

import os
from importlib.metadata import PackageNotFoundError, version

from node.local.hardware import gpus

_ALL_CARDS = "CUDA_VISIBLE_DEVICES"


def why_no_device(device: str, *, own_torch: bool) -> str:
    """Return why engines could not compute on ``device`` (``auto``, ``cpu``, ``cuda[:N]``).

    In one line; empty when nothing is known against it. ``own_torch`` tells whether engines run
    under this interpreter, whose torch can be looked at.
    """
    if not device.startswith("cuda"):
        return ""
    build = _torch_build() if own_torch else ""
    if build == "cpu":
        return (
            f"--device {device}: the torch that is installed here is built for CPUs; install one "
            "for CUDA, name an interpreter that has it with --engine-python, or use --device cpu"
        )
    cards = _visible(len(list(gpus())))
    if build.startswith("rocm"):  # its cards are called cuda, and NVIDIA's driver is not asked
        return ""
    if not cards:
        return f"--device {device}: no NVIDIA driver shows a GPU here; use --device cpu, or auto"
    number = int(device.partition(":")[2] or 0)
    if number >= cards:
        last = f"cuda:{cards - 1}"
        return f"--device {device}: the last GPU here is {last}; use that, or --device auto"
    return ""


def _torch_build() -> str:
    """Return what torch says behind its version: ``cpu``, ``cu128``, ``rocm6.4``, or nothing."""
    try:
        return version("torch").partition("+")[2]
    except PackageNotFoundError:
        return ""


def _visible(cards: int) -> int:
    """Return how many of the machine's GPUs CUDA shows to us."""
    listed = os.environ.get(_ALL_CARDS)
    if listed is None:
        return cards
    shown = [name for name in listed.split(",") if name.strip() not in ("", "-1")]
    return min(cards, len(shown))
