"""Writer that appends published versions to the logs of training steps."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TypeVar

import structlog

from node.api.step_logs.base import StepLog
from node.api.step_logs.json_lines import JsonLines
from node.api.step_logs.tensorboard import TensorBoard
from node.api.step_logs.wandb import WeightsAndBiases
from node.context import NodeContext
from node.local.software import SOFTWARE
from roles.runtime.training_steps import TrainingStep

log = structlog.get_logger()

LOOK_SECONDS = 1.0
RETRY_SECONDS = 30.0
"""Retry interval after an error of a disk or a library (a guess)."""

CLOSE_SECONDS = 15.0
"""Time limit of the last writes at shutdown; an upload to W&B may be cut off."""

T = TypeVar("T")


@dataclass(slots=True)
class _Kept:
    """One log and its progress."""

    name: str
    log: StepLog
    version: int = -1
    """Newest version in it; -1 while closed."""
    retry_at: float = 0.0


class StepLogWriter:
    """Writes each published version to each log once; an error never stops the node.

    Versions of this node's trainer have all statistics, others only the mean reward.
    """

    def __init__(self, context: NodeContext, logs: dict[str, StepLog]) -> None:
        self._context = context
        self._kept = [_Kept(name, log) for name, log in logs.items()]
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start writing in a background task."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Write missing versions and close all logs within ``CLOSE_SECONDS``."""
        self._closing.set()
        if self._task is not None:
            await asyncio.wait((self._task,), timeout=CLOSE_SECONDS)
            if not self._task.done():
                self._task.cancel()
                log.warning("step logs not closed in time", seconds=CLOSE_SECONDS)

    async def _run(self) -> None:
        while not self._closing.is_set():
            await self._catch_up()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), LOOK_SECONDS)
        await self._catch_up()
        for kept in self._kept:
            await self._close(kept)

    async def _catch_up(self) -> None:
        """Write the missing versions of each log."""
        version = self._context.replica.ledger.chain.version
        for kept in self._kept:
            due = kept.version < 0 or kept.version < version
            if due and asyncio.get_running_loop().time() >= kept.retry_at:
                await self._write(kept)

    async def _write(self, kept: _Kept) -> None:
        try:
            if kept.version < 0:
                kept.version = await _in_thread(kept.log.open)
            missing = [step for step in self._steps() if step.version > kept.version]
            if missing:
                await _in_thread(partial(kept.log.write, missing))
                kept.version = missing[-1].version
        except Exception as error:  # noqa: BLE001 - a full disk, or third-party code
            told = f"{type(error).__name__}: {error}"
            log.warning("step log failed", log=kept.name, error=told, retry_seconds=RETRY_SECONDS)
            kept.retry_at = asyncio.get_running_loop().time() + RETRY_SECONDS
            await self._close(kept)

    def _steps(self) -> Sequence[TrainingStep]:
        context = self._context
        checkpoints, me = context.replica.ledger.chain.checkpoints, context.signer.peer_id
        return context.training.of(checkpoints, me)

    async def _close(self, kept: _Kept) -> None:
        """Close a log, ignoring errors, which repeat the previous one."""
        kept.version = -1
        try:
            await _in_thread(kept.log.close)
        except Exception as error:  # noqa: BLE001 - as above
            log.warning("step log not closed", log=kept.name, error=str(error))


def step_logs(names: Sequence[str], directory: Path, context: NodeContext) -> dict[str, StepLog]:
    """Return the logs of ``names`` in ``directory``, by name."""
    run_id, peer = context.replica.run_id.hex(), context.signer.peer_id
    about = {"run_id": run_id, "peer_id": peer, "software": SOFTWARE}
    make: dict[str, Callable[[], StepLog]] = {
        "jsonl": lambda: JsonLines(directory / "steps.jsonl"),
        "tensorboard": lambda: TensorBoard(directory / "tensorboard"),
        "wandb": lambda: WeightsAndBiases(directory, f"{run_id[:16]}-{peer[-8:]}", about),
    }
    return {name: make[name]() for name in names}


async def _in_thread(function: Callable[[], T]) -> T:
    """Return the result of ``function`` from a thread that does not keep the process alive."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # cancelling the caller leaves the thread running

    def call() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised in the loop's thread
            future.set_exception(error)

    Thread(target=call, name="step-log", daemon=True).start()
    return await asyncio.wrap_future(future)
