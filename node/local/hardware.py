"""What this machine is: the ``Hardware`` that the node's record advertises."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

from protocol.messages import Hardware

_NAME_CHARACTERS_MAX = 200
"""As ``Hardware.gpu`` allows."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card as its driver shows it."""

    name: str
    memory_bytes: int
    free_bytes: int
    driver: str


def probe_hardware() -> Hardware:
    """Look at CPU, memory and NVIDIA GPUs; ``gpu_memory_bytes`` is the sum over all GPUs.

    Other GPUs are not seen, and nothing is measured: the swarm trusts none of it for safety.
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
    """Return the cores we may run on, fewer than the machine has in most containers."""
    with contextlib.suppress(AttributeError, psutil.Error):  # not on every system
        return len(psutil.Process().cpu_affinity())
    return psutil.cpu_count() or 0


def gpus() -> Iterator[Gpu]:
    """Yield the GPUs that the driver shows, none when it fails."""
    import pynvml  # noqa: PLC0415 - takes 2.5 MB, and simulations look at no machine

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
