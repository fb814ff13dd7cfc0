"""Training: while it is our turn, learn from certified rollouts and publish each version."""

import structlog

from protocol.rollout import REWARD_SCALE
from roles.flow import RoleContext
from roles.ports.engines import Environment, TrainingEngine
from roles.trainer.batching import Batch, Batching
from roles.trainer.leadership import Leadership
from roles.trainer.publication import Publication

log = structlog.get_logger()


class TrainerFlow:
    """One trainer; it leads while it is its turn and follows otherwise."""

    def __init__(
        self, context: RoleContext, engine: TrainingEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._steps = context.manifest.grpo.steps
        self._leadership = Leadership(context, engine)
        self._batching = Batching(context, environment)
        self._publication = Publication(context, engine)

    async def run(self) -> None:
        """Work until cancelled."""
        context = self._context
        try:
            while True:
                seen = context.changes.count
                if not self._leadership.is_ours():
                    context.conditions.clear("trainer")  # what held us up is another one's now
                elif context.replica.ledger.version < self._steps and await self._resume():
                    await self._lead()
                await context.tick(seen)
        finally:
            await self._publication.drain()

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

    async def _learn(self, batch: Batch) -> bool:
        """Make the next version; False when the one before it was refused."""
        metrics = await self._engine.step(batch.sequences)
        log.info(
            "step",
            version=self._publication.version + 1,
            reward_mean=round(batch.reward_mean, 4),
            updates=metrics.updates,
            gradient_norm=round(metrics.gradient_norm, 4),
            clip_fraction=round(metrics.clip_fraction, 4),
            sequences_used=metrics.sequences_used,
        )
        if not await self._publication.settle():
            return False
        # The batch is used up either way: a version that learned nothing still moves the run on,
        # where skipping it would leave its rollouts in everybody's backlog.
        await self._publication.begin(batch.commits, round(batch.reward_mean * REWARD_SCALE))
        self._batching.use(batch.commits)
        return True
