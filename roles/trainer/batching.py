"""Which certified rollouts the next step learns from; nothing in them is taken on a worker's word.

Rewards are those of the task here. Log-probabilities are those that our engine gives to the tokens
wherever engines may round: an audit leaves room for that, and claims that fill it would move a
bf16 gradient by a third. In float32 it leaves less than 0.001 % (both measured).

They are drawn by lot from all that are usable, so who is fast is not favoured. Groups whose rewards
are all equal teach nothing: up to ``refill_max`` more rollouts are drawn in their place, and the
step waits for them. It waits for a bounded number, and workers do not pause before that is there
(``RunManifest``), so a run in which nothing teaches anything moves on as well, more slowly.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice

import structlog

from protocol.core.crypto import digest
from protocol.core.types import Digest
from protocol.ledger.commits import Entry
from protocol.rollout.assignment import assign
from protocol.rollout.audit import AuditResult, check_claims, read_body
from protocol.rollout.body import REWARD_SCALE
from roles.ports.engines import (
    EngineError,
    Environment,
    TrainingEngine,
    TrainingSequence,
    Unscorable,
)
from roles.runtime.context import RoleContext
from roles.runtime.scoring import Task

log = structlog.get_logger()

_Drawn = dict[Digest, list[TrainingSequence]]
"""The rollouts of a batch in the order of the lot, by commit."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """What one step learns from."""

    commits: tuple[Digest, ...]
    sequences: list[TrainingSequence]
    staleness_versions: tuple[int, ...]
    """Of each rollout: versions published since the one that generated it."""

    @property
    def reward_mean(self) -> float:
        """Mean reward of the sequences."""
        return sum(item.reward for item in self.sequences) / len(self.sequences)


class Batching:
    """Collects batches; remembers what was used and which bodies could not be had."""

    def __init__(
        self, context: RoleContext, engine: TrainingEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._recomputes = context.manifest.model.dtype != "fp32"
        self._task = Task(context.manifest, environment)
        self._used: dict[Digest, None] = {}
        self._misses: Counter[Digest] = Counter()
        self._unscorable: dict[Digest, None] = {}
        """Commits that the task has no score for here."""
        self._read: _Drawn = {}
        """What was drawn while the batch was not complete."""
        self._broken: EngineError | None = None
        """Why the task could not be asked about a rollout that was drawn."""

    def use(self, commits: tuple[Digest, ...]) -> None:
        """Leave out ``commits``, those of the version under way; the ledger knows earlier ones."""
        self._used = dict.fromkeys(commits)
        self._read = {}

    async def next(self, version: int, policy: bytes) -> TrainingBatch | None:
        """Return a batch for a step from ``version``, or None while there are too few rollouts.

        ``policy`` is the digest of the weights of that version: nobody knew it when they committed
        to rollouts of earlier ones, so nobody could choose a commit that its lot favours. Raises
        ``EngineError`` when there are too few because the task could not be asked about some, and
        when the engine cannot compute.
        """
        self._broken = None
        grpo = self._context.manifest.grpo
        candidates = self._candidates(version, policy)
        if len(candidates) < grpo.rollouts_per_step:
            return None
        drawn: _Drawn = {}
        waiting = iter(candidates[: 2 * grpo.batch_max])
        while some := list(islice(waiting, self._wanted(drawn))):
            found = await asyncio.gather(*map(self._once, some))
            for entry, sequences in zip(some, found, strict=True):
                if sequences is None:
                    self._misses[entry.commit.digest] += 1
                else:
                    drawn[entry.commit.digest] = sequences
        self._read = drawn
        if self._wanted(drawn):
            if self._broken is not None:
                raise self._broken
            return None
        prompts = self._context.manifest.sampling.prompts_per_rollout
        numbered = {
            commit: [replace(item, group=index * prompts + item.group) for item in rollout]
            for index, (commit, rollout) in enumerate(drawn.items())
        }
        versions = {entry.commit.digest: entry.version for entry in candidates}
        if self._recomputes and not await self._recompute(numbered, versions):
            return None
        return TrainingBatch(
            tuple(numbered),
            [item for own in numbered.values() for item in own],
            tuple(version - versions[commit] for commit in numbered),
        )

    async def _recompute(self, rollouts: _Drawn, versions: Mapping[Digest, int]) -> bool:
        """Put our own log-probabilities into ``rollouts``; False while weights are missing."""
        policies = self._context.policies
        for version in sorted({versions[commit] for commit in rollouts}):
            commits = [commit for commit in rollouts if versions[commit] == version]
            policy = policies.get(version)
            if policy is None:
                return False
            claimed = [item for commit in commits for item in rollouts[commit]]
            try:
                computing = self._context.durations.steps.part(self._context.clock.now())
                with computing, policies.hold(policy):
                    own = iter(await self._engine.recompute(policy, claimed))
            except ValueError as error:
                log.warning("policy refused", version=version, error=str(error))
                await policies.discard(policy)
                return False
            for commit in commits:
                rollouts[commit] = list(islice(own, len(rollouts[commit])))
        return True

    def _candidates(self, version: int, policy: bytes) -> list[Entry]:
        """Return what may be learned from, in the order of the lot."""
        ledger = self._context.replica.ledger
        oldest = version - self._context.manifest.grpo.async_level
        self._misses = Counter({k: n for k, n in self._misses.items() if k in ledger.entries})
        self._unscorable = {key: None for key in self._unscorable if key in ledger.entries}
        candidates = {
            entry.commit.digest: entry
            for entry in ledger.usable()
            if entry.commit.digest not in self._used
            and entry.commit.digest not in self._unscorable
            and oldest <= entry.version
            and self._can_be_recomputed(entry)
        }
        # Bodies that could not be had or scored come last, so that a few hold nothing up.
        ranked = sorted(candidates, key=lambda key: (self._misses[key], digest(policy + key)))
        return [candidates[key] for key in ranked]

    def _can_be_recomputed(self, entry: Entry) -> bool:
        if not self._recomputes:
            return True
        return self._context.policies.get(entry.version) is not None

    def _wanted(self, drawn: _Drawn) -> int:
        """Return how many more rollouts a batch needs."""
        grpo, sampling = self._context.manifest.grpo, self._context.manifest.sampling
        prompts = sampling.prompts_per_rollout
        teaching = sum(map(_teaching_groups, drawn.values()))
        lacking = -(-(grpo.rollouts_per_step * prompts - teaching) // prompts)
        return max(grpo.rollouts_per_step - len(drawn), min(lacking, grpo.batch_max - len(drawn)))

    async def _once(self, entry: Entry) -> list[TrainingSequence] | None:
        """Return what was read of a body before, or read it now."""
        try:
            return self._read.get(entry.commit.digest) or await self._sequences(entry)
        except EngineError as error:
            log.warning("not scored", commit=entry.commit.digest.hex()[:12], error=str(error))
            self._broken = error
            return None

    async def _sequences(self, entry: Entry) -> list[TrainingSequence] | None:
        """Fetch a certified body; rewards are recomputed, never taken from it."""
        context, message = self._context, entry.commit.message
        voters = context.replica.tally(entry.commit.digest).verdicts
        certifier = [] if entry.certificate is None else [entry.certificate.signer]
        sources = [entry.commit.signer, *certifier, *voters]
        body = await context.network.fetch_body(entry.commit, sources)
        checkpoint = context.replica.ledger.checkpoint(message.version)
        if body is None or checkpoint is None or checkpoint.digest != message.checkpoint:
            return None
        sequences = read_body(context.manifest, message, body)
        if isinstance(sequences, AuditResult):
            return None
        assignments = assign(
            context.manifest, checkpoint.digest, entry.commit.signer, message.slot, message.version
        )
        if check_claims(context.manifest, message, sequences) is not None:
            return None  # a committee may have certified what the model cannot compute
        prompts = await self._task.prompts(assignments)
        rewards = await self._task.rewards(assignments, [item.tokens for item in sequences])
        if isinstance(rewards, Unscorable):
            self._unscorable[entry.commit.digest] = None
            log.warning("left out", commit=entry.commit.digest.hex()[:12], reason=rewards.reason)
            return None
        return [
            TrainingSequence(
                item.group, prompt, claimed.tokens, claimed.logprobs, earned / REWARD_SCALE
            )
            for item, prompt, claimed, earned in zip(
                assignments, prompts, sequences, rewards, strict=True
            )
        ]


def _teaching_groups(rollout: list[TrainingSequence]) -> int:
    """Return how many groups of a rollout, which lie one after another, have unequal rewards."""
    groups = groupby(rollout, key=lambda item: item.group)
    return sum(len({item.reward for item in group}) > 1 for _, group in groups)
