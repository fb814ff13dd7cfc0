import fcntl
import io
import os
import pty
import struct
import termios

import pytest

from node.local.status_line import StatusLine


class Terminal(io.StringIO):
    """Output to a terminal of ``columns`` columns."""

    def __init__(self, columns):
        super().__init__()
        self.ends = pty.openpty()
        size = struct.pack("HHHH", 24, columns, 0, 0)
        fcntl.ioctl(self.ends[1], termios.TIOCSWINSZ, size)

    def fileno(self):
        return self.ends[1]

    def isatty(self):
        return True

    def close(self):
        for end in self.ends:
            os.close(end)
        super().close()

    @property
    def lines(self):
        lines = [""]
        for character in self.getvalue().replace("\r\x1b[K", "\f"):
            if character == "\f":
                lines[-1] = ""
            elif character == "\n":
                lines.append("")
            else:
                lines[-1] += character
        return lines


@pytest.fixture
def terminal():
    made = Terminal(60)
    yield made
    made.close()


def test_logs_pass_above_the_line_that_is_shown(terminal):
    line = StatusLine(terminal)
    line.write("first\n")
    line.show("fetching weights", 0.5)
    line.write("second\n")
    bar = f"{'█' * 12}{'░' * 12} fetching weights"
    assert terminal.lines == ["first", "second", bar]
    line.show("looking for peers", None)
    assert terminal.lines == ["first", "second", "looking for peers"]
    line.show("", None)
    line.write("third\n")
    assert terminal.lines == ["first", "second", "third", ""]
    assert line.isatty()


def test_a_line_never_wraps(terminal):
    StatusLine(terminal).show("x" * 200, None)
    assert terminal.lines == ["x" * 59]


def test_the_same_line_is_drawn_once(terminal):
    line = StatusLine(terminal)
    line.show("looking", None)
    before = terminal.getvalue()
    line.show("looking", None)
    assert terminal.getvalue() == before


def test_a_terminal_without_blocks_gets_a_bar_in_ascii():
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    StatusLine(stream).show("fetching", 0.5)
    stream.flush()
    assert stream.buffer.getvalue() == b"\r\x1b[K" + b"#" * 12 + b"-" * 12 + b" fetching"


def test_it_writes_where_the_width_is_not_known():
    stream = io.StringIO()
    StatusLine(stream).show("y" * 100, 1.0)
    assert stream.getvalue().endswith("█ " + "y" * 54)
