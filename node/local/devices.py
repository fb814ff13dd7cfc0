"""Check for the compute device of the engines, without importing torch."""

import os
from importlib.metadata import PackageNotFoundError, version

from node.local.hardware import gpus

_ALL_CARDS = "CUDA_VISIBLE_DEVICES"


def why_no_device(device: str, *, own_torch: bool) -> str:
    """Return the reason, in one line, why engines could not use ``device``; empty if none is known.

    ``device`` is ``auto``, ``cpu`` or ``cuda[:N]``. ``own_torch`` is True if engines run under this
    interpreter, whose torch can then be checked.
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
    if build.startswith("rocm"):  # its devices are called cuda, and have no NVIDIA driver
        return ""
    if not cards:
        return f"--device {device}: no NVIDIA driver shows a GPU here; use --device cpu, or auto"
    number = int(device.partition(":")[2] or 0)
    if number >= cards:
        last = f"cuda:{cards - 1}"
        return f"--device {device}: the last GPU here is {last}; use that, or --device auto"
    return ""


def _torch_build() -> str:
    """Return the build tag of torch's version: ``cpu``, ``cu128``, ``rocm6.4``, or nothing."""
    try:
        return version("torch").partition("+")[2]
    except PackageNotFoundError:
        return ""


def _visible(cards: int) -> int:
    """Return the number of GPUs that CUDA_VISIBLE_DEVICES leaves visible."""
    listed = os.environ.get(_ALL_CARDS)
    if listed is None:
        return cards
    shown = [name for name in listed.split(",") if name.strip() not in ("", "-1")]
    return min(cards, len(shown))
