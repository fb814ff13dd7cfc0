"""Signal handling: drain on the first signal, exit on the second."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable

import structlog

from node.local.errors import ExitCode

log = structlog.get_logger()


def watch_signals(stopping: asyncio.Event, stop: Callable[[], None]) -> None:
    """Call ``stop`` at the first SIGTERM, SIGINT or SIGHUP; exit at the next SIGTERM or SIGINT.

    A closing terminal sends SIGHUP, possibly several times. Where SIGHUP is ignored, as under
    nohup, it stays ignored. SIGUSR1 prints the stack of every task.
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
    """Print the stack of every task, for a report about a node that hangs."""
    for task in asyncio.all_tasks():
        task.print_stack(limit=4, file=sys.stderr)
