"""Check for the compute devices of the engines, without importing torch."""

import os
import re
from importlib.metadata import PackageNotFoundError, version

from node.local.hardware import gpus

_ALL_CARDS = "CUDA_VISIBLE_DEVICES"
_GPU_NUMBERS = re.compile(r"(?P<first>[0-9]{1,3})(-(?P<last>[0-9]{1,3}))?")


def read_gpu_numbers(value: object) -> tuple[int, ...]:
    """Return the numbers of ``0-3``, ``0,2`` or ``[0, 2]``; raises ``ValueError``."""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not parts:
        raise ValueError("write GPU numbers: 0-7, or 0,2, or a list")
    numbers = [number for part in parts for number in _numbers(str(part).strip())]
    if len(set(numbers)) < len(numbers):
        raise ValueError(f"{value!r} names a GPU twice")
    return tuple(numbers)


def _numbers(part: str) -> range:
    match = _GPU_NUMBERS.fullmatch(part)
    if match is None:
        raise ValueError(f"{part!r} is not a GPU number or a range such as 0-7")
    first = int(match["first"])
    numbers = range(first, int(match["last"] or first) + 1)
    if not numbers:
        raise ValueError(f"{part!r} is a range that ends before it begins")
    return numbers


def why_no_device(device: str, *, own_torch: bool, option: str = "--device") -> str:
    """Return the reason, in one line, why engines could not use ``device``; empty if none is known.

    ``device`` is ``auto``, ``cpu`` or ``cuda[:N]``, chosen by ``option``. ``own_torch`` is True if
    engines run under this interpreter, whose torch can then be checked.
    """
    other = "--device cpu, or auto" if option == "--device" else f"no {option}"
    if not device.startswith("cuda"):
        return ""
    build = _torch_build() if own_torch else ""
    if build == "cpu":
        return (
            f"{option} {device}: the torch that is installed here is built for CPUs; install one "
            f"for CUDA, name an interpreter that has it with --engine-python, or use {other}"
        )
    cards = _visible(len(list(gpus())))
    if build.startswith("rocm"):  # its devices are called cuda, and have no NVIDIA driver
        return ""
    if not cards:
        return f"{option} {device}: no NVIDIA driver shows a GPU here; use {other}"
    number = int(device.partition(":")[2] or 0)
    if number >= cards:
        return f"{option} {device}: the last GPU here is cuda:{cards - 1}; use that, or {other}"
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
