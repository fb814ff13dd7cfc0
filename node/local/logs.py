"""Log set-up: one structlog pipeline to standard error.

Modules log with the standard library (``logging.getLogger(__name__)``) or with structlog. Both
produce text lines on a terminal and one JSON object per line elsewhere.
"""

import logging
import sys
from typing import Literal, TextIO

import structlog

from node.local.status_line import StatusLine

QUIET_LOGGERS = ("asyncio", "filelock", "hivemind", "httpcore", "httpx", "transformers", "uvicorn")
"""Libraries that log more than an operator needs; their warnings still pass."""


def configure_logging(
    log_format: Literal["auto", "console", "json"],
    log_level: str,
    stream: TextIO | StatusLine | None = None,
) -> None:
    """Send all logs of this process to ``stream`` (standard error); a later call replaces it."""
    target = stream or sys.stderr
    for_people = log_format == "console" or (log_format == "auto" and target.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_rendering(for_people=for_people, colors=target.isatty()),
            ],
        )
    )
    level = logging.getLevelNamesMapping()[log_level.upper()]
    logging.basicConfig(handlers=[handler], level=level, force=True)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(max(level, logging.WARNING))


def adopt_hivemind_logs() -> None:
    """Remove hivemind's log handler after its import; its records then reach the root logger."""
    logger = logging.getLogger("hivemind")
    level = logging.getLogger().getEffectiveLevel()
    logger.handlers.clear()
    logger.propagate = True
    logger.setLevel(max(level, logging.WARNING))


def _rendering(*, for_people: bool, colors: bool) -> list[structlog.typing.Processor]:
    if for_people:
        return [structlog.dev.ConsoleRenderer(colors=colors, pad_event_to=40)]
    return [
        structlog.processors.dict_tracebacks,
        structlog.processors.EventRenamer("message"),
        structlog.processors.JSONRenderer(),
    ]
