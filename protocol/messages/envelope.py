"""Envelopes: seal, open and identify signed messages.

An envelope is the canonical map of kind, payload, signer and signature.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    ValidationError,
)

from protocol.core.codec import decode, encode
from protocol.core.containers import LruCache
from protocol.core.crypto import Signer, Verifier, digest, signing_bytes
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId, RunId

ENVELOPE_BYTES_MAX = 16 * 1024
"""Maximum size of a gossiped envelope; bodies are fetched by digest."""


OPENED_MAX = 4096
"""Cached envelopes, about 3 KB each: the same one arrives by gossip, by synchronisation, from the
directory, and as a verdict inside a certificate."""


_HEAD = b"\x84\xa4kind"
"""First bytes of an envelope's canonical map; the value of ``kind`` has at most 31 bytes."""


_SHORT_TEXT = 0xA0


class Message(BaseModel):
    """Base of payloads; ``kind`` separates the signatures of different messages."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
    kind: ClassVar[str]
    envelope_bytes_max: ClassVar[int] = ENVELOPE_BYTES_MAX


MessageT = TypeVar("MessageT", bound=Message)


@dataclass(frozen=True, slots=True)
class Signed(Generic[MessageT]):
    """A message with a signature that this node made or verified."""

    signer: PeerId
    message: MessageT
    digest: Digest
    envelope: bytes


def seal(message: MessageT, run_id: RunId, signer: Signer) -> Signed[MessageT]:
    """Sign ``message`` for a run; raises ``ValueError`` if it exceeds the envelope limit."""
    payload = encode(message.model_dump())
    signature = signer.sign(signing_bytes(message.kind, run_id, payload))
    signed = _with_signature(message, payload, run_id, signer.peer_id, signature)
    if len(signed.envelope) > message.envelope_bytes_max:
        limit = message.envelope_bytes_max
        raise ValueError(f"{message.kind} of {len(signed.envelope)} bytes, limit {limit}")
    return signed


def with_signature(
    message: MessageT, run_id: RunId, signer: PeerId, signature: bytes
) -> Signed[MessageT]:
    """Return a message with a signature that its caller has checked."""
    return _with_signature(message, encode(message.model_dump()), run_id, signer, signature)


def _with_signature(
    message: MessageT, payload: bytes, run_id: RunId, signer: PeerId, signature: bytes
) -> Signed[MessageT]:
    envelope = encode(
        {"kind": message.kind, "payload": payload, "signature": signature, "signer": signer}
    )
    return Signed(signer, message, _message_id(message.kind, run_id, signer, payload), envelope)


def signature_of(signed: Signed[Any]) -> bytes:
    """Return the signature in the envelope of a message."""
    fields = decode(signed.envelope, bytes_max=ENVELOPE_BYTES_MAX)
    assert isinstance(fields, dict)
    return bytes(fields["signature"])


Opened = LruCache[tuple[bytes, type[Message], RunId], Signed[Any]]
"""Cache of envelopes that one verifier found valid."""


def message_id(message: Message, run_id: RunId, signer: PeerId) -> Digest:
    """Return the id of ``message`` as signed by ``signer``."""
    return _message_id(message.kind, run_id, signer, encode(message.model_dump()))


def open_envelope(
    data: bytes,
    kind: type[MessageT],
    run_id: RunId,
    verify: Verifier,
    opened: Opened | None = None,
) -> Signed[MessageT] | Fault:
    """Open an envelope that should hold a ``kind`` of this run; every flaw is a ``Fault``.

    ``opened`` caches valid envelopes, which are not checked again.
    """
    if opened is None:
        return _open(data, kind, run_id, verify)
    return opened.get_or_compute(
        (data, kind, run_id), lambda _key: _open(data, kind, run_id, verify)
    )


def open_any(
    data: bytes,
    kinds: Mapping[str, type[Message]],
    run_id: RunId,
    verify: Verifier,
    opened: Opened | None = None,
) -> Signed[Message] | Fault:
    """Open an envelope of any of ``kinds``, by name, as ``open_envelope`` does."""
    kind = kinds.get(envelope_kind(data) or "")
    if kind is None:
        return Fault(FaultCode.WRONG_KIND)
    return open_envelope(data, kind, run_id, verify, opened)


def _open(
    data: bytes, kind: type[MessageT], run_id: RunId, verify: Verifier
) -> Signed[MessageT] | Fault:
    fields = decode(data, bytes_max=kind.envelope_bytes_max)
    if isinstance(fields, Fault):
        return fields
    match fields:
        case {
            "kind": str(name),
            "payload": bytes(payload),
            "signature": bytes(signature),
            "signer": str(signer),
        } if len(fields) == 4:
            pass
        case _:
            return Fault(FaultCode.BAD_ENVELOPE)
    if name != kind.kind:
        return Fault(FaultCode.WRONG_KIND, name[:40])
    message = _parse(payload, kind)
    if isinstance(message, Fault):
        return message
    if not verify(PeerId(signer), signing_bytes(name, run_id, payload), signature):
        return Fault(FaultCode.BAD_SIGNATURE)
    return Signed(PeerId(signer), message, _message_id(name, run_id, PeerId(signer), payload), data)


def envelope_kind(data: bytes) -> str | None:
    """Return the kind that an unchecked envelope claims, or None if it claims none."""
    start = len(_HEAD) + 1
    if len(data) > ENVELOPE_BYTES_MAX or len(data) < start or not data.startswith(_HEAD):
        return None
    end = start + (data[start - 1] & 0x1F)
    if data[start - 1] & 0xE0 != _SHORT_TEXT or len(data) < end:
        return None
    return data[start:end].decode(errors="replace")


def _parse(payload: bytes, kind: type[MessageT]) -> MessageT | Fault:
    values = decode(payload, bytes_max=ENVELOPE_BYTES_MAX)
    if isinstance(values, Fault):
        return values
    try:
        message = kind.model_validate(values)
    except ValidationError as error:
        key = ".".join(str(part) for part in error.errors(include_url=False)[0]["loc"])
        return Fault(FaultCode.BAD_FIELDS, key[:100])
    if message.model_dump() != values:  # an omitted default is another encoding
        return Fault(FaultCode.NOT_CANONICAL)
    return message


def _message_id(kind: str, run_id: RunId, signer: PeerId, payload: bytes) -> Digest:
    return digest(signing_bytes(kind, run_id, signer.encode() + payload))
