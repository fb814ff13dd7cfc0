"""The last lines of this process's log, for whoever looks at the node from a browser."""

import logging
from collections import deque

from typing_extensions import override

LINES_MAX = 200
LINE_CHARACTERS_MAX = 1_000


class LogTail(logging.Handler):
    """Keeps the last lines as the other handlers write them, each cut."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque(maxlen=LINES_MAX)

    def install(self) -> None:
        """Listen to everything that this process logs, in the format that it logs in."""
        root = logging.getLogger()
        for handler in root.handlers:
            if handler.formatter is not None:
                self.setFormatter(handler.formatter)
        root.addHandler(self)

    def remove(self) -> None:
        """Listen no more; idempotent."""
        logging.getLogger().removeHandler(self)

    @property
    def lines(self) -> tuple[str, ...]:
        """The oldest first."""
        return tuple(self._lines)

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._lines.append(self.format(record)[:LINE_CHARACTERS_MAX])
        except Exception:  # noqa: BLE001 - as every handler does: a log line must not end a node
            self.handleError(record)
