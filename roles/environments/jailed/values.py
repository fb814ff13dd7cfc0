"""Evaluation of formulas, with a limit on each operation and on the total work.

Rational numbers are exact. All others have ``_DIGITS`` digits in mpmath, whose arithmetic uses
Python integers, so values are the same on every machine. The evaluator does not simplify, solve or
sum, and estimates the size of a result first, so a formula's text determines its cost.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from hashlib import sha256
from typing import Any

os.environ["MPMATH_NOGMPY"] = "1"  # the same arithmetic on every machine; mpmath reads it on import

from mpmath import MPContext

from roles.environments.jailed.formulas import Node, UnreadableError

_DIGITS = 400
_EQUAL_DIGITS = 350
_BITS_MAX = 1 << 16
"""Largest size of an exact number, and of an exponent's effect on any other."""

_FACTORIAL_MAX = 5000

_POINTS = 9
_POSITIVE_POINTS = 6
_LARGE_POINTS = (4, 5)
_POINTS_MIN = 3

_WORK_MAX = 100_000
"""Total work per question, in units of about 10 us."""

_WORK_OF_FUNCTION = 20
_WORK_OF_GAMMA = 600
_BITS_A_UNIT = 2000

_mp = MPContext()
_mp.dps = _DIGITS
_EPSILON = _mp.mpf(10) ** -_EQUAL_DIGITS


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sin": _mp.sin,
    "cos": _mp.cos,
    "tan": _mp.tan,
    "cot": _mp.cot,
    "sec": _mp.sec,
    "csc": _mp.csc,
    "arcsin": _mp.asin,
    "arccos": _mp.acos,
    "arctan": _mp.atan,
    "sinh": _mp.sinh,
    "cosh": _mp.cosh,
    "tanh": _mp.tanh,
    "exp": _mp.exp,
    "ln": _mp.log,
    "log": _mp.log,
    "lg": lambda value: _mp.log(value, 10),
}


class Budget:
    """Remaining work for a question."""

    def __init__(self) -> None:
        self._left = _WORK_MAX

    def renew(self) -> None:
        """Reset the budget for a new question."""
        self._left = _WORK_MAX

    def spend(self, work: int) -> None:
        """Spend work; raises ``UnreadableError`` when the budget is exhausted."""
        self._left -= work
        if self._left < 0:
            raise UnreadableError("too much work")


BUDGET = Budget()


def values_equal(gold: Node, answer: Node) -> bool:
    """Return whether two formulas have the same value, for all values of their variables.

    A logarithm without a base is natural or decimal, in both alike. Formulas with variables are
    compared at fixed positive points, and where the gold is real also at points of either sign.
    """
    logs = (False, True) if gold.has_logarithm() or answer.has_logarithm() else (False,)
    return any(_equal(gold, answer, decimal) for decimal in logs)


def proportion(gold: Node, answer: Node) -> int:
    """Return the sign of ``answer / gold`` if that is constant, else 0."""
    names = sorted(gold.names() | answer.names())
    ratios = []
    for point in _points(names):
        try:
            ratios.append(_divided(value(answer, point, False), value(gold, point, False)))
        except _UndefinedError:
            continue
    if not names or len(ratios) < _POINTS_MIN or not all(_close(ratios[0], r) for r in ratios):
        return 0
    if _close(ratios[0], Fraction(0)):
        return 0
    return 1 if _real(ratios[0]) and _number(ratios[0]).real > 0 else -1


def constant(node: Node) -> Any:
    """Return the value of a formula without variables; raises ``UnreadableError``."""
    if node.names():
        raise UnreadableError("has variables")
    return value(node, {}, False)


def real(node: Node) -> Any:
    """Return the real value of a formula without variables; raises ``UnreadableError``."""
    found = constant(node)
    if not _real(found):
        raise UnreadableError("is not real")
    return found if isinstance(found, Fraction) else _number(found).real


def compare(left: Any, right: Any) -> int:
    """Return -1, 0 or 1: the order of two real values."""
    if _close(left, right):
        return 0
    return -1 if _number(left) < _number(right) else 1


class _UndefinedError(UnreadableError):
    """Formula without a value at a point."""


def _equal(gold: Node, answer: Node, decimal_logs: bool) -> bool:
    names = sorted(gold.names() | answer.names())
    if not names:
        return _close(value(gold, {}, decimal_logs), value(answer, {}, decimal_logs))
    compared = 0
    for place, point in enumerate(_points(names)):
        try:
            expected = value(gold, point, decimal_logs)
        except _UndefinedError:
            continue
        except UnreadableError:
            if place not in _LARGE_POINTS:
                raise
            continue
        if place >= _POSITIVE_POINTS and not _real(expected):
            continue
        if not _close(expected, value(answer, point, decimal_logs)):
            return False
        compared += 1
    return compared >= _POINTS_MIN


def _points(names: Sequence[str]) -> Iterator[dict[str, Fraction]]:
    """Yield points: values for names, each derived from the name and the point's index."""
    for place in range(_POINTS):
        point = {}
        for name in names:
            drawn = sha256(f"{place} {name}".encode()).digest()
            size = (40 if place in _LARGE_POINTS else 1) * Fraction(
                30 + int.from_bytes(drawn[:1]), 97 + 2 * (drawn[1] % 16)
            )
            negative = place >= _POSITIVE_POINTS and (drawn[2] % 2 or len(names) == 1)
            point[name] = -size if negative else size
        yield point


def _real(found: Any) -> bool:
    return isinstance(found, Fraction) or not _mp.im(found) or abs(_mp.im(found)) < _EPSILON


def _close(left: Any, right: Any) -> bool:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right
    is_exact = any(isinstance(one, Fraction) and one for one in (left, right))
    left, right = _number(left), _number(right)
    size = max(abs(left), abs(right))
    return bool((size < _EPSILON and not is_exact) or abs(left - right) <= size * _EPSILON)


def _number(found: Any) -> Any:
    if isinstance(found, Fraction):
        return _mp.mpf(found.numerator) / found.denominator
    return found


def _bounded(found: Any) -> Any:
    if isinstance(found, Fraction):
        bits = found.numerator.bit_length() + found.denominator.bit_length()
        if bits > 2 * _BITS_MAX:
            raise UnreadableError("a number of too many digits")
        BUDGET.spend(bits * bits // _BITS_A_UNIT**2)
    elif not _mp.isfinite(found):
        raise _UndefinedError("is infinite")
    return found


def value(node: Node, point: dict[str, Fraction], decimal_logs: bool) -> Any:
    """Return the value of a formula; raises ``UnreadableError``."""
    parts = [value(part, point, decimal_logs) for part in node.parts]
    BUDGET.spend(1 + len(parts))
    match node.kind:
        case "number":
            return node.what
        case "name":
            return point[node.what]
        case "constant":
            return _CONSTANTS[node.what]
        case "call" if node.what == "log" and decimal_logs:
            return _bounded(_call("lg", parts[0]))
        case "call":
            return _bounded(_call(node.what, parts[0]))
        case "several":
            return _several(node.what, parts)
        case _:
            return _bounded(_OPERATIONS[node.kind](*parts))


_CONSTANTS = {"e": +_mp.e, "pi": +_mp.pi, "i": _mp.mpc(0, 1), "degree": _mp.pi / 180}


def _both(left: Any, right: Any) -> tuple[Any, Any]:
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left, right
    return _number(left), _number(right)


def _added(*parts: Any) -> Any:
    total = parts[0]
    for part in parts[1:]:
        left, right = _both(total, part)
        total = _bounded(left + right)
    return total


def _multiplied(*parts: Any) -> Any:
    total = parts[0]
    for part in parts[1:]:
        left, right = _both(total, part)
        total = _bounded(left * right)
    return total


def _divided(left: Any, right: Any) -> Any:
    left, right = _both(left, right)
    if (right == 0) if isinstance(right, Fraction) else abs(right) < _EPSILON:
        raise _UndefinedError("division by zero")
    return left / right


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, Fraction | int):
        return _raised(_number(base), exponent)
    exponent = Fraction(exponent)
    if not isinstance(base, Fraction):
        return _raised(base, _number(exponent))
    if base == 0:
        if exponent <= 0:
            raise _UndefinedError("a power of zero")
        return base
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(exponent) * bits > _BITS_MAX and abs(base) != 1:
        raise UnreadableError("a power of too many digits")
    if exponent.denominator == 1:
        return base ** int(exponent % 2 if abs(base) == 1 else exponent)
    if base < 0 and exponent.denominator % 2:
        return (-1) ** (exponent.numerator % 2) * _raised(-_number(base), _number(exponent))
    return _raised(_number(base), _number(exponent))


def _raised(base: Any, exponent: Any) -> Any:
    if base == 0:
        if _mp.re(exponent) <= 0:
            raise _UndefinedError("a power of zero")
        return Fraction(0)
    if abs(exponent) * (1 + abs(_mp.log(abs(base)))) > _BITS_MAX:
        raise UnreadableError("a power of too many digits")
    BUDGET.spend(2 * _WORK_OF_FUNCTION)
    return base**exponent


def _root(base: Any, index: Any) -> Any:
    return _power(base, _divided(Fraction(1), index))


def _factorial(part: Any) -> Any:
    if isinstance(part, Fraction) and part.denominator == 1:
        if part < 0:
            raise _UndefinedError("factorial of a negative number")
        if part > _FACTORIAL_MAX:
            raise UnreadableError("a factorial of too many digits")
        BUDGET.spend(int(part) // 10)
        return Fraction(math.factorial(int(part)))
    if abs(_number(part)) > _FACTORIAL_MAX:
        raise UnreadableError("a factorial of too many digits")
    BUDGET.spend(_WORK_OF_GAMMA)
    return _defined(lambda: _mp.gamma(_number(part) + 1))


def _binomial(upper: Any, lower: Any) -> Any:
    if all(isinstance(one, Fraction) and one.denominator == 1 for one in (upper, lower)):
        if lower < 0 or upper < lower:
            return Fraction(0)
        return _factorial(upper) / _factorial(lower) / _factorial(upper - lower)
    rest = _factorial(_added(upper, -_number(lower)))
    return _divided(_factorial(upper), _multiplied(_factorial(lower), rest))


def _call(name: str, part: Any) -> Any:
    if name in ("floor", "ceil"):
        if not _real(part):
            raise _UndefinedError("is not real")
        if not isinstance(part, Fraction):
            part = _number(part).real
            if abs(part) > 1 << _BITS_MAX:
                raise UnreadableError("a number of too many digits")
            nearest = _mp.nint(part)
            part = nearest if _close(nearest, part) else part
            return Fraction(int(_mp.floor(part) if name == "floor" else _mp.ceil(part)))
        return Fraction(part // 1 if name == "floor" else -(-part // 1))
    if name == "abs":
        return abs(part)
    argument = _number(part)
    if abs(argument) > _BITS_MAX:
        if name not in ("ln", "log", "lg", "arctan"):
            raise UnreadableError("an argument that is too large")
    elif name in ("ln", "log", "lg") and abs(argument) < _EPSILON:
        raise _UndefinedError("a logarithm of zero")
    BUDGET.spend(_WORK_OF_FUNCTION)
    return _defined(lambda: _FUNCTIONS[name](argument))


def _defined(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except (ZeroDivisionError, ValueError, OverflowError):
        raise _UndefinedError("has no value") from None


def _several(name: str, parts: Sequence[Any]) -> Any:
    if name in ("gcd", "lcm"):
        if not all(isinstance(part, Fraction) and part.denominator == 1 for part in parts):
            raise UnreadableError(f"{name} of what is no integer")
        return Fraction(getattr(math, name)(*map(int, parts)))
    if not all(map(_real, parts)):
        raise _UndefinedError("is not real")
    best = parts[0]
    for part in parts[1:]:
        if compare(part, best) == (1 if name == "max" else -1):
            best = part
    return best


_OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": _added,
    "*": _multiplied,
    "/": _divided,
    "^": _power,
    "neg": lambda part: -part,
    "root": _root,
    "factorial": _factorial,
    "binomial": _binomial,
}
