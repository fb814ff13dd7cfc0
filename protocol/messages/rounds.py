"""Schemas of rounds of several trainers: a plan, a result, and their round within a version."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from protocol.messages.envelope import Message
from protocol.messages.fields import (
    BATCH_MAX,
    OMITTED_MAX,
    DigestBytes,
    OptionalDigest,
    SignatureBytes,
    UInt,
)

ROUND_TRAINERS_MAX = 8
"""Maximum trainers of a round. With the largest batch, their results still fit into an envelope."""

ROUND_RESULT_BYTES_MAX = 512
"""An envelope has about 360 bytes."""


class RoundPlan(Message):
    """The leader's plan of a round: all trainers begin at ``parent`` and share ``batch``.

    The trainer at place ``k`` of ``n`` takes the commits ``k``, ``k + n``, ... of the batch.
    """

    kind = "round-plan"
    parent: DigestBytes
    """Digest of the signed manifest of the version before."""
    term: UInt
    batch: Annotated[tuple[DigestBytes, ...], Field(max_length=BATCH_MAX)]
    page: OptionalDigest
    omitted: Annotated[tuple[DigestBytes, ...], Field(max_length=OMITTED_MAX)]
    """``batch``, ``page`` and ``omitted`` are those of the version that the round makes."""
    trainers: Annotated[tuple[UInt, ...], Field(min_length=1, max_length=ROUND_TRAINERS_MAX)]
    """Places of the trainers in the genesis; the leader is the first."""
    reloaded: bool = False
    """True if the round begins from the rounded weights of ``parent``, without outer momentum."""
    planned_at: UInt
    """Unix milliseconds; the newest plan of a leader for a version counts."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if len(set(self.trainers)) != len(self.trainers):
            raise ValueError("trainers names one twice")
        return self


class RoundResult(Message):
    """A trainer's result of a round: by how much its weights moved, as a file."""

    kind = "round-result"
    envelope_bytes_max = ROUND_RESULT_BYTES_MAX
    plan: DigestBytes
    """Digest of the signed plan."""
    difference: DigestBytes
    """Digest of the file's tensors."""
    index: DigestBytes
    """Index of the file, of ``total_bytes``."""
    index_bytes: UInt
    total_bytes: UInt


class Contribution(Message):
    """A trainer's result of a round, as a version contains it."""

    kind = "contribution"
    trainer: UInt
    """Place of the trainer in the genesis."""
    difference: DigestBytes
    index: DigestBytes
    index_bytes: UInt
    total_bytes: UInt
    signature: SignatureBytes
    """Signature of the ``RoundResult`` with these values, for the plan of the version's round."""


class TrainingRound(Message):
    """The round that made a version; with the version's fields it determines its plan."""

    kind = "training-round"
    planned_at: UInt
    trainers: Annotated[tuple[UInt, ...], Field(min_length=1, max_length=ROUND_TRAINERS_MAX)]
    contributions: Annotated[
        tuple[Contribution, ...], Field(min_length=1, max_length=ROUND_TRAINERS_MAX)
    ]
    """The differences whose mean the outer step took, added up in this order: that of
    ``trainers``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        contributors = [one.trainer for one in self.contributions]
        if len(set(self.trainers)) != len(self.trainers):
            raise ValueError("trainers names one twice")
        if [one for one in self.trainers if one in contributors] != contributors:
            raise ValueError("contributions are not in the order of trainers")
        return self
