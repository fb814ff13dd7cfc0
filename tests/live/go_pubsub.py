"""Client of a go-libp2p-pubsub node (``p2pd -pubsub``): the conformance oracle.

Only tests and benchmarks use it; the daemon never runs p2pd with ``-pubsub``.
"""

import asyncio
from contextlib import suppress
from pathlib import Path

import base58
from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from node.live.p2pd import binary_path
from protocol.core.types import PeerId

REQUEST_SECONDS = 60.0
START_SECONDS = 60.0
IDLE_SECONDS = 30
READER_BYTES = 1 << 24
"""Buffer of the pipe: Go drops messages of a slow reader beyond its queue of 32."""


class GoConnection:
    """One control connection: requests on it run one after another."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, path: Path) -> "GoConnection":
        """Connect to a control socket; raises ``OSError``."""
        return cls(*await asyncio.open_unix_connection(path, limit=READER_BYTES))

    async def request(self, request: p2pd_pb2.Request) -> p2pd_pb2.Response:
        """Send one request and return its answer; raises ``RuntimeError`` for an error answer."""
        async with asyncio.timeout(REQUEST_SECONDS):
            await write_pbmsg(self._writer, request)
            response = p2pd_pb2.Response()
            await read_pbmsg_safe(self.reader, response)
        if response.type == p2pd_pb2.Response.ERROR:
            raise RuntimeError(response.error.msg)
        return response

    async def publish(self, topic: str, data: bytes) -> None:
        """Publish as this Go node; it says OK even when its queues drop the message."""
        pubsub = p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.PUBLISH, topic=topic, data=data)
        await self.request(p2pd_pb2.Request(type=p2pd_pb2.Request.PUBSUB, pubsub=pubsub))

    async def receive(self) -> p2pd_pb2.PSMessage:
        """Return the next message of a subscription; raises ``EOFError`` at its end."""
        message = p2pd_pb2.PSMessage()
        await read_pbmsg_safe(self.reader, message)
        return message

    def close(self) -> None:
        self._writer.transport.abort()


class GoPubsub:
    def __init__(self, process: asyncio.subprocess.Process, path: Path) -> None:
        self._process = process
        self._path = path
        self._persistent: GoConnection | None = None
        self.peer_id = PeerId("")
        self.addresses: list[str] = []

    @property
    def pid(self) -> int:
        return self._process.pid

    @classmethod
    async def start(cls, directory: Path, name: str) -> "GoPubsub":
        """Start ``p2pd -pubsub`` with a fresh key; raises ``TimeoutError``."""
        path = directory / f"{name}.sock"
        process = await asyncio.create_subprocess_exec(
            binary_path(),
            f"-listen=/unix{path}",
            "-hostAddrs=/ip4/127.0.0.1/tcp/0",
            "-pubsub=true",
            "-relayService=false",
            f"-idleTimeout={IDLE_SECONDS}s",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
        node = cls(process, path)
        try:
            await node._attach()
        except BaseException:
            await node.stop()
            raise
        return node

    async def _attach(self) -> None:
        async with asyncio.timeout(START_SECONDS):
            while self._persistent is None:
                with suppress(OSError):
                    self._persistent = await GoConnection.open(self._path)
                await asyncio.sleep(0.02)
        # p2pd ends with its last persistent client, so it cannot outlive this process.
        upgrade = p2pd_pb2.Request(type=p2pd_pb2.Request.PERSISTENT_CONN_UPGRADE)
        await self._persistent.request(upgrade)
        answer = await self._once(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        self.peer_id = PeerId(base58.b58encode(answer.identify.id).decode())
        self.addresses = [
            f"{Multiaddr(address)}/p2p/{self.peer_id}" for address in answer.identify.addrs
        ]

    async def connection(self) -> GoConnection:
        """Open one more control connection, for publishing in parallel."""
        return await GoConnection.open(self._path)

    async def connect(self, address: str) -> None:
        """Dial a multiaddress with ``/p2p/<peer id>``."""
        where, _, peer = address.rpartition("/p2p/")
        connect = p2pd_pb2.ConnectRequest(
            peer=base58.b58decode(peer), addrs=[Multiaddr(where).to_bytes()]
        )
        await self._once(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=connect))

    async def subscribe(self, topic: str) -> GoConnection:
        """Return a connection on which ``receive`` yields the messages of ``topic``."""
        connection = await self.connection()
        pubsub = p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.SUBSCRIBE, topic=topic)
        await connection.request(p2pd_pb2.Request(type=p2pd_pb2.Request.PUBSUB, pubsub=pubsub))
        return connection

    async def topic_peers(self, topic: str) -> list[PeerId]:
        """Return the peers that this node knows to subscribe to ``topic``."""
        pubsub = p2pd_pb2.PSRequest(type=p2pd_pb2.PSRequest.LIST_PEERS, topic=topic)
        request = p2pd_pb2.Request(type=p2pd_pb2.Request.PUBSUB, pubsub=pubsub)
        answer = await self._once(request)
        return [PeerId(base58.b58encode(each).decode()) for each in answer.pubsub.peerIDs]

    async def stop(self) -> None:
        """Kill the node; idempotent."""
        if self._persistent is not None:
            self._persistent.close()
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    async def _once(self, request: p2pd_pb2.Request) -> p2pd_pb2.Response:
        connection = await self.connection()
        try:
            return await connection.request(request)
        finally:
            connection.close()
