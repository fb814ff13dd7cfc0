"""Live-transport streams over Unix sockets, also between real processes.

The connecting side names its own peer id.
"""

import asyncio
from pathlib import Path

from node.live.control import P2pStream, close_writer
from protocol.core.types import PeerId
from roles.ports.transport import StreamHandler, TransportError


class SocketStreams:
    """A node; nodes of one ``directory`` reach each other."""

    def __init__(self, directory: Path, peer: PeerId) -> None:
        self._directory = directory
        self.peer_id = peer
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None] | None, None] = {}

    async def handle(self, _protocol: str, handler: StreamHandler) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._serving[asyncio.current_task()] = None
            try:
                peer = PeerId((await reader.readline()).decode().strip())
                await handler(P2pStream(peer, reader, writer))
            finally:
                await close_writer(writer)
                del self._serving[asyncio.current_task()]

        self._server = await asyncio.start_unix_server(serve, self._directory / self.peer_id)

    async def open_stream(self, peer: PeerId, _protocol: str) -> P2pStream:
        try:
            reader, writer = await asyncio.open_unix_connection(self._directory / peer)
        except OSError as error:
            raise TransportError(str(error)) from error
        writer.write(f"{self.peer_id}\n".encode())
        return P2pStream(peer, reader, writer)

    async def stop(self) -> None:
        """Stop accepting, and cancel running handlers."""
        if self._server is not None:
            self._server.close()
        serving = [task for task in self._serving if task is not None]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
