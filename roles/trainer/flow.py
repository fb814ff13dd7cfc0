"""Training: while it is our turn, learn from certified rollouts and publish each version."""

from contextlib import suppress

import structlog

from protocol.rollout.body import REWARD_SCALE
from roles.ports.engines import EngineError, Environment, StepMetrics, TrainingEngine
from roles.runtime.context import RoleContext
from roles.runtime.retry import Failures
from roles.trainer.batching import Batching, TrainingBatch
from roles.trainer.leadership import Leadership
from roles.trainer.publication import Publication
from roles.trainer.statistics import StepTimer, training_step

log = structlog.get_logger()

FAILURES_TO_RESIGN = 3
"""In a row, and then the lead is left to others: a guess between a disturbance that passes within
two epochs and a device that is gone, while which everybody waits."""


class TrainerFlow:
    """One trainer; it leads while it is its turn and follows otherwise."""

    def __init__(
        self, context: RoleContext, engine: TrainingEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._steps = context.manifest.grpo.steps
        self._leadership = Leadership(context, engine)
        self._batching = Batching(context, engine, environment)
        self._publication = Publication(context, engine)
        self._failures = Failures(context, "trainer")
        self._timer = StepTimer(context.durations.steps)

    async def run(self) -> None:
        """Work until cancelled."""
        context = self._context
        try:
            while True:
                seen = context.changes.count
                try:
                    if not self._leadership.is_ours():
                        context.conditions.clear("trainer")  # what held us up is another one's now
                    elif context.replica.ledger.version < self._steps and await self._resume():
                        await self._lead()
                except EngineError as error:
                    await self._recover(error)
                    continue
                await context.tick(seen)
        finally:
            await self._publication.drain()

    async def _recover(self, error: EngineError) -> None:
        """Wait after a failure, without the lead when it is not the first; then all is loaded anew.

        What was written before is published first: it is whole, and training goes on from it.
        """
        with suppress(EngineError):  # perhaps the same one
            await self._publication.settle()
        if self._failures.count + 1 < FAILURES_TO_RESIGN or not self._leadership.has_heirs():
            await self._failures.pause(error)
            return
        self._failures.note(error, "the lead is left to another trainer")
        await self._leadership.leave_to_heirs()

    async def _resume(self) -> bool:
        """Load what training goes on from, and publish version 0 if there is none; else False."""
        position = await self._leadership.resume()
        if position is None:
            return False
        self._publication.start_from(position)
        self._batching.use(())
        if position.version >= 0:
            return True
        await self._publication.begin((), 0)
        return await self._publication.settle()

    async def _lead(self) -> None:
        """Train until it is no longer our turn or the run is complete."""
        context = self._context
        self._timer.start()
        while self._leadership.is_ours() and self._publication.version < self._steps:
            seen = context.changes.count
            if self._publication.ended and not await self._publication.settle():
                return
            batch = await self._batching.next(self._publication.version, self._publication.policy)
            if batch is None:
                await context.tick(seen)
            elif not await self._learn(batch):
                return
        await self._publication.settle()

    async def _learn(self, batch: TrainingBatch) -> bool:
        """Make the next version, beside the publication of the one before; False if that failed."""
        context = self._context
        with context.durations.steps.part(context.clock.now()):
            await self._engine.begin_step(batch.sequences)
        if not await self._publication.written():
            return False
        with context.durations.steps.part(context.clock.now()):
            metrics = await self._engine.end_step()
        self._failures.end()
        await self._record(batch, metrics)
        if not await self._publication.settle():
            return False
        # The batch is used up either way: a version that learned nothing still moves the run on,
        # where skipping it would leave its rollouts in everybody's backlog.
        await self._publication.begin(batch.commits, round(batch.reward_mean * REWARD_SCALE))
        self._batching.use(batch.commits)
        return True

    async def _record(self, batch: TrainingBatch, metrics: StepMetrics) -> None:
        """Keep the statistics of a step, and warn of one that taught nothing."""
        context = self._context
        step = training_step(
            self._publication.version + 1,
            context.clock.now(),
            batch,
            metrics,
            self._timer.lap(),
            context.manifest.model.end_tokens,
        )
        await context.training.record(step, context.store)
        told = {name: _told(value) for name, value in step.statistics.items()}
        log.info("step", version=step.version, **told)
        if step.warning:
            log.warning("step without effect", warning=context.training.warning)


def _told(value: float) -> float:
    """Return a statistic for the log: whole numbers as they are, others with four digits."""
    return value if isinstance(value, int) else float(f"{value:.4g}")
