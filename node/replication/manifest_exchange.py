"""Exchange of the signed run manifest: any peer serves it to a joining node."""

from node.context import TableRegistry
from node.network.resources.stream_limiter import StreamLimiter
from node.network.streams.deadline import within
from node.network.streams.framing import read_frame, write_frame
from node.network.streams.protocols import MANIFEST
from protocol.core.crypto import Verifier
from protocol.core.faults import Fault
from protocol.core.types import PeerId
from protocol.run.manifest import SignedManifest, decode_signed_manifest
from roles.ports.transport import Stream, Streams, Trust

_SECONDS = MANIFEST.stall_seconds


async def serve_manifest(
    streams: Streams, manifest: SignedManifest, trust: Trust, tables: TableRegistry
) -> None:
    """Register the handler that serves this run's manifest."""
    encoded = manifest.encoded()

    async def serve(stream: Stream) -> None:
        await within(_SECONDS, write_frame(stream, encoded))

    bounded = StreamLimiter(serve, MANIFEST, trust)
    tables.register(*bounded.tables)
    await streams.handle(MANIFEST.name, bounded)


async def fetch_manifest(
    streams: Streams, peer: PeerId, verify: Verifier
) -> SignedManifest | Fault:
    """Request the run manifest of ``peer``; raises ``TransportError``, also on timeout."""
    encoded = await within(_SECONDS, _ask(streams, peer))
    return encoded if isinstance(encoded, Fault) else decode_signed_manifest(encoded, verify)


async def _ask(streams: Streams, peer: PeerId) -> bytes | Fault:
    stream = await streams.open_stream(peer, MANIFEST.name)
    try:
        return await read_frame(stream, MANIFEST.acceptor_bytes_max)
    finally:
        await stream.close()
