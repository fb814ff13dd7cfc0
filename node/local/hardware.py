"""Hardware probe for the ``Hardware`` field of the node's record."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from protocol.messages import Hardware

_NAME_CHARACTERS_MAX = 200
"""The limit of ``Hardware.gpu``."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, as its driver reports it."""

    name: str
    memory_bytes: int
    free_bytes: int
    driver: str


def probe_hardware() -> Hardware:
    """Read CPU, memory and NVIDIA GPUs; ``gpu_memory_bytes`` is the sum over all GPUs.

    GPUs of other vendors are not listed, and nothing is measured: no safety depends on it.
    """
    cards = list(gpus())
    names = " + ".join(dict.fromkeys(card.name for card in cards))
    return Hardware(
        gpu=names[:_NAME_CHARACTERS_MAX],
        gpus=len(cards),
        gpu_memory_bytes=sum(card.memory_bytes for card in cards),
        memory_bytes=psutil.virtual_memory().total,
        cores=_cores(),
    )


def _cores() -> int:
    """Return the cores that this process may use, fewer than the machine's in most containers."""
    with contextlib.suppress(AttributeError, psutil.Error):  # not on every platform
        return len(psutil.Process().cpu_affinity())
    return psutil.cpu_count() or 0


def gpus() -> Iterator[Gpu]:
    """Yield the GPUs that the driver reports, none when it fails."""
    import pynvml  # noqa: PLC0415 - takes 2.5 MB, and simulations do not need it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = _text(pynvml.nvmlDeviceGetName(handle))
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            yield Gpu(name, int(memory.total), int(memory.free), driver)
    except pynvml.NVMLError:
        return  # a GPU that fell off the bus hides those behind it
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
