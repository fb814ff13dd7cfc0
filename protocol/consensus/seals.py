"""Seals of verdicts: a member fixes its verdict before it receives one of another member.

A seal is a hash of the signer, the nonce and the other fields of a verdict. A member sends its
verdict only to members whose seals it holds, so no member can copy the witness values of another.
The hash covers the signer: a copied seal matches no verdict of the key that copied it.
"""

from protocol.core.codec import encode
from protocol.core.crypto import digest
from protocol.core.types import Digest, PeerId
from protocol.messages import Signed, Verdict, VerdictSeal

_DOMAIN = b"prime-node/verdict-seal"

Statement = Signed[Verdict] | Signed[VerdictSeal]
"""Statement of a validator about a commit: a verdict, or the seal of one."""


def seal_of(verdict: Verdict, signer: PeerId) -> VerdictSeal:
    """Return the seal of a verdict that ``signer`` will sign."""
    content = encode(verdict.model_dump(exclude={"nonce"}))
    value = digest(_DOMAIN + signer.encode() + verdict.nonce + content)
    return VerdictSeal(commit=verdict.commit, page=verdict.page, seal=value)


def is_contradiction(one: Statement, other: Statement) -> bool:
    """Return whether an honest validator never signs both statements.

    These are two verdicts with different results, two seals, or a verdict and the seal of another
    one. After a page was abandoned, a validator may give another verdict for the page that draws
    the commit's committee now.
    """
    about = (one.signer, one.message.commit, one.message.page)
    if about != (other.signer, other.message.commit, other.message.page):
        return False
    if isinstance(one.message, Verdict) and isinstance(other.message, Verdict):
        return one.message.accept is not other.message.accept
    return _seal(one) != _seal(other)


def matches(seal: Signed[VerdictSeal], verdict: Signed[Verdict]) -> bool:
    """Return whether a seal is that of a verdict by the same signer."""
    return seal.message == seal_of(verdict.message, seal.signer)


def ordered(one: Statement, other: Statement) -> tuple[Statement, Statement]:
    """Return two statements in the order of their digests, the same on every node."""
    return (one, other) if one.digest < other.digest else (other, one)


def _seal(statement: Statement) -> Digest:
    message = statement.message
    if isinstance(message, Verdict):
        message = seal_of(message, statement.signer)
    return Digest(message.seal)
