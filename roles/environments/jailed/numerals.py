"""Comparison of times of day, and of numbers with a base."""

import re

from roles.environments.jailed.formulas import is_unevaluated, number, read
from roles.environments.jailed.latex import lowered, squeezed
from roles.environments.jailed.values import values_equal

_CLOCK = re.compile(
    r"(\d{1,2}):([0-5]\d)(?::([0-5]\d))?(?:\\text\{)?([ap])?(?:\.?m\.?)?\}?", re.ASCII
)
_NOON = 12

_BASE = re.compile(
    r"(?=.*[0-9].*_)([0-9A-Fa-f]+)_\{?\(?(?:\\text\{)?(\d{1,2}|[a-z]+)\}?\)?\}?", re.ASCII
)
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
          "ten": 10, "twelve": 12, "sixteen": 16}  # fmt: skip
_BASE_MAX = 36


def is_time(text: str) -> bool:
    """Return whether a text may be a time of day."""
    return _CLOCK.fullmatch(lowered(squeezed(text))) is not None


def times_equal(gold: str, answer: str) -> bool | None:
    """Compare times of day; None when one text is not a time.

    A time without "a.m." or "p.m." may be either, unless it is past noon.
    """
    found = [_CLOCK.fullmatch(lowered(squeezed(text))) for text in (gold, answer)]
    if not (found[0] and found[1]):
        return None
    hours, minutes = [], []
    for hour, minute, second, half in (found[0].groups(), found[1].groups()):
        hours.append(int(hour) % _NOON + _NOON * (half == "p") if half else int(hour))
        minutes.append((int(minute), int(second or 0)))
    if minutes[0] != minutes[1]:
        return False
    if (found[0][4] is None) == (found[1][4] is None) or max(
        int(found[0][1]), int(found[1][1])
    ) > _NOON:
        return hours[0] == hours[1]
    return (hours[0] - hours[1]) % _NOON == 0


def based_equal(gold: str, answer: str) -> bool | None:
    """Compare numbers of which one has a base; None when neither has one.

    The answer may omit the base of the gold. Digits in another base are another answer.
    """
    found = [_BASE.fullmatch(squeezed(text)) for text in (gold, answer)]
    bases = [_base_of(at) for at in found]
    if bases == [None, None]:
        return None
    if found[0] and found[1]:
        return bases[0] == bases[1] and _digits(found[0][1]) == _digits(found[1][1])
    if found[0]:
        return _digits(found[0][1]) == _digits(squeezed(answer))
    if found[1] is None or bases[1] is None:
        return None
    try:
        value = int(found[1][1], bases[1])
    except ValueError:
        return False
    expected = read(gold)
    return not is_unevaluated(expected) and values_equal(expected, number(value))


def _base_of(found: re.Match[str] | None) -> int | None:
    if found is None:
        return None
    base = int(found[2]) if "0" <= found[2][0] <= "9" else _BASES.get(found[2], 0)
    return base if 1 < base <= _BASE_MAX else None


def _digits(text: str) -> str:
    return lowered(text).lstrip("0")
