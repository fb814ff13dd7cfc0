"""Slots in progress of a worker: one asyncio task each, over one engine.

The problems of a slot follow from the slot alone, so slots are generated concurrently, and again
after a failure, a restart, or the end of their version.
"""

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog

from protocol.core.types import Digest, Version
from protocol.rollout.assignment import assign
from protocol.rollout.body import RolloutSequence
from roles.inference.concurrency import Concurrency
from roles.ports.engines import EngineError, GenerationEngine, GenerationRequest, Unscorable
from roles.runtime.context import RoleContext
from roles.runtime.scoring import Task

log = structlog.get_logger()

Made = list[RolloutSequence] | Unscorable
"""Sequences of a slot, or the reason why they have no score."""


class Slot(NamedTuple):
    """A slot of this worker."""

    number: int
    evaluates: Digest | None = None
    """Checkpoint that it evaluates; None for a training slot."""


class Failure(NamedTuple):
    """Failure of the engine or the task, with the first slot that it stopped."""

    slot: Slot
    error: EngineError


@dataclass(eq=False, slots=True)
class RolloutTask:
    """Slot in progress; it no longer uses the engine once ``generating`` is False."""

    version: Version
    checkpoint: Digest
    slot: Slot
    began_at: float
    work: "asyncio.Task[Made]" = field(init=False)
    generating: bool = True


class RolloutPipeline:
    """Pipeline of slots in progress, timed by the event loop's monotonic clock."""

    def __init__(self, context: RoleContext, engine: GenerationEngine, task: Task) -> None:
        self._context = context
        self._engine = engine
        self._task = task
        self._slots: list[RolloutTask] = []
        self._broke_at = -math.inf
        self.concurrency = Concurrency()

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, making: RolloutTask) -> bool:
        return making in self._slots

    def __iter__(self) -> Iterator[RolloutTask]:
        """Yield slots in commit order, those that evaluate a version first."""
        by_number = sorted(self._slots, key=lambda one: one.slot.number)
        return iter(sorted(by_number, key=lambda one: one.slot.evaluates is None))

    @property
    def generating(self) -> int:
        """Number of slots that the engine computes."""
        return sum(making.generating for making in self._slots)

    def observe(self, seconds_max: float) -> None:
        """Update the concurrency limit; no slot should run for longer than ``seconds_max``."""
        now = asyncio.get_running_loop().time()
        since = [making.began_at for making in self._slots if making.generating]
        self.concurrency.note(len(since), now)
        oldest_seconds = now - min(since, default=now)
        before = self.concurrency.limit
        self.concurrency.observe(self._engine.tokens_sampled, oldest_seconds, seconds_max, now)
        if self.concurrency.limit != before:
            log.info("concurrency changed", limit=self.concurrency.limit, before=before)

    def begin(self, version: Version, checkpoint: Digest, slot: Slot) -> None:
        """Begin a slot with a version, whose policy the engine must hold."""
        making = RolloutTask(version, checkpoint, slot, asyncio.get_running_loop().time())
        making.work = asyncio.create_task(self._make(making))
        making.work.add_done_callback(self._ended)
        self._slots.append(making)

    def drop(self, making: RolloutTask) -> None:
        """Drop a slot, finished or not."""
        making.generating = False
        making.work.cancel()
        self._slots.remove(making)

    def drop_failed(self) -> Failure | None:
        """Drop failed slots, so that they are generated again; return a new failure, if any.

        One failure may fail several slots, some of them later: it is returned once.
        """
        broken: Failure | None = None
        for making in [one for one in self if one.work.done()]:
            error = making.work.exception()
            if isinstance(error, EngineError):
                self.drop(making)
                if broken is None and making.began_at > self._broke_at:
                    broken = Failure(making.slot, error)
            elif error is not None:
                raise error  # a bug
        return broken

    def broke(self) -> None:
        """Record a failure of the engine or task: failures of running slots count as the same."""
        self._broke_at = asyncio.get_running_loop().time()
        self.concurrency.broke()

    async def close(self) -> None:
        """Cancel all slots and wait until they have ended."""
        tasks = [making.work for making in self._slots]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _make(self, making: RolloutTask) -> Made:
        manifest = self._context.manifest
        assignments = assign(manifest, self._context.peer_id, *making.slot)
        try:
            prompts = await self._task.prompts(assignments)
            requests = [
                GenerationRequest(prompt, item.noise_seed, manifest.sampling.tokens_max)
                for item, prompt in zip(assignments, prompts, strict=True)
            ]
            generations = await self._engine.generate(requests, manifest.sampling.temperature)
            seconds = asyncio.get_running_loop().time() - making.began_at
            self.concurrency.ended(seconds)
            self._context.durations.generations.add(seconds)
        finally:
            making.generating = False
            self._context.changes.notify()  # another slot may begin while this one is scored
        rewards = await self._task.rewards(assignments, [item.tokens for item in generations])
        if isinstance(rewards, Unscorable):
            return rewards
        return [
            RolloutSequence(item.tokens, item.logprobs, own, item.proofs)
            for item, own in zip(generations, rewards, strict=True)
        ]

    def _ended(self, work: "asyncio.Task[Made]") -> None:
        if not work.cancelled():
            work.exception()  # marks it as retrieved: ``drop_failed`` handles it later
        self._context.changes.notify()
