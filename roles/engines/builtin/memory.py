"""Free memory of a device, for key-value caches."""

import resource

import psutil
import torch

SHARE = 0.5
"""Share of a machine's free memory; other processes use it, too. A guess."""

DEVICE_SHARE = 0.8
"""Share of a GPU's memory; the rest is for prefill, logits and copies. A guess."""


def cache_bytes(device: str) -> int:
    """Return how many bytes caches may take, at least one."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # Memory that torch has reserved but not allocated is available.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return max(1, int(DEVICE_SHARE * (free + unused)))
    free = psutil.virtual_memory().available
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        free = min(free, limit - psutil.Process().memory_info().rss)
    return max(1, int(SHARE * free))
