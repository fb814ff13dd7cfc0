"""Witness values: results of an audit's prefill that no body contains.

The page that draws a committee also draws eight places of the audited sequences. At each of them a
validator states two results of its own prefill: the log-probability of a token that is not the
body's, and the token that other sampling noise selects. Nobody can know the places before the page
exists, and nobody can compute the results without the prefill and the replay of the sampling.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.messages import WITNESSES

_DOMAIN = b"prime-node/witness"


@dataclass(frozen=True, slots=True)
class WitnessPoint:
    """One place of a claimed sequence: position of a token from 0, other token, and noise seed."""

    position: int
    token: int
    seed: int
    """64 bits. The noise is drawn at the same position."""


@dataclass(frozen=True, slots=True)
class WitnessValue:
    """Result at a ``WitnessPoint``: log-probability of its token in nats, and replayed token."""

    logprob: float
    replay: int


def draw_points(
    lot: bytes, sequences: Sequence[Sequence[int]], vocabulary_size: int
) -> list[tuple[int, WitnessPoint]]:
    """Return the witness points of a commit, each with the index of its sequence.

    ``lot`` is the beacon of the page followed by the digest of the commit. ``sequences`` are the
    tokens of the audited sequences in their order, none of them empty.
    """
    rng = Rng(digest(_DOMAIN + lot))
    points: list[tuple[int, WitnessPoint]] = []
    for _ in range(WITNESSES):
        index = rng.below(len(sequences))
        position = rng.below(len(sequences[index]))
        other = rng.below(vocabulary_size - 1)
        token = other + (other >= sequences[index][position])
        points.append((index, WitnessPoint(position, token, rng.bits64())))
    return points


def points_of(points: Sequence[tuple[int, WitnessPoint]], index: int) -> tuple[WitnessPoint, ...]:
    """Return the points of one sequence, in the order of the draw."""
    return tuple(point for place, point in points if place == index)


def in_draw_order(
    points: Sequence[tuple[int, WitnessPoint]], values: Sequence[Sequence[WitnessValue]]
) -> tuple[WitnessValue, ...]:
    """Return the values of each sequence's points in the order of the draw."""
    left = [iter(one) for one in values]
    return tuple(next(left[index]) for index, _ in points)
