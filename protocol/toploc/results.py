"""Results of proof verification, free of its arithmetic."""

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
