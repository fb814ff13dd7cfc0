"""Flow of the trainer role: lead or shadow.

The leader learns from certified rollouts and publishes versions. The other trainers repeat its
steps, if they are configured to.
"""

from contextlib import suppress

import structlog

from roles.ports.engines import EngineError, Environment, StepMetrics, TrainingEngine
from roles.runtime.context import RoleContext
from roles.runtime.retry import Failures
from roles.trainer.batching import Batching, TrainingBatch
from roles.trainer.leadership import Leadership
from roles.trainer.publication import Publication
from roles.trainer.repetition import StepRepetition
from roles.trainer.shadowing import Shadow
from roles.trainer.statistics import StepTimer, training_step

log = structlog.get_logger()

FAILURES_TO_RESIGN = 3
"""Failures in a row after which the trainer hands over the lead. A guess: a temporary failure
passes within two epochs, and the whole swarm waits for a leader with a lost device."""


class TrainerFlow:
    """Flow of one trainer; it trains while it is the leader and follows otherwise.

    ``shadows``: as a follower, repeat the leader's steps.
    """

    def __init__(
        self,
        context: RoleContext,
        engine: TrainingEngine,
        environment: Environment,
        *,
        shadows: bool = True,
    ) -> None:
        self._context = context
        self._engine = engine
        self._steps = context.manifest.grpo.steps
        self._leadership = Leadership(context, engine)
        self._batching = Batching(context, engine, environment)
        self._publication = Publication(context, engine)
        repetition = StepRepetition(context, engine, self._batching)
        self._shadow = Shadow(context, self._leadership, repetition)
        self._shadows = shadows
        self._failures = Failures(context, "trainer")
        self._timer = StepTimer(context.durations.steps)

    async def run(self) -> None:
        """Work until cancelled."""
        context = self._context
        try:
            while True:
                seen = context.changes.count
                try:
                    term = self._leadership.term
                    if term is None:
                        context.conditions.clear("trainer")  # another trainer leads now
                        if await self._follow():
                            continue
                    elif context.replica.ledger.chain.version < self._steps:
                        await self._lead_in(term)
                except EngineError as error:
                    await self._recover(error)
                    continue
                await context.tick(seen)
        finally:
            await self._publication.drain()

    async def _follow(self) -> bool:
        """Work as a trainer that does not lead; False if nothing can be done at present."""
        return self._shadows and await self._shadow.follow()

    async def _recover(self, error: EngineError) -> None:
        """Pause after a failure, or hand over the lead; then everything is loaded again.

        A version that was completely written before is published first, and training resumes from
        it.
        """
        with suppress(EngineError):  # perhaps the same failure
            await self._publication.settle()
        if self._failures.count + 1 < FAILURES_TO_RESIGN or not self._leadership.has_heirs():
            await self._failures.pause(error)
            return
        self._failures.note(error, "handing over the lead to another trainer")
        await self._leadership.leave_to_heirs()

    async def _lead_in(self, term: int) -> None:
        """Resume from the newest version and train; return to retry later."""
        if await self._resume(term):
            await self._lead()

    async def _resume(self, term: int) -> bool:
        """Load the newest version, publishing version 0 if there is none; False to retry later."""
        position = await self._leadership.resume(term, self._shadow.leave())
        if position is None:
            return False
        self._publication.start_from(position)
        self._batching.use(None)
        if position.version >= 0:
            return True
        await self._publication.begin(None)
        return await self._publication.settle()

    async def _lead(self) -> None:
        """Train until the term ends or the run is complete."""
        context = self._context
        self._timer.start()
        while self._is_current() and self._publication.version < self._steps:
            seen = context.changes.count
            if self._publication.ended and not await self._publication.settle():
                return
            batch = await self._batching.next(self._publication.version, self._publication.policy)
            if batch is None:
                await context.tick(seen)
            elif not await self._learn(batch):
                return
        await self._publication.settle()

    def _is_current(self) -> bool:
        """Return whether the term lasts; in a later one, the same trainer resumes anew."""
        return self._leadership.term == self._publication.term

    async def _learn(self, batch: TrainingBatch) -> bool:
        """Train the next version during the publication of the last.

        False if that was refused, or if the term has ended: the file of a version may be that of
        another trainer by now.
        """
        context = self._context
        with context.durations.steps.part(context.clock.now()):
            await self._engine.begin_step(batch.sequences)
        if not await self._publication.written():
            return False
        with context.durations.steps.part(context.clock.now()):
            metrics = await self._engine.end_step()
        self._failures.end()
        await self._record(self._publication.version + 1, batch, metrics)
        if not (await self._publication.settle() and self._is_current()):
            return False
        if not self._batching.conforms(self._publication.version, batch.draw):
            return False  # the publication of the last version took too long
        # A step without effect is published too: otherwise its rollouts would stay in the backlog
        # of every node.
        await self._publication.begin(batch.draw)
        self._batching.use(batch.draw)
        return True

    async def _record(self, version: int, batch: TrainingBatch, metrics: StepMetrics) -> None:
        """Record the step, or this trainer's part of the round, that makes a version."""
        context = self._context
        step = training_step(version, context.clock.now(), batch, metrics, self._timer.lap())
        await context.training.record(step, context.store)
        told = {name: _told(value) for name, value in step.statistics.items()}
        log.info("step", version=step.version, **told)
        if step.warning:
            event = "mismatch with workers" if step.updates else "step without effect"
            log.warning(event, warning=context.training.warning)


def _told(value: float) -> float:
    """Return a statistic for the log: integers unchanged, others with four digits."""
    return value if isinstance(value, int) else float(f"{value:.4g}")
