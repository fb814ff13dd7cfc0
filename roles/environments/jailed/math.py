"""Comparison of a mathematical answer with the expected one.

The form of an answer selects the comparison: words, choices, times, ratios, bases, residues, sets
of numbers, lists, matrices, relations, or formulas with units. An unreadable formula, or one whose
value is too large to compute, is correct only if its text equals the expected one.
"""

from typing import Any

from roles.environments.jailed.answers import same
from roles.environments.jailed.formulas import UnreadableError
from roles.environments.jailed.latex import final_answer, gold_answer, squeezed, tidy
from roles.environments.jailed.values import BUDGET

_CHARACTERS_MAX = 1000
"""Longest answer that is compared by value."""

_OPERATORS = ("+", "-", "*", "/", "^", "=", "!", "\\")


def check(question: Any) -> bool:
    """Return whether ``answer`` to the ``prompt`` is equivalent to ``expected``.

    With ``require_box``, only a boxed answer counts.
    """
    gold, text = question["expected"].strip(), question["answer"].strip()
    require_box = bool(question.get("require_box"))
    if not gold:
        return False
    if text == gold and not require_box:
        return True
    answer = final_answer(text, require_box)
    if not answer or not answer.strip():
        return False
    expected, given = gold_answer(gold), answer.strip()
    if given in (gold, expected):
        return True
    expected, given = tidy(expected), tidy(given)
    if not expected or not given:
        return False
    if squeezed(expected) == squeezed(given):
        return True
    if max(len(expected), len(given)) > _CHARACTERS_MAX:
        return False
    if _is_copied(given, question.get("prompt", "")):
        return False
    BUDGET.renew()
    try:
        return same(expected, given)
    except UnreadableError:
        return False


def _is_copied(answer: str, prompt: str) -> bool:
    """Return whether an answer copies a formula of the question unevaluated."""
    formula, question = squeezed(answer), squeezed(tidy(prompt))
    at = question.find(formula)
    while at >= 0:
        before, after = question[at - 1 : at], question[at + len(formula) :][:1]
        if not (_goes_on(before, formula[0]) or _goes_on(formula[-1], after)):
            return any(sign in formula for sign in _OPERATORS)
        at = question.find(formula, at + 1)
    return False


def _goes_on(left: str, right: str) -> bool:
    """Return whether two characters belong to the same number."""
    digits = "0123456789."
    return bool(left and right) and left in digits and right in digits
