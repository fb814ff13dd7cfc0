import io
import json
import logging

import pytest
import structlog

from node.local.logs import adopt_hivemind_logs, configure_logging


@pytest.fixture(autouse=True)
def restored():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def logged(log_format, level="info", stream=None):
    stream = stream or io.StringIO()
    configure_logging(log_format, level, stream)
    structlog.get_logger("ours").info("joined", peers=3)
    logging.getLogger("theirs").info("took %d ms", 7, extra={"step": 2})
    logging.getLogger("theirs").debug("detail")
    logging.getLogger("uvicorn.error").info("started")
    logging.getLogger("uvicorn.error").warning("odd")
    return stream.getvalue().splitlines()


def test_json_has_one_object_per_line_for_both_kinds_of_loggers():
    lines = [json.loads(line) for line in logged("json")]
    assert [line["message"] for line in lines] == ["joined", "took 7 ms", "odd"]
    assert lines[0] | {"peers": 3, "level": "info", "logger": "ours"} == lines[0]
    assert lines[1] | {"step": 2, "level": "info", "logger": "theirs"} == lines[1]
    assert lines[0]["timestamp"].endswith("Z")


def test_auto_is_json_off_a_terminal_and_lines_on_one():
    assert logged("auto")[0].startswith("{")
    assert "joined" in logged("auto", stream=Terminal())[0]
    assert not logged("auto", stream=Terminal())[0].startswith("{")


def test_console_off_a_terminal_has_no_colours():
    lines = logged("console")
    assert "\x1b" not in "".join(lines)
    assert "peers=3" in lines[0]


def test_level():
    assert len(logged("json", "debug")) == 4
    assert [json.loads(line)["message"] for line in logged("json", "warning")] == ["odd"]


def test_an_exception_is_in_its_line():
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    structlog.get_logger().error("failed", exc_info=ValueError("bad\nnews"))
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["exception"][0]["exc_value"] == "bad\nnews"


def test_hivemind_loses_its_own_handler():
    logger = logging.getLogger("hivemind")
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    logger.propagate = False
    stream = io.StringIO()
    configure_logging("json", "info", stream)
    adopt_hivemind_logs()
    logging.getLogger("hivemind.p2p").info("chatter")
    logging.getLogger("hivemind.p2p").warning("trouble")
    assert [json.loads(line)["message"] for line in stream.getvalue().splitlines()] == ["trouble"]
