"""The last log lines of this process, for the node's web page."""

import logging
from collections import deque

from typing_extensions import override

LINES_MAX = 200
LINE_CHARACTERS_MAX = 1_000


class LogTail(logging.Handler):
    """Keeps the last lines in the format of the other handlers, each truncated."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def install(self) -> None:
        """Attach to the root logger, with its format."""
        root = logging.getLogger()
        for handler in root.handlers:
            if handler.formatter is not None:
                self.setFormatter(handler.formatter)
        root.addHandler(self)

    def remove(self) -> None:
        """Detach from the root logger; idempotent."""
        logging.getLogger().removeHandler(self)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, oldest first."""
        return tuple(self._lines)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record)[:LINE_CHARACTERS_MAX])
        except Exception:  # noqa: BLE001 - as in every handler: logging must not end a node
            self.handleError(record)
