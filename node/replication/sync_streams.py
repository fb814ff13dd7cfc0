"""Frames of the synchronisation protocols: deadlines, blame for malformed ones, the upload cap."""

from collections.abc import Iterable
from typing import Any, TypeGuard, TypeVar

from node.context import NodeContext
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.deadline import within
from node.network.streams.framing import length_prefixed, read_frame
from node.network.streams.protocols import IDS_MAX, StreamProtocol
from protocol.core.codec import decode
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import DIGEST_BYTES, Digest
from roles.ports.transport import Stream, TransportError

PIECE_BYTES_MAX = 16_384
"""Bytes per write without an upload limit: about 30 messages."""

T = TypeVar("T")


class SyncStreams:
    """Reader and writer of the frames of one protocol."""

    def __init__(
        self, context: NodeContext, protocol: StreamProtocol, upload_cap: UploadScheduler
    ) -> None:
        self._context = context
        self._stall_seconds = protocol.stall_seconds
        self._upload_cap = upload_cap

    async def read(self, stream: Stream, bytes_max: int, seconds: float | None = None) -> bytes:
        """Read one frame; raises ``TransportError``, and blames the sender of a longer one."""
        limit = self._stall_seconds if seconds is None else seconds
        return self.sound(stream, await within(limit, read_frame(stream, bytes_max)))

    def sound(self, stream: Stream, value: T | Fault) -> T:
        """Return a valid value, or blame its sender and raise ``TransportError``."""
        if isinstance(value, Fault):
            self._context.peers.blame(stream.peer, value)
            raise TransportError(str(value))
        return value

    async def send(self, stream: Stream, frames: Iterable[bytes]) -> None:
        """Write frames in pieces, each when the upload cap admits it."""
        piece_bytes = min(PIECE_BYTES_MAX, self._upload_cap.piece_bytes_max)
        unsent = bytearray()
        for frame in frames:
            unsent += length_prefixed(frame)
            while len(unsent) >= piece_bytes:
                await self._write(stream, bytes(unsent[:piece_bytes]))
                del unsent[:piece_bytes]
        if unsent:
            await self._write(stream, bytes(unsent))

    async def _write(self, stream: Stream, piece: bytes) -> None:
        trusted = self._context.trust.trusted(stream.peer)
        await self._upload_cap.take(len(piece), trusted=trusted, messages=True)
        await within(self._stall_seconds, stream.write(piece))


def fields_of(data: bytes) -> dict[str, Any] | Fault:
    """Decode a map."""
    value = decode(data, bytes_max=len(data))
    if isinstance(value, Fault | dict):
        return value
    return Fault(FaultCode.BAD_FIELDS, "not a map")


def is_digest_or_empty(value: object) -> TypeGuard[bytes]:
    """Return whether a decoded value is a digest, or the empty bytes that stand for none."""
    return isinstance(value, bytes) and len(value) in (0, DIGEST_BYTES)


def ids_in(data: bytes) -> list[Digest] | Fault:
    """Decode a list of at most ``IDS_MAX`` ids."""
    fields = fields_of(data)
    return fields if isinstance(fields, Fault) else checked_ids(fields.get("ids"))


def checked_ids(ids: object) -> list[Digest] | Fault:
    """Return a decoded list of ids, or what is wrong with it."""
    if not isinstance(ids, tuple) or len(ids) > IDS_MAX:
        return Fault(FaultCode.BAD_FIELDS, "not a list of ids")
    if not all(isinstance(item, bytes) and len(item) == DIGEST_BYTES for item in ids):
        return Fault(FaultCode.BAD_FIELDS, "not an id")
    return [Digest(item) for item in ids]
