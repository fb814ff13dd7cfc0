"""Length-prefixed frames on a stream: two or four bytes big-endian, then that many bytes."""

from protocol.core.faults import Fault, FaultCode
from roles.ports.transport import Stream


def length_prefixed(data: bytes, *, length_bytes: int = 4) -> bytes:
    """Prefix ``data`` with its length."""
    return len(data).to_bytes(length_bytes, "big") + data


async def write_frame(stream: Stream, data: bytes, *, length_bytes: int = 4) -> None:
    """Send one frame; raises ``TransportError``."""
    await stream.write(length_prefixed(data, length_bytes=length_bytes))


async def read_frame(stream: Stream, bytes_max: int, *, length_bytes: int = 4) -> bytes | Fault:
    """Read a frame; returns a fault when its length exceeds ``bytes_max``.

    Raises ``TransportError`` when the stream ends before the frame does.
    """
    length = int.from_bytes(await stream.read_exactly(length_bytes), "big")
    if length > bytes_max:
        return Fault(FaultCode.OVERSIZE, f"frame of {length} bytes, limit {bytes_max}")
    return await stream.read_exactly(length)
