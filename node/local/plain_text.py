"""Fallback to ASCII on standard output for characters that its encoding lacks."""

import codecs
import io
from typing import TextIO

_NAME = "prime-node-plain"
_ASCII = {"…": "...", "·": "-", "✓": "+", "✗": "x", "●": "*", "◆": "*", "→": "->", "█": "#"}


def tolerate_encoding(stream: TextIO) -> None:
    """Replace characters that the stream's encoding lacks, instead of raising."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors=_NAME)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in lacking), error.end


codecs.register_error(_NAME, _replace)
