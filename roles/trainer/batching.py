"""Selection of the certified rollouts of the next step; no value is trusted from a worker.

The trainer recomputes rewards with the task, and log-probabilities with its own engine unless the
run is in float32. The audit tolerates rounding: claims that exhaust this tolerance would change a
bf16 gradient by a third, and a float32 gradient by less than 0.001 % (both measured).

Rollouts are drawn by hash, so that fast workers have no advantage: first those that final pages
accept, in the order that the council checks (``protocol.replica.batch_rule``), then the other
certified ones. Groups with equal rewards have zero advantage: the step waits for up to
``refill_max`` more rollouts in their place. This number is bounded, and workers generate until it
is reached (``RunManifest``), so a run without any advantage continues, more slowly.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from statistics import fmean

import structlog

from protocol.core.crypto import digest
from protocol.core.faults import Fault
from protocol.core.types import Digest, Version
from protocol.ledger.commits import Entry
from protocol.replica.batch_rule import BatchRule, Draft
from protocol.rollout.assignment import assign_commit
from protocol.rollout.audit import AuditResult, check_claims, read_body
from protocol.rollout.body import REWARD_SCALE
from roles.ports.engines import (
    EngineError,
    Environment,
    Policy,
    TrainingEngine,
    TrainingSequence,
    Unscorable,
)
from roles.ports.storage import StorageFullError
from roles.runtime.context import RoleContext
from roles.runtime.scoring import Task

log = structlog.get_logger()

READERS_MAX = 8
"""Rollouts that are decoded at once: at 36 MB for 512,000 tokens (computed), 0.3 GB. A guess."""

_Drawn = dict[Digest, list[TrainingSequence]]
"""Rollouts of a batch by commit, in drawing order."""


@dataclass(frozen=True, slots=True)
class BatchDraw:
    """Rollouts of a batch, in drawing order, before any computation with them."""

    rollouts: _Drawn
    versions: Mapping[Digest, int]
    """Version that generated each rollout."""
    page: bytes
    """Newest final page when the batch was drawn; empty for none."""
    omitted: tuple[Digest, ...]
    """Final commits that the lot drew and that this node cannot use."""

    @property
    def commits(self) -> tuple[Digest, ...]:
        """The rollouts' commits, in drawing order."""
        return tuple(self.rollouts)

    @property
    def reward_mean(self) -> float:
        """Mean reward of the sequences."""
        return fmean(item.reward for rollout in self.rollouts.values() for item in rollout)


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Batch of one training step, or a part of one."""

    draw: BatchDraw
    sequences: list[TrainingSequence]
    staleness_versions: tuple[int, ...]
    """Versions published since the generating one, for each rollout."""


class Batching:
    """Collects batches; remembers used rollouts and bodies that could not be fetched."""

    def __init__(
        self, context: RoleContext, engine: TrainingEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._recomputes = context.manifest.model.dtype != "fp32"
        self._refers = context.manifest.grpo.loss.kl_coefficient > 0
        self._task = Task(context.manifest, environment)
        self._used: dict[Digest, None] = {}
        self._is_waiting = False
        """True if the last batch did not conform."""
        self._page: bytes | None = None
        """Page of the version in progress."""
        self._misses: Counter[Digest] = Counter()
        self._unscorable: dict[Digest, None] = {}
        """Commits for which the task has no score on this node."""
        self._read: _Drawn = {}
        """Rollouts drawn so far for an incomplete batch."""
        self._broken: EngineError | None = None
        """Failure of the task on a drawn rollout."""
        self._readers = asyncio.Semaphore(READERS_MAX)

    @property
    def _rule(self) -> BatchRule:
        return self._context.replica.batches

    def use(self, draw: BatchDraw | None) -> None:
        """Exclude the batch of the version in progress; the ledger excludes earlier ones."""
        self._used = {} if draw is None else dict.fromkeys(draw.commits)
        self._page = None if draw is None else draw.page
        self._read = {}

    def conforms(self, version: int, draw: BatchDraw, steps: int = 1) -> bool:
        """Return whether the council will accept the batch of a version after ``version``.

        ``steps``: number of steps that share it.
        """
        replica, chain = self._context.replica, self._context.replica.ledger.chain
        parent = chain.get(version)
        page, used = (
            (self._page or b"", self._used) if parent is None else (parent.message.page, {})
        )
        term, oldest_epoch = replica.lead.term, self._rule.oldest_epoch(version)
        draft = Draft(version + 1, term, draw.page, draw.commits, draw.omitted, steps)
        fault = self._rule.fault(draft, page, oldest_epoch, used)
        self._report(fault)
        return fault is True

    def _report(self, fault: Fault | bool) -> None:
        """Show why a batch waits."""
        conditions = self._context.conditions
        if fault is not True:
            reason = fault.detail if isinstance(fault, Fault) else "pages are missing"
            conditions.wait("trainer", f"waiting for another batch: {reason}")
        elif self._is_waiting:
            conditions.clear("trainer")
        self._is_waiting = fault is not True

    async def next(self, version: int, policy: bytes) -> TrainingBatch | None:
        """Return a batch for a step from ``version``, or None while there are too few rollouts.

        Raises ``EngineError`` as ``draw``, and when the engine fails.
        """
        draw = await self.draw(version, policy)
        return None if draw is None else await self.batch(version, draw, draw.rollouts)

    async def batch(self, version: int, draw: BatchDraw, rollouts: _Drawn) -> TrainingBatch | None:
        """Return some of the rollouts of a draw as a batch; None while weights are missing."""
        versions = draw.versions
        try:
            sequences = await self._sequences(version, rollouts, versions)
        except StorageFullError as error:
            self._wait_for_room(error)
            return None
        if sequences is None:
            return None
        staleness = tuple(version - versions[commit] for commit in rollouts)
        return TrainingBatch(draw, sequences, staleness)

    async def draw(self, version: int, policy: bytes, steps: int = 1) -> BatchDraw | None:
        """Draw the batch of a version after ``version``; None while there are too few rollouts.

        ``policy``, the digest of that version's weights, ranks the rollouts that are not final.
        Workers did not know it when they committed, so they could not choose favoured commits.
        ``steps``: number of steps that share the batch. Raises ``EngineError`` when the task failed
        on too many rollouts.
        """
        try:
            return await self._draw_batch(version, policy, steps)
        except StorageFullError as error:
            self._wait_for_room(error)
            return None

    def _wait_for_room(self, error: StorageFullError) -> None:
        self._is_waiting = True
        self._context.conditions.set("trainer", f"disk full: {error}; waiting for room")

    async def _draw_batch(self, version: int, policy: bytes, steps: int) -> BatchDraw | None:
        self._broken = None
        await self._context.rows.retain(self._read)
        page = self._context.replica.pages.root.digest
        lot = self._rule.lot(page, version + 1, self._used)
        usable = self._usable(version)
        if lot is None or len(usable) < steps * self._context.manifest.grpo.rollouts_per_step:
            return None
        order, missed = self._order(usable, lot, policy), set(self._misses)
        # Bodies that could not be fetched or scored are tried again only if they are needed.
        await self._read_in([one for one in order if one not in missed], usable, steps)
        draw = self._drawn(version, page, lot, usable, steps)
        if draw is None and missed.intersection(order):
            failed = self._misses.keys() - missed
            await self._read_in([one for one in order if one not in failed], usable, steps)
            draw = self._drawn(version, page, lot, usable, steps)
        if self._wanted(self._read, steps) and self._broken is not None:
            raise self._broken
        return draw

    def _drawn(
        self,
        version: int,
        page: bytes,
        lot: Sequence[Digest],
        entries: Mapping[Digest, Entry],
        steps: int,
    ) -> BatchDraw | None:
        """Return what was read as a draw; None if it does not suffice, or does not conform."""
        if self._wanted(self._read, steps):
            return None
        omitted = tuple(self._rule.omitted(version + 1, lot, tuple(self._read)))
        versions = {commit: entries[commit].version for commit in self._read}
        draw = BatchDraw(self._read, versions, page, omitted)
        return draw if self.conforms(version, draw, steps) else None

    async def _read_in(
        self, order: Sequence[Digest], entries: Mapping[Digest, Entry], steps: int
    ) -> None:
        """Read rollouts in an order until they suffice for a batch."""
        drawn: _Drawn = {}
        waiting = iter(order[: 2 * steps * self._context.manifest.grpo.batch_max])
        while some := list(islice(waiting, self._wanted(drawn, steps))):
            found = await asyncio.gather(*(self._once(entries[one]) for one in some))
            for commit, sequences in zip(some, found, strict=True):
                if sequences is None:
                    self._misses[commit] += 1
                else:
                    drawn[commit] = sequences
        self._read = drawn

    async def fetch(self, batch: Sequence[bytes]) -> BatchDraw | None:
        """Return the rollouts of another trainer's batch, or part; None while one is missing.

        Raises ``EngineError`` when the task fails, ``StorageFullError``.
        """
        commits = [Digest(commit) for commit in batch]
        self._read = {commit: self._read[commit] for commit in commits if commit in self._read}
        await self._context.rows.retain(self._read)
        entries = {commit: self._context.replica.ledger.commits.known(commit) for commit in commits}
        known = [entry for entry in entries.values() if entry is not None]
        if len(known) < len(commits):
            return None
        found = await asyncio.gather(*map(self._rollout, known))
        drawn = zip(commits, found, strict=True)
        self._read = {commit: sequences for commit, sequences in drawn if sequences is not None}
        if len(self._read) < len(commits):
            return None
        versions = {entry.commit.digest: entry.version for entry in known}
        return BatchDraw(self._read, versions, b"", ())

    async def _sequences(
        self, version: int, drawn: _Drawn, versions: Mapping[Digest, int]
    ) -> list[TrainingSequence] | None:
        """Return the sequences of rollouts as the engine takes them; None if weights are missing.

        The step begins from ``version``, and ``versions`` generated the rollouts. The order of the
        rollouts decides the bits of the step.
        """
        prompts = self._context.manifest.sampling.prompts_per_rollout
        numbered = {
            commit: [
                replace(item, group=index * prompts + item.group, lag=version - versions[commit])
                for item in rollout
            ]
            for index, (commit, rollout) in enumerate(drawn.items())
        }
        if self._recomputes and not await self._recompute(numbered, versions):
            return None
        if self._refers and not await self._refer(numbered):
            return None
        return [item for own in numbered.values() for item in own]

    async def _recompute(self, rollouts: _Drawn, versions: Mapping[Digest, int]) -> bool:
        """Recompute the log-probabilities of ``rollouts``; False while weights are missing."""
        policies = self._context.policies
        for version in sorted({versions[commit] for commit in rollouts}):
            commits = [commit for commit in rollouts if versions[commit] == version]
            policy = policies.get(version)
            if policy is None:
                return False
            claimed = [item for commit in commits for item in rollouts[commit]]
            try:
                own = iter(await self._computed(policy, claimed, f"version-{version}"))
            except ValueError as error:
                log.warning("policy refused", version=version, error=str(error))
                await policies.discard(policy)
                return False
            for commit in commits:
                rollouts[commit] = list(islice(own, len(rollouts[commit])))
        return True

    async def _computed(
        self, policy: Policy, sequences: Sequence[TrainingSequence], name: str
    ) -> list[TrainingSequence]:
        """Return sequences with their log-probabilities under a policy; raises ``ValueError``.

        ``name`` is that of their file.
        """
        context = self._context
        computing = context.durations.steps.part(context.clock.now())
        with computing, context.policies.hold(policy):
            return await self._engine.recompute(policy, sequences, context.rows.logprobs(name))

    async def _refer(self, rollouts: _Drawn) -> bool:
        """Add the log-probabilities under the genesis policy; False while its file is missing."""
        context = self._context
        policy = context.policies.get(0)
        if context.files.size(context.files.genesis) is not None:
            policy = Policy(Version(0), context.manifest.genesis_policy, context.files.genesis)
        if policy is None:
            self._is_waiting = True
            context.conditions.wait("trainer", "waiting for the genesis policy, the reference")
            return False
        items = [item for rollout in rollouts.values() for item in rollout]
        try:
            known = iter(await self._computed(policy, items, "reference"))
        except ValueError as error:
            log.warning("reference refused", error=str(error))
            context.conditions.set("trainer", f"{policy.path} is not the genesis policy")
            return False
        for commit, rollout in rollouts.items():
            rollouts[commit] = [
                replace(item, reference_logprobs=next(known).logprobs) for item in rollout
            ]
        return True

    def _usable(self, version: int) -> dict[Digest, Entry]:
        """Return the rollouts that a step from ``version`` may learn from."""
        ledger = self._context.replica.ledger
        oldest = version - self._context.manifest.grpo.async_level
        self._misses = Counter(
            {k: n for k, n in self._misses.items() if k in ledger.commits.entries}
        )
        self._unscorable = {key: None for key in self._unscorable if key in ledger.commits.entries}
        return {
            entry.commit.digest: entry
            for entry in ledger.backpressure.usable()
            if entry.commit.digest not in self._used
            and entry.commit.digest not in self._unscorable
            and oldest <= entry.version
            and self._can_be_recomputed(entry)
        }

    def _order(
        self, usable: Mapping[Digest, Entry], lot: Sequence[Digest], policy: bytes
    ) -> list[Digest]:
        """Return the usable rollouts in drawing order: the lot, then those that are not in it."""
        others = usable.keys() - set(lot)
        later = sorted(others, key=lambda key: (self._misses[key], digest(policy + key)))
        return [*(commit for commit in lot if commit in usable), *later]

    def _can_be_recomputed(self, entry: Entry) -> bool:
        if not self._recomputes:
            return True
        return self._context.policies.get(entry.version) is not None

    def _wanted(self, drawn: _Drawn, steps: int) -> int:
        """Return how many more rollouts a batch for so many steps needs."""
        grpo, sampling = self._context.manifest.grpo, self._context.manifest.sampling
        prompts, least = sampling.prompts_per_rollout, steps * grpo.rollouts_per_step
        teaching = sum(map(_teaching_groups, drawn.values()))
        lacking = -(-(least * prompts - teaching) // prompts)
        return max(least - len(drawn), min(lacking, steps * grpo.batch_max - len(drawn)))

    async def _once(self, entry: Entry) -> list[TrainingSequence] | None:
        """Return the sequences of a body, read earlier or now; None after a failure."""
        try:
            return await self._rollout(entry)
        except EngineError as error:
            log.warning("scoring failed", commit=entry.commit.digest.hex()[:12], error=str(error))
            self._broken = error
            return None

    async def _rollout(self, entry: Entry) -> list[TrainingSequence] | None:
        """Return the sequences of a certified rollout, read earlier or now."""
        known = self._read.get(entry.commit.digest)
        if known is not None:
            return known
        async with self._readers:
            sequences = await self._verified(entry)
            if sequences is None:
                return None
            return await self._context.rows.store(entry.commit.digest, sequences)

    async def _verified(self, entry: Entry) -> list[TrainingSequence] | None:
        """Fetch a certified body and recompute its rewards."""
        context, message = self._context, entry.commit.message
        voters = context.replica.verdicts.held(entry.commit.digest)
        certifier = [] if entry.certificate is None else [entry.certificate.signer]
        sources = [entry.commit.signer, *certifier, *voters]
        body = await context.network.fetch_body(entry.commit, sources)
        checkpoint = context.replica.ledger.chain.get(message.version)
        if body is None or checkpoint is None or checkpoint.digest != message.checkpoint:
            return None
        sequences = read_body(context.manifest, message, body)
        if isinstance(sequences, AuditResult):
            return None
        assignments = assign_commit(context.manifest, entry.commit.signer, message)
        if check_claims(context.manifest, message, sequences) is not None:
            return None  # a committee may have certified claims that the model cannot compute
        prompts = await self._task.prompts(assignments)
        rewards = await self._task.rewards(assignments, [item.tokens for item in sequences])
        if isinstance(rewards, Unscorable):
            self._unscorable[entry.commit.digest] = None
            log.warning(
                "rollout excluded", commit=entry.commit.digest.hex()[:12], reason=rewards.reason
            )
            return None
        ends = context.manifest.model.end_tokens
        return [
            TrainingSequence(
                item.group,
                prompt,
                claimed.tokens,
                claimed.logprobs,
                earned / REWARD_SCALE,
                ended=claimed.tokens[-1] in ends,
            )
            for item, prompt, claimed, earned in zip(
                assignments, prompts, sequences, rewards, strict=True
            )
        ]


def _teaching_groups(rollout: list[TrainingSequence]) -> int:
    """Return the number of groups (consecutive in a rollout) with unequal rewards."""
    groups = groupby(rollout, key=lambda item: item.group)
    return sum(len({item.reward for item in group}) > 1 for _, group in groups)
