"""Selection of the values that a proof covers, and of their points in the field.

A chunk is the states of up to 32 tokens, flattened in token order. Its proof covers the k values of
largest magnitude, so prover and verifier find nearly the same positions in their own states.

In bf16 about ten equal magnitudes are at the cut for Gaussian states: the lowest flat index wins.
(``torch.topk``, which the published library uses, documents no order. Such proofs differ from ours
in the tied positions only, far inside any threshold.)
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.toploc.field import PRIME

Bits = NDArray[np.uint16] | NDArray[np.uint32]
"""Bit patterns of floats; without the sign bit they are ordered like absolute values."""

MODULUS_MIN = 1 << 15
"""End of the search for an index modulus, as in toploc 0.1.6's Python function."""

VALUES_MAX = (1 << 32) - 1
"""Maximum values of one chunk: a flat index has 32 bits in a ranking key."""

_KEY_INDEX_MASK = (1 << 32) - 1

_PADDING_KEY = -1
"""Ranks below every real key."""

_PREFILTER_COLUMNS = 8
"""Columns per wanted value in the prefilter: of 32 x 5120 Gaussian values about 140 are left."""

_PREFILTER_ROWS_MIN = 4
"""Below this height the prefilter drops too little to pay for its pass."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Positions that the proofs of ``n`` chunks cover, at most ``k`` in each."""

    indices: NDArray[np.int64]
    """``[n, k]`` flat indices, ascending; zero beyond a row's count."""

    counts: NDArray[np.int64]
    """``[n]`` number of indices in use: ``min(k, values in the chunk)``."""

    @property
    def used(self) -> NDArray[np.bool_]:
        """``[n, k]`` true where an index is in use."""
        columns = np.arange(self.indices.shape[1])
        return np.asarray(columns < self.counts[:, None], dtype=np.bool_)


def select_top(chunks: Sequence[Bits], top_k: int) -> Selection:
    """Select the ``top_k`` largest magnitudes of each flat chunk, ties by the lowest index.

    Magnitude and inverted index form one 63-bit key. All keys of a chunk are distinct, so an
    ordinary partition is exact and the same on every platform. Chunks must not be empty and hold at
    most ``VALUES_MAX`` values. NaN and infinity rank above every finite value.
    """
    ranked = [_ranking_keys(chunk, top_k) for chunk in chunks]
    width = max(top_k, *(len(keys) for keys in ranked))
    padded = np.full((len(chunks), width), _PADDING_KEY, dtype=np.int64)
    for row, keys in zip(padded, ranked, strict=True):
        row[: len(keys)] = keys
    if width > top_k:
        padded = np.partition(padded, width - top_k, axis=1)[:, width - top_k :]
    # The padding represents index 2**32, which sorts behind every real one.
    indices = np.where(padded < 0, 1 << 32, _KEY_INDEX_MASK - (padded & _KEY_INDEX_MASK))
    indices.sort(axis=1)
    counts = np.minimum(top_k, np.array([len(chunk) for chunk in chunks], dtype=np.int64))
    selection = Selection(indices, counts)
    indices[~selection.used] = 0
    return selection


def find_moduli(selection: Selection, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each chunk the largest modulus up to ``PRIME`` that keeps its indices distinct.

    ``sizes[n]`` is the number of values of each chunk; up to ``PRIME`` of them cannot collide.
    Raises ``ValueError`` if every modulus down to ``MODULUS_MIN`` collides. Only crafted states do:
    a random chunk of 32 x 5120 collides with probability 0.1 at each modulus.
    """
    moduli = np.full(len(sizes), PRIME, dtype=np.int64)
    # A chunk that can collide has a full selection, because PRIME exceeds any top_k.
    open_rows = np.flatnonzero(sizes > PRIME)
    for modulus in range(PRIME, MODULUS_MIN - 1, -1):
        residues = np.sort(selection.indices[open_rows] % modulus, axis=1)
        collides = (residues[:, 1:] == residues[:, :-1]).any(axis=1)
        moduli[open_rows[~collides]] = modulus
        open_rows = open_rows[collides]
        if not len(open_rows):
            return moduli
    raise ValueError("the largest values of a chunk collide under every modulus")


def _ranking_keys(chunk: Bits, top_k: int) -> NDArray[np.int64]:
    """Return the keys of some values that include the ``top_k`` largest; of a big chunk just those.

    The ``top_k``-th largest of the maxima of disjoint columns is no higher than that of the chunk.
    """
    magnitudes = chunk & np.iinfo(chunk.dtype).max // 2
    columns = _PREFILTER_COLUMNS * top_k
    rows = len(chunk) // columns
    if rows < _PREFILTER_ROWS_MIN:
        return _keys(magnitudes, np.arange(len(chunk)))
    maxima = magnitudes[: rows * columns].reshape(rows, columns).max(axis=0)
    floor = np.partition(maxima, columns - top_k)[columns - top_k]
    found = np.flatnonzero(magnitudes >= floor)
    keys = _keys(magnitudes[found], found)
    return np.partition(keys, len(keys) - top_k)[len(keys) - top_k :]


def _keys(magnitudes: NDArray[np.integer], indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.asarray(magnitudes.astype(np.int64) << 32 | (_KEY_INDEX_MASK - indices))
