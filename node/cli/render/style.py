"""What every drawing of the API has in common: colours, and how others' words are shown."""

GOOD, WARN, BAD, DIM = "green", "yellow", "red", "bright_black"


def plain(text: str, characters_max: int = 200) -> str:
    """Return what another node wrote without what could steer a terminal."""
    kept = text[:characters_max]
    return "".join(character if character.isprintable() else "�" for character in kept)


def short_peer(peer_id: str) -> str:
    """Return a peer id as people tell them apart: its random end, after the common beginning."""
    return peer_id if len(peer_id) <= 16 else f"{peer_id[:8]}…{peer_id[-6:]}"
