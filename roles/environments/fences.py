"""Parser of fenced code blocks, as in CommonMark and in common practice."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_OPENING = re.compile(r"([ \t]*)(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*)")
_LANGUAGE = re.compile(r"^[{.\s]*([\w+#-]+)")


@dataclass(frozen=True, slots=True)
class FencedBlock:
    """Fenced block, which ends at its closing fence or with the text."""

    language: str
    """First word after the opening fence, in lower case; empty without one."""
    text: str
    start: int
    end: int
    """Positions of the first and last character of its lines in the text."""


def blocks(text: str) -> Iterator[FencedBlock]:
    """Return the fenced blocks of a text, in order.

    Only a line feed ends a line: programs may hold other separators in strings. A fence may be
    indented by any width; up to this width is removed from its lines.
    """
    opened: re.Match[str] | None = None
    lines: list[str] = []
    start = at = 0
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        after = at + len(raw) + 1
        if opened is None:
            opened = _OPENING.fullmatch(line)
            lines, start = [], after
        elif _closes(line, opened[2]):
            yield _block(opened, lines, start, at)
            opened = None
        else:
            lines.append(line)
        at = after
    if opened is not None:
        yield _block(opened, lines, start, len(text))


def _closes(line: str, fence: str) -> bool:
    stripped = line.strip(" \t")
    return len(stripped) >= len(fence) and not stripped.strip(fence[0])


def _block(opened: re.Match[str], lines: list[str], start: int, end: int) -> FencedBlock:
    indentation = re.compile(f"[ \\t]{{0,{len(opened[1])}}}")
    language = "".join(_LANGUAGE.findall(opened[3])[:1]).lower()
    return FencedBlock(
        language, "\n".join(indentation.sub("", line, count=1) for line in lines), start, end
    )
