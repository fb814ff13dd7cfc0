"""Comparison of numbers with units, currencies, percent signs and thousands separators."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from roles.environments.jailed.formulas import Node, UnreadableError, number, read
from roles.environments.jailed.latex import lowered

_TABLE = {
    "mm": ("length", "1/1000"), "millimeter": ("length", "1/1000"), "cm": ("length", "1/100"),
    "centimeter": ("length", "1/100"), "dm": ("length", "1/10"), "m": ("length", "1"),
    "meter": ("length", "1"), "metre": ("length", "1"), "km": ("length", "1000"),
    "kilometer": ("length", "1000"), "inch": ("inch", "1"), "inches": ("inch", "1"),
    "in": ("inch", "1"), "ft": ("inch", "12"), "foot": ("inch", "12"), "feet": ("inch", "12"),
    "yard": ("inch", "36"), "yd": ("inch", "36"), "mile": ("inch", "63360"),
    "mi": ("inch", "63360"),
    "mg": ("mass", "1/1000"), "g": ("mass", "1"), "gram": ("mass", "1"), "kg": ("mass", "1000"),
    "kilogram": ("mass", "1000"), "ton": ("ton", "1"), "lb": ("pound", "1"),
    "pound": ("pound", "1"),
    "ms": ("time", "1/1000"), "s": ("time", "1"), "sec": ("time", "1"), "second": ("time", "1"),
    "min": ("time", "60"), "minute": ("time", "60"), "h": ("time", "3600"), "hr": ("time", "3600"),
    "hour": ("time", "3600"), "day": ("time", "86400"), "week": ("time", "604800"),
    "ml": ("volume", "1/1000"), "l": ("volume", "1"), "liter": ("volume", "1"),
    "litre": ("volume", "1"),
    "dollar": ("dollar", "1"), "usd": ("dollar", "1"), "cent": ("dollar", "1/100"),
    "euro": ("euro", "1"), "yen": ("yen", "1"), "yuan": ("yuan", "1"), "rupee": ("rupee", "1"),
    "percent": ("percent", "1"), "degree": ("degree", "1"),
}  # fmt: skip
_CURRENCIES = {
    "\\$": "dollar", "$": "dollar", "€": "euro", "£": "pound sterling", "¥": "yen", "₹": "rupee",
}  # fmt: skip

_PLAIN = "|".join(sorted(_TABLE, key=lambda name: (-len(name), name)))
_UNIT = re.compile(
    r"(?P<value>.*[A-Za-z\d)}!])\s*(?P<unit>(?:\\text\{[^{}]*\}(?:\^\{?-?\d\}?)?\s*/?\s*)+)",
    re.DOTALL,
)
_PLAIN_UNIT = re.compile(
    r"(?P<value>[^A-Za-z]*\d[\d\s})]*)(?P<unit>(?:km|cm|mm|kg|mg|ml)|"
    rf"(?<=\s)(?:(?:square|cubic|sq)\s+)?(?:(?:{_PLAIN})s?|[A-Za-z]{{4,20}})"
    r"(?:\s[a-z]{2,20}){0,2}(?:\^\{?\d\}?)?(?:/[a-z]{1,8}(?:\^\{?\d\}?)?)?)",
    re.DOTALL | re.ASCII,
)
_DEGREES = re.compile(
    r"(?!.*\\(?!frac|sqrt|pi|circ|text))(.*\S)\s*\^\s*\\circ\s*(?:\\text\{[CFK]\}|[CFK])?",
    re.DOTALL,
)
_PERCENT = re.compile(r"(.*[^\s\\])\s*\\?%", re.DOTALL)
_POWER = re.compile(r"\^\{?(-?\d)\}?", re.ASCII)
_UNIT_NAME = re.compile(r"[a-z][a-z0-9 ./*^{}-]*", re.ASCII)
_NO_UNIT = re.compile(r"\b(?:or|and|not|is|no|maybe|if|for|when|where)\b")


@dataclass(frozen=True, slots=True)
class Quantity:
    """Formula and unit; the unit is a dimension (None without one) and a factor."""

    node: Node
    dimension: str | None = None
    factor: Fraction = Fraction(1)

    @staticmethod
    def comparable(gold: "Quantity", answer: "Quantity") -> Iterator[tuple[Node, Node]]:
        """Yield pairs of formulas, one of which must be equal; a unit may be omitted."""
        dimensions = {gold.dimension, answer.dimension}
        if gold.dimension == answer.dimension:
            yield _scaled(gold, answer.factor), _scaled(answer, gold.factor)
            return
        if None not in dimensions:
            return
        yield gold.node, answer.node
        for unit, factor in (("percent", number(100)), ("degree", _HALF_TURN)):
            if unit == gold.dimension:
                yield gold.node, Node("*", (answer.node, factor))
            elif unit == answer.dimension:
                yield Node("*", (gold.node, factor)), answer.node


_HALF_TURN = Node("/", (number(180), Node("constant", what="pi")))


def _scaled(one: Quantity, other: Fraction) -> Node:
    """Return the formula in the smaller of two units."""
    if one.factor <= other:
        return one.node
    return Node("*", (one.node, number(one.factor / other)))


def quantity(text: str) -> Quantity:
    """Parse a formula with a unit; raises ``UnreadableError``."""
    text = text.strip()
    for sign, currency in _CURRENCIES.items():
        if text.startswith(sign):
            return _with_unit(text[len(sign) :], currency)
        if text.startswith("-" + sign):
            return _with_unit("-" + text[len(sign) + 1 :], currency)
    if found := _PERCENT.fullmatch(text):
        return _with_unit(found[1], "percent")
    if found := _DEGREES.fullmatch(text):
        return _with_unit(found[1], "degree")
    if found := _UNIT.fullmatch(text) or _PLAIN_UNIT.fullmatch(text):
        return _with_unit(found["value"], found["unit"])
    return Quantity(read(text))


def _with_unit(text: str, unit: str) -> Quantity:
    name = lowered(re.sub(r"\\text\{([^{}]*)\}", r"\1", unit)).strip().rstrip(".")
    if _NO_UNIT.search(name) or not _UNIT_NAME.fullmatch(name):
        raise UnreadableError(f"{unit!r} is no unit")
    power = 1
    for word, exponent in (("square ", 2), ("sq ", 2), ("cubic ", 3)):
        if name.startswith(word):
            name, power = name.removeprefix(word).strip(), exponent
    if (found := _POWER.search(name)) and found.end() == len(name):
        name, power = name[: found.start()].strip(), int(found[1])
    singular = name if name in _TABLE else name.removesuffix("s")
    dimension, factor = _TABLE.get(singular, (singular, "1"))
    if power != 1:
        return Quantity(read(text), f"{dimension}^{power}", Fraction(factor) ** power)
    return Quantity(read(text), dimension, Fraction(factor))
