"""TOPLOC: proofs that generated tokens come from the agreed model.

A worker proves the final hidden states of its rollout: 258 bytes for 32 tokens in bf16. A validator
recomputes the states with one prefill over the same tokens, which is many times faster than
generating them, and compares. Locality-sensitive means that small numerical differences between
machines give small errors, while another model, prompt or precision gives large ones.

The idea is of Ong and others, arXiv 2501.16007; ``proof`` lists the deviations and their reasons. A
proof does not cover the choice of tokens, the last layer or the last token. ``sampling`` has the
noise that makes the choice of a token repeatable. ``protocol.rollout.audit`` checks all of it and
decides on the statistics.

Everything is exact integer arithmetic up to the final statistics: the same states give the same
bytes on every machine. Reading order: ``layout`` (bytes), ``selection`` (covered values), ``field``
(polynomials), ``proof`` (build and verify), ``sampling``. The result of a verification is here,
free of numpy.
"""

from dataclasses import dataclass

NO_EQUAL_EXPONENT = 2.0**64
"""Mantissa error, mean and median, of a chunk without one equal exponent (toploc 0.1.6)."""


@dataclass(frozen=True, slots=True)
class ChunkResult:
    """Distance of one chunk's proof from the verifier's states; lower is better."""

    exponent_mismatches: int
    """Positions, of ``min(top_k, values in the chunk)``, with differing sign or exponent."""

    mantissa_error_mean: float
    """In units of the last place (7-bit mantissa in bf16, 23-bit in fp32), over the others."""

    mantissa_error_median: float
    """The same as a median; both are ``NO_EQUAL_EXPONENT`` if every position mismatches."""
