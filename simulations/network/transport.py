"""The ``Transport`` port of one session of a daemon; it is unusable after the session.

Addresses are ``/sim/<name>/p2p/<peer id>``.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping

from typing_extensions import override

from protocol.core.types import PeerId
from roles.ports.transport import StreamHandler, Transport, TransportError
from simulations.network.connections import KEEPALIVE_SECONDS, Host
from simulations.network.streams import Pipe, PipeMaker, SimStream

STREAM_ROUND_TRIPS = 1.0
"""multistream negotiation, before the opener may write."""

_EXPECTED = (TransportError, TimeoutError, LookupError)
"""Normal errors of a handler after its peer or blob disappears."""


class SimTransport(Transport):
    """One daemon's end of the network, which provides dialling, running peers and pipes."""

    def __init__(
        self,
        host: Host,
        dial: Callable[[Host, str | None, PeerId], Awaitable[object]],
        probe: Callable[[Host, str | None, PeerId], Awaitable[object]],
        running: Callable[[PeerId], "SimTransport | None"],
        pipe_makers: Mapping[str, PipeMaker],
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._host = host
        self._dial = dial
        self._probe = probe
        self._running = running
        self._pipe_makers = pipe_makers
        self._on_error = on_error
        self._handlers: dict[str, StreamHandler] = {}
        self._serving: dict[asyncio.Task[None], None] = {}
        self._alive = True
        self.down = False
        """True while all calls fail, as during a restart of p2pd."""

    @property
    @override
    def peer_id(self) -> PeerId:
        return self._host.peer_id

    @override
    async def addresses(self) -> list[str]:
        self._require_alive()
        return [address_of(self._host)]

    @override
    async def connect(self, address: str) -> PeerId:
        self._require_alive()
        name, peer = _end_of(address)
        await self._dial(self._host, name, peer)
        return peer

    @override
    async def disconnect(self, peer: PeerId) -> None:
        connection = self._host.connections.get(peer) if self._alive else None
        if connection is not None:
            connection.close()

    @override
    async def keep(self, peers: Collection[PeerId]) -> None:
        self._require_alive()
        self._host.kept = frozenset(peers)

    @override
    async def peers(self) -> list[PeerId]:
        self._require_alive()
        return list(self._host.connections)

    @override
    async def remote_addresses(self, peer: PeerId) -> list[str]:
        self._require_alive()
        connection = self._host.connections.get(peer)
        if connection is None:
            return []
        ends = (connection.opener, connection.acceptor)
        return [f"/sim/{end.name}" for end in ends if end.peer_id == peer]

    @override
    async def probe(self, address: str) -> None:
        self._require_alive()
        await self._probe(self._host, *_end_of(address))

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> SimStream:
        self._require_alive()
        connection = self._host.connections.get(peer)
        if connection is None:
            raise TransportError(f"not connected to {peer}")
        await asyncio.sleep(2 * connection.latency * STREAM_ROUND_TRIPS)
        if connection.blocked:
            await asyncio.sleep(KEEPALIVE_SECONDS)
        remote = self._running(peer)
        if self._host.connections.get(peer) is not connection or remote is None:
            raise TransportError(f"the connection to {peer} broke")
        handler = remote.handler(protocol)
        if handler is None:
            raise TransportError("protocols not supported")
        label = _label(protocol)
        make = self._pipe_makers.get(label, Pipe)
        outgoing = connection.open_stream(self._host, label, make)
        remote.serve(handler, SimStream(self.peer_id, outgoing.opposite))
        return SimStream(peer, outgoing)

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler

    def handler(self, protocol: str) -> StreamHandler | None:
        """Return the handler of ``protocol``."""
        return self._handlers.get(protocol)

    def serve(self, handler: StreamHandler, stream: SimStream) -> None:
        """Run a handler on an inbound stream, and close it after that.

        A stream beyond the accept queue is closed unread.
        """
        late_seconds = self._host.core.open()
        if late_seconds is None:
            stream.outgoing.close()
            return
        serving = self._serve(handler, stream, late_seconds)
        task = asyncio.get_running_loop().create_task(serving)
        self._serving[task] = None
        task.add_done_callback(self._served)

    def _served(self, task: asyncio.Task[None]) -> None:
        self._serving.pop(task, None)

    async def _serve(self, handler: StreamHandler, stream: SimStream, late_seconds: float) -> None:
        try:
            if late_seconds:
                await asyncio.sleep(late_seconds)
            await handler(stream)
        except _EXPECTED:
            pass
        except Exception as error:  # noqa: BLE001 - reported to the observers of internal faults
            self._on_error(error)
        finally:
            stream.outgoing.close()

    def end(self) -> None:
        """End the session: no handlers and no calls from now on."""
        self._alive = False
        self._handlers.clear()
        for task in list(self._serving):
            task.cancel()

    def _require_alive(self) -> None:
        if not self._alive:
            raise TransportError("this daemon is dead")
        if self.down:
            raise TransportError("p2pd is being restarted")


def address_of(host: Host) -> str:
    """Return the address of a machine."""
    return f"/sim/{host.name}/p2p/{host.peer_id}"


def _end_of(address: str) -> tuple[str | None, PeerId]:
    """Return the machine that an address names (None for another kind of address), and the key."""
    base, _, peer = address.rpartition("/p2p/")
    name = base.removeprefix("/sim/")
    return None if name == base else name, PeerId(peer)


def _label(protocol: str) -> str:
    """Return the short name of a protocol, for the meters."""
    return protocol.rpartition("/")[2] if not protocol.startswith("/meshsub") else "gossip"
