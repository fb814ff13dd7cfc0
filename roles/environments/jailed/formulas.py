"""Parser of formulas in LaTeX and plain text, bounded in depth and size."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

_DEPTH_MAX = 40
_NODES_MAX = 600
_DIGITS_MAX = 2000
_EXPONENT_DIGITS_MAX = 4
"""Largest exponent of a number such as 1.5e3, in characters with its sign."""


class UnreadableError(Exception):
    """Formula that is unsupported, too large, or without a value."""


@dataclass(frozen=True, slots=True)
class Node:
    """Node of a syntax tree; a number or a name has ``what`` and no ``parts``."""

    kind: str
    parts: tuple["Node", ...] = ()
    what: Any = None

    def walk(self) -> Iterator["Node"]:
        """Yield this node and all below it."""
        yield self
        for part in self.parts:
            yield from part.walk()

    def names(self) -> set[str]:
        """Return the variables of the formula."""
        return {node.what for node in self.walk() if node.kind == "name"}

    def has_logarithm(self) -> bool:
        """Return whether a logarithm has no base."""
        return any(node.kind == "call" and node.what == "log" for node in self.walk())


def number(value: Fraction | int) -> Node:
    """Return the formula of a rational number."""
    return Node("number", what=Fraction(value))


def difference(left: Node, right: Node) -> Node:
    """Return the formula ``left - right``."""
    return Node("+", (left, Node("neg", (right,))))


_FUNCTIONS = tuple(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh exp ln log lg".split()  # noqa: SIM905
)
_INVERSE = {"sin": "arcsin", "cos": "arccos", "tan": "arctan"}
_OF_SEVERAL = ("max", "min", "gcd", "lcm")
_CHOOSING = (*_OF_SEVERAL, "abs", "floor", "ceil")

_A_FUNCTION = r"\\(?:" + "|".join(_FUNCTIONS) + ")"
FUNCTION_NAMES = (*_FUNCTIONS, *_OF_SEVERAL)

_GREEK = frozenset(
    "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi"  # noqa: SIM905
    " rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi"
    " Omega ell hbar".split()
)
_MARKED = frozenset(
    "vec hat bar tilde overline overrightarrow mathbf mathcal mathbb mathfrak boldsymbol bm".split()  # noqa: SIM905
)

_NUMBER = re.compile(r"(?:\d+\.\d+|\d+\.?|\.\d+)(?:E[+-]?\d+|(?<=\d)e\d+)?", re.ASCII)
_SMALL = re.compile(r"(?:\d+\.\d+|1)e-\d+", re.ASCII)
_REPEATING = re.compile(
    r"(\d*)\.(\d*)(?:\\(?:overline|bar)\{?(\d+)\}?|\\dot\{?(\d)\}?(?:(\d*)\\dot\{?(\d)\}?)?)",
    re.ASCII,
)
_MIXED = re.compile(r"\s*\\frac\s*(?:\{\s*(\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))", re.ASCII)
_COMMAND = re.compile(r"\\([A-Za-z]+)\s*")
_CAPITALS = re.compile(r"[A-Z]{2,}")
_GROUP = re.compile(r"\{([^{}]*)\}|\s*(\\?[A-Za-z0-9]+)", re.ASCII)
_SUBSCRIPT = re.compile(r"\s*_\s*(?:\{([^{}]*)\}|(\\[A-Za-z]+|[A-Za-z0-9]))", re.ASCII)
_PRODUCT_SIGN = re.compile(r"\s*(\\cdot(?![A-Za-z])|\\times(?![A-Za-z])|\*|/|\\div(?![A-Za-z]))\s*")
_DEGREE = re.compile(r"\s*\^\s*\\circ(?![A-Za-z])")
_CLOSING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}"}


def read(text: str) -> Node:
    """Parse a formula; raises ``UnreadableError``."""
    return _Reader(text).whole()


class _Reader:
    """Recursive descent parser, bounded in depth and number of nodes."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._nodes = 0
        self._in_bars = False

    def whole(self) -> Node:
        node = self._sum()
        self._skip()
        if self._at != len(self._text):
            raise UnreadableError(f"{self._text[self._at :]!r} is left")
        return node

    def _node(self, kind: str, *parts: Node, what: Any = None) -> Node:
        self._nodes += 1
        if self._nodes > _NODES_MAX:
            raise UnreadableError("too many operations")
        return Node(kind, parts, what)

    def _skip(self) -> None:
        while self._text.startswith(" ", self._at):
            self._at += 1

    def _take(self, *signs: str) -> str:
        """Consume and return the first of ``signs`` at this position, else ``""``."""
        self._skip()
        for sign in signs:
            if self._text.startswith(sign, self._at):
                self._at += len(sign)
                return sign
        return ""

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        found = pattern.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        return found

    def _sum(self) -> Node:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise UnreadableError("nested too deeply")
        terms = [self._product()]
        while sign := self._take("+", "-"):
            term = self._product()
            terms.append(self._node("neg", term) if sign == "-" else term)
        self._depth -= 1
        return terms[0] if len(terms) == 1 else self._node("+", *terms)

    def _product(self) -> Node:
        if sign := self._take("+", "-"):
            self._depth += 1
            if self._depth > _DEPTH_MAX:
                raise UnreadableError("nested too deeply")
            inner = self._product()
            self._depth -= 1
            return self._node("neg", inner) if sign == "-" else inner
        factors = [self._power()]
        while True:
            if found := self._match(_PRODUCT_SIGN):
                divides = found[1] in ("/", "\\div")
                negative = self._take("-")
                factor = self._power()
                factor = self._node("neg", factor) if negative else factor
            elif self._begins_factor():
                divides = False
                factor = self._power()
            else:
                break
            if divides:
                left = factors[0] if len(factors) == 1 else self._node("*", *factors)
                factors = [self._node("/", left, factor)]
            else:
                factors.append(factor)
        return factors[0] if len(factors) == 1 else self._node("*", *factors)

    def _begins_factor(self) -> bool:
        """Return whether a factor without a multiplication sign follows."""
        self._skip()
        after = self._text[self._at : self._at + 1]
        if after.isascii() and after.isdigit():
            before = self._text[: self._at].rstrip()[-1:]
            return before in (")", "}", "]")
        if after == "|":
            return not self._in_bars
        if after == "\\":
            return not self._text.startswith(("\\rfloor", "\\rceil", "\\}"), self._at)
        return after in ("(", "{", "[") or (after.isascii() and after.isalpha())

    def _power(self) -> Node:
        node = self._primary()
        while True:
            if self._match(_DEGREE):
                node = self._node("*", node, self._node("constant", what="degree"))
            elif self._take("^"):
                return self._node("^", node, self._exponent())
            elif self._take("!"):
                node = self._node("factorial", node)
            elif self._take("%", "\\%"):
                node = self._node("/", node, number(100))
            else:
                return node

    def _exponent(self) -> Node:
        if self._take("-"):
            return self._node("neg", self._exponent())
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise UnreadableError("nested too deeply")
        node = self._argument()
        if self._take("^"):
            node = self._node("^", node, self._exponent())
        self._depth -= 1
        return node

    def _argument(self) -> Node:
        """Parse a group in braces or parentheses, a number or one name."""
        if sign := self._take("{", "("):
            return self._closed(sign)
        return self._primary()

    def _digit(self) -> Node:
        """Parse an argument of a command: a group in braces, a digit or one name."""
        if self._take("{"):
            return self._closed("{")
        self._skip()
        after = self._text[self._at : self._at + 1]
        if after.isascii() and after.isdigit():
            self._at += 1
            return number(int(after))
        return self._primary()

    def _closed(self, opening: str) -> Node:
        outer, self._in_bars = self._in_bars, False
        node = self._sum()
        if not self._take(_CLOSING[opening]):
            raise UnreadableError(f"{_CLOSING[opening]} is missing")
        self._in_bars = outer
        return node

    def _primary(self) -> Node:
        self._skip()
        if found := self._match(_REPEATING):
            return self._node("number", what=_repeating(found))
        if found := self._match(_SMALL) or self._match(_NUMBER):
            return self._number(found.group())
        if sign := self._take("(", "[", "{"):
            return self._closed(sign)
        if self._take("|"):
            if self._in_bars:
                raise UnreadableError("nested bars")
            self._in_bars = True
            node = self._sum()
            if not self._take("|"):
                raise UnreadableError("| is missing")
            self._in_bars = False
            return self._node("call", node, what="abs")
        if found := self._match(_CAPITALS):
            return self._named(found.group())
        letter = self._text[self._at : self._at + 1]
        if letter.isascii() and letter.isalpha():
            self._at += 1
            return self._named(letter)
        if found := self._match(_COMMAND):
            return self._command(found[1])
        raise UnreadableError(f"{self._text[self._at :]!r} begins no formula")

    def _number(self, text: str) -> Node:
        mantissa, _, exponent = text.lower().partition("e")
        if len(mantissa) > _DIGITS_MAX or len(exponent) > _EXPONENT_DIGITS_MAX:
            raise UnreadableError("a number of too many digits")
        value = Fraction(mantissa.rstrip("."))
        if exponent:
            return self._node("number", what=value * Fraction(10) ** int(exponent))
        if value.denominator == 1 and (found := self._match(_MIXED)):
            above, below = int(found[1] or found[2]), int(found[3] or found[4])
            if 0 < above < below:
                return self._node("number", what=value + Fraction(above, below))
            self._at = found.start()
        return self._node("number", what=value)

    def _named(self, name: str) -> Node:
        """Parse the subscript and primes after a name."""
        if found := self._match(_SUBSCRIPT):
            name += "_" + (found[1] or found[2] or "").replace(" ", "")
        elif name in ("e", "i"):
            return self._node("constant", what=name)
        while self._take("'"):
            name += "'"
        if name in ("f", "g", "h") and self._text.startswith("(", self._at):
            raise UnreadableError("a function without a definition")
        return self._node("name", what=name)

    def _command(self, command: str) -> Node:
        if command == "frac":
            if re.match(r"\{d[a-z]?\}", self._text[self._at :]):
                raise UnreadableError("a derivative")
            return self._node("/", self._digit(), self._digit())
        if command == "binom":
            return self._node("binomial", self._digit(), self._digit())
        if command == "sqrt":
            index = self._closed("[") if self._take("[") else number(2)
            return self._node("root", self._argument(), index)
        if command in ("lfloor", "lceil"):
            node = self._sum()
            if not self._take("\\r" + command[1:]):
                raise UnreadableError(f"\\r{command[1:]} is missing")
            return self._node("call", node, what=command[1:])
        if command in _FUNCTIONS:
            return self._function(command)
        if command in _OF_SEVERAL:
            return self._several(command)
        return self._symbol(command)

    def _symbol(self, command: str) -> Node:
        if command == "pi":
            return self._node("constant", what="pi")
        if command in _GREEK:
            return self._named("\\" + command)
        if command in ("text", "mathrm") and (found := self._match(_GROUP)):
            word = (found[1] or found[2]).strip()
            return self._named(word if len(word) == 1 else f"text {word}")
        if command in _MARKED and (found := self._match(_GROUP)):
            return self._named(f"{command} {(found[1] or found[2]).strip()}")
        raise UnreadableError(f"\\{command} is not supported")

    def _function(self, name: str) -> Node:
        base = None
        if name == "log" and self._take("_"):
            base = self._digit()
        power = None
        if self._take("^"):
            power = self._argument()
        self._skip()
        if sign := self._take("(", "{"):
            argument = self._closed(sign)
        else:
            factors = [self._power()]
            while self._begins_factor() and not re.match(_A_FUNCTION, self._text[self._at :]):
                factors.append(self._power())
            argument = factors[0] if len(factors) == 1 else self._node("*", *factors)
        if power is not None and power == Node("neg", (number(1),)):
            if name not in _INVERSE:
                raise UnreadableError(f"no inverse of {name}")
            name, power = _INVERSE[name], None
        node = self._node("call", argument, what="ln" if base is not None else name)
        if base is not None:
            node = self._node("/", node, self._node("call", base, what="ln"))
        return node if power is None else self._node("^", node, power)

    def _several(self, name: str) -> Node:
        if not (sign := self._take("(", "\\{")):
            raise UnreadableError(f"\\{name} of nothing")
        nodes = [self._sum()]
        while self._take(","):
            nodes.append(self._sum())
        if not self._take(_CLOSING[sign]):
            raise UnreadableError(f"{_CLOSING[sign]} is missing")
        return self._node("several", *nodes, what=name)


def _repeating(found: re.Match[str]) -> Fraction:
    whole, fixed = found[1] or "0", found[2]
    period = found[3] or (found[4] + (found[5] or "") + (found[6] or ""))
    if len(found.group()) > _DIGITS_MAX:
        raise UnreadableError("a number of too many digits")
    repeated = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed))
    return Fraction(f"{whole}.{fixed or '0'}") + repeated


def is_literal(node: Node) -> bool:
    """Return whether a formula is a literal number: integer, decimal or fraction."""
    if node.kind == "neg":
        return is_literal(node.parts[0])
    return node.kind == "number" or (
        node.kind == "/" and all(part.kind == "number" for part in node.parts)
    )


def is_unevaluated(node: Node) -> bool:
    """Return whether a sum or product of rational numbers, or a choice such as ``max``, is left.

    A number times a power of ten counts as evaluated.
    """
    for inner in node.walk():
        rational = [part for part in inner.parts if _is_rational(part)]
        if inner.kind == "+" and len(rational) > 1:
            return True
        if inner.kind in ("call", "several") and inner.what in _CHOOSING and rational:
            return True
        if inner.kind == "*" and len(rational) > 1 and not any(map(_is_power_of_ten, rational)):
            return True
    return False


def _is_rational(node: Node) -> bool:
    return all(inner.kind in ("number", "neg", "/", "^", "+", "*") for inner in node.walk())


def _is_power_of_ten(node: Node) -> bool:
    return node.kind == "^" and node.parts[0] == number(10)
