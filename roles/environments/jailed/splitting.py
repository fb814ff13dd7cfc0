"""Splitting of formulas at separators outside of brackets."""

import re
from collections.abc import Sequence

from roles.environments.jailed.formulas import UnreadableError

_BRACKETS = re.compile(r"\\[{}]|\\(?:langle|rangle|begin|end)(?![A-Za-z])|[()\[\]{}]")
_OPENING = ("(", "[", "{", "\\{", "\\langle", "\\begin")
_RELATION = re.compile(
    r"\\(?:le|ge|ne|in|equiv|approx)(?![A-Za-z])|[<>=]",
)


def split_top(text: str, separators: Sequence[str]) -> list[str]:
    """Return the parts of a text between separators.

    Raises ``UnreadableError`` for unmatched brackets.
    """
    pattern = re.compile("|".join(map(_pattern, separators)))
    return _split(text, pattern)[0]


def relations(text: str) -> tuple[list[str], list[str]]:
    """Return the sides of a chain of relations, and the signs between them."""
    return _split(text, _RELATION)


def is_enclosed(text: str) -> bool:
    """Return whether the opening bracket of a text is closed at its end."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth += 1 if found.group() in _OPENING else -1
        if depth <= 0:
            return found.end() == len(text)
    return False


def _pattern(separator: str) -> str:
    return re.escape(separator) + ("(?![A-Za-z])" if separator[-1].isalpha() else "")


def _split(text: str, pattern: re.Pattern[str]) -> tuple[list[str], list[str]]:
    parts, signs = [], []
    start = depth = at = 0
    while at < len(text):
        if found := _BRACKETS.match(text, at):
            depth += 1 if found.group() in _OPENING else -1
            if depth < 0:
                raise UnreadableError("a bracket that closes none")
        elif depth == 0 and (found := pattern.match(text, at)):
            parts.append(text[start:at].strip())
            signs.append(found.group())
            start = found.end()
        at = found.end() if found else at + 1
    if depth:
        raise UnreadableError("a bracket that is not closed")
    return [*parts, text[start:].strip()], signs
