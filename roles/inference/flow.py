"""Flow of the inference role: generate assigned rollouts with the newest policy, prove, commit.

A worker generates several slots concurrently, up to the engine's limit (``concurrency``) and the
swarm's demand. Slots may finish in any order; commits are in slot order, so that a crash leaves no
gaps.
"""

import asyncio
import math

import structlog

from protocol.core.types import Digest, Role, Topic, Version
from protocol.ledger.commits import window_epochs
from protocol.messages import message_id
from protocol.rollout.body import RolloutSequence, commit_to, encode_body
from roles.inference.policy_staging import Staging
from roles.inference.slot_choice import SlotChoice
from roles.inference.slots import RolloutPipeline, RolloutTask
from roles.ports.engines import (
    EngineError,
    Environment,
    GenerationEngine,
    Policy,
    Unscorable,
)
from roles.ports.storage import Owner, Purpose, StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.context import RoleContext
from roles.runtime.retry import Failures, pause_epochs
from roles.runtime.scoring import Task

log = structlog.get_logger()

REPEAT_EPOCHS = 1.0
"""Interval at which a commit without an outcome is announced again, while it can be judged: the
first announcement may have reached no peer."""


class InferenceFlow:
    """Flow of one worker."""

    def __init__(
        self, context: RoleContext, engine: GenerationEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._making = RolloutPipeline(context, engine, Task(context.manifest, environment))
        self._choice = SlotChoice(context, self._making)
        self._staging = Staging(context.policies, engine)
        self._failures = Failures(context, "inference")
        self._rest_until = -math.inf
        self._loaded: Digest | None = None
        self._announced_at: dict[Digest, float] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        context = self._context
        try:
            while True:
                seen = context.changes.count
                await self._repeat_unsettled()
                self._making.observe(self._seconds_max())
                self._observe_swap()
                self._drop_useless()
                if _now() >= self._rest_until:
                    await self._work()
                await context.tick(seen)
        finally:
            await self._making.close()
            await self._staging.close()

    async def _work(self) -> None:
        """Commit to finished slots and begin more; report a failure and back off."""
        conditions, epoch_seconds = self._context.conditions, self._context.epoch_seconds
        rest_seconds = 0.0
        try:
            if (failure := self._making.drop_failed()) is not None:
                self._choice.note_failure(failure.slot)
                raise failure.error
            await self._commit_made()
            await self._begin_more()
        except StorageFullError as error:
            conditions.set("inference", f"disk full: {error}; waiting for room")
            rest_seconds = epoch_seconds / 2
        except RefusedError as error:
            conditions.set("inference", f"commit refused: {error}")
            rest_seconds = epoch_seconds / 2  # an immediate retry would be refused again
        except EngineError as error:
            self._loaded = None  # an engine that restarts has no policy
            self._staging.forget()
            self._failures.note(error)
            self._making.broke()
            rest_seconds = pause_epochs(self._failures.count) * epoch_seconds
        self._rest_until = _now() + rest_seconds

    async def _repeat_unsettled(self) -> None:
        """Announce unsettled commits again, after a restart or a time without peers."""
        context = self._context
        if not context.network.synchronised:
            return  # no peer would receive it
        now = _now()
        unsettled = {
            entry.commit.digest: entry.commit
            for entry in context.replica.ledger.commits.open_entries(context.peer_id)
        }
        self._announced_at = {key: at for key, at in self._announced_at.items() if key in unsettled}
        oldest = context.epoch() - window_epochs(context.manifest)
        for digest, commit in unsettled.items():
            announced_at = self._announced_at.get(digest, -math.inf)
            due = now >= announced_at + REPEAT_EPOCHS * context.epoch_seconds
            if due and commit.message.epoch >= oldest:
                self._announced_at[digest] = now
                await context.network.announce(Topic.COMMITS, commit.envelope)

    def _seconds_max(self) -> float:
        """Return the longest useful duration of a rollout, whose policy ages meanwhile.

        The trainer accepts it until one version later, which leaves time for the check.
        """
        taken = [entry.taken_at for entry in self._context.replica.ledger.chain.checkpoints[-4:]]
        taken = [at for at in taken if at > -math.inf]
        if len(taken) < 2:
            return math.inf
        version_seconds = (taken[-1] - taken[0]) / (len(taken) - 1)
        return max(1, self._context.manifest.grpo.async_level) * version_seconds

    # Beginning slots

    async def _begin_more(self) -> None:
        """Begin slots up to the limit; swap to a new policy when the old one's slots have ended."""
        if (newest := self._context.policies.newest()) is not None:
            first = self._loaded is None and not self._context.replica.ledger.workers.is_slashed(
                self._context.peer_id
            )
            if first and not await self._load(newest):  # loads ahead of any demand
                return
            self._staging.begin(newest)
        while self._making.generating < self._making.concurrency.limit:
            policy = self._choice.policy_to_use()
            checkpoint = policy and self._context.replica.ledger.chain.get(policy.version)
            if policy is None or not checkpoint or checkpoint.message.policy != policy.digest:
                return  # no usable policy, or superseded while it was loaded
            slot = self._choice.next_slot(checkpoint.digest, policy.version)
            if not self._choice.is_wanted(slot):
                return
            if self._loaded == policy.digest:
                self._making.begin(policy.version, checkpoint.digest, slot)
            elif self._making.generating or not await self._load(policy):
                return

    async def _load(self, policy: Policy) -> bool:
        """Swap the engine to ``policy``; False when its weights are invalid."""
        began_at, replaces = _now(), self._loaded is not None
        if not replaces:
            what = f"loading version {policy.version} into the engine"
            self._context.conditions.prepare(Role.INFERENCE, what)
        self._observe_swap()
        try:
            with self._context.policies.hold(policy):
                await self._staging.finish(policy)
                staged_at = _now()
                await self._engine.load(policy)
        except ValueError as error:
            log.warning("policy refused", version=policy.version, error=str(error))
            await self._context.policies.discard(policy)
            return False
        self._loaded = policy.digest
        self._context.conditions.prepared(Role.INFERENCE)
        self._staging.loaded(policy)
        if replaces:
            self._note_swap(policy.version)
        log.info(
            "policy loaded",
            version=policy.version,
            staging_seconds=round(staged_at - began_at, 3),
            seconds=round(_now() - staged_at, 3),
        )
        return True

    def _observe_swap(self) -> None:
        """Record the newest complete weights, and the first token of the loaded policy."""
        context = self._context
        if (newest := context.policies.newest()) is not None:
            context.policy_swaps.arrived(newest.version, context.clock.now())
        if (first := self._engine.first_token) is not None:
            context.policy_swaps.sampled(first.version, first.seconds)

    def _note_swap(self, version: Version) -> None:
        checkpoints = self._context.replica.ledger.chain.checkpoints
        known_at = checkpoints[version].taken_at if version < len(checkpoints) else -math.inf
        if known_at > -math.inf:
            self._context.policy_swaps.swapped(version, known_at, self._context.clock.now())

    # Ending slots

    def _drop_useless(self) -> None:
        """Drop slots that would not count: superseded, too old, already used, or slashed worker.

        A training slot that is not used begins again with a newer version.
        """
        ledger, network = self._context.replica.ledger, self._context.network
        for making in list(self._making):
            if (
                ledger.chain.get(making.version) is None
                or not ledger.chain.is_current(making.version, making.checkpoint)
                or self._choice.is_used(making.slot)
                or ledger.workers.is_slashed(self._context.peer_id)
                or network.first_slot is None
                or (making.slot.evaluates and network.may_have_evaluated(making.version))
            ):
                self._making.drop(making)

    async def _commit_made(self) -> None:
        """Commit to finished slots, in slot order."""
        context, ledger = self._context, self._context.replica.ledger
        for making in self._making:
            if ledger.commits.in_flight(context.peer_id) >= self._choice.unsettled_max():
                return
            if not making.work.done() or not self._choice.is_next(making.slot):
                continue
            made = making.work.result()
            if isinstance(made, Unscorable):
                self._note_unscorable(making, made)
            else:
                await self._commit(making, made)
                self._choice.note_commit()
                self._failures.end()
            self._making.drop(making)

    def _note_unscorable(self, making: RolloutTask, unscorable: Unscorable) -> None:
        """Report a slot without a score: a commit of it would only expire."""
        self._choice.note_unscorable(making.slot, making.version, unscorable.reason)
        log.warning(
            "rollout not committed",
            version=making.version,
            slot=making.slot.number,
            reason=unscorable.reason,
        )

    async def _commit(self, making: RolloutTask, sequences: list[RolloutSequence]) -> None:
        context = self._context
        body = encode_body(sequences)
        # The body is durable before the commit, and the commit before it is announced.
        commit = commit_to(
            body,
            sequences,
            making.checkpoint,
            making.slot.number,
            epoch=context.epoch(),
            version=making.version,
            evaluation=making.slot.evaluates is not None,
        )
        identifier = message_id(commit, context.replica.run_id, context.peer_id)
        owner = Owner(Purpose.ROLLOUT_BODY, identifier)
        try:
            await context.blobs.put(body, owner)
            signed = await context.network.publish(Topic.COMMITS, commit)
        except (RefusedError, StorageFullError):
            await context.blobs.release(owner)
            raise
        self._announced_at[signed.digest] = _now()
        rewards = [sequence.reward for sequence in sequences]
        log.info(
            "rollout committed",
            commit=signed.digest.hex()[:12],
            version=making.version,
            slot=making.slot.number,
            reward=round(sum(rewards) / len(rewards) / 1e6, 3),
        )


def _now() -> float:
    """Return the event loop's monotonic time, in seconds."""
    return asyncio.get_running_loop().time()
