"""Comparison of mathematical answers by their form."""

import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import pairwise

from roles.environments.jailed.formulas import (
    Node,
    UnreadableError,
    difference,
    is_literal,
    is_unevaluated,
    read,
)
from roles.environments.jailed.latex import squeezed, unwrapped
from roles.environments.jailed.numerals import based_equal, is_time, times_equal
from roles.environments.jailed.ranges import ranges_equal
from roles.environments.jailed.splitting import is_enclosed, relations, split_top
from roles.environments.jailed.units import Quantity, quantity
from roles.environments.jailed.values import compare, constant, proportion, values_equal
from roles.environments.jailed.words import TEXT, is_wordy, meaning, number_of

_PARTS_MAX = 32
_DEPTH_MAX = 6

_WORDS = re.compile(r"[A-Za-z' .\-]+")

_LETTER = re.compile(r"\(?([A-Z])\)?")
_CHOICE = re.compile(r"(?:\(([A-Z])\)|([A-Z])[).:])\s*(.*)", re.DOTALL)
_CHOICE_WORD = re.compile(r"(?:option|choice)\s*", re.IGNORECASE)


_MODULUS = re.compile(r"(.*)\\pmod\{(\d{1,20})\}", re.DOTALL | re.ASCII)
_MATRIX = re.compile(
    r"\\begin\{([pbBvV]?matrix|cases|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL
)

_NAME = re.compile(
    r"(?:\([A-Za-z](?:\s*,\s*[A-Za-z])+\)|m?\\angle\s*[A-Z]{1,3}|\|?[A-Za-z]{1,4}\|?|\\[A-Za-z]+|"
    r"\\(?:over\w+|vec|text|hat|bar|mathbf)\s*\{[^{}]*\}[A-Za-z\s]*)"
    r"(?:_\{?[A-Za-z0-9,]+\}?)?'*(?:\s*\([A-Za-z0-9,|\s\\]+\))?",
    re.ASCII,
)
_DECIMAL = re.compile(r"-?\d*\.(\d+)", re.ASCII)
_GOLD_DIGITS_MIN = 6
_DIGITS_MIN = 10
"""Decimal places from which a number counts as rounded; for a gold answer, fewer suffice."""

_PLUS_CONSTANT = re.compile(r"(.*\S)\s*\+\s*[CcKk]")


def same(gold: str, answer: str, depth: int = 0) -> bool:
    """Return whether two tidy formulas are equivalent; raises ``UnreadableError``."""
    gold, answer = unwrapped(gold), unwrapped(answer)
    if not gold or not answer or depth > _DEPTH_MAX:
        return False
    if squeezed(gold) == squeezed(answer):
        return True
    for rule in _RULES:
        decided = rule(gold, answer, depth)
        if decided is not None:
            return decided
    return False


def _words(gold: str, answer: str, depth: int) -> bool | None:
    keys = [meaning(text) for text in (gold, answer)]
    if keys[0] == keys[1] and (is_wordy(gold) or gold.startswith(("\\", "+", "("))):
        return True
    if any(text in ("infinity", "-\\infty", "none", "dne") for text in keys):
        return False
    numbers = [number_of(text) for text in keys]
    if any(numbers):
        return same(numbers[0] or gold, numbers[1] or answer, depth + 1)
    if all(_WORDS.fullmatch(TEXT.sub(r"\1", text)) and is_wordy(text) for text in (gold, answer)):
        return False
    return None


def _choice(gold: str, answer: str, depth: int) -> bool | None:
    plain_gold, plain = (TEXT.sub(r"\1 ", text).strip() for text in (gold, answer))
    plain = _CHOICE_WORD.sub("", plain)
    letter, choice = _LETTER.fullmatch(plain_gold), _CHOICE.fullmatch(plain)
    alone = _LETTER.fullmatch(plain)
    if letter and (alone or choice):
        if alone:
            return letter[1] == alone[1]
        assert choice is not None
        return letter[1] == (choice[1] or choice[2]) and not re.search(r"\([A-Z]\)", choice[3])
    if found := _CHOICE.fullmatch(plain_gold):
        if not found[3]:
            return None
        if alone:
            return (found[1] or found[2]) == alone[1]
        if choice and (found[1] or found[2]) != (choice[1] or choice[2]):
            return False
        return same(found[3], choice[3] if choice else answer, depth + 1)
    if choice and choice[3] and not re.match(r"[-+*/^(]", choice[3]):
        return same(gold, choice[3], depth + 1)
    return None


def _ratio(gold: str, answer: str, depth: int) -> bool | None:  # noqa: ARG001 - a rule
    if (decided := times_equal(gold, answer)) is not None:
        return decided
    parts = [split_top(text, (":",)) for text in (gold, answer)]
    if len(parts[0]) == 1 and len(parts[1]) == 1:
        return None
    nodes = [[read(part) for part in side] for side in parts]
    if len(parts[1]) == 1 and len(parts[0]) == 2 and not is_time(gold):
        given = nodes[1][0]
        return not is_unevaluated(given) and values_equal(Node("/", tuple(nodes[0])), given)
    if len(parts[0]) == 1 and len(parts[1]) == 2 and not is_time(answer):
        return nodes[0][0].kind == "/" and values_equal(nodes[0][0], Node("/", tuple(nodes[1])))
    return len(parts[0]) == len(parts[1]) and all(
        values_equal(Node("/", expected), Node("/", given))
        for expected, given in zip(pairwise(nodes[0]), pairwise(nodes[1]), strict=True)
    )


def _modulus(gold: str, answer: str, depth: int) -> bool | None:
    found = [_MODULUS.fullmatch(text) for text in (gold, answer)]
    if not any(found):
        return None
    residues = [at[1] if at else text for at, text in zip(found, (gold, answer), strict=True)]
    residues = [re.sub(r"^\s*[A-Za-z]\s*\\equiv", "", text) for text in residues]
    if not (found[0] and found[1]):
        return same(residues[0], residues[1], depth + 1)
    if found[0][2] != found[1][2]:
        return False
    distance = constant(difference(read(residues[0]), read(residues[1])))
    modulus = int(found[0][2])
    return isinstance(distance, Fraction) and modulus > 0 and distance % modulus == 0


def _lists(gold: str, answer: str, depth: int) -> bool | None:
    golds, answers = _parts(gold), _parts(answer)
    bare = len(golds) > 1 or len(answers) > 1
    brackets = [_brackets(text) for text in (gold, answer)]
    if not bare and (brackets == [None, None] or relations(gold)[1] or relations(answer)[1]):
        return None
    kinds = [found[0] if found else None for found in brackets]
    if brackets[0] and (len(golds) == 1):
        golds = brackets[0][1]
    if brackets[1] and (len(answers) == 1):
        answers = brackets[1][1]
    if len(golds) != len(answers) or len(golds) > _PARTS_MAX:
        return False
    if kinds[0] != kinds[1] and (None not in kinds or "[" in kinds):
        return False
    ordered = "(" in kinds or "[" in kinds or _named_apart(golds) != _named_apart(answers)
    if ordered and ("{" in kinds or any("\\or" in text for text in (gold, answer))):
        return False  # an ordered list is not a set of alternatives
    return _all_same(golds, answers, ordered, depth + 1)


def _parts(text: str) -> list[str]:
    """Return the answers that a text lists; an answer with a plus-minus sign is two."""
    parts = []
    for part in split_top(text, (",", ";", "\\and", "\\or")):
        if not part.strip():
            continue
        if "\\pm" in part or "\\mp" in part:
            parts.append(part.replace("\\pm", "+").replace("\\mp", "-"))
            parts.append(part.replace("\\pm", "-").replace("\\mp", "+"))
        else:
            parts.append(part)
    return parts


def _brackets(text: str) -> tuple[str, list[str]] | None:
    """Return the kind of bracket around a text, and the parts inside."""
    for opening, closing, kind in (
        ("\\{", "\\}", "{"),
        ("\\langle", "\\rangle", "("),
        ("(", ")", "("),
        ("[", "]", "["),
    ):
        if text.startswith(opening) and text.endswith(closing) and is_enclosed(text):
            parts = _parts(text[len(opening) : len(text) - len(closing)])
            if kind == "{" or len(parts) > 1:
                return kind, parts
    return None


def _elements(text: str) -> list[str]:
    found = _brackets(text)
    return found[1] if found and found[0] == "(" else _parts(text)


def _named_apart(parts: Sequence[str]) -> bool:
    return len({_assigned(part)[0] for part in parts} - {None}) > 1


def _all_same(golds: Sequence[str], answers: Sequence[str], ordered: bool, depth: int) -> bool:
    if ordered:
        return all(same(*pair, depth) for pair in zip(golds, answers, strict=True))
    left = list(answers)
    for gold in golds:
        for answer in left:
            if _same_or_unreadable(gold, answer, depth):
                left.remove(answer)
                break
        else:
            return False
    return True


def _same_or_unreadable(gold: str, answer: str, depth: int) -> bool:
    try:
        return same(gold, answer, depth)
    except UnreadableError:
        return False


def _matrix(gold: str, answer: str, depth: int) -> bool | None:
    found = [_MATRIX.fullmatch(text) for text in (gold, answer)]
    if not any(found):
        return None
    rows = [
        [split_top(row, ("&",)) for row in at[2].split("\\\\") if row.strip()] if at else None
        for at in found
    ]
    kinds = [
        (at[1] if at[1] in ("vmatrix", "Vmatrix", "cases") else "matrix") if at else None
        for at in found
    ]
    if "cases" in kinds:
        systems = [
            [" ".join(row) for row in side] if side else _elements(text)
            for side, text in zip(rows, (gold, answer), strict=True)
        ]
        ordered = _named_apart(systems[0]) != _named_apart(systems[1])
        return len(systems[0]) == len(systems[1]) and _all_same(
            systems[0], systems[1], ordered, depth + 1
        )
    cells = [[cell for row in side for cell in row] if side else None for side in rows]
    for place, text in enumerate((gold, answer)):
        if cells[place] is None:  # a vector as a tuple
            other = rows[1 - place] or []
            brackets = _brackets(text)
            if brackets is None or brackets[0] == "{" or 1 not in (len(other), len(other[0])):
                return False
            cells[place] = brackets[1]
    if None not in kinds and (
        kinds[0] != kinds[1]
        or [len(row) for row in rows[0] or ()] != [len(row) for row in rows[1] or ()]
    ):
        return False
    first, second = cells[0] or [], cells[1] or []
    return len(first) == len(second) and _all_same(first, second, True, depth + 1)


def _assigned(text: str) -> tuple[str | None, str]:
    """Return the name and the value of an assignment; the name of another text is None."""
    sides, signs = relations(text)
    if signs == ["="] and _NAME.fullmatch(sides[0].strip()):
        return squeezed(sides[0]), sides[1]
    return None, text


def _relation(gold: str, answer: str, depth: int) -> bool | None:
    (golds, gold_signs), (answers, signs) = relations(gold), relations(answer)
    if not gold_signs and not signs:
        return None
    gold_name, gold_value = _assigned(gold)
    name, value = _assigned(answer)
    if signs and not gold_signs and name is None:
        return _equation(gold, answers, signs, depth)
    if not gold_signs or not signs:
        return (not gold_signs or gold_name is not None) and same(gold_value, value, depth + 1)
    if gold_name and gold_name == name:
        return same(gold_value, value, depth + 1)
    for sides, mirrored in ((answers, signs), (answers[::-1], [_MIRRORED[s] for s in signs[::-1]])):
        if mirrored == gold_signs and all(
            _same_or_unreadable(*pair, depth + 1) for pair in zip(golds, sides, strict=True)
        ):
            return True
    if len(gold_signs) != 1 or len(signs) != 1:
        return False
    if gold_signs[0] not in _MIRRORED or signs[0] not in _MIRRORED:
        return False
    sign = proportion(
        difference(*(read(side) for side in golds)), difference(*(read(side) for side in answers))
    )
    if gold_signs == signs and signs[0] in ("=", "\\ne"):
        return sign != 0
    return sign == (1 if gold_signs == signs else -1 if _MIRRORED[signs[0]] == gold_signs[0] else 2)


def _equation(gold: str, sides: list[str], signs: list[str], depth: int) -> bool:
    """Return whether an equation is true and has the evaluated gold at one of its ends.

    All sides must be equal: else a chain of guesses with equality signs would score.
    """
    if _NAME.fullmatch(sides[0].strip()):
        sides = sides[1:]
    if set(signs) != {"="} or len(sides) > _PARTS_MAX:
        return False
    nodes = [read(side) for side in sides]
    if not all(values_equal(*pair) for pair in pairwise(nodes)):
        return False
    return any(_same_or_unreadable(gold, side, depth + 1) for side in (sides[-1], sides[0]))


_MIRRORED = {"=": "=", "\\ne": "\\ne", "<": ">", ">": "<", "\\le": "\\ge", "\\ge": "\\le",
             "\\in": "\\in", "\\equiv": "\\equiv", "\\approx": "\\approx"}  # fmt: skip


def _formula(gold: str, answer: str, depth: int) -> bool | None:  # noqa: ARG001 - a rule
    constants = [_PLUS_CONSTANT.fullmatch(text) for text in (gold, answer)]
    if constants[0] and constants[1]:
        gold, answer = constants[0][1], constants[1][1]
    expected, given = quantity(gold), quantity(answer)
    if is_literal(expected.node) and is_unevaluated(given.node):
        return False
    pairs = list(Quantity.comparable(expected, given))
    return any(values_equal(*pair) for pair in pairs) or any(
        _rounded(gold, left, right, _GOLD_DIGITS_MIN) or _rounded(answer, right, left, _DIGITS_MIN)
        for left, right in pairs
    )


def _rounded(text: str, decimal: Node, exact: Node, digits_min: int) -> bool:
    """Return whether a decimal number with at least ``digits_min`` places is a value, rounded."""
    found = _DECIMAL.fullmatch(text.strip())
    if found is None or len(found[1]) < digits_min or exact.names():
        return False
    if len((found[0] + found[1]).lstrip("-0.")) < digits_min:
        return False
    distance = abs(constant(difference(decimal, exact)))
    return compare(distance, Fraction(1, 2 * 10 ** len(found[1]))) <= 0


_RULES: tuple[Callable[[str, str, int], bool | None], ...] = (
    _words,
    _choice,
    lambda gold, answer, depth: ranges_equal(gold, answer),  # noqa: ARG005
    _matrix,
    _modulus,
    lambda gold, answer, depth: based_equal(gold, answer),  # noqa: ARG005
    _lists,
    _ratio,
    _relation,
    _formula,
)
