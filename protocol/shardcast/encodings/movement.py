"""Check of decoded weights against the bound on their movement.

A patch names the elements that move by more than one value, and a movement by one value is within
the rounding of any bound. So of a patch only these elements are compared, and of a bf16 model they
are few. A first comparison in float32 finds the elements that might exceed the bound; only they are
judged by the whole rule, in float64. NumPy's element-wise operations are those of IEEE 754, so all
machines judge alike.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.shardcast.encodings.block import FarMoves
from protocol.shardcast.encodings.framing import Part, Piece
from protocol.shardcast.encodings.planes import Positions, Words
from protocol.shardcast.movement_bound import ExcessiveMovement, MovementBound

_SURELY = 1 - 2.0**-20
"""Float32 differences below this share of a bound are below it before their rounding."""

_ARITHMETIC = 2.0**-22
"""Relative error of an update in float32: a product, a sum, and a rounded factor."""

_LARGEST = 2.0**127
"""A bound above it is not compared in float32: a difference may overflow."""

_SMALLEST = 2.0**-126
"""Smaller numbers may be flushed to zero by a device."""


class _Format(NamedTuple):
    """A floating-point type: bits of the mantissa, pattern of infinity, bias of the exponent."""

    mantissa_bits: int
    infinity: int
    bias: int


_FORMATS = {"F32": _Format(23, 0x7F80_0000, 127), "BF16": _Format(7, 0x7F80, 127),
            "F16": _Format(10, 0x7C00, 15)}  # fmt: skip
"""Types that training moves; tensors of other types must not change."""


def excess_in(
    piece: Piece, old: Words, new: Words, far: FarMoves | None, bound: MovementBound
) -> ExcessiveMovement | None:
    """Return the movement in a block that exceeds its bound most, None if none does.

    ``far`` are the elements that move by more than one value, if they are known.
    """
    found = None
    for dtype, begin, end in _runs(piece):
        own = far if far is None or end - begin == piece.count else _within(far, begin, end)
        position, ratio = _largest(old[begin:end], new[begin:end], own, dtype, bound)
        if ratio > 1:
            name = _tensor_at(piece, begin + position).tensor.name
            found = larger(found, ExcessiveMovement(name, ratio))
    return found


def larger(
    one: ExcessiveMovement | None, other: ExcessiveMovement | None
) -> ExcessiveMovement | None:
    """Return the movement with the larger ratio, if any; ``one`` if they are equal."""
    if one is None or other is None:
        return one or other
    return other if other.ratio > one.ratio else one


def _runs(piece: Piece) -> Iterator[tuple[str, int, int]]:
    """Yield type, begin and end of neighbouring tensors of one type."""
    for dtype, parts in groupby(piece.parts, key=lambda part: part.tensor.dtype):
        first, *_, last = (*parts,) * 2
        yield dtype, first.start, last.start + last.count


def _within(far: FarMoves, begin: int, end: int) -> FarMoves:
    own = slice(*np.searchsorted(far.positions, (begin, end)))
    return FarMoves(far.positions[own] - begin, far.differences[own])


def _tensor_at(piece: Piece, position: int) -> Part:
    return next(part for part in piece.parts if position < part.start + part.count)


def _largest(
    old: Words, new: Words, far: FarMoves | None, dtype: str, bound: MovementBound
) -> tuple[int, float]:
    """Return the position and the ratio of the movement that exceeds its bound most, else 0."""
    if dtype not in _FORMATS:
        changed = np.flatnonzero(old != new)
        return (int(changed[0]), np.inf) if len(changed) else (0, 0.0)
    if far is None and dtype == "F32":  # nearly all elements move far
        suspects = _suspects(old, new, dtype, bound)
    elif not _is_finite(new, _FORMATS[dtype]):
        suspects = np.flatnonzero(old != new)  # a step of one value may lead to infinity
    else:
        positions, differences = far or _far_moves(old, new)
        after = new.take(positions)
        suspects = positions[_suspects(after - differences, after, dtype, bound)]
    if not len(suspects):
        return 0, 0.0
    ratios = _ratios(old.take(suspects), new.take(suspects), dtype, bound)
    worst = int(ratios.argmax())
    return int(suspects[worst]), float(ratios[worst])


def _far_moves(old: Words, new: Words) -> FarMoves:
    difference = new - old
    positions = np.flatnonzero(difference + new.dtype.type(1) > 2)
    return FarMoves(positions, difference.take(positions))


def _is_finite(words: Words, form: _Format) -> bool:
    """Return whether no pattern is an infinity or not a number."""
    negative = form.infinity + (1 << 8 * words.itemsize - 1)
    return not len(words) or bool(
        words.view(f"<i{words.itemsize}").max() < form.infinity and words.max() < negative
    )


def _suspects(old: Words, new: Words, dtype: str, bound: MovementBound) -> Positions:
    """Return the positions of movements that are not surely below ``bound.step``."""
    if not len(old):
        return np.empty(0, np.int64)
    limit = np.float32(min(bound.step * _SURELY, _LARGEST))
    with np.errstate(all="ignore"):
        moved = _values(new, dtype) - _values(old, dtype)
        if moved.max() <= limit and moved.min() >= -limit:
            return np.empty(0, np.int64)
        return np.flatnonzero(~(np.abs(moved) <= limit))


def _ratios(old: Words, new: Words, dtype: str, bound: MovementBound) -> NDArray[np.float64]:
    """Return the movement of each element over its bound."""
    form = _FORMATS[dtype]
    with np.errstate(all="ignore"):
        before, after = (_values(words, dtype).astype(np.float64) for words in (old, new))
        moved, size = np.abs(after - before), np.maximum(np.abs(before), np.abs(after))
        units = _unit(old, form), _unit(new, form)
        crosses = np.signbit(before) != np.signbit(after)
        rounding = np.where(crosses, units[0] + units[1], np.maximum(*units))
        trained = bound.step + bound.decay * (np.abs(before) + units[0])
        arithmetic = bound.updates * (_ARITHMETIC * size + _SMALLEST)
        ratios = moved / (trained + arithmetic + rounding)
    both = np.isnan(before) & np.isnan(after)
    result: NDArray[np.float64] = np.where(np.isnan(ratios), np.inf, ratios)
    result[both | (old == new)] = 0
    return result


def _values(words: Words, dtype: str) -> NDArray[np.floating[Any]]:
    """Return the numbers of bit patterns, exactly, in float32."""
    if dtype == "BF16":
        wide = words.astype("<u4")
        wide <<= np.uint32(16)
        return wide.view("<f4")
    return words.view("<f4") if dtype == "F32" else words.view("<f2").astype(np.float32)


def _unit(words: Words, form: _Format) -> NDArray[np.float64]:
    """Return the distance of each finite number to the next larger one of its type."""
    exponents = (words.astype(np.int64) & form.infinity) >> form.mantissa_bits
    unit = np.maximum(exponents, 1) - form.bias - form.mantissa_bits
    units: NDArray[np.float64] = np.ldexp(1.0, unit.astype(np.int32))
    return units
