"""A validator's recomputation of the sequences of one kind of worker."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from protocol.rollout.statistics import Measurement, Recomputed, measured
from protocol.run.recipe import ToplocSection


@dataclass(frozen=True, slots=True)
class ClaimRecording:
    """Claimed log-probabilities of sequences, and their recomputation."""

    name: str
    claimed: Sequence[Sequence[float]]
    recomputed: Sequence[Recomputed]

    @property
    def tokens(self) -> int:
        """Number of tokens."""
        return sum(map(len, self.claimed))

    def by_chunk(self, rules: ToplocSection) -> list[list[Measurement]]:
        """Return the measurement of every chunk of every sequence."""
        return [
            [measured(rules, *part) for part in _chunks(claimed, own, rules.chunk_tokens)]
            for claimed, own in zip(self.claimed, self.recomputed, strict=True)
        ]


def _chunks(
    claimed: Sequence[float], own: Recomputed, chunk_tokens: int
) -> Iterator[tuple[Sequence[float], Recomputed]]:
    for number, chunk in enumerate(own.chunks):
        part = slice(number * chunk_tokens, (number + 1) * chunk_tokens)
        yield claimed[part], Recomputed([chunk], own.logprobs[part], own.gaps[part])
