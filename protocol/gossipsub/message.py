"""Signed messages: canonical encoding, author signatures, and message ids.

Message {1 from, 2 data, 3 seqno, 4 topic, 5 signature, 6 key}, StrictSign (``pubsub/README.md``):
the signature is Ed25519 over ``libp2p-pubsub:`` and the message without signature and key. ``from``
is the identity multihash, which contains the key, so field 6 must be absent. A message that
re-serialises to other bytes (unknown fields, another order, long varints, repeats) is rejected: a
forwarder could otherwise make many encodings of one signed message.
"""

from dataclasses import dataclass, field
from functools import lru_cache

import base58

from protocol.core.containers import LruCache
from protocol.core.crypto import (
    PEER_ID_PREFIX,
    SIGNATURE_BYTES,
    Signer,
    Verifier,
    peer_id_from_public_key,
)
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import MEMBERS_MAX, PeerId
from protocol.gossipsub.rpc import (
    FieldReader,
    MalformedError,
    RpcDecoder,
    decode_rpc,
    length_field,
    topic_text,
)

SIGN_PREFIX = b"libp2p-pubsub:"
SEQNO_BYTES = 8
SOURCE_BYTES = len(PEER_ID_PREFIX) + 32
MESSAGE_ID_BYTES = SOURCE_BYTES + SEQNO_BYTES
_FIELDS_MAX = 8
"""A canonical message has five."""

_SIGNATURE_FIELD_BYTES = 2 + SIGNATURE_BYTES
"""Tag, length and content; the last field of the canonical bytes."""


@dataclass(frozen=True, slots=True)
class GossipMessage:
    """One well-formed message; its signature is not checked yet."""

    source: bytes
    data: bytes
    seqno: bytes
    topic: str
    signature: bytes
    encoded: bytes = field(default=b"", compare=False, repr=False)
    """The bytes that it was decoded from, stored once for all received copies."""
    message_id: bytes = field(init=False, compare=False, repr=False)
    """Author and sequence number: 46 bytes, the libp2p default."""
    author: PeerId = field(init=False, compare=False, repr=False)
    """The peer id in ``from``."""

    def __post_init__(self) -> None:
        """Compute id and author once: they are read several times."""
        object.__setattr__(self, "message_id", self.source + self.seqno)
        object.__setattr__(self, "author", _peer_id(self.source))


Decoded = LruCache[bytes, GossipMessage]
"""Cache of well-formed messages by their canonical bytes."""


def source_bytes(peer_id: PeerId) -> bytes:
    """Return the ``from`` field of our own valid ``peer_id``."""
    return base58.b58decode(peer_id)


def sign_message(signer: Signer, topic: str, data: bytes, seqno: int) -> GossipMessage:
    """Return a signed message; ``seqno`` is below 2**64 and never reused by one key."""
    source = source_bytes(signer.peer_id)
    unsigned = GossipMessage(source, data, seqno.to_bytes(SEQNO_BYTES, "big"), topic, b"")
    signature = signer.sign(SIGN_PREFIX + _encode_unsigned(unsigned))
    return GossipMessage(source, data, unsigned.seqno, topic, signature)


def verify_message(message: GossipMessage, verifier: Verifier) -> bool:
    """Check the author's signature."""
    unsigned = message.encoded[:-_SIGNATURE_FIELD_BYTES] or _encode_unsigned(message)
    return verifier(message.author, SIGN_PREFIX + unsigned, message.signature)


def encode_message(message: GossipMessage) -> bytes:
    """Return the canonical bytes of a signed message."""
    return _encode_unsigned(message) + length_field(5, message.signature)


def decode_message(data: bytes) -> GossipMessage | Fault:
    """Return the message that ``data`` encodes canonically, or a ``Fault``; no signature check."""
    try:
        fields = _fields(data)
        topic = topic_text(fields.pop(4, b""))
    except MalformedError as error:
        return Fault(FaultCode.MESSAGE_MALFORMED, str(error))
    source, body = fields.get(1, b""), fields.get(2, b"")
    seqno, signature = fields.get(3, b""), fields.get(5, b"")
    if len(source) != SOURCE_BYTES or not source.startswith(PEER_ID_PREFIX):
        detail = "not the identity multihash of an Ed25519 key"
        return Fault(FaultCode.MESSAGE_SOURCE, detail)
    if len(seqno) != SEQNO_BYTES:
        return Fault(FaultCode.MESSAGE_SEQNO, f"{len(seqno)} bytes")
    if len(signature) != SIGNATURE_BYTES:
        return Fault(FaultCode.MESSAGE_SIGNATURE, f"{len(signature)} bytes")
    message = GossipMessage(source, body, seqno, topic, signature, data)
    if encode_message(message) != data:
        return Fault(FaultCode.MESSAGE_NOT_CANONICAL)
    return message


def _fields(data: bytes) -> dict[int, bytes]:
    fields: dict[int, bytes] = {}
    for number, value in FieldReader(_FIELDS_MAX).fields(data):
        if isinstance(value, int):
            raise MalformedError("varint in a message")
        fields[number] = value
    return fields


def _encode_unsigned(message: GossipMessage) -> bytes:
    return b"".join(
        (
            length_field(1, message.source),
            length_field(2, message.data),
            length_field(3, message.seqno),
            length_field(4, message.topic.encode()),
        )
    )


@lru_cache(maxsize=MEMBERS_MAX)  # base58 costs 7 us, and authors repeat
def _peer_id(source: bytes) -> PeerId:
    return peer_id_from_public_key(source[len(PEER_ID_PREFIX) :])


DECODED_MAX = 1024
"""Cached messages: each arrives from about six mesh peers within seconds."""


@dataclass(frozen=True, slots=True)
class Decoders:
    """Replaceable decoders: many nodes in one process may share ``messages`` or trace ``rpc``."""

    messages: Decoded = field(default_factory=lambda: Decoded(DECODED_MAX))
    rpc: RpcDecoder = decode_rpc
