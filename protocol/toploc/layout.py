"""Byte layout of a proof, and the checks of proofs received from outside.

One proof covers one chunk, 16-bit big-endian words throughout:

======  ==========  =========================================================================
offset  bytes       content
======  ==========  =========================================================================
0       2           m, the modulus that is applied to flat indices
2       2 * top_k   coefficients modulo 65497 in ascending powers: bf16, or the high half of fp32
..      2 * top_k   fp32 only: the same for the low half of the bit patterns
======  ==========  =========================================================================

With ``top_k`` 128 that is 258 bytes in bf16, the published format (toploc 0.1.6), and 514 in fp32,
our own. A chunk of fewer values than ``top_k`` keeps the length; its unused high coefficients are
zero. Every chunk has exactly one valid length and one valid set of unused words. Up to 65497 values
it also has one valid modulus, so nothing can be hidden in a proof.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from protocol.toploc.field import PRIME
from protocol.toploc.selection import MODULUS_MIN, VALUES_MAX

CHUNK_TOKENS = 32
"""Tokens per proof in the published format."""

TOP_K = 128
"""Values per proof in the published format.

A run chooses a ``top_k`` of at most half its hidden width. A proof that covers all values of a
chunk, which may be one token, covers those near zero too, and their relative error is unbounded. 4
% of honest fp32 chunks of 1 x 128 then exceed a mean of 32 units, against a maximum of 2 with
``top_k`` 64 (measured, Gaussian values with an absolute error of 1.5e-7)."""

TOP_K_MAX = 1024
"""Twice the widest that a published sweep tried; interpolation costs the square of it."""

Words = NDArray[np.uint16]
"""Decoded proofs, ``[chunks, words]``: the modulus first, then the coefficients."""


class Variant(StrEnum):
    """Precision of the states that a proof covers."""

    BF16 = "bf16"
    FP32 = "fp32"

    @property
    def planes(self) -> int:
        """Number of 16-bit polynomials per value."""
        return 1 if self is Variant.BF16 else 2


class FaultKind(StrEnum):
    """Faults of a sequence's proofs, in the order of the checks."""

    COUNT = "count"
    LENGTH = "length"
    MODULUS = "modulus"
    COEFFICIENT = "coefficient"
    PADDING = "padding"


@dataclass(frozen=True, slots=True)
class ProofFault:
    """A malformed proof, detected before any arithmetic."""

    kind: FaultKind

    chunk: int
    """The first chunk at fault; for a wrong count the first one missing or surplus."""

    def __str__(self) -> str:
        return f"{self.kind} of chunk {self.chunk}"


@dataclass(frozen=True, slots=True)
class ProofLayout:
    """Parameters that determine the chunks of a sequence and the length of a proof."""

    variant: Variant
    chunk_tokens: int
    top_k: int

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for parameters outside their limits."""
        if self.chunk_tokens < 1:
            raise ValueError("chunk_tokens must be at least 1")
        if not 1 <= self.top_k <= TOP_K_MAX:
            raise ValueError(f"top_k must be from 1 to {TOP_K_MAX}")

    @property
    def proof_bytes(self) -> int:
        """Length of one proof."""
        return 2 + 2 * self.variant.planes * self.top_k

    def chunk_sizes(self, tokens: int, hidden: int) -> NDArray[np.int64]:
        """Return the number of values in each chunk of ``tokens`` states, ``[chunks]``.

        Raises ``ValueError`` for an impossible shape or a chunk beyond ``VALUES_MAX``.
        """
        if tokens < 0 or hidden < 1:
            raise ValueError(f"no states have the shape [{tokens}, {hidden}]")
        if self.chunk_tokens * hidden > VALUES_MAX:
            raise ValueError(f"a chunk holds at most {VALUES_MAX} values")
        sizes = np.full(
            math.ceil(tokens / self.chunk_tokens), self.chunk_tokens * hidden, dtype=np.int64
        )
        if tokens % self.chunk_tokens:
            sizes[-1] = tokens % self.chunk_tokens * hidden
        return sizes

    def encode(self, moduli: NDArray[np.int64], coefficients: NDArray[np.uint32]) -> list[bytes]:
        """Return the proofs of ``moduli[chunks]`` and ``coefficients[planes, chunks, top_k]``."""
        words = np.concatenate((moduli[:, None], *coefficients), axis=1).astype(">u2")
        return [row.tobytes() for row in words]

    def decode(self, proofs: Sequence[bytes]) -> Words:
        """Return the words of proofs that all have the right length."""
        words = np.frombuffer(b"".join(proofs), dtype=">u2")
        return words.reshape(len(proofs), self.proof_bytes // 2).astype(np.uint16)

    def fault(self, proofs: Sequence[bytes], sizes: NDArray[np.int64]) -> ProofFault | None:
        """Return the first fault of a sequence's proofs, given the sizes of its chunks."""
        if len(proofs) != len(sizes):
            return ProofFault(FaultKind.COUNT, min(len(proofs), len(sizes)))
        for chunk, proof in enumerate(proofs):
            if len(proof) != self.proof_bytes:
                return ProofFault(FaultKind.LENGTH, chunk)
        words = self.decode(proofs)
        return self._word_fault(words[:, 0], words[:, 1:], sizes)

    def _word_fault(
        self, moduli: Words, coefficients: Words, sizes: NDArray[np.int64]
    ) -> ProofFault | None:
        # A null proof, which the published library writes when it fails, has modulus 0.
        modulus_min = np.where(sizes > PRIME, MODULUS_MIN, PRIME)
        power = np.arange(coefficients.shape[1]) % self.top_k
        unused = power >= np.minimum(self.top_k, sizes)[:, None]
        checks = (
            (FaultKind.MODULUS, (moduli < modulus_min) | (moduli > PRIME)),
            (FaultKind.COEFFICIENT, (coefficients >= PRIME).any(axis=1)),
            (FaultKind.PADDING, ((coefficients != 0) & unused).any(axis=1)),
        )
        for kind, faulty in checks:
            if faulty.any():
                return ProofFault(kind, int(faulty.argmax()))
        return None
