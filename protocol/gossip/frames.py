"""Frames on a stream: an unsigned varint length, then that many bytes."""

from protocol.faults import Fault, FaultCode
from protocol.gossip.rpc import RPC_BYTES_MAX, uvarint

_LENGTH_BYTES_MAX = 3
"""Enough for ``RPC_BYTES_MAX``."""


def frame(rpc: bytes) -> bytes:
    """Return ``rpc`` with its length before it."""
    return uvarint(len(rpc)) + rpc


class Deframer:
    """Cuts a byte stream into frames; holds at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self.unfinished = False
        """Whether a frame has begun and not ended."""

    def feed(self, data: bytes) -> list[bytes] | Fault:
        """Return the frames that ``data`` completes; after a ``Fault`` the stream is useless."""
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
        """Return length (or one over the limit) and start of a frame; None when that is cut off."""
        length = 0
        for index, byte in enumerate(self._buffer[at : at + _LENGTH_BYTES_MAX]):
            length |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                return length, at + index + 1
        return (RPC_BYTES_MAX + 1, at) if len(self._buffer) - at >= _LENGTH_BYTES_MAX else None


def _whole_frame(data: bytes) -> bytes | None:
    """Return the one frame of less than 16 KiB that ``data`` is, as it mostly is, else None."""
    if len(data) < 2:
        return None
    length, start = data[0], 1
    if length >= 0x80:
        if data[1] >= 0x80:
            return None
        length, start = length & 0x7F | data[1] << 7, 2
    return data[start:] if start + length == len(data) else None
