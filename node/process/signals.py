"""Signals of a node: which of them drain it, and which end it at once."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import structlog

from node.local.errors import ExitCode

log = structlog.get_logger()


def watch_signals(stopping: asyncio.Event, stop: Callable[[], None]) -> None:
    """Call ``stop`` at the first signal that drains; SIGTERM and SIGINT end the process after that.

    SIGHUP drains, too: a terminal that closes sends it, and may send several. Where it is ignored,
    as under nohup, it stays ignored. SIGUSR1 shows where every task stands.
    """
    loop = asyncio.get_running_loop()

    def received(number: signal.Signals) -> None:
        if not stopping.is_set():
            log.info("draining; a second signal ends at once", signal=number.name)
            stopping.set()
            stop()
        elif number is not signal.SIGHUP:
            os._exit(ExitCode.OK)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, received, signal.SIGHUP)
    loop.add_signal_handler(signal.SIGUSR1, _dump_tasks)


def _dump_tasks() -> None:
    """Write where every task stands: what to send with a report of a node that hangs."""
    for task in asyncio.all_tasks():
        task.print_stack(limit=4, file=sys.stderr)
