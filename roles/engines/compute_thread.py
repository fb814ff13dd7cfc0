"""One thread that computes, so that the event loop keeps answering the network."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")


class ComputeThread:
    """Runs the calls of one engine one after another in one thread of its own.

    A cancelled call still runs to its end there, and the next one waits for it: state is never left
    half changed. ``cpu_threads`` is what one torch operation may use; two processes with two
    threads each on two cores ran 8 to 20 times slower than with one (measured).
    """

    def __init__(self, name: str, cpu_threads: int) -> None:
        self._executor = ThreadPoolExecutor(
            max_workers=1,
            thread_name_prefix=name,
            # The limit belongs to the thread that sets it, so it is set in ours.
            initializer=torch.set_num_threads,
            initargs=(cpu_threads,),
        )

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return ``function(*args, **kwargs)``; raises what it raises."""
        return await asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))

    def close(self) -> None:
        """Drop what waits and let the running call end; idempotent."""
        self._executor.shutdown(wait=False, cancel_futures=True)
