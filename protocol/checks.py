"""Sections of a recipe about checking rollouts: honest differences, committees, consequences."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from protocol.messages import VERDICTS_MAX
from protocol.section import Count, Section, Share


class HonestValue(Section):
    """Difference between an honest worker and an honest validator in one quantity.

    ``mean`` is the largest mean of any honest pair of engines, ``variance`` that of one value, such
    that the sum of ``n`` values has ``n`` times it. Values above ``clip`` count as ``clip``.
    """

    mean: Annotated[float, Field(ge=0, le=2**23)]
    """Largest mean of any honest pair of engines."""
    variance: Annotated[float, Field(gt=0, le=2**46)]
    """Variance of one value."""
    clip: Annotated[float, Field(gt=0, le=2**23)]
    """Largest value that counts."""


class HonestSection(Section):
    """Statistics of honest workers; ``run create`` measures them.

    Each has ``mean``, the largest of any honest pair of engines, ``variance`` of one value, and
    ``clip``, the largest value that counts.
    """

    logprob_error: HonestValue
    """Absolute error of a claimed log-probability, in nats."""
    logprob_shift: HonestValue
    """Signed error of a claimed log-probability, in nats; its mean counts either way."""
    logprob_outliers: HonestValue
    """Indicator of a token whose error is beyond ``logprob_tau``: 1, else 0."""
    replay_mismatches: HonestValue
    """Indicator of a token that the replay of the sampling does not choose: 1, else 0."""
    sampling_gap: HonestValue
    """Distance of a token's score below the best one, in nats."""
    sampling_surprise: HonestValue
    """Improbability of that distance under errors of ``gap_sigma``, in nats."""
    exponent_mismatches: HonestValue
    """Values of a chunk whose exponents differ."""
    mantissa_error: HonestValue
    """Mean error of the mantissas of a chunk, in units of the last place."""


class CommitteeSection(Section):
    """Committees that check rollouts: their sizes and deadlines."""

    size: Count
    """Validators that check a rollout first; they certify it if all of them accept."""
    escalated_size: Annotated[int, Field(ge=1, le=VERDICTS_MAX)]
    """Validators of the larger committee, of which two thirds decide after a reject or silence."""
    roster_min: Count
    """Live validators below which no committee is drawn, so that nothing is certified."""
    escalate_after_epochs: Count
    """Age of a commit, in epochs, at which the larger committee is asked."""
    expire_after_epochs: Count
    """Age in epochs at which a commit without an outcome expires."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.escalated_size < self.size:
            raise ValueError("escalated_size must not be smaller than size")
        if self.expire_after_epochs <= self.escalate_after_epochs:
            raise ValueError("expire_after_epochs must exceed escalate_after_epochs")
        return self


REWARD_DISAGREEMENT_RATE = 1e-3
"""Left out of a manifest, as protocol version 1 began without this key."""


class CreditSection(Section):
    """Consequences of a rejected rollout for its worker."""

    slash: bool
    """True excludes a worker from the run for a lie that no accident explains."""
    reward_disagreement_rate: Annotated[
        Share, Field(exclude_if=lambda rate: rate == REWARD_DISAGREEMENT_RATE)
    ] = REWARD_DISAGREEMENT_RATE
    """Share of honest rollouts whose rewards a validator computes differently."""
