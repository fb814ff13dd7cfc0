"""Comparison of answers in words."""

import re

from roles.environments.jailed.formulas import FUNCTION_NAMES
from roles.environments.jailed.latex import lowered, squeezed

TEXT = re.compile(r"\\text\{([^{}]*)\}")
_WORD = re.compile(r"[A-Za-z]{3,}")
_ARTICLE = re.compile(r"(?:an?|the)\s+(?=[a-z]{3})")

_MEANINGS = {
    "doesnotexist": "dne",
    "doesn'texist": "dne",
    "limitdoesnotexist": "dne",
    "nosolution": "none",
    "nosolutions": "none",
    "norealsolution": "none",
    "norealsolutions": "none",
    "therearenosolutions": "none",
    "thereisnosolution": "none",
    "emptyset": "none",
    "theemptyset": "none",
    "\\emptyset": "none",
    "\\{\\}": "none",
    "\\mathbb{r}": "reals",
    "allrealnumbers": "reals",
    "allreals": "reals",
    "realnumbers": "reals",
    "anyrealnumber": "reals",
    "(-\\infty,\\infty)": "reals",
    "(-\\infty,+\\infty)": "reals",
    "\\infty": "infinity",
    "+\\infty": "infinity",
    "positiveinfinity": "infinity",
    "negativeinfinity": "-\\infty",
}
_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
    "twenty",
)  # fmt: skip


def meaning(text: str) -> str:
    """Return a key that is equal for texts with the same meaning in words."""
    plain = lowered(TEXT.sub(r"\1", text)).strip(" .")
    plain = squeezed(_ARTICLE.sub("", plain))
    return _MEANINGS.get(plain, plain)


def is_wordy(text: str) -> bool:
    """Tell whether a text contains words; two letters are a product, and functions do not count."""
    plain = re.sub(r"\\[A-Za-z]+", " ", TEXT.sub(" wordy ", text))
    return any(word not in FUNCTION_NAMES for word in _WORD.findall(plain))


def number_of(key: str) -> str | None:
    """Return the digits of a number given in words, None for other words."""
    return str(_NUMBERS.index(key)) if key in _NUMBERS else None
