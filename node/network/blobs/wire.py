"""Messages of the blob protocol: one request and one header per stream, both bounded.

Canonical msgpack behind a two-byte big-endian length. Request: ``digest``, ``offset``, ``length``,
``wait`` (may the server delay until the bytes arrive?) and ``kind`` (for statistics only). Header:
``status`` and the blob's ``total_bytes``. After ``ok`` follow the raw bytes of the range, truncated
at the end of the blob. If bytes are missing and ``wait`` is false, the status is ``unknown``, and
``held`` lists the available chunks.
"""

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from node.network.streams.framing import read_frame, write_frame
from node.network.streams.protocols import BLOBS
from protocol.core import codec
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import DIGEST_BYTES, Digest
from roles.ports.transport import Stream, TransportError

_LENGTH_BYTES = 2
_HEADERS = (("status", "total_bytes"), ("held", "status", "total_bytes"))

RANGE_BYTES_MAX = 1 << 40
"""Offsets and lengths beyond this are invalid; the blob's own length is the actual bound."""


HELD_BYTES_MAX = 160
"""Maximum chunk bitmap in a header, least significant bit first: 1280 chunks, more than the 50 of a
50 MB shard. Later chunks are omitted."""


class BlobKind(StrEnum):
    """Purpose of a transfer, for statistics."""

    BODY = "body"
    WEIGHTS = "weights"


class BlobStatus(StrEnum):
    """Status of a reply."""

    OK = "ok"
    UNKNOWN = "unknown"
    BUSY = "busy"


class BlobRefusedError(TransportError):
    """The peer refused the request; ``status`` is the reason.

    Bit i of ``held`` is set if the peer has chunk i of the blob.
    """

    def __init__(self, status: BlobStatus, held: int = 0) -> None:
        super().__init__(status)
        self.status = status
        self.held = held


@dataclass(frozen=True, slots=True)
class BlobRequest:
    """A byte range of a blob; the server truncates it at the end of the blob."""

    digest: Digest
    offset: int
    length: int
    wait: bool
    kind: BlobKind

    def after(self, count: int) -> "BlobRequest":
        """Return the request for the rest, after ``count`` bytes."""
        return replace(self, offset=self.offset + count, length=self.length - count)


async def ask(stream: Stream, request: BlobRequest) -> int:
    """Send a request; return the blob's length in bytes. The bytes of the range follow.

    Raises ``BlobRefusedError``; ``TransportError`` when the stream breaks or the header is invalid.
    """
    await _send(stream, asdict(request))
    header = await _receive(stream, BLOBS.acceptor_bytes_max)
    status, total_bytes, held = _parse_header(header)
    if status is not BlobStatus.OK:
        raise BlobRefusedError(status, held)
    return total_bytes


async def read_request(stream: Stream) -> BlobRequest | Fault:
    """Read a request; raises ``TransportError`` if the stream ends."""
    return _parse_request(await _receive(stream, BLOBS.opener_bytes_max))


async def reply(stream: Stream, status: BlobStatus, total_bytes: int, held: int = 0) -> None:
    """Send the header; ``held`` (bit i for chunk i) only with ``unknown``."""
    header: dict[str, Any] = {"status": status, "total_bytes": total_bytes}
    if held:
        shown = held & ((1 << 8 * HELD_BYTES_MAX) - 1)
        header["held"] = shown.to_bytes(-(-shown.bit_length() // 8), "little")
    await _send(stream, header)


async def _send(stream: Stream, message: dict[str, Any]) -> None:
    await write_frame(stream, codec.encode(message), length_bytes=_LENGTH_BYTES)


async def _receive(stream: Stream, bytes_max: int) -> Any | Fault:
    data = await read_frame(stream, bytes_max, length_bytes=_LENGTH_BYTES)
    return data if isinstance(data, Fault) else codec.decode(data, bytes_max=bytes_max)


def _parse_request(value: Any | Fault) -> BlobRequest | Fault:
    if isinstance(value, Fault):
        return value
    fields = ("digest", "kind", "length", "offset", "wait")
    if not isinstance(value, dict) or tuple(value) != fields:
        return Fault(FaultCode.BLOB_REQUEST_FIELDS)
    digest, offset, length = value["digest"], value["offset"], value["length"]
    well_formed = (
        type(digest) is bytes
        and len(digest) == DIGEST_BYTES
        and type(offset) is int
        and 0 <= offset <= RANGE_BYTES_MAX
        and type(length) is int
        and 1 <= length <= RANGE_BYTES_MAX
        and type(value["wait"]) is bool
        and value["kind"] in list(BlobKind)
    )
    if not well_formed:
        return Fault(FaultCode.BLOB_REQUEST_VALUES)
    return BlobRequest(Digest(digest), offset, length, value["wait"], BlobKind(value["kind"]))


def _parse_header(value: Any | Fault) -> tuple[BlobStatus, int, int]:
    """Return status, total bytes and bitmap; raises ``TransportError`` if malformed."""
    if isinstance(value, dict) and tuple(value) in _HEADERS:
        status, total_bytes, held = value["status"], value["total_bytes"], value.get("held", b"")
        if (
            status in list(BlobStatus)
            and type(total_bytes) is int
            and total_bytes >= 0
            and type(held) is bytes
            and len(held) <= HELD_BYTES_MAX
        ):
            return BlobStatus(status), total_bytes, int.from_bytes(held, "little")
    raise TransportError("malformed header")
