"""Flow of the inference role: generate assigned rollouts with the newest policy, prove, commit.

A worker generates several slots concurrently, up to the engine's limit (``concurrency``) and the
swarm's demand. The content of a slot follows from (checkpoint, worker, slot) alone, so slots may
finish in any order. Commits are in slot order, and each names its predecessor.
"""

import asyncio
import math
from itertools import count

import structlog

from protocol.core import crypto
from protocol.core.types import Digest, Role, Topic, Version
from protocol.ledger.commits import window_epochs
from protocol.messages import RolloutCommit, message_id
from protocol.rollout.assignment import is_evaluation
from protocol.rollout.body import RolloutSequence, encode_body
from roles.inference.policy_staging import Staging
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

UNSETTLED_MIN = 2
"""Own commits that may always be without an outcome: one in verification while the next is
generated. A worker with more concurrent rollouts and enough credit may have more."""

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
        self._staging = Staging(context.policies, engine)
        self._failures = Failures(context, "inference")
        self._rest_until = -math.inf
        self._loaded: Digest | None = None
        self._unscorable: tuple[Digest, int, str] | None = None
        """Checkpoint, own first slot with an answer without a score, and the reason."""
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
            if (broken := self._making.drop_failed()) is not None:
                raise broken
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

    def _policy_to_use(self) -> Policy | None:
        """Return the newest policy if a rollout of it from this worker could be used."""
        context = self._context
        ledger = context.replica.ledger
        policy = context.policies.newest()
        checkpoint = None if policy is None else ledger.chain.get(policy.version)
        usable = (
            policy is not None
            and checkpoint is not None
            and context.network.synchronised  # else a slot used before a restart could be reused
            and policy.version >= ledger.chain.version - context.manifest.grpo.async_level
            and not ledger.workers.is_slashed(context.peer_id)
            and self._can_be_checked()
            and self._slots_are_known(policy.version)
            and self._has_scores(checkpoint.digest, policy.version)
            and self._counts_for(policy.version)
        )
        return policy if usable else None

    def _is_wanted(self, slot: int, checkpoint: Digest, version: Version) -> bool:
        """Return whether a slot should be begun now, if the engine has room for it."""
        if any(one.checkpoint == checkpoint and one.slot > slot for one in self._making):
            return True  # it failed before, and later slots wait for it
        ledger, me = self._context.replica.ledger, self._context.peer_id
        uncommitted, unsettled = len(self._making), ledger.commits.in_flight(me)
        limit = self._making.concurrency.limit
        if uncommitted + unsettled >= self._unsettled_max() + limit - 1:
            return False  # skip ``wanted``, an expensive scan of all pending commits
        if is_evaluation(self._context.manifest, version, slot):
            return True  # no version waits for it, and the last version is evaluated too
        # ``wanted`` counts own unsettled commits only up to the credit; here all of them count.
        wanted = ledger.backpressure.wanted(ledger.epoch) - max(0, unsettled - self._credit())
        return wanted > 0 and (not uncommitted or uncommitted + 1 <= self._share() * wanted)

    def _unsettled_max(self) -> int:
        return max(UNSETTLED_MIN, min(self._credit(), 1 + self._making.concurrency.limit))

    def _credit(self) -> int:
        counts = self._context.replica.ledger.workers.counts.get(self._context.peer_id)
        return 0 if counts is None else counts.credit

    def _share(self) -> float:
        """Return this worker's share of the demand: equal, or its share of past deliveries if more.

        Workers do not see each other's unfinished slots, so each would begin all of the demand.
        """
        context = self._context
        workers = context.replica.roster.live(context.clock.now(), Role.INFERENCE)
        return max(1 / max(1, len(workers)), context.replica.ledger.commits.share(context.peer_id))

    def _counts_for(self, version: Version) -> bool:
        """Tell whether validators judge this worker's rollouts of a version: not for a new key."""
        context = self._context
        if context.replica.counts(context.peer_id, version, context.epoch()):
            return True
        reason = f"this key is too new for version {version}; waiting for a newer one"
        context.conditions.set("inference", reason)
        return False

    def _slots_are_known(self, version: Version) -> bool:
        """Return whether the ledger has all own slots of a version: reusing one is slashable."""
        if not self._context.network.may_have_used(version):
            return True
        self._context.conditions.set("inference", "the disk was lost; waiting for a newer version")
        return False

    def _has_scores(self, checkpoint: Digest, version: Version) -> bool:
        """Return whether the next own slot of a checkpoint is before the first one without a score.

        A retry would fail again: problem and noise follow from the slot. Slots are used in order,
        else workers could skip slots at will, and a commit without a score would only expire. So
        the worker waits for a newer version and loses its later slots of this one.
        """
        if self._unscorable is None or self._unscorable[0] != checkpoint:
            return True
        _, first, why = self._unscorable
        if self._next_slot(checkpoint, version) < first:
            return True
        reason = f"no score for slot {first}, {why}; waiting for a newer version"
        self._context.conditions.set("inference", reason)
        return False

    def _next_slot(self, checkpoint: Digest, version: Version) -> int:
        """Return the first own slot that is neither used nor in progress."""
        first, _ = self._context.replica.ledger.commits.next_slot(self._context.peer_id, version)
        begun = {making.slot for making in self._making if making.checkpoint == checkpoint}
        return next(slot for slot in count(first) if slot not in begun)

    def _can_be_checked(self) -> bool:
        """Return whether there are enough validators: without a committee a commit expires."""
        context = self._context
        validators = context.replica.verdicts.electorate.at_epoch(context.epoch()).validators
        return len(validators) >= context.manifest.committee.roster_min

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
            policy = self._policy_to_use()
            checkpoint = policy and self._context.replica.ledger.chain.get(policy.version)
            if policy is None or not checkpoint or checkpoint.message.policy != policy.digest:
                return  # no usable policy, or superseded while it was loaded
            slot = self._next_slot(checkpoint.digest, policy.version)
            if not self._is_wanted(slot, checkpoint.digest, policy.version):
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
        """Drop slots that would not count: superseded, too old, already used, or slashed worker."""
        context = self._context
        ledger, me = context.replica.ledger, context.peer_id
        oldest = ledger.chain.version - context.manifest.grpo.async_level
        newest = context.policies.newest()
        for making in list(self._making):
            checkpoint = ledger.chain.get(making.version)
            if (
                checkpoint is None
                or checkpoint.digest != making.checkpoint
                or making.version < oldest
                or making.slot < ledger.commits.next_slot(me, making.version)[0]
                # An earlier slot failed, and its version is no longer generated.
                or (newest is not None and making.version < newest.version and self._waits(making))
                or ledger.workers.is_slashed(me)
                or context.network.may_have_used(making.version)
            ):
                self._making.drop(making)

    def _waits(self, making: RolloutTask) -> bool:
        """Return whether an earlier slot is neither used nor in progress."""
        return self._next_slot(making.checkpoint, making.version) < making.slot

    async def _commit_made(self) -> None:
        """Commit to finished slots, in slot order."""
        context, ledger = self._context, self._context.replica.ledger
        for making in self._making:
            if ledger.commits.in_flight(context.peer_id) >= self._unsettled_max():
                return
            slot, previous = ledger.commits.next_slot(context.peer_id, making.version)
            if making not in self._making or not making.work.done() or making.slot != slot:
                continue
            made = making.work.result()
            if isinstance(made, Unscorable):
                self._end_at(making, made)
                continue
            await self._commit(making, made, previous)
            self._making.drop(making)
            self._failures.end()

    def _end_at(self, making: RolloutTask, unscorable: Unscorable) -> None:
        """Drop a slot without a score and all later ones: slots are used in order."""
        self._unscorable = making.checkpoint, making.slot, unscorable.reason
        log.warning(
            "rollout not committed",
            version=making.version,
            slot=making.slot,
            reason=unscorable.reason,
        )
        for other in list(self._making):
            if other.checkpoint == making.checkpoint and other.slot >= making.slot:
                self._making.drop(other)

    async def _commit(
        self, making: RolloutTask, sequences: list[RolloutSequence], previous: bytes
    ) -> None:
        context = self._context
        body = encode_body(sequences)
        # The body is durable before the commit, and the commit before it is announced.
        commit = RolloutCommit(
            epoch=context.epoch(),
            version=making.version,
            checkpoint=making.checkpoint,
            slot=making.slot,
            previous=previous,
            body=crypto.digest(body),
            body_bytes=len(body),
            sequences=len(sequences),
            tokens=sum(len(sequence.tokens) for sequence in sequences),
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
            slot=making.slot,
            reward=round(sum(rewards) / len(rewards) / 1e6, 3),
        )


def _now() -> float:
    """Return the event loop's monotonic time, in seconds."""
    return asyncio.get_running_loop().time()
