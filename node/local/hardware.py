"""What this machine is: the ``Hardware`` that the node's record advertises."""

import contextlib
from collections.abc import Iterator

import psutil
import pynvml

from protocol.messages import Hardware

_NAME_CHARACTERS_MAX = 200
"""As ``Hardware.gpu`` allows."""


def probe_hardware() -> Hardware:
    """Look at CPU, memory and NVIDIA GPUs; ``gpu_memory_bytes`` is the sum over all GPUs.

    Other GPUs are not seen, and nothing is measured: the swarm trusts none of it for safety.
    """
    gpus = list(_gpus())
    names = " + ".join(dict.fromkeys(name for name, _ in gpus))
    return Hardware(
        gpu=names[:_NAME_CHARACTERS_MAX],
        gpus=len(gpus),
        gpu_memory_bytes=sum(memory_bytes for _, memory_bytes in gpus),
        memory_bytes=psutil.virtual_memory().total,
        cores=_cores(),
    )


def _cores() -> int:
    """Return the cores we may run on, fewer than the machine has in most containers."""
    with contextlib.suppress(AttributeError, psutil.Error):  # not on every system
        return len(psutil.Process().cpu_affinity())
    return psutil.cpu_count() or 0


def _gpus() -> Iterator[tuple[str, int]]:
    """Yield name and bytes of memory of the GPUs that the driver shows, none when it fails."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            name = pynvml.nvmlDeviceGetName(handle)
            yield (
                name.decode(errors="replace") if isinstance(name, bytes) else str(name),
                int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
            )
    except pynvml.NVMLError:
        return  # a GPU that fell off the bus hides those behind it
    finally:
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
