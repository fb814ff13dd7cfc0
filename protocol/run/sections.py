"""Recipe sections for honest differences, committees, credit, runtime, outer steps and admission.

Also the base class and the number types of all sections. The manifest pins the scoring runtime of a
task in text: the minor version of Python and exact versions of packages. A node's record holds the
digest of its actual runtime, micro version included, to compare two machines with differing scores.
"""

import operator
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.core.codec import encode
from protocol.core.crypto import digest, public_key_from_peer_id
from protocol.core.types import Digest
from protocol.messages import (
    COUNCIL_MAX,
    REEXAMINERS_MAX,
    REVEALERS_MAX,
    ROUND_TRAINERS_MAX,
    VERDICTS_MAX,
)

Count = Annotated[int, Field(ge=1, le=2**31)]
Seconds = Annotated[float, Field(gt=0, le=86_400)]
Rate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9._-]*$")]
HexDigest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

LEFT_OUT_WHEN_EMPTY = Field(exclude_if=operator.not_)
"""For fields newer than the first manifests of version 1: unused ones keep the run id."""


class RecipeModel(BaseModel):
    """A table of a recipe or manifest."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class HonestValue(RecipeModel):
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


class HonestSection(RecipeModel):
    """Statistics of honest workers; ``run create`` measures them.

    Each has ``mean``, the largest of any honest pair of engines, ``variance`` of one value, and
    ``clip``, the largest value that counts.
    """

    logprob_error: HonestValue
    """Absolute error of a claimed log-probability, in nats."""
    logprob_shift: HonestValue
    """Signed error of a claimed log-probability, in nats; its mean counts either way."""
    logprob_outliers: HonestValue
    """Indicator of a token with an error beyond ``logprob_tau``: 1, else 0."""
    replay_mismatches: HonestValue
    """Indicator of a token that the replay of the sampling does not choose: 1, else 0."""
    sampling_gap: HonestValue
    """Distance of a token's score below the best one, in nats."""
    sampling_surprise: HonestValue
    """Improbability of that distance under errors of ``gap_sigma``, in nats."""
    exponent_mismatches: HonestValue
    """Values of a chunk with differing exponents."""
    mantissa_error: HonestValue
    """Mean error of the mantissas of a chunk, in units of the last place."""


class CommitteeSection(RecipeModel):
    """Committees that check rollouts: their sizes and deadlines."""

    size: Count
    """Validators that check a rollout first; they certify it if all of them accept."""
    escalated_size: Annotated[int, Field(ge=1, le=VERDICTS_MAX)]
    """Validators of the larger committee, of which two thirds decide after a reject or silence."""
    escalate_after_epochs: Count
    """Age of a commit, in epochs, at which the larger committee checks it."""
    expire_after_epochs: Count
    """Age in epochs at which a commit without an outcome expires."""
    reexamine_share: Share = 0.05
    """Share of the decided commits that a later page draws for a second check; 0: none."""
    reexamine_size: Annotated[int, Field(ge=3, le=REEXAMINERS_MAX)] = REEXAMINERS_MAX
    """Seats that check each of them, of which two thirds overturn its outcome."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.escalated_size < self.size:
            raise ValueError("escalated_size must not be smaller than size")
        if self.expire_after_epochs <= self.escalate_after_epochs:
            raise ValueError("expire_after_epochs must exceed escalate_after_epochs")
        return self


class CouncilSection(RecipeModel):
    """The council that votes on pages: its size, its beacon and when members leave it."""

    seats_max: Annotated[int, Field(ge=1, le=COUNCIL_MAX)] = COUNCIL_MAX
    """Maximum members."""
    revealers: Annotated[int, Field(ge=1, le=REVEALERS_MAX)] = REVEALERS_MAX
    """Members drawn in each epoch to reveal a part of its beacon."""
    silent_epochs: Annotated[Count, Field(ge=3)] = 30
    """Epochs without a vote after which a member leaves. Half an hour of one-minute epochs."""
    era_epochs: Annotated[Count, Field(ge=32)] = 360
    """Epochs after which the seats are drawn anew from certified work."""
    recovery_epochs: Annotated[Count, Field(ge=3)] = 60
    """Epochs without a final page after which more than half of the seats may remove the rest."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.recovery_epochs < self.silent_epochs:
            raise ValueError("recovery_epochs must not be smaller than silent_epochs")
        return self


Credit = Annotated[int, Field(ge=0, le=1000)]

REWARD_DISAGREEMENT_RATE = 1e-3
"""Omitted from a manifest at this value, which is older than the key."""


class CreditSection(RecipeModel):
    """Credit for work that final pages name, and consequences of a rejected rollout."""

    slash: bool
    """True excludes a worker from the run for a fault that no accident explains."""
    reward_disagreement_rate: Annotated[
        Share, Field(exclude_if=lambda rate: rate == REWARD_DISAGREEMENT_RATE)
    ] = REWARD_DISAGREEMENT_RATE
    """Share of honest rollouts with rewards that a validator computes differently."""
    per_token: Credit = 10
    """Credit of a worker for each certified token."""
    per_checked_token: Credit = 4
    """Credit of a validator for each token of a rollout that it checked: a check of a rollout takes
    0.4 to 0.5 of the time of its generation (``docs/measurements.md``)."""
    per_learned_token: Credit = 10
    """Credit of a trainer for each token that a final version of it learned from."""
    lock_epochs: Annotated[int, Field(ge=0, le=2**31)] = 60
    """Epochs after its page for which credit is locked: a fault that is found in this time takes
    it back. An hour of one-minute epochs."""
    gap_max: Annotated[int, Field(ge=0, le=2**31)] = 64
    """Training slots that a worker may leave out, expired rollouts included. While it has left out
    more, each accepted rollout pays for one of them and earns nothing. A guess."""


PACKAGES_MAX = 16
"""Maximum packages of one runtime; mathematics takes five."""

PackageName = Annotated[str, Field(max_length=64, pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$")]
PackageVersion = Annotated[str, Field(max_length=32, pattern=r"^[0-9][0-9a-z.+!]*$")]


class RuntimeSection(RecipeModel):
    """Scoring runtime that every scoring machine must have."""

    python: Annotated[str, Field(max_length=8, pattern=r"^3\.[1-9][0-9]?$", examples=["3.12"])]
    """Minor version of CPython, such as ``3.12``."""
    packages: Annotated[dict[PackageName, PackageVersion], Field(max_length=PACKAGES_MAX)] = Field(
        default_factory=dict
    )
    """Exact versions by package; empty for a task that the standard library scores."""

    def __str__(self) -> str:
        """Return it as text: ``Python 3.12 with sympy 1.14.0, mpmath 1.3.0``."""
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        return f"Python {self.python}{' with ' if packages else ''}{packages}"


def runtime_digest(python: str, packages: Mapping[str, str]) -> Digest:
    """Return the digest of a runtime of full version ``python``, such as 3.12.1."""
    return digest(encode({"packages": dict(packages), "python": python}))


WORK_KIB_PASSES_MAX = 8192
"""Memory times passes: a check runs in the event loop and takes 0.4 to 1.4 ms per 1024."""


INVITERS_MAX = 64


QUOTA_MAX = 1000
"""Maximum invites of one member: every node remembers the numbers of all invites."""


DifferenceEncoding = Literal["int8", "float32"]


class OuterSection(RecipeModel):
    """Several trainers at the same time: a version is one outer step by what each of them moved.

    In a round each trainer makes ``inner_steps`` steps, each on ``grpo.rollouts_per_step``
    rollouts.
    """

    trainers: Annotated[int, Field(ge=1, le=ROUND_TRAINERS_MAX, examples=[2])]
    """Most trainers of a round. Workers make rollouts for so many."""
    inner_steps: Annotated[int, Field(ge=1, le=64)] = 2
    """Steps of a trainer in a round. More of them send fewer differences, and each step learns
    less: three trainers need 36 steps each at 2, 48 at 4; one trainer alone needs 49 (measured).
    """
    learning_rate: Annotated[float, Field(gt=0, le=2)] = 0.7
    """Factor on the mean difference; 1 without momentum is the mean of the trainers' weights."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.6
    """Nesterov momentum of the outer steps."""
    encoding: DifferenceEncoding = "int8"
    """Format of differences: ``int8`` takes a quarter of ``float32``, and learns as well."""


Epochs = Annotated[int, Field(ge=0, le=2**31)]


class AdmissionSection(RecipeModel):
    """Admission of keys that the genesis does not name."""

    rule: Literal["open", "invite", "allowlist"]
    """Condition for a key that the run does not name: proof of work, an invitation, or a list."""
    workers: tuple[str, ...] = ()
    """Peer ids of the workers, under ``allowlist``. Any key may be a relay."""
    work_bits: Annotated[int, Field(ge=0, le=40)] = 0
    """Zero bits at the beginning of the hash, under ``open``; each doubles the work, 0: none."""
    work_kib: Annotated[int, Field(ge=8, le=WORK_KIB_PASSES_MAX)] = 1024
    """Memory of one hash in KiB."""
    work_passes: Annotated[int, Field(ge=1, le=16)] = 1
    """Passes of one hash over its memory; times ``work_kib`` at most 8192."""
    inviters: Annotated[
        dict[str, Annotated[int, Field(ge=1, le=QUOTA_MAX)]], Field(max_length=INVITERS_MAX)
    ] = Field(default_factory=dict)
    """Peer ids that may invite beside the creator, under ``invite``, and how many keys each."""
    probation_epochs: Epochs = 0
    """Epochs between the admission of a key and the first version that it may work on; 0: none."""
    settled_epochs: Epochs = 0
    """Epochs after its admission from which a key may work on any version.

    Above ``probation_epochs``, unless that is 0. Without it a run with only new keys stops.
    """

    @property
    def asks_proof(self) -> bool:
        """True if records of keys outside the genesis must hold a proof."""
        asks = self.work_bits > 0 or self.probation_epochs > 0
        return self.rule == "invite" or (self.rule == "open" and asks)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.work_kib * self.work_passes > WORK_KIB_PASSES_MAX:
            raise ValueError(f"work_kib times work_passes must not exceed {WORK_KIB_PASSES_MAX}")
        if self.rule != "open" and self.work_bits:
            raise ValueError("work_bits is for the rule 'open'")
        if self.rule != "invite" and self.inviters:
            raise ValueError("inviters is for the rule 'invite'")
        if self.rule != "allowlist" and self.workers:
            raise ValueError("workers is for the rule 'allowlist'")
        if self.rule == "allowlist" and self.probation_epochs:
            raise ValueError("probation_epochs is not for the rule 'allowlist'")
        if self.probation_epochs and self.settled_epochs <= self.probation_epochs:
            raise ValueError("settled_epochs must exceed probation_epochs")
        for key in self.inviters:
            if public_key_from_peer_id(key) is None:
                raise ValueError(f"{key!r} is not an Ed25519 peer id")
        return self
