"""Protobuf (proto2) codec of the pubsub RPC, bounded against hostile input, and its framing.

Fields: RPC {1 subscriptions, 2 publish, 3 control}; SubOpts {1 subscribe, 2 topicid}; Control {1
ihave, 2 iwant, 3 graft, 4 prune}; IHave {1 topicID, 2 messageIDs}; IWant {1 messageIDs}; Graft {1
topicID}; Prune {1 topicID, 2 peers, 3 backoff}. Source: libp2p ``pubsub/README.md`` and
``gossipsub-v1.1.md``. Message ids are bytes (the schema says string, every router sends bytes).
Published messages stay encoded here: ``message`` decodes them, and a node forwards the same bytes.
A frame on a stream is an unsigned varint length, then that many bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from protocol.core.faults import Fault, FaultCode

RPC_BYTES_MAX = 1 << 20
"""Limit of go-libp2p-pubsub (``DefaultMaxMessageSize``): a larger RPC resets the stream."""

FIELDS_MAX = 20_000
"""Fields of any kind in one RPC: bounds decode time (about 1 us each) and memory. Above the 5000
ids of one IHAVE; 1 MiB of the shortest fields would be half a million."""

_REMEMBERED_MAX = 512
_REMEMBERED_BYTES_MAX = 8 << 10
"""Cached RPCs, and the largest of them. A peer sends the same RPC to a dozen others; nodes in one
process decode it once."""

TOPIC_BYTES_MAX = 128
"""A guess; ours are a run id in hex, a slash and a word."""

MESSAGE_ID_BYTES_MAX = 128
"""A guess above 46, the author and sequence number of an Ed25519 message."""

_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5

_ONE_MESSAGE = 2 << 3 | _LENGTH
"""The tag of a published message."""

_CONTROL = bytes((3 << 3 | _LENGTH,))
"""The tag of control entries, such as IHAVE."""

Field = tuple[int, int | bytes]
"""Number and value; fixed-width fields arrive as bytes."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """A peer subscribes to a topic, or unsubscribes."""

    subscribe: bool
    topic: str


@dataclass(frozen=True, slots=True)
class IHave:
    """A peer advertises messages of a topic."""

    topic: str
    message_ids: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Prune:
    """A peer removed us from its mesh, with a backoff in seconds (0: none named)."""

    topic: str
    backoff_seconds: int


@dataclass(frozen=True, slots=True)
class Rpc:
    """One decoded RPC; ``publish`` holds encoded messages, ``iwant`` message ids."""

    subscriptions: tuple[Subscription, ...] = ()
    publish: tuple[bytes, ...] = ()
    ihave: tuple[IHave, ...] = ()
    iwant: tuple[bytes, ...] = ()
    graft: tuple[str, ...] = ()
    prune: tuple[Prune, ...] = ()
    fields_read: int = field(default=0, compare=False)
    """Number of fields, known or not, that were read one by one to decode it."""


class MalformedError(Exception):
    """Bytes that are no protobuf of the expected shape; never leaves this package."""


class FieldReader:
    """Reader of nested protobuf messages with one budget of fields."""

    def __init__(self, fields_max: int = FIELDS_MAX) -> None:
        self._fields_left = fields_max
        self.fields_read = 0

    def spend(self, count: int) -> None:
        """Take fields from the budget; raises ``MalformedError``."""
        self._fields_left -= count
        if self._fields_left < 0:
            raise MalformedError("too many fields")

    def fields(self, data: bytes) -> Iterator[Field]:
        """Yield the fields of ``data`` in order; raises ``MalformedError``."""
        at, end = 0, len(data)
        while at < end:
            self.spend(1)
            self.fields_read += 1
            tag, at = read_uvarint(data, at)
            wire = tag & 7
            if tag >> 3 == 0:
                raise MalformedError("field number 0")
            if wire == _VARINT:
                value, at = read_uvarint(data, at)
                yield tag >> 3, value
                continue
            if wire == _LENGTH:
                length, at = read_uvarint(data, at)
            elif wire in (_FIXED64, _FIXED32):
                length = 8 if wire == _FIXED64 else 4
            else:
                raise MalformedError(f"wire type {wire}")
            if length > end - at:
                raise MalformedError("truncated")
            yield tag >> 3, data[at : at + length]
            at += length


def read_uvarint(data: bytes, at: int) -> tuple[int, int]:
    """Return the varint of at most 64 bits at ``at`` and the offset after it."""
    value, shift, end = 0, 0, len(data)
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value >> 64:
                break
            return value, at
        shift += 7
    raise MalformedError("varint")


def uvarint(value: int) -> bytes:
    """Return the shortest varint of ``value``, which is not negative."""
    if value < 0x80:
        return bytes((value,))  # most are
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def length_field(number: int, value: bytes) -> bytes:
    """Return a length-delimited field; ``number`` is below 16."""
    return bytes((number << 3 | _LENGTH,)) + uvarint(len(value)) + value


def topic_text(value: int | bytes) -> str:
    """Return a topic name of bounded size; raises ``MalformedError``."""
    try:
        return _sized(value, TOPIC_BYTES_MAX).decode()
    except UnicodeDecodeError:
        raise MalformedError("topic is not UTF-8") from None


def check_topic(topic: str) -> None:
    """Raise ``ValueError`` for a topic that no RPC may carry."""
    if not 0 < len(topic.encode()) <= TOPIC_BYTES_MAX:
        raise ValueError(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes")


def encode_rpc(rpc: Rpc) -> bytes:
    """Return the bytes of ``rpc``, without frame."""
    parts = [length_field(1, _encode_subscription(entry)) for entry in rpc.subscriptions]
    parts += [length_field(2, message) for message in rpc.publish]
    control = [length_field(1, _encode_ihave(entry)) for entry in rpc.ihave]
    if rpc.iwant:
        control.append(length_field(2, _repeated(1, rpc.iwant)))
    control += [length_field(3, length_field(1, topic.encode())) for topic in rpc.graft]
    control += [length_field(4, _encode_prune(entry)) for entry in rpc.prune]
    if control:
        parts.append(length_field(3, b"".join(control)))
    return b"".join(parts)


def only_message(data: bytes) -> bytes | None:
    """Return the published message if an RPC consists of a single one, otherwise None.

    Nearly every RPC of a busy swarm is one; ``decode_rpc`` gives the same result more slowly.
    """
    if not data or data[0] != _ONE_MESSAGE or len(data) > RPC_BYTES_MAX:
        return None
    try:
        length, start = read_uvarint(data, 1)
    except MalformedError:
        return None
    return data[start:] if start + length == len(data) else None


RpcDecoder = Callable[[bytes], Rpc | Fault]
"""``decode_rpc``, or a wrapper that also reports the RPC."""


def decode_rpc(data: bytes) -> Rpc | Fault:
    """Return the RPC in ``data``, unknown fields skipped; a ``Fault`` for any malformed part."""
    if len(data) > RPC_BYTES_MAX:
        return Fault(FaultCode.RPC_OVERSIZE, f"{len(data)} bytes")
    try:
        told_to_many = data[:1] == _CONTROL and len(data) <= _REMEMBERED_BYTES_MAX
        return _remembered_rpc(data) if told_to_many else _decode_rpc(data)
    except MalformedError as error:
        return Fault(FaultCode.RPC_MALFORMED, str(error))


def _decode_rpc(data: bytes) -> Rpc:
    reader = FieldReader()
    subscriptions: list[Subscription] = []
    publish: list[bytes] = []
    control = _Control(reader)
    for number, value in reader.fields(data):
        if number == 1:
            subscriptions.append(_decode_subscription(reader, _sized(value)))
        elif number == 2:
            publish.append(_sized(value))
        elif number == 3:
            control.read(_sized(value))
    return Rpc(
        subscriptions=tuple(subscriptions),
        publish=tuple(publish),
        ihave=tuple(control.ihave),
        iwant=tuple(control.iwant),
        graft=tuple(control.graft),
        prune=tuple(control.prune),
        fields_read=reader.fields_read,
    )


_remembered_rpc = lru_cache(maxsize=_REMEMBERED_MAX)(_decode_rpc)  # exceptions are not cached


class _Control:
    """Collector of control entries; repeated control fields merge, as in protobuf."""

    def __init__(self, reader: FieldReader) -> None:
        self._reader = reader
        self.ihave: list[IHave] = []
        self.iwant: list[bytes] = []
        self.graft: list[str] = []
        self.prune: list[Prune] = []

    def read(self, data: bytes) -> None:
        for number, value in self._reader.fields(data):
            if number == 1:
                self._read_ihave(_sized(value))
            elif number == 2:
                self._read_iwant(_sized(value))
            elif number == 3:
                self._read_graft(_sized(value))
            elif number == 4:
                self._read_prune(_sized(value))

    def _read_ihave(self, data: bytes) -> None:
        regular = _regular_ihave(data)
        if regular is not None:
            self._reader.spend(1 + len(regular[1]))
            self.ihave.append(IHave(topic_text(regular[0]), tuple(regular[1])))
            return
        topic = ""
        message_ids: list[bytes] = []
        for number, value in self._reader.fields(data):
            if number == 1:
                topic = topic_text(value)
            elif number == 2:
                message_ids.append(_sized(value, MESSAGE_ID_BYTES_MAX))
        self.ihave.append(IHave(topic, tuple(message_ids)))

    def _read_iwant(self, data: bytes) -> None:
        for number, value in self._reader.fields(data):
            if number == 1:
                self.iwant.append(_sized(value, MESSAGE_ID_BYTES_MAX))

    def _read_graft(self, data: bytes) -> None:
        topic = ""
        for number, value in self._reader.fields(data):
            if number == 1:
                topic = topic_text(value)
        self.graft.append(topic)

    def _read_prune(self, data: bytes) -> None:
        topic, backoff_seconds = "", 0
        for number, value in self._reader.fields(data):
            if number == 1:
                topic = topic_text(value)
            elif number == 3:
                backoff_seconds = _integer(value)
        self.prune.append(Prune(topic, backoff_seconds))


def _regular_ihave(data: bytes) -> tuple[bytes, list[bytes]] | None:
    """Return topic and ids of an IHAVE in our own layout, otherwise None.

    One topic and then ids of one length: sliced instead of read field by field, ten times faster.
    """
    if len(data) < 4 or data[0] != 1 << 3 | _LENGTH or data[1] > 0x7F:
        return None
    start = 2 + data[1]
    body = data[start:]
    if len(body) < 2 or body[0] != 2 << 3 | _LENGTH or not 0 < body[1] <= 0x7F:
        return None
    stride = 2 + body[1]
    count, rest = divmod(len(body), stride)
    tags, lengths = bytes((body[0],)) * count, bytes((body[1],)) * count
    if rest or body[::stride] != tags or body[1::stride] != lengths:
        return None
    return data[2:start], [body[at + 2 : at + stride] for at in range(0, len(body), stride)]


def _decode_subscription(reader: FieldReader, data: bytes) -> Subscription:
    subscribe, topic = False, ""
    for number, value in reader.fields(data):
        if number == 1:
            subscribe = _integer(value) != 0
        elif number == 2:
            topic = topic_text(value)
    return Subscription(subscribe, topic)


def _encode_subscription(entry: Subscription) -> bytes:
    return bytes((1 << 3, entry.subscribe)) + length_field(2, entry.topic.encode())


def _encode_ihave(entry: IHave) -> bytes:
    return length_field(1, entry.topic.encode()) + _repeated(2, entry.message_ids)


def _repeated(number: int, values: Sequence[bytes]) -> bytes:
    """Return a length-delimited field for each value."""
    length = len(values[0]) if values else 0
    if 0 < length <= 0x7F and all(len(value) == length for value in values):
        head = bytes((number << 3 | _LENGTH, length))
        return head + head.join(values)
    return b"".join(length_field(number, value) for value in values)


def _encode_prune(entry: Prune) -> bytes:
    backoff = bytes((3 << 3,)) + uvarint(entry.backoff_seconds)
    return length_field(1, entry.topic.encode()) + backoff


def _sized(value: int | bytes, bytes_max: int = RPC_BYTES_MAX) -> bytes:
    if isinstance(value, int):
        raise MalformedError("varint where bytes belong")
    if len(value) > bytes_max:
        raise MalformedError(f"{len(value)} bytes in a field of {bytes_max}")
    return value


def _integer(value: int | bytes) -> int:
    if isinstance(value, bytes):
        raise MalformedError("bytes where a varint belongs")
    return value


_LENGTH_BYTES_MAX = 3
"""Enough for ``RPC_BYTES_MAX``."""


def frame(rpc: bytes) -> bytes:
    """Return ``rpc`` with its length prefix."""
    return uvarint(len(rpc)) + rpc


class Deframer:
    """Splits a byte stream into frames; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.unfinished = False
        """True if a frame has begun and not ended."""

    def feed(self, data: bytes) -> list[bytes] | Fault:
        """Return the frames that ``data`` completes; after a ``Fault`` the stream is unusable."""
        if not self.unfinished and (single := _whole_frame(data)) is not None:
            return [single]
        self._buffer += data
        frames: list[bytes] = []
        at = 0
        while (head := self._head(at)) is not None:
            length, start = head
            if length > RPC_BYTES_MAX:
                return Fault(FaultCode.FRAME_OVERSIZE)
            if start + length > len(self._buffer):
                break
            frames.append(bytes(self._buffer[start : start + length]))
            at = start + length
        del self._buffer[:at]
        self.unfinished = bool(self._buffer)
        return frames

    def _head(self, at: int) -> tuple[int, int] | None:
        """Return length (or one over the limit) and start of a frame; None if it is incomplete."""
        length = 0
        for index, byte in enumerate(self._buffer[at : at + _LENGTH_BYTES_MAX]):
            length |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return length, at + index + 1
        return (RPC_BYTES_MAX + 1, at) if len(self._buffer) - at >= _LENGTH_BYTES_MAX else None


def _whole_frame(data: bytes) -> bytes | None:
    """Return the frame if ``data`` is a single one below 16 KiB, the usual case, else None."""
    if len(data) < 2:
        return None
    length, start = data[0], 1
    if length >= 0x80:
        if data[1] >= 0x80:
            return None
        length, start = length & 0x7F | data[1] << 7, 2
    return data[start:] if start + length == len(data) else None
