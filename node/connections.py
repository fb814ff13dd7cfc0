"""Who we are connected to: bootstrap peers with back-off, members by their records' addresses."""

import asyncio
from collections.abc import Sequence

import structlog

from protocol.replica import Replica
from protocol.rng import Rng
from protocol.types import PeerId
from roles.ports import Clock, Stream, StreamHandler, Transport, TransportError

log = structlog.get_logger()

CONNECT_SECONDS = 10.0
CONNECTIONS_TARGET = 32
"""Four gossip meshes of eight; others are dialled when they are needed."""

RETRY_SECONDS_MIN = 0.5
RETRY_SECONDS_MAX = 15.0
POLL_SECONDS = 0.5


class Connections:
    """Keeps this node connected; everything else only asks for a peer."""

    def __init__(
        self, transport: Transport, clock: Clock, rng: Rng, initial_peers: Sequence[str]
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._initial_peers = list(initial_peers)
        self._connected: dict[PeerId, None] = {}
        self._retry_seconds = RETRY_SECONDS_MIN
        self._dialled_at: dict[PeerId, float] = {}
        self.replica: Replica | None = None
        self.unreachable_since: float | None = None

    @property
    def connected(self) -> list[PeerId]:
        """The peers that were connected at the last look."""
        return list(self._connected)

    async def reach(self) -> list[PeerId]:
        """Return connected peers, dialling bootstrap peers until there is one.

        Never gives up: it says what it could not reach and tries again, with back-off.
        """
        while True:
            await self._look()
            if self._connected or not self._initial_peers:
                return self.connected
            if await self._dial_initial():
                continue
            if self.unreachable_since is None:
                self.unreachable_since = self._clock.now()
            log.warning(
                "no bootstrap peer answers; trying again",
                peers=self._initial_peers[:4],
                retry_seconds=round(self._retry_seconds, 1),
            )
            await asyncio.sleep(self._retry_seconds * (0.5 + self._rng.uniform()))
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)

    async def run(self) -> None:
        """Keep connections until cancelled."""
        while True:
            await self._look()
            if not self._connected and self._initial_peers:
                await self.reach()
            elif len(self._connected) < CONNECTIONS_TARGET:
                await self._dial_members()
            await asyncio.sleep(POLL_SECONDS)

    async def ensure(self, peer: PeerId) -> bool:
        """Connect to a member if we are not; False when its addresses do not answer."""
        if peer in self._connected:
            return True
        member = self.replica.roster.get(peer) if self.replica is not None else None
        for address in member.record.message.addresses if member is not None else ():
            if address.endswith(f"/p2p/{peer}") and await self._dial(address):
                self._connected[peer] = None
                return True
        return False

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._connected = dict.fromkeys(await self._transport.peers())
        except (TransportError, TimeoutError):
            self._connected = {}
        if self._connected:
            self.unreachable_since = None
            self._retry_seconds = RETRY_SECONDS_MIN

    async def _dial_initial(self) -> bool:
        own = f"/p2p/{self._transport.peer_id}"
        others = [address for address in self._initial_peers if not address.endswith(own)]
        return any(await asyncio.gather(*(self._dial(address) for address in others)))

    async def _dial_members(self) -> None:
        if self.replica is None:
            return
        now = self._clock.now()
        strangers = [
            member.peer
            for member in self.replica.roster.live(now)
            if member.peer not in self._connected
            and member.peer != self._transport.peer_id
            and member.record.message.reachable
            and self._dialled_at.get(member.peer, 0.0) < now - RETRY_SECONDS_MAX
        ]
        for peer in self._rng.sample(strangers, 2):
            self._dialled_at[peer] = now
            await self.ensure(peer)

    async def _dial(self, address: str) -> bool:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._transport.connect(address)
        except (TransportError, TimeoutError) as error:
            log.debug("cannot connect", address=address, error=str(error))
            return False
        return True


class DiallingTransport:
    """A transport that connects to a member before it opens a stream to it."""

    def __init__(self, transport: Transport, connections: Connections) -> None:
        self._transport = transport
        self._connections = connections

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self._transport.peer_id

    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve ``protocol``."""
        await self._transport.handle(protocol, handler)

    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        """Open a stream, dialling first if need be; raises ``TransportError``."""
        if not await self._connections.ensure(peer):
            raise TransportError(f"{peer} is not connected and its addresses do not answer")
        return await self._transport.open_stream(peer, protocol)
