"""What a process that holds thousands of nodes does otherwise than one that holds one."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from types import ModuleType

import structlog

from protocol import messages
from protocol.gossip import message as gossip_message

_REMEMBERED: tuple[tuple[ModuleType, str], ...] = (
    (messages, "_open"),
    (gossip_message, "_decode_message"),
    (gossip_message, "_unsigned_bytes"),
)
"""Pure functions that remember their results for one node: a thousand nodes start with as many
records under way, and what is forgotten between two of them is computed, and kept, by each."""

_REMEMBERED_PER_NODE = 4
"""Entries: a record and its successor, and as many commits and certificates."""


@contextmanager
def shared_by(nodes: int) -> Iterator[None]:
    """Let ``nodes`` share this process: quiet, with large memories and few collections."""
    logging_before = structlog.get_config()
    nothing = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=nothing, cache_logger_on_first_use=False)
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)  # cycles are few; looking took a tenth of the time and more
    functions = [getattr(module, name) for module, name in _REMEMBERED]
    for (module, name), function in zip(_REMEMBERED, functions, strict=True):
        entries_max = max(function.cache_parameters()["maxsize"], _REMEMBERED_PER_NODE * nodes)
        setattr(module, name, lru_cache(maxsize=entries_max)(function.__wrapped__))
    try:
        yield
    finally:
        for (module, name), function in zip(_REMEMBERED, functions, strict=True):
            setattr(module, name, function)
        gc.set_threshold(*thresholds)
        structlog.configure(**logging_before)
