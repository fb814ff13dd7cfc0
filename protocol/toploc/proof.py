"""Build and verify TOPLOC proofs that a model's prefill over given tokens gives certain states.

The prover takes the largest values of a chunk of final hidden states (after the last norm). It
interpolates a polynomial through (flat index modulo m, bit pattern) and sends its coefficients. The
verifier takes the largest values of its **own** states, evaluates the polynomial at their indices
and compares. Paper: arXiv 2501.16007; format and statistics: toploc 0.1.6.

Deviations from that library, each because of an attack or a crash that it allows:

* The **sign** is compared; in the library negated states verify as perfect.
* ``proof_fault`` rejects a malformed or short list of proofs; in the library a zero modulus divides
  by zero and missing proofs pass.
* The median is the true one, and a chunk of fewer than ``top_k`` values has a proof.
* There is an **fp32** variant: two polynomials over the same points, one for each half of the bit
  pattern. bf16 cannot separate policies one small optimizer step apart; fp32 can.
* Nearly equal fp32 values on two sides of a power of two are no exponent mismatch.

**Aliasing.** Of the 65536 patterns of a half those from 65497 (0xFFD9) upward return as 0..38. In
bf16 and in the high half of fp32 those are NaN, which states must not hold. In the low half 7 % of
honest chunks hold one, and the verifier takes the nearer of the two values that 0..38 represent.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.toploc import NO_EQUAL_EXPONENT, ChunkResult
from protocol.toploc.field import PRIME, evaluate, interpolate
from protocol.toploc.layout import CHUNK_TOKENS, TOP_K, ProofFault, ProofLayout, Variant, Words
from protocol.toploc.selection import Bits, Selection, find_moduli, select_top

_T = TypeVar("_T")

States = NDArray[np.uint16] | NDArray[np.float32]
"""``[tokens, hidden]``: bf16 bit patterns as ``uint16``, or ``float32``; the dtype selects."""

FP32_NEAR = 4096
"""Units of the last place within which fp32 patterns count as having equal exponents.

An honest value near a power of two may be on its other side. A value of the prompt is then a
mismatch in every sequence of its group, but the audit takes chunks as independent: one of some 400
honest rollouts was rejected for it (measured). Patterns are ordered as values are, so their
difference counts as any other."""

_BLOCK_CHUNKS = 128
"""Chunks per pass: the working set stays near 0.5 MB for every batch size."""

_MANTISSA_BITS = {Variant.BF16: 7, Variant.FP32: 23}

_EXPONENT_NOT_FINITE = 0xFF
"""Exponent field of NaN and infinity, eight bits in both variants."""


@dataclass(frozen=True, slots=True)
class Covered:
    """Values of one chunk that its proof covers, selected elsewhere as ``select_top`` does."""

    indices: NDArray[np.int64]
    """``[k]`` flat indices, ascending."""

    bits: NDArray[np.int64]
    """``[k]`` unsigned bit patterns at these indices."""

    size: int
    """Number of values in the chunk."""


@dataclass(frozen=True, slots=True)
class _Block:
    """Covered values of some chunks in the form that build and verify share."""

    selection: Selection
    sizes: NDArray[np.int64]
    values: NDArray[np.int64]
    """``[n, k]`` bit patterns at the selected indices, zero beyond a row's count."""


def variant_of(states: States) -> Variant:
    """Return the variant that the dtype of ``states`` selects; ``ValueError`` for any other."""
    if states.dtype == np.uint16:
        return Variant.BF16
    if states.dtype == np.float32:
        return Variant.FP32
    raise ValueError(f"states are uint16 (bf16 bit patterns) or float32, not {states.dtype}")


def proof_fault(
    proofs: Sequence[bytes],
    tokens: int,
    *,
    hidden: int,
    variant: Variant,
    chunk_tokens: int = CHUNK_TOKENS,
    top_k: int = TOP_K,
) -> ProofFault | None:
    """Return the first fault in the proofs of ``tokens`` states of ``hidden`` values, or None.

    Needs no states, so a validator calls it before its prefill. No content of ``proofs`` makes it
    raise; ``ValueError`` means that the other arguments are impossible.
    """
    layout = ProofLayout(variant, chunk_tokens, top_k)
    return layout.fault(proofs, layout.chunk_sizes(tokens, hidden))


def build_proofs_batch(
    sequences: Sequence[States], *, chunk_tokens: int = CHUNK_TOKENS, top_k: int = TOP_K
) -> list[list[bytes]]:
    """Return the proofs of every sequence, one for each ``chunk_tokens`` rows or the rest of them.

    Sequences may differ in length and width, not in dtype. Raises ``ValueError`` for states that
    are not finite, not two-dimensional or of another dtype.
    """
    if len(sequences) == 0:
        return []
    layout, sizes = _prepare(sequences, chunk_tokens, top_k)
    proofs = [proof for block in _blocks(sequences, layout) for proof in _proofs(block, layout)]
    return _regroup(proofs, sizes)


def build_covered_proofs(
    chunks: Sequence[Covered], variant: Variant, *, top_k: int = TOP_K
) -> list[bytes]:
    """Return the proof of each chunk from its covered values.

    Raises ``ValueError`` for values that are not finite.
    """
    layout = ProofLayout(variant, CHUNK_TOKENS, top_k)
    proofs: list[bytes] = []
    for start in range(0, len(chunks), _BLOCK_CHUNKS):
        members = chunks[start : start + _BLOCK_CHUNKS]
        indices = np.zeros((len(members), top_k), dtype=np.int64)
        values = np.zeros_like(indices)
        for number, chunk in enumerate(members):
            indices[number, : len(chunk.indices)] = chunk.indices
            values[number, : len(chunk.bits)] = chunk.bits
        counts = np.array([len(chunk.indices) for chunk in members], dtype=np.int64)
        sizes = np.array([chunk.size for chunk in members], dtype=np.int64)
        _check_finite(values, variant)
        proofs += _proofs(_Block(Selection(indices, counts), sizes, values), layout)
    return proofs


def verify_proofs_batch(
    sequences: Sequence[States],
    proofs: Sequence[Sequence[bytes]],
    *,
    chunk_tokens: int = CHUNK_TOKENS,
    top_k: int = TOP_K,
) -> list[list[ChunkResult]]:
    """Compare the verifier's own states with the proofs of every sequence, chunk by chunk.

    Call ``proof_fault`` first, before the prefill: proofs that it rejects raise ``ValueError``
    here. States raise as in ``build_proofs_batch``, and so do unequal numbers of proof lists and
    sequences.
    """
    if len(sequences) != len(proofs):
        raise ValueError(f"{len(proofs)} lists of proofs for {len(sequences)} sequences")
    if len(sequences) == 0:
        return []
    layout, sizes = _prepare(sequences, chunk_tokens, top_k)
    for number, (own, given) in enumerate(zip(sizes, proofs, strict=True)):
        if len(own) != len(given):
            raise ValueError(f"{len(given)} proofs for {len(own)} chunks of sequence {number}")
    flat = [proof for given in proofs for proof in given]
    fault = layout.fault(flat, np.concatenate(sizes))
    if fault is not None:
        raise ValueError(f"malformed, counting through all sequences: {fault}")
    words = layout.decode(flat)
    results: list[ChunkResult] = []
    for block in _blocks(sequences, layout):
        own_words = words[len(results) : len(results) + len(block.sizes)]
        results += _compare(block, own_words, layout.variant)
    return _regroup(results, sizes)


def _prepare(
    sequences: Sequence[States], chunk_tokens: int, top_k: int
) -> tuple[ProofLayout, list[NDArray[np.int64]]]:
    """Check the shapes and dtypes of all sequences; return their layout and chunk sizes."""
    variant = variant_of(sequences[0])
    if any(variant_of(states) is not variant for states in sequences):
        raise ValueError("sequences of one batch have one dtype")
    if any(states.ndim != 2 for states in sequences):
        raise ValueError("states are [tokens, hidden]")
    layout = ProofLayout(variant, chunk_tokens, top_k)
    return layout, [layout.chunk_sizes(*states.shape) for states in sequences]


def _blocks(sequences: Sequence[States], layout: ProofLayout) -> Iterator[_Block]:
    """Yield the covered values of all chunks, in order, ``_BLOCK_CHUNKS`` at a time."""
    chunks = _chunks(sequences, layout)
    while members := list(islice(chunks, _BLOCK_CHUNKS)):
        selection = select_top(members, layout.top_k)
        values = np.stack([bits[row] for bits, row in zip(members, selection.indices, strict=True)])
        values[~selection.used] = 0
        _check_finite(values, layout.variant)
        sizes = np.array([len(bits) for bits in members], dtype=np.int64)
        yield _Block(selection, sizes, values.astype(np.int64))


def _check_finite(values: NDArray[np.integer], variant: Variant) -> None:
    """Raise ``ValueError`` unless all covered values are finite.

    NaN and infinity rank highest, so they are always covered.
    """
    exponents = values >> _MANTISSA_BITS[variant] & _EXPONENT_NOT_FINITE
    if (exponents == _EXPONENT_NOT_FINITE).any():
        raise ValueError("states must be finite")


def _proofs(block: _Block, layout: ProofLayout) -> list[bytes]:
    """Interpolate the polynomials through the covered values."""
    moduli = find_moduli(block.selection, block.sizes)
    points = _points(block.selection, moduli)
    # Both halves of fp32 share one interpolation over the same points.
    planes = layout.variant.planes
    coefficients = interpolate(
        np.tile(points, (planes, 1)),
        _halves(block.values, planes),
        np.tile(block.selection.counts, planes),
    )
    return layout.encode(moduli, coefficients.reshape(planes, *points.shape))


def _chunks(sequences: Sequence[States], layout: ProofLayout) -> Iterator[Bits]:
    for states in sequences:
        bf16 = layout.variant is Variant.BF16
        bits: Bits = states.view(np.uint16) if bf16 else states.view(np.uint32)
        for start in range(0, len(bits), layout.chunk_tokens):
            yield bits[start : start + layout.chunk_tokens].reshape(-1)


def _points(selection: Selection, moduli: NDArray[np.int64] | Words) -> NDArray[np.uint32]:
    return (selection.indices % moduli[:, None]).astype(np.uint32)


def _halves(values: NDArray[np.int64], planes: int) -> NDArray[np.uint32]:
    """Return ``[planes * n, k]`` field elements, the high halves first."""
    halves = [values >> 16 * plane & 0xFFFF for plane in reversed(range(planes))]
    # Only a low half can reach the prime; see Aliasing in the module docstring.
    return (np.concatenate(halves) % PRIME).astype(np.uint32)


def _compare(block: _Block, words: Words, variant: Variant) -> list[ChunkResult]:
    """Evaluate the polynomials at the verifier's indices and measure the distance."""
    points = _points(block.selection, words[:, 0])
    claimed = np.zeros_like(block.values)
    for coefficients in np.split(words[:, 1:].astype(np.uint32), variant.planes, axis=1):
        claimed = claimed << 16 | evaluate(coefficients, points)
    used = block.selection.used
    equal = (block.values ^ claimed) >> _MANTISSA_BITS[variant] == 0
    # For equal sign and exponent the difference of the patterns is that of the mantissas.
    errors = np.abs(block.values - claimed)
    if variant is Variant.FP32:
        aliased = (claimed & 0xFFFF) < (1 << 16) - PRIME
        nearer = np.minimum(errors, np.abs(block.values - claimed - PRIME))
        errors = np.where(aliased, nearer, errors)
        equal |= errors <= FP32_NEAR
    equal &= used
    mismatches = (used & ~equal).sum(axis=1)
    means, medians = _mean_and_median(errors, equal)
    measured = zip(mismatches.tolist(), means.tolist(), medians.tolist(), strict=True)
    return [ChunkResult(*statistics) for statistics in measured]


def _mean_and_median(
    errors: NDArray[np.int64], counted: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both statistics of each row over its counted errors."""
    counts = counted.sum(axis=1)
    means = np.where(counted, errors, 0).sum(axis=1) / np.maximum(counts, 1)
    ordered = np.sort(np.where(counted, errors, np.iinfo(np.int64).max), axis=1)
    middles = np.stack((np.maximum(counts - 1, 0) // 2, counts // 2), axis=1)
    medians = np.take_along_axis(ordered, middles, axis=1).mean(axis=1)
    none = counts == 0
    return np.where(none, NO_EQUAL_EXPONENT, means), np.where(none, NO_EQUAL_EXPONENT, medians)


def _regroup(items: Sequence[_T], sizes: Sequence[NDArray[np.int64]]) -> list[list[_T]]:
    """Split the flat list of all chunks into one list per sequence."""
    flat = iter(items)
    return [list(islice(flat, len(own))) for own in sizes]
