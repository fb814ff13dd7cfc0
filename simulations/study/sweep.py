"""Sweeps: many simulations, each in a process of its own."""

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
"""Interval of checks for processes of a cancelled sweep; one may be just starting."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """Results of a sweep."""

    outcomes: tuple[RunOutcome, ...]
    """Outcomes of the finished runs, in the order of the plans. The other processes died."""
    interrupted: bool


def run_sweep(plans: Sequence[RunPlan], processes: int, on_end: Callable[[], None]) -> Sweep:
    """Run plans, so many at once; ``on_end`` is called, from any thread, when one has ended.

    Ctrl-C stops the unfinished ones. A process that dies, mostly for memory, does not affect the
    others.
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
    """Run a plan in a fresh interpreter, which frees all memory; None if that died."""
    with ProcessPoolExecutor(1, get_context("spawn"), _end_with_sweep) as process:
        # Inherited by the process from the thread that starts it: the sweep handles Ctrl-C.
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
    """Run a plan; the series stay in this process."""
    return replace(run_plan(plan, clock=time.perf_counter), series=None)
