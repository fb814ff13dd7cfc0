"""Colours of terminal output, and escaping of text from other nodes."""

GOOD, WARN, BAD, DIM = "green", "yellow", "red", "bright_black"


def plain(text: str, characters_max: int = 200) -> str:
    """Return text from another node without characters that control a terminal."""
    kept = text[:characters_max]
    return "".join(character if character.isprintable() else "�" for character in kept)


def short_peer(peer_id: str) -> str:
    """Return a shortened peer id: the common prefix and the random end."""
    return peer_id if len(peer_id) <= 16 else f"{peer_id[:8]}…{peer_id[-6:]}"
