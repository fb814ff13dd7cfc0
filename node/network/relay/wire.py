"""Messages of circuit relay v2 (libp2p ``specs/relay/circuit-v2.md``), the subset in use.

Each is protobuf behind a varint length. Clients and relays exchange ``hop`` messages; the relay
sends ``stop`` messages to the node behind it. Both have the same fields under different numbers.
Unknown fields are skipped: other implementations send vouchers and addresses.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from node.network.streams.protocols import HOP
from protocol.core.crypto import PEER_ID_PREFIX, peer_id_from_public_key, public_key_from_peer_id
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId
from roles.ports.transport import Stream, TransportError

FIELDS_MAX = 64
"""Maximum fields per message, far above any valid one."""

_LENGTH_BYTES_MAX = 2
"""Maximum varint length before a message of at most ``HOP.opener_bytes_max``."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
_VARINT_BYTES_MAX = 10


class CircuitMessageKind(StrEnum):
    """Type of a message."""

    RESERVE = "reserve"
    CONNECT = "connect"
    STATUS = "status"


class CircuitStatus(IntEnum):
    """Status codes in use; any other code is a refusal."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400


@dataclass(frozen=True, slots=True)
class Shape:
    """Field numbers of ``hop`` or ``stop`` messages."""

    kinds: tuple[CircuitMessageKind, ...]
    peer: int
    limit: int
    status: int
    reservation: int | None = None


HOP_SHAPE = Shape(
    (CircuitMessageKind.RESERVE, CircuitMessageKind.CONNECT, CircuitMessageKind.STATUS), 2, 4, 5, 3
)
STOP_SHAPE = Shape((CircuitMessageKind.CONNECT, CircuitMessageKind.STATUS), 2, 3, 4)


@dataclass(frozen=True, slots=True)
class CircuitMessage:
    """One message; absent fields are empty or 0. Times are Unix seconds."""

    kind: CircuitMessageKind
    peer: PeerId | None = None
    status: int = 0
    expires_at: int = 0
    limit_seconds: int = 0
    limit_bytes: int = 0


def encode(message: CircuitMessage, shape: Shape) -> bytes:
    """Encode a message, without its length."""
    parts = [_number(1, shape.kinds.index(message.kind))]
    key = public_key_from_peer_id(message.peer) if message.peer is not None else None
    if key is not None:
        parts.append(_block(shape.peer, _block(1, PEER_ID_PREFIX + key)))
    if message.expires_at and shape.reservation is not None:
        parts.append(_block(shape.reservation, _number(1, message.expires_at)))
    if message.limit_seconds or message.limit_bytes:
        limit = _number(1, message.limit_seconds) + _number(2, message.limit_bytes)
        parts.append(_block(shape.limit, limit))
    if message.status:
        parts.append(_number(shape.status, message.status))
    return b"".join(parts)


def decode(data: bytes, shape: Shape) -> CircuitMessage | Fault:
    """Decode a message; returns a fault if it is invalid."""
    try:
        fields = dict(_fields(data))
        kind = shape.kinds[_as_number(fields.get(1, 0))]
        limit = dict(_fields(_as_block(fields.get(shape.limit, b""))))
        peer = dict(_fields(_as_block(fields.get(shape.peer, b"")))).get(1)
        kept = fields.get(shape.reservation, b"") if shape.reservation is not None else b""
        return CircuitMessage(
            kind,
            None if peer is None else _peer(_as_block(peer)),
            _as_number(fields.get(shape.status, 0)),
            _as_number(dict(_fields(_as_block(kept))).get(1, 0)),
            _as_number(limit.get(1, 0)),
            _as_number(limit.get(2, 0)),
        )
    except (IndexError, ValueError) as error:
        return Fault(FaultCode.BAD_FIELDS, f"circuit: {error}")


async def send(stream: Stream, message: CircuitMessage, shape: Shape) -> None:
    """Write one message; raises ``TransportError``."""
    data = encode(message, shape)
    await stream.write(_varint(len(data)) + data)


async def receive(stream: Stream, shape: Shape) -> CircuitMessage | Fault:
    """Read exactly one message; raises ``TransportError`` when the stream ends."""
    length = 0
    for place in range(_LENGTH_BYTES_MAX):
        (byte,) = await stream.read_exactly(1)
        length |= (byte & 0x7F) << (7 * place)
        if not byte & 0x80:
            break
    else:
        return Fault(FaultCode.OVERSIZE, "circuit message")
    if length > HOP.opener_bytes_max:
        return Fault(FaultCode.OVERSIZE, f"circuit message of {length} bytes")
    return decode(await stream.read_exactly(length) if length else b"", shape)


async def ask(stream: Stream, message: CircuitMessage, shape: Shape) -> CircuitMessage:
    """Send a message and return the reply; raises ``TransportError`` also on a refusal."""
    await send(stream, message, shape)
    answer = await receive(stream, shape)
    if isinstance(answer, Fault):
        raise TransportError(str(answer))
    if answer.kind is not CircuitMessageKind.STATUS or answer.status != CircuitStatus.OK:
        raise TransportError(f"refused with status {answer.status}")
    return answer


def _peer(raw: bytes) -> PeerId:
    """Return an Ed25519 peer id; raises ``ValueError`` for other types, which no member has."""
    if not raw.startswith(PEER_ID_PREFIX) or len(raw) != len(PEER_ID_PREFIX) + 32:
        raise ValueError("not an Ed25519 peer id")
    return peer_id_from_public_key(raw.removeprefix(PEER_ID_PREFIX))


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3 | _VARINT) + _varint(value)


def _block(field: int, data: bytes) -> bytes:
    return _varint(field << 3 | _LENGTH) + _varint(len(data)) + data


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of each field; raises ``ValueError`` if it is not protobuf."""
    place = 0
    for _ in range(FIELDS_MAX):
        if place == len(data):
            return
        tag, place = _read_varint(data, place)
        field, wire = tag >> 3, tag & 7
        if wire == _VARINT:
            value, place = _read_varint(data, place)
            yield field, value
            continue
        length = {_FIXED64: 8, _FIXED32: 4}.get(wire)
        if wire == _LENGTH:
            length, place = _read_varint(data, place)
        if length is None or place + length > len(data):
            raise ValueError("truncated, or unknown wire type")
        yield field, data[place : place + length]
        place += length
    if place != len(data):
        raise ValueError("too many fields")


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value, place
    raise ValueError("not a varint")


def _as_number(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("expected a number, got bytes")  # noqa: TRY004 - untrusted bytes, not our types
    return value


def _as_block(value: int | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("expected bytes, got a number")  # noqa: TRY004 - the same
    return value
