"""What a process that holds thousands of nodes does otherwise than one that holds one."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import structlog


@contextmanager
def many_nodes() -> Iterator[None]:
    """Let many nodes share this process: quiet, and with few collections of garbage."""
    logging_before = structlog.get_config()
    nothing = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=nothing, cache_logger_on_first_use=False)
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)  # cycles are few; looking took a tenth of the time and more
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        structlog.configure(**logging_before)
