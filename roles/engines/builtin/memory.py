"""How much memory a device has left for the caches of what is decoded."""

import resource

import psutil
import torch

SHARE = 0.5
"""Of a machine's memory that is free: others use it, too. A guess."""

DEVICE_SHARE = 0.8
"""Of a GPU's memory: the rest is for a prefill, for logits and for what is copied. A guess."""


def cache_bytes(device: str) -> int:
    """Return how many bytes caches may take, at least one."""
    if torch.device(device).type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        # What torch holds and does not use is free for us.
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return max(1, int(DEVICE_SHARE * (free + unused)))
    free = psutil.virtual_memory().available
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        free = min(free, limit - psutil.Process().memory_info().rss)
    return max(1, int(SHARE * free))
