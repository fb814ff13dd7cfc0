"""Fork server of a testnet, which imports the heavy libraries once.

The testnet's own process imports neither torch nor hivemind. Each child leaves the terminal's
process group, so that Ctrl-C reaches only the testnet, which then sends one signal to each node.
"""

import asyncio
import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TypeVar

from node.testnet.child import answer

T = TypeVar("T")

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Two torch processes with two threads each on two cores ran 8 to 20 times slower than with one."""

_CONTEXT = multiprocessing.get_context("forkserver")


class ChildError(Exception):
    """A helper process failed; the message is its error."""


def start_server(log: Path) -> None:
    """Start the fork server and return at once; the first fork waits for the imports.

    ``log`` receives the libraries' standard error, which would spoil the view.
    """
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    _CONTEXT.set_forkserver_preload(["node.testnet.preload"])
    with _stderr_to(log):
        forkserver.ensure_running()


async def start(function: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Fork a child that runs ``function``, without waiting for its end."""
    process = _CONTEXT.Process(target=function, args=arguments)
    # Blocks until the fork, for the first child until the imports are done.
    await asyncio.to_thread(process.start)
    return process


async def call(function: Callable[..., T], *arguments: Any, seconds: float) -> tuple[T, int]:
    """Run ``function`` in a child and return (its result, the child's peak memory in bytes).

    Raises ``ChildError`` when it raises, dies, or exceeds ``seconds``.
    """
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process: BaseProcess | None = None
    try:
        process = await start(answer, sender, function, arguments)
        sender.close()
        return await asyncio.to_thread(_receive, receiver, seconds)
    finally:
        if process is not None and process.is_alive():
            process.terminate()
        receiver.close()


def _receive(receiver: Connection, seconds: float) -> tuple[Any, int]:
    try:
        if not receiver.poll(seconds):
            raise ChildError(f"no result within {seconds:.0f} s")
        error, result, peak_bytes = receiver.recv()
    except EOFError:
        raise ChildError("the helper process died") from None
    if error:
        raise ChildError(error)
    return result, peak_bytes


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of processes started in this block to ``path``."""
    sys.stderr.flush()
    saved = os.dup(2)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
