"""Text form of an invite: one word, or a file that contains it."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from pathlib import Path

from protocol.messages import ADMISSION_BYTES_MAX, Invite, envelope_kind

TOKEN_CHARACTERS_MAX = 4 * ADMISSION_BYTES_MAX // 3 + 4


def invite_token(envelope: bytes) -> str:
    """Return the text form of an invite."""
    return urlsafe_b64encode(envelope).decode().rstrip("=")


def read_invite(given: str) -> bytes:
    """Return the envelope of a word or of the file it names; raises ``ValueError``."""
    word = given.strip()
    with suppress(OSError, ValueError), Path(word).open() as file:  # no such file: it is the word
        word = file.read(TOKEN_CHARACTERS_MAX + 2).strip()
    try:
        envelope = urlsafe_b64decode(word + "=" * (-len(word) % 4))
    except ValueError:
        envelope = b""
    if len(word) > TOKEN_CHARACTERS_MAX or envelope_kind(envelope) != Invite.kind:
        raise ValueError("neither an invite, as prime-node invite prints it, nor a file with one")
    return envelope
