"""Statistics of training steps: one record per step, kept across restarts of a trainer.

A trainer records its own steps. Of other trainers' versions a node knows only the mean reward in
the announcement, so their records have no other statistic.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import structlog
from pydantic import TypeAdapter, ValidationError

from protocol.core.types import PeerId
from protocol.ledger.chain import CheckpointEntry
from protocol.rollout.body import REWARD_SCALE
from roles.ports.storage import Delete, Put, StorageFullError, Store

log = structlog.get_logger()

TABLE = "training-steps"

STEPS_MAX = 10_000
"""Newest steps that are kept: about 8 MB in the store."""

_HARD_REWARD = 0.1
_SOLVED_REWARD = 0.9
"""Mean rewards beyond which a batch with equal rewards in each group has too hard or too easy
problems; a guess."""

_ENGINE_MISMATCH_MAX = 0.05
"""Fraction of tokens beyond the clip range under equal weights. Honest engines in bf16 have 0.0 to
1.3 % (measured, SmolLM2-135M with its recipe); the limit is a guess."""

_MISMATCH_MAX = 0.2
"""Fraction of tokens beyond the clip range, lag included; a guess. Learning stalls at a clip
fraction of 0.1 to 0.18 on the testnet's model (measured), and clipping is one-sided."""

_KEY_BYTES = 8


def _statistic(text: str) -> Any:
    return field(default=None, metadata={"text": text})


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Statistics of the step that produced ``version`` and ended at ``ended_at`` (unix seconds).

    None: the value is unknown to this node, or not finite.
    """

    version: int
    ended_at: float
    reward_mean: float | None = _statistic("Mean reward of the batch.")
    reward_std: float | None = _statistic("Standard deviation of the rewards of the batch.")
    groups_teaching_fraction: float | None = _statistic(
        "Fraction of groups whose rewards are not all equal."
    )
    sequences_offered: int | None = _statistic("Sequences of the batch.")
    sequences_used: int | None = _statistic("Sequences that the step learned from.")
    entropy_nats: float | None = _statistic("Mean entropy of the policy at the tokens trained on.")
    kl_nats: float | None = _statistic(
        "Divergence from the policies that generated the tokens trained on; an estimate."
    )
    gradient_norm: float | None = _statistic(
        "Norm of the gradient before clipping, the largest of the updates."
    )
    clip_low_fraction: float | None = _statistic(
        "Fraction of tokens clipped at a small ratio: no gradient, or with CISPO a bounded one."
    )
    clip_high_fraction: float | None = _statistic(
        "Fraction of tokens clipped at a large ratio: no gradient, or with CISPO a bounded one."
    )
    mismatch_mean_nats: float | None = _statistic(
        "Difference of log-probabilities between workers and the step's first weights, mean."
    )
    mismatch_p99_nats: float | None = _statistic(
        "Difference of log-probabilities between workers and the step's first weights, 99 %."
    )
    mismatch_clip_fraction: float | None = _statistic(
        "Fraction of tokens at which that difference exceeds the clip range."
    )
    engine_mismatch_mean_nats: float | None = _statistic(
        "Difference of log-probabilities between workers and trainer under equal weights, mean."
    )
    engine_mismatch_p99_nats: float | None = _statistic(
        "Difference of log-probabilities between workers and trainer under equal weights, 99 %."
    )
    engine_mismatch_clip_fraction: float | None = _statistic(
        "Fraction of tokens at which that difference exceeds the clip range."
    )
    loss: float | None = _statistic("Loss of the updates, by the aggregation of the run.")
    learning_rate: float | None = _statistic("Learning rate of the last update; 0 without one.")
    updates: int | None = _statistic("Optimizer updates of the step.")
    answer_tokens_mean: float | None = _statistic("Mean length of the answers, in tokens.")
    answers_cut_fraction: float | None = _statistic(
        "Fraction of answers that were cut at the length limit."
    )
    staleness_mean_versions: float | None = _statistic(
        "Versions between the policy that generated a rollout and the one that learned, mean."
    )
    staleness_max_versions: int | None = _statistic(
        "Versions between the policy that generated a rollout and the one that learned, maximum."
    )
    tokens_per_second: float | None = _statistic(
        "Tokens of prompts and answers learned from, per second of the step."
    )
    step_seconds: float | None = _statistic("Time in which the engine computed for the step.")
    idle_seconds: float | None = _statistic(
        "Time since the step before in which the engine computed for no step."
    )
    ranks: int | None = _statistic("Processes that computed the step together.")
    memory_peak_bytes: int | None = _statistic(
        "Largest memory of a rank since it began: on its GPU, or resident."
    )

    @property
    def statistics(self) -> dict[str, float]:
        """Known statistics by name."""
        known = {name: getattr(self, name) for name in STATISTICS}
        return {name: value for name, value in known.items() if value is not None}

    @property
    def warning(self) -> str:
        """Problem and remedy in one line; empty for a step without one."""
        if self.sequences_used == 0:
            return (
                f"step {self.version} used 0 of {self.sequences_offered} sequences: the rewards in "
                f"each group are equal, so the policy did not change; {self._remedy()}"
            )
        if self.updates == 0:
            return (
                f"step {self.version} made no update: its loss or gradient was not finite; lower "
                "grpo.learning_rate or grpo.gradient_clip in a new run"
            )
        cause = self._mismatch_cause()
        return f"step {self.version}: {cause}" if cause else ""

    def _mismatch_cause(self) -> str:
        """Return why the log-probabilities of workers and trainer differ too much, if they do."""
        engine, step = self.engine_mismatch_clip_fraction, self.mismatch_clip_fraction
        if engine is not None and engine > _ENGINE_MISMATCH_MAX:
            return (
                f"workers and trainer differ beyond the clip range at {engine:.0%} of the tokens, "
                "under equal weights: kernels or precision differ, or claims are false; compare "
                "the engines of workers and trainer"
            )
        if step is None or step <= _MISMATCH_MAX:
            return ""
        text = f"{step:.0%} of the tokens are beyond the clip range before the first update: "
        if engine is None:
            return text + (
                "old rollouts or different engines; the batch has no rollout of the newest version "
                "to tell which"
            )
        return text + (
            f"the rollouts are old (under equal weights {engine:.1%} are); lower grpo.async_level "
            "or grpo.learning_rate in a new run"
        )

    def _remedy(self) -> str:
        if self.reward_mean is not None and self.reward_mean < _HARD_REWARD:
            return "the problems are too hard for this model: found a run on easier ones"
        if self.reward_mean is not None and self.reward_mean > _SOLVED_REWARD:
            return "the task is solved: end the run, or found one on harder problems"
        return "raise sampling.temperature or sampling.group_size in a new run"


STATISTICS: dict[str, str] = {
    one.name: one.metadata["text"] for one in fields(TrainingStep) if one.metadata
}
"""Descriptions of a step's statistics, by name; a name ends with the unit."""

_STEP = TypeAdapter(TrainingStep)


def encoded(step: TrainingStep) -> bytes:
    """Return a step as one line of JSON, without a newline."""
    return _STEP.dump_json(step)


def decoded(line: bytes) -> TrainingStep:
    """Return the step of a line; raises ``ValueError``. Unknown statistics are ignored."""
    return _STEP.validate_json(line)


class TrainingSteps:
    """Newest ``STEPS_MAX`` steps of this node's trainer, by version."""

    def __init__(self) -> None:
        self._steps: dict[int, TrainingStep] = {}
        self.newest: TrainingStep | None = None
        """Step that ended last; after a restart, the step of the highest version."""

    def restore(self, store: Store) -> None:
        """Read the steps that an earlier process recorded."""
        for key, line in store.scan(TABLE):
            try:
                step = decoded(line)
            except ValidationError:
                log.warning("training step unreadable", version=int.from_bytes(key, "big"))
                continue
            self._steps[step.version] = self.newest = step

    async def record(self, step: TrainingStep, store: Store) -> None:
        """Store a step; it replaces an unpublished step of the same version."""
        self._steps.pop(step.version, None)
        self._steps[step.version] = self.newest = step
        changes: list[Put | Delete] = [Put(TABLE, _key(step.version), encoded(step))]
        while len(self._steps) > STEPS_MAX:
            oldest = next(iter(self._steps))
            del self._steps[oldest]
            changes.append(Delete(TABLE, _key(oldest)))
        try:
            await store.commit(changes)
        except StorageFullError as error:
            log.warning("training step not stored", version=step.version, error=str(error))

    def of(self, checkpoints: Sequence[CheckpointEntry], peer: PeerId) -> list[TrainingStep]:
        """Return a record for each published version after 0, ascending.

        ``peer`` is this node. Records of other trainers' versions have the announced reward only,
        unless this trainer recorded its part of their round.
        """
        return [self._of(entry, peer) for entry in checkpoints if entry.manifest.message.version]

    def _of(self, entry: CheckpointEntry, peer: PeerId) -> TrainingStep:
        message = entry.manifest.message
        own = self._steps.get(message.version)
        if own is not None and (entry.manifest.signer == peer or message.round is not None):
            return own
        return TrainingStep(
            message.version, message.created_at / 1000, message.reward_mean / REWARD_SCALE
        )

    @property
    def warning(self) -> str:
        """Warning of the newest step with the number of steps in a row; empty without one."""
        if self.newest is None or not self.newest.warning:
            return ""
        alike, version = 1, self.newest.version - 1
        while (step := self._steps.get(version)) is not None and step.warning:
            alike, version = alike + 1, version - 1
        return self.newest.warning + (f" ({alike} steps in a row)" if alike > 1 else "")


def _key(version: int) -> bytes:
    return version.to_bytes(_KEY_BYTES, "big")
