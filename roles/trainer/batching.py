"""Which certified rollouts the next step learns from; their claims are checked again here."""

import asyncio
from collections import Counter
from dataclasses import dataclass, replace
from itertools import islice

from protocol.assignment import assign
from protocol.audit import Finding, check_claims, read_body
from protocol.ledger.commits import Entry
from protocol.rollout import REWARD_SCALE
from protocol.types import Digest
from roles.flow import RoleContext, reward
from roles.ports.engines import Environment, TrainingSequence


@dataclass(frozen=True, slots=True)
class Batch:
    """What one step learns from."""

    commits: tuple[Digest, ...]
    sequences: list[TrainingSequence]

    @property
    def reward_mean(self) -> float:
        """Mean reward of the sequences."""
        return sum(item.reward for item in self.sequences) / len(self.sequences)


class Batching:
    """Collects batches; remembers what was used and which bodies could not be had."""

    def __init__(self, context: RoleContext, environment: Environment) -> None:
        self._context = context
        self._environment = environment
        self._used: dict[Digest, None] = {}
        self._misses: Counter[Digest] = Counter()

    def use(self, commits: tuple[Digest, ...]) -> None:
        """Leave out ``commits``, those of the version under way; the ledger knows earlier ones."""
        self._used = dict.fromkeys(commits)

    async def next(self, version: int) -> Batch | None:
        """Return a batch for a step from ``version``, or None while there are too few rollouts."""
        context = self._context
        grpo = context.manifest.grpo
        oldest = version - grpo.async_level
        entries = context.replica.ledger.entries
        self._misses = Counter({key: n for key, n in self._misses.items() if key in entries})
        candidates = [
            entry
            for entry in context.replica.ledger.usable()
            if entry.commit.digest not in self._used and oldest <= entry.commit.message.version
        ]
        if len(candidates) < grpo.rollouts_per_step:
            return None
        # Bodies that could not be had come last, so that a few lost ones hold nothing up.
        candidates.sort(key=lambda entry: self._misses[entry.commit.digest])
        complete = await self._complete(candidates[: 2 * grpo.rollouts_per_step])
        if len(complete) < grpo.rollouts_per_step:
            return None
        prompts = context.manifest.sampling.prompts_per_rollout
        sequences = [
            replace(item, group=index * prompts + item.group)
            for index, (_, rollout) in enumerate(complete)
            for item in rollout
        ]
        return Batch(tuple(entry.commit.digest for entry, _ in complete), sequences)

    async def _complete(
        self, candidates: list[Entry]
    ) -> list[tuple[Entry, list[TrainingSequence]]]:
        """Return a batch of entries with their bodies, or fewer; no more than needed is fetched."""
        count = self._context.manifest.grpo.rollouts_per_step
        complete: list[tuple[Entry, list[TrainingSequence]]] = []
        waiting = iter(candidates)
        while some := list(islice(waiting, count - len(complete))):
            found = await asyncio.gather(*map(self._sequences, some))
            for entry, sequences in zip(some, found, strict=True):
                if sequences is None:
                    self._misses[entry.commit.digest] += 1
                else:
                    complete.append((entry, sequences))
        return complete

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
        if isinstance(sequences, Finding):
            return None
        assignments = assign(context.manifest, checkpoint.digest, entry.commit.signer, message.slot)
        own = [item.reward for item in sequences]
        if check_claims(context.manifest, message, sequences, own) is not None:
            return None  # a committee may have certified what the model cannot compute
        return [
            TrainingSequence(
                item.group,
                self._environment.prompt(item.problem_seed, item.length_target),
                claimed.tokens,
                claimed.logprobs,
                reward(context.manifest, self._environment, item, claimed.tokens) / REWARD_SCALE,
            )
            for item, claimed in zip(assignments, sequences, strict=True)
        ]
