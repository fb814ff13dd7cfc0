import io
import json
import logging

import pytest
import structlog

from node.local.log_tail import LINE_CHARACTERS_MAX, LINES_MAX, LogTail
from node.local.logs import configure_logging


@pytest.fixture
def tail():
    """Log tail of a process that logs as a daemon does."""
    before = logging.getLogger().handlers[:], logging.getLogger().level
    configuration = structlog.get_config()
    configure_logging("json", "info", io.StringIO())
    tail = LogTail()
    tail.install()
    yield tail
    tail.remove()
    logging.getLogger().handlers[:], _ = before
    logging.getLogger().setLevel(before[1])
    structlog.configure(**configuration)


def test_the_last_lines_are_kept_as_they_are_written(tail):
    structlog.get_logger("node.test").info("policy arrived", version=3)
    structlog.get_logger("node.test").debug("not of interest")
    (line,) = tail.lines
    assert json.loads(line) | {"timestamp": ""} == {
        "message": "policy arrived",
        "version": 3,
        "level": "info",
        "logger": "node.test",
        "timestamp": "",
    }


def test_lines_and_their_lengths_are_bounded(tail):
    log = logging.getLogger("node.test")
    for number in range(3 * LINES_MAX):
        log.info("%d %s", number, "x" * (2 * LINE_CHARACTERS_MAX))
    assert len(tail.lines) == LINES_MAX
    assert max(map(len, tail.lines)) == LINE_CHARACTERS_MAX
    assert f'"{3 * LINES_MAX - 1} x' in tail.lines[-1]


def test_what_was_removed_listens_no_more(tail):
    tail.remove()
    logging.getLogger("node.test").info("unheard")
    assert tail.lines == ()
