"""Comparison of sets of real numbers: intervals, unions, inequalities and set notation."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cmp_to_key
from typing import Any

from roles.environments.jailed.formulas import UnreadableError, read
from roles.environments.jailed.latex import unwrapped
from roles.environments.jailed.splitting import relations, split_top
from roles.environments.jailed.values import compare, real

_PIECES_MAX = 32

_EVIDENT = re.compile(r"\\(?:cup|cap|infty|setminus|in|le|ge|ne|or)(?![A-Za-z])|[<>]|\\mathbb\{R\}")
_MIXED = re.compile(r"\[[^\[\]()]*\)|\([^\[\]()]*\]|\][^\[\]()]*[\[\]]")
_OUTWARD_LEFT = re.compile(r"\]([^\[\](){}]+[,;][^\[\](){}]+)([\[\]])")
_OUTWARD_RIGHT = re.compile(r"(?<=[\[(])([^\[\](){}]+[,;][^\[\](){}]+)\[")
_INTERVAL = re.compile(r"([(\[\]])(.*)([)\[\]])", re.DOTALL)
_BUILDER = re.compile(r"\\\{(.*?)(?:\\mid(?![A-Za-z])|\||:)(.*)\\\}", re.DOTALL)
_POINTS = re.compile(r"\\\{(.*)\\\}", re.DOTALL)
_NAME = re.compile(r"(?:[A-Za-z]|\\[a-z]+)(?:_\{?[A-Za-z0-9]+\}?)?", re.ASCII)
_INFINITE = ("\\infty", "+\\infty", "-\\infty")
_ALL = "\\mathbb{R}"
_SIZES = {"<": (-1, False), "\\le": (-1, True), ">": (1, False), "\\ge": (1, True)}


@dataclass(frozen=True, slots=True)
class _Piece:
    """Interval; an end of None is infinite."""

    low: Any = None
    low_closed: bool = False
    high: Any = None
    high_closed: bool = False


def ranges_equal(gold: str, answer: str) -> bool | None:
    """Return whether two texts are the same set of numbers; None when one is not a set.

    ``(1, 2)`` is an interval only if the other text is unambiguously a set.
    """
    if not any(_EVIDENT.search(text) or _MIXED.search(text) for text in (gold, answer)):
        return None
    try:
        (gold_name, golds), (name, answers) = _range(gold), _range(answer)
    except UnreadableError:
        return None
    if gold_name and name and gold_name != name:
        return False
    return len(golds) == len(answers) and all(
        _equal(*pair) for pair in zip(golds, answers, strict=True)
    )


def _range(text: str) -> tuple[str | None, list[_Piece]]:
    """Return the variable of a set, if it has one, and the set's pieces in order."""
    text = _OUTWARD_RIGHT.sub(r"\1)", _OUTWARD_LEFT.sub(r"(\1\2", unwrapped(text)))
    if found := _BUILDER.fullmatch(text):
        return None, _range(found[2])[1]
    if len(alternatives := split_top(text, ("\\or",))) > 1:
        return _joined(map(_range, alternatives))
    if len(conditions := split_top(text, ("\\and",))) > 1:
        found_all = [_range(one) for one in conditions]
        pieces = found_all[0][1]
        for _, others in found_all[1:]:
            pieces = [piece for one in pieces for other in others for piece in _common(one, other)]
        return _name(name for name, _ in found_all), _ordered(pieces)
    sides, signs = relations(text)
    if signs == ["\\in"]:
        return sides[0].replace(" ", ""), _set(sides[1])
    return _inequality(sides, signs) if signs else (None, _set(text))


def _joined(ranges: Iterable[tuple[str | None, list[_Piece]]]) -> tuple[str | None, list[_Piece]]:
    found = list(ranges)
    return _name(name for name, _ in found), _ordered([one for _, some in found for one in some])


def _name(names: Iterable[str | None]) -> str | None:
    found = set(names) - {None}
    if len(found) > 1:
        raise UnreadableError("conditions of several variables")
    return found.pop() if found else None


def _set(text: str) -> list[_Piece]:
    if len(minuends := split_top(text, ("\\setminus",))) > 1:
        pieces = _set(minuends[0])
        for removed in minuends[1:]:
            found = _POINTS.fullmatch(removed)
            for point in split_top(found[1] if found else removed, (",",)):
                pieces = _without(pieces, real(read(point)))
        return pieces
    pieces = []
    for part in _split_union(text):
        if part == _ALL:
            pieces.append(_Piece())
        elif points := _POINTS.fullmatch(part):
            values = [real(read(point)) for point in split_top(points[1], (",",))]
            pieces += [_Piece(value, True, value, True) for value in values]
        elif (found := _INTERVAL.fullmatch(part)) and len(
            ends := split_top(found[2], (",", ";"))
        ) == 2:
            pieces.append(
                _Piece(_end(ends[0], -1), found[1] == "[", _end(ends[1], 1), found[3] == "]")
            )
        else:
            raise UnreadableError(f"{part!r} is no set")
    return _ordered(pieces)


def _split_union(text: str) -> list[str]:
    """Return the members of a union; brackets of intervals may be turned outward."""
    return [part.strip() for part in re.split(r"\\cup(?![A-Za-z])", text)]


def _end(text: str, direction: int) -> Any:
    bare = text.replace(" ", "")
    if bare in _INFINITE:
        if (bare[0] == "-") != (direction < 0):
            raise UnreadableError("an interval that ends before it begins")
        return None
    return real(read(text))


def _inequality(sides: Sequence[str], signs: Sequence[str]) -> tuple[str, list[_Piece]]:
    if signs == ["\\ne"] and _NAME.fullmatch(sides[0]):
        return sides[0], _without([_Piece()], real(read(sides[1])))
    if signs == ["="] and _NAME.fullmatch(sides[0]):
        value = real(read(sides[1]))
        return sides[0], [_Piece(value, True, value, True)]
    names = [place for place, side in enumerate(sides) if _NAME.fullmatch(side)]
    if len(names) != 1 or not all(sign in _SIZES for sign in signs):
        raise UnreadableError("no inequality of one variable")
    piece = _Piece()
    place = names[0]
    if len({_SIZES[sign][0] for sign in signs}) > 1 or not place - 1 <= 1 >= len(signs) - place - 1:
        raise UnreadableError("no inequality of one variable")
    for other, sign in ((place + 1, place), (place - 1, place - 1)):
        if not (0 <= other < len(sides)):
            continue
        direction, closed = _SIZES[signs[sign]]
        value = _end(sides[other], 1 if (direction < 0) == (other > place) else -1)
        if (direction < 0) == (other > place):
            piece = replace(piece, high=value, high_closed=closed and value is not None)
        else:
            piece = replace(piece, low=value, low_closed=closed and value is not None)
    return sides[place], _ordered([piece])


def _without(pieces: Sequence[_Piece], point: Any) -> list[_Piece]:
    left = []
    for piece in pieces:
        after_low = -1 if piece.low is None else compare(piece.low, point)
        before_high = 1 if piece.high is None else compare(piece.high, point)
        if after_low > 0 or before_high < 0:
            left.append(piece)
            continue
        left.append(replace(piece, high=point, high_closed=False))
        left.append(replace(piece, low=point, low_closed=False))
    return _ordered(left)


def _common(one: _Piece, other: _Piece) -> list[_Piece]:
    """Return the intersection of two pieces."""
    low, low_closed = one.low, one.low_closed
    if other.low is not None:
        order = 1 if low is None else compare(other.low, low)
        if order > 0:
            low, low_closed = other.low, other.low_closed
        elif order == 0:
            low_closed = low_closed and other.low_closed
    high, high_closed = one.high, one.high_closed
    if other.high is not None:
        order = -1 if high is None else compare(other.high, high)
        if order < 0:
            high, high_closed = other.high, other.high_closed
        elif order == 0:
            high_closed = high_closed and other.high_closed
    if low is not None and high is not None and compare(low, high) > 0:
        return []
    return [_Piece(low, low_closed, high, high_closed)]


def _ordered(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Return pieces in ascending order, adjacent ones merged, without empty ones."""
    if len(pieces) > _PIECES_MAX:
        raise UnreadableError("a set of too many pieces")
    kept = []
    for piece in pieces:
        if piece.low is not None and piece.high is not None:
            order = compare(piece.low, piece.high)
            if order > 0:
                raise UnreadableError("an interval that ends before it begins")
            if order == 0 and not (piece.low_closed and piece.high_closed):
                continue
        kept.append(piece)
    joined: list[_Piece] = []
    for piece in sorted(kept, key=cmp_to_key(_by_low)):
        if joined and _touch(joined[-1], piece):
            joined[-1] = _union(joined[-1], piece)
        else:
            joined.append(piece)
    return joined


def _by_low(one: _Piece, other: _Piece) -> int:
    if one.low is None or other.low is None:
        return (one.low is not None) - (other.low is not None)
    return compare(one.low, other.low) or other.low_closed - one.low_closed


def _touch(one: _Piece, after: _Piece) -> bool:
    if one.high is None or after.low is None:
        return True
    order = compare(after.low, one.high)
    return order < 0 or (order == 0 and (after.low_closed or one.high_closed))


def _union(one: _Piece, after: _Piece) -> _Piece:
    if one.high is None:
        return one
    order = 1 if after.high is None else compare(after.high, one.high)
    if order > 0:
        return replace(one, high=after.high, high_closed=after.high_closed)
    return replace(one, high_closed=one.high_closed or (order == 0 and after.high_closed))


def _equal(one: _Piece, other: _Piece) -> bool:
    if (one.low_closed, one.high_closed) != (other.low_closed, other.high_closed):
        return False
    return all(
        (left is None) == (right is None) and (left is None or compare(left, right) == 0)
        for left, right in ((one.low, other.low), (one.high, other.high))
    )
