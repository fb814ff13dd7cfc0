"""Rounding errors of honest engines, drawn from a calibration recording.

Modelled engines agree to the bit. With a recording, each honest sequence that a validator
recomputes is off by the errors of recorded chunks, drawn anew each time.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

from protocol.core.rng import Rng
from protocol.rollout.statistics import Recomputed
from protocol.toploc import ChunkResult

CHUNK_TOKENS = 32
"""Chunk length of the recordings."""


@dataclass(frozen=True, slots=True)
class RecordedChunk:
    """A validator's recomputation of ``CHUNK_TOKENS`` honest tokens, in nats."""

    errors: tuple[float, ...]
    """Claimed minus recomputed log-probability of each token."""
    gaps: tuple[float, ...]
    proof: ChunkResult


class Rounding:
    """Draws recomputations of honest sequences."""

    def __init__(self, chunks: Sequence[RecordedChunk], rng: Rng) -> None:
        self._chunks = chunks
        self._rng = rng

    def recomputed(self, claimed: Sequence[float]) -> Recomputed:
        """Return a recomputation of an honest sequence with these log-probabilities."""
        proofs: list[ChunkResult] = []
        logprobs: list[float] = []
        gaps: list[float] = []
        for start in range(0, len(claimed), CHUNK_TOKENS):
            chunk = self._chunks[self._rng.below(len(self._chunks))]
            part = claimed[start : start + CHUNK_TOKENS]
            proofs.append(chunk.proof)
            logprobs += [value - error for value, error in zip(part, chunk.errors, strict=False)]
            gaps += chunk.gaps[: len(part)]
        return Recomputed(proofs, logprobs, gaps)


@cache
def recorded(name: str) -> tuple[RecordedChunk, ...]:
    """Return the packaged recording ``name``; raises ``FileNotFoundError`` for other names."""
    text = (resources.files("simulations") / "scenarios" / f"{name}.json").read_text()
    return tuple(
        RecordedChunk(tuple(errors), tuple(gaps), ChunkResult(*proof))
        for errors, gaps, proof in json.loads(text)["chunks"]
    )
