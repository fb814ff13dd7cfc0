"""Many simulations, each in a process of its own."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from multiprocessing import active_children, get_context, parent_process
from threading import Thread

from simulations.study.study import RunOutcome, RunPlan, run_plan

KILL_SECONDS = 0.1
"""Between two looks for processes of a sweep that is given up; one may just begin."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What came of the plans of a sweep."""

    outcomes: tuple[RunOutcome, ...]
    """Of those that came to an end, in the order of the plans. The processes of the others died."""
    interrupted: bool
    """Whether that was because of Ctrl-C."""


def run_sweep(plans: Sequence[RunPlan], processes: int, on_end: Callable[[], None]) -> Sweep:
    """Run plans, so many at once; ``on_end`` is called, from any thread, when one has ended.

    Ctrl-C gives up those that have not. Who dies, for memory as a rule, takes no other along.
    """
    interrupted = False
    with ThreadPoolExecutor(min(processes, len(plans))) as threads:
        futures = [threads.submit(_run_apart, plan) for plan in plans]
        for future in futures:
            future.add_done_callback(lambda _future: on_end())
        try:
            wait(futures)
        except KeyboardInterrupt:
            interrupted = True
            _give_up(futures)
    ended = (future.result() for future in futures if not future.cancelled())
    return Sweep(tuple(outcome for outcome in ended if outcome is not None), interrupted)


def _give_up(futures: Sequence[Future[RunOutcome | None]]) -> None:
    for future in futures:
        future.cancel()
    while wait(futures, KILL_SECONDS).not_done:
        for process in active_children():
            process.kill()


def _run_apart(plan: RunPlan) -> RunOutcome | None:
    """Run a plan in a fresh interpreter, which gives back all memory; None when that died."""
    with ProcessPoolExecutor(1, get_context("spawn"), _end_with_sweep) as process:
        # The process inherits this from the thread that starts it: Ctrl-C is the sweep's to handle.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            return process.submit(_run_quietly, plan).result()
        except BrokenProcessPool:
            return None


def _end_with_sweep() -> None:
    parent = parent_process()
    assert parent is not None, "only a process of a sweep may end with it"

    def wait_for_sweep() -> None:
        parent.join()
        os._exit(1)

    Thread(target=wait_for_sweep, daemon=True).start()


def _run_quietly(plan: RunPlan) -> RunOutcome:
    """Run a plan; what happened over time stays here."""
    return replace(run_plan(plan, clock=time.perf_counter), series=None)
