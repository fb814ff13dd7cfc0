"""The ``Streams`` port over TCP of this machine, for exchanges between real processes.

Nothing is encrypted and nobody proves its key: whoever connects says who it is.
"""

import asyncio

from protocol.types import PeerId
from roles.ports.transport import StreamHandler, TransportError

HOST = "127.0.0.1"


class TcpStream:
    """Both directions of one connection."""

    def __init__(
        self, peer: PeerId, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.peer = peer
        self._reader = reader
        self._writer = writer

    async def read(self, bytes_max: int) -> bytes:
        try:
            return await self._reader.read(bytes_max)
        except OSError as error:
            raise TransportError(str(error)) from error

    async def read_exactly(self, count: int) -> bytes:
        try:
            return await self._reader.readexactly(count)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise TransportError(str(error)) from error

    async def write(self, data: bytes) -> None:
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            raise TransportError(str(error)) from error

    def offer(self, data: bytes) -> bool:
        return False

    async def close(self) -> None:
        self._writer.close()


class TcpStreams:
    """One node: it listens on ``port`` once it serves, and finds others in ``ports``."""

    def __init__(self, peer_id: PeerId, ports: dict[PeerId, int] | None = None) -> None:
        self.peer_id = peer_id
        self.ports = ports or {}
        self.port = 0
        self._server: asyncio.Server | None = None
        self._serving: dict[asyncio.Task[None] | None, None] = {}

    async def open_stream(self, peer: PeerId, _protocol: str) -> TcpStream:
        try:
            reader, writer = await asyncio.open_connection(HOST, self.ports[peer])
        except (KeyError, OSError) as error:
            raise TransportError(f"cannot reach {peer}") from error
        writer.write(f"{self.peer_id}\n".encode())
        return TcpStream(peer, reader, writer)

    async def handle(self, _protocol: str, handler: StreamHandler) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stream = TcpStream(PeerId((await reader.readline()).decode().strip()), reader, writer)
            self._serving[asyncio.current_task()] = None
            try:
                await handler(stream)
            finally:
                await stream.close()
                del self._serving[asyncio.current_task()]

        self._server = await asyncio.start_server(serve, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Listen no longer; break off what is served."""
        if self._server is not None:
            self._server.close()
        serving = [task for task in self._serving if task is not None]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
