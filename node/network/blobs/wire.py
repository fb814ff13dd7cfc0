"""The messages of the blob protocol: one request and one header per stream, both bounded.

Canonical msgpack behind a two-byte big-endian length. The request: ``digest``, ``offset``,
``length``, ``wait`` (may we be kept waiting for bytes that are still arriving?) and ``kind`` (for
the accounts of both sides only). The header: ``status`` and the blob's ``total_bytes``; after
``ok`` come the raw bytes of the range, cut short where the blob ends. Who would have to wait and
must not is told ``unknown`` and, with ``held``, which chunks it need not wait for.
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
"""Offsets and lengths beyond this are invalid; the blob's own length is what binds."""


HELD_BYTES_MAX = 160
"""Of the bitmap in a header, the least significant bit first: 1280 chunks, more than the 50 of a
shard of 50 MB. What is beyond is not told."""


class BlobKind(StrEnum):
    """What a transfer is for, in the accounts."""

    BODY = "body"
    WEIGHTS = "weights"


class BlobStatus(StrEnum):
    """The first word of a reply."""

    OK = "ok"
    UNKNOWN = "unknown"
    BUSY = "busy"


class BlobRefusedError(TransportError):
    """The peer is well and will not serve this now: ``status`` says why.

    Bit i of ``held`` is set where it would serve chunk i of the blob.
    """

    def __init__(self, status: BlobStatus, held: int = 0) -> None:
        super().__init__(status)
        self.status = status
        self.held = held


@dataclass(frozen=True, slots=True)
class BlobRequest:
    """A range of a blob, in bytes; the server cuts it where the blob ends."""

    digest: Digest
    offset: int
    length: int
    wait: bool
    kind: BlobKind

    def after(self, count: int) -> "BlobRequest":
        """Return the request for what is left after ``count`` bytes of this one."""
        return replace(self, offset=self.offset + count, length=self.length - count)


async def ask(stream: Stream, request: BlobRequest) -> int:
    """Send a request; return the blob's length in bytes, its bytes come next.

    Raises ``BlobRefusedError``; ``TransportError`` when the stream breaks or the header is not one.
    """
    await _send(stream, asdict(request))
    header = await _receive(stream, BLOBS.acceptor_bytes_max)
    status, total_bytes, held = _parse_header(header)
    if status is not BlobStatus.OK:
        raise BlobRefusedError(status, held)
    return total_bytes


async def read_request(stream: Stream) -> BlobRequest | Fault:
    """Return the request that the other end sends; raises ``TransportError`` if it breaks off."""
    return _parse_request(await _receive(stream, BLOBS.opener_bytes_max))


async def reply(stream: Stream, status: BlobStatus, total_bytes: int, held: int = 0) -> None:
    """Send the header; ``held``: bit i for chunk i, in an ``unknown`` only."""
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
    """Return status, total bytes and what is held; ``TransportError`` when it is malformed."""
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
