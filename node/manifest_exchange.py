"""How a newcomer learns which run its peers are in: the signed manifest, from any of them."""

import asyncio

from node.frames import read_frame, write_frame
from protocol.crypto import Verifier
from protocol.manifest import MANIFEST_BYTES_MAX, SignedManifest, decode_signed_manifest
from protocol.types import Fault, PeerId
from roles.ports import Stream, Transport

PROTOCOL = "/prime-node/1/manifest"
EXCHANGE_SECONDS = 10.0


class ManifestServer:
    """Gives our run's manifest to whoever asks."""

    def __init__(self, transport: Transport, manifest: SignedManifest) -> None:
        self._transport = transport
        self._encoded = manifest.encoded()

    async def start(self) -> None:
        """Serve the protocol."""
        await self._transport.handle(PROTOCOL, self._serve)

    async def _serve(self, stream: Stream) -> None:
        async with asyncio.timeout(EXCHANGE_SECONDS):
            await write_frame(stream, self._encoded)


async def fetch_manifest(
    transport: Transport, peer: PeerId, verify: Verifier
) -> SignedManifest | Fault:
    """Ask ``peer`` for its run; raises ``TransportError`` or ``TimeoutError``."""
    async with asyncio.timeout(EXCHANGE_SECONDS):
        stream = await transport.open_stream(peer, PROTOCOL)
        try:
            encoded = await read_frame(stream, 2 * MANIFEST_BYTES_MAX)
        finally:
            await stream.close()
    if isinstance(encoded, Fault):
        return encoded
    return decode_signed_manifest(encoded, verify)
