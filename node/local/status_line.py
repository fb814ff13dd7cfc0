"""Terminal stream for logs, with a status line that is redrawn in place below them."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from typing_extensions import override

_CLEAR_LINE = "\r\x1b[K"
_BAR_CELLS = 24
_CELLS = "█░"
"""Full and empty cells."""
_ASCII_CELLS = "#-"
_COLUMNS_DEFAULT = 80


class StatusLine(io.TextIOBase):
    """Writes log output to ``terminal`` above the current status line."""

    def __init__(self, terminal: TextIO) -> None:
        self._terminal = terminal
        self._cells = _CELLS if _shows(terminal, _CELLS) else _ASCII_CELLS
        self._shown = ""
        self._asking = False

    @override
    def write(self, text: str) -> int:
        cleared = _CLEAR_LINE if self._shown else ""
        self._terminal.write(f"{cleared}{text}{self._shown if text.endswith(chr(10)) else ''}")
        self._terminal.flush()
        return len(text)

    @override
    def flush(self) -> None:
        self._terminal.flush()

    @override
    def isatty(self) -> bool:
        return self._terminal.isatty()

    @contextmanager
    def asking(self, question: str) -> Iterator[None]:
        """Show a question until the block ends; ``show`` has no effect meanwhile.

        The answer ends the line, so it is not cleared afterwards.
        """
        self.show(question, None)
        self._asking = True
        try:
            yield
        except BaseException:
            self._terminal.write("\n")
            raise
        finally:
            self._asking, self._shown = False, ""

    def show(self, text: str, share: float | None) -> None:
        """Draw the line, with a bar if ``share`` is known; an empty text clears it."""
        if self._asking:
            return
        line = "" if not text else f"{_bar(share, self._cells)}{text}"
        cut = line[: self._columns() - 1]  # a wrapped line could not be cleared
        if cut != self._shown:
            self._shown = cut
            self._terminal.write(f"{_CLEAR_LINE}{cut}")
            self._terminal.flush()

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._terminal.fileno()).columns or _COLUMNS_DEFAULT
        except OSError:
            return _COLUMNS_DEFAULT


def _bar(share: float | None, cells: str) -> str:
    if share is None:
        return ""
    full = round(_BAR_CELLS * min(1.0, max(0.0, share)))
    return f"{cells[0] * full}{cells[1] * (_BAR_CELLS - full)} "


def _shows(terminal: TextIO, text: str) -> bool:
    """Return whether a terminal's encoding has the characters of ``text``."""
    try:
        text.encode(terminal.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True
