"""Colours of terminal output, and escaping of text from other nodes."""

from rich.table import Table
from rich.text import Text

GOOD, WARN, BAD, DIM = "green", "yellow", "red", "bright_black"

_NAME_CHARACTERS_MAX = 32
"""Limit of a name in a record; the daemon that answers may be of another version."""


def plain(text: str, characters_max: int = 200) -> str:
    """Return text from another node without characters that control a terminal."""
    kept = text[:characters_max]
    return "".join(character if character.isprintable() else "�" for character in kept)


def plain_name(name: str) -> Text:
    """Return the name that a node has chosen, as ``plain`` returns text."""
    return Text(plain(name, _NAME_CHARACTERS_MAX))


def add_name_column(table: Table, title: str = "name") -> None:
    """Add a last column for names, which takes the width that the others leave.

    It is the last one because a name that is written from right to left may reorder what follows.
    """
    table.add_column(title, no_wrap=True, min_width=16, ratio=1)


def peer_text(peer_id: str, name: str, *, note: str = "") -> Text:
    """Return a shortened peer id, a note in brackets, and the name of the peer."""
    text = Text(f"{short_peer(peer_id)} ({note})" if note else short_peer(peer_id))
    return text.append("  ").append_text(plain_name(name)) if name else text


def short_peer(peer_id: str) -> str:
    """Return a shortened peer id: the common prefix and the random end."""
    return peer_id if len(peer_id) <= 16 else f"{peer_id[:8]}…{peer_id[-6:]}"
