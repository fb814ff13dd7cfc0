"""Startup log: logs the stages of a node, and shows a progress bar on a terminal.

Logs each stage once; if only numbers change, it logs every ``LINE_SECONDS``.
"""

import asyncio
import re
from collections.abc import Callable

import structlog

from node.api.status import Stage
from node.local.status_line import StatusLine

log = structlog.get_logger()

LOOK_SECONDS = 0.2
LINE_SECONDS = 10.0
"""Interval of log lines about one wait."""

_NUMBERS = re.compile(r"[0-9.]+")
_QUIET = ("starting", "draining")
"""These stages have their own log lines."""


class StartupLog:
    """Follows ``stage`` until cancelled; ``line`` is the terminal's status line."""

    def __init__(self, stage: Callable[[], Stage], line: StatusLine | None) -> None:
        self._stage = stage
        self._line = line
        self.seconds: dict[str, float] = {}
        """Seconds spent per state."""
        self._told = ""
        self._told_at = 0.0

    async def run(self) -> None:
        """Log changes."""
        loop = asyncio.get_running_loop()
        looked_at = loop.time()
        try:
            while True:
                stage, now = self._stage(), loop.time()
                spent = self.seconds.get(stage.state, 0.0) + now - looked_at
                self.seconds[stage.state], looked_at = spent, now
                self._show(stage)
                self._tell(stage, now)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            self._show(Stage("draining"))

    def _show(self, stage: Stage) -> None:
        if self._line is not None:
            waits = stage.state in ("starting", "joining", "syncing")
            self._line.show((stage.reason or stage.state) if waits else "", stage.share)

    def _tell(self, stage: Stage, now: float) -> None:
        wait = f"{stage.state} {_NUMBERS.sub('', stage.reason)}"
        lasts = stage.share is not None or stage.state == "joining"
        if wait == self._told and not (lasts and now >= self._told_at + LINE_SECONDS):
            return
        self._told, self._told_at = wait, now
        if stage.state == "ready":
            log.info("ready", **({"note": stage.reason} if stage.reason else {}))
        elif stage.state == "paused":
            log.info("paused", reason=stage.reason)
        elif stage.state not in _QUIET:
            log.info(stage.reason)
