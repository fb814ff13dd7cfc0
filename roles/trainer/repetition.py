"""Repetition of another trainer's version: gather what its step needs, and compute the step.

``Shadow`` decides which version is repeated, and from which state.
"""

from typing import Protocol, TypeVar

from typing_extensions import override

from protocol.core.types import Digest
from protocol.messages import CheckpointManifest, Signed
from roles.ports.engines import TrainingEngine
from roles.runtime.context import RoleContext
from roles.trainer.batching import BatchDraw, Batching

GatheredT = TypeVar("GatheredT")


class Repetition(Protocol[GatheredT]):
    """Way of repeating the step behind a version."""

    def can_repeat(self, version: Signed[CheckpointManifest]) -> bool:
        """Return whether an honest trainer gets the same bits here."""

    async def gather(self, version: Signed[CheckpointManifest]) -> GatheredT | None:
        """Return what the step needs from other peers; None while something is missing.

        Raises ``EngineError`` and ``StorageFullError``.
        """

    async def begin(self, version: Signed[CheckpointManifest], gathered: GatheredT) -> bool:
        """Do what changes no weights; False while something is missing. Raises ``EngineError``."""

    async def end(self, gathered: GatheredT) -> Digest | None:
        """Change the weights, and return their policy; None if they cannot come from this step.

        Raises ``EngineError``.
        """


class StepRepetition(Repetition[BatchDraw]):
    """Repetition of one trainer's step from its batch."""

    def __init__(self, context: RoleContext, engine: TrainingEngine, batching: Batching) -> None:
        self._context, self._engine, self._batching = context, engine, batching

    @override
    def can_repeat(self, version: Signed[CheckpointManifest]) -> bool:
        ranks = version.message.ranks
        self._context.shadow.note_ranks(version.message.version, ranks, self._engine.ranks)
        return ranks == self._engine.ranks

    @override
    async def gather(self, version: Signed[CheckpointManifest]) -> BatchDraw | None:
        return await self._batching.fetch(version.message.batch)

    @override
    async def begin(self, version: Signed[CheckpointManifest], gathered: BatchDraw) -> bool:
        before, context = version.message.version - 1, self._context
        batch = await self._batching.batch(before, gathered, gathered.rollouts)
        if batch is None:
            return False
        with context.durations.steps.part(context.clock.now()):
            await self._engine.begin_step(batch.sequences)
        return True

    @override
    async def end(self, gathered: BatchDraw) -> Digest | None:
        del gathered  # it is in the step that has begun
        context = self._context
        with context.durations.steps.part(context.clock.now()):
            await self._engine.end_step()
        return await self._engine.policy_digest()
