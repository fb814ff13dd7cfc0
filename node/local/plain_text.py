"""Standard output of any encoding: characters that it lacks become ASCII ones, never an error."""

import codecs
import io
from typing import TextIO

_NAME = "prime-node-plain"
_ASCII = {"…": "...", "·": "-", "✓": "+", "✗": "x", "●": "*", "◆": "*", "→": "->", "█": "#"}


def tolerate_encoding(stream: TextIO) -> None:
    """Let a stream replace the characters that its encoding lacks."""
    if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
        stream.reconfigure(errors=_NAME)


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(character, "?") for character in lacking), error.end


codecs.register_error(_NAME, _replace)
