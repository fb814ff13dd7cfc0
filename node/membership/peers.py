"""Who we are connected to: bootstrap peers with back-off, members by their records' addresses."""

import asyncio
from collections.abc import Sequence

import structlog

from protocol.replica import Replica
from protocol.rng import Rng
from protocol.types import PeerId
from roles.ports.clock import Clock
from roles.ports.transport import Stream, StreamHandler, Transport, TransportError

log = structlog.get_logger()

CONNECT_SECONDS = 10.0
CONNECTIONS_TARGET = 32
"""Four gossip meshes of eight; others are dialled when they are needed."""

RETRY_SECONDS_MIN = 0.5
RETRY_SECONDS_MAX = 15.0
POLL_SECONDS = 2.0

DIALS_AT_ONCE = 2
"""Of members, while there are too few connections; a guess."""

REMEMBERED_MAX = 64
TRIED_MAX = 4
"""Addresses that answered once, and how many of them and of members' a lonely node tries at once
besides the bootstrap peers; guesses."""


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
        self._answered: dict[str, None] = {}
        self._retry_seconds = RETRY_SECONDS_MIN
        self._dialled_at: dict[PeerId, float] = {}
        self._few = asyncio.Event()
        self.replica: Replica | None = None
        self.unreachable_since: float | None = None

    @property
    def connected(self) -> list[PeerId]:
        """The peers that were connected at the last look."""
        return list(self._connected)

    async def reach(self) -> list[PeerId]:
        """Return connected peers, dialling whomever we know until there is one.

        Never gives up: it says what it could not reach and tries again, with back-off.
        """
        while True:
            await self._look()
            addresses = self._addresses()
            if self._connected or not addresses:
                return self.connected
            if await self._dial_any(addresses):
                await self._wait_for_a_peer(POLL_SECONDS)
                continue
            if self.unreachable_since is None:
                self.unreachable_since = self._clock.now()
            log.warning(
                "no bootstrap peer answers; trying again",
                peers=addresses[:4],
                retry_seconds=round(self._retry_seconds, 1),
            )
            await self._wait_for_a_peer(self._retry_seconds * (0.5 + self._rng.uniform()))
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)

    async def run(self) -> None:
        """Keep connections until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._dial_for_ever())
            while True:  # a peer that does not answer must not keep us from seeing the others
                await self._look()
                await asyncio.sleep(POLL_SECONDS)

    async def ensure(self, peer: PeerId) -> bool:
        """Connect to a member if we are not; False when its addresses do not answer."""
        if peer in self._connected:
            return True
        member = self.replica.roster.get(peer) if self.replica is not None else None
        addresses = member.record.message.addresses if member is not None else ()
        own = [address for address in addresses if address.endswith(f"/p2p/{peer}")]
        if not await self._dial_any(own):
            return False
        self._connected[peer] = None
        return True

    def _addresses(self) -> list[str]:
        """Return where somebody may answer who is not us: bootstrap peers, and some we knew."""
        records = self.replica.roster.records() if self.replica is not None else []
        members = [
            address
            for record in records
            for address in record.message.addresses
            if record.message.reachable and address.endswith(f"/p2p/{record.signer}")
        ]
        known = [
            *self._rng.sample(list(self._answered), TRIED_MAX),
            *self._rng.sample(members, TRIED_MAX),
        ]
        own = f"/p2p/{self._transport.peer_id}"
        every = dict.fromkeys((*self._initial_peers, *known))
        return [address for address in every if not address.endswith(own)]

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._connected = dict.fromkeys(await self._transport.peers())
        except (TransportError, TimeoutError):
            self._connected = {}
        if self._connected:
            self.unreachable_since = None
            self._retry_seconds = RETRY_SECONDS_MIN
        if len(self._connected) < CONNECTIONS_TARGET:
            self._few.set()

    async def _wait_for_a_peer(self, seconds: float) -> None:
        """Wait, but not longer than until somebody has connected to us."""
        while seconds > 0 and not self._connected:
            await asyncio.sleep(min(seconds, POLL_SECONDS))
            seconds -= POLL_SECONDS
            await self._look()

    async def _dial_for_ever(self) -> None:
        while True:
            await self._few.wait()
            self._few.clear()
            if not self._connected:
                await self.reach()
            elif len(self._connected) < CONNECTIONS_TARGET:
                await self._dial_members()
            await asyncio.sleep(POLL_SECONDS)

    async def _dial_members(self) -> None:
        if self.replica is None:
            return
        now = asyncio.get_running_loop().time()  # an interval: a wall clock may step back
        self._dialled_at = {
            peer: at for peer, at in self._dialled_at.items() if at > now - RETRY_SECONDS_MAX
        }
        chosen: list[PeerId] = []
        while len(chosen) < DIALS_AT_ONCE and (peer := self._choose_stranger(now)) is not None:
            chosen.append(peer)
        if chosen:
            await asyncio.gather(*map(self.ensure, chosen))

    def _choose_stranger(self, now: float) -> PeerId | None:
        """Return a member to dial, the first one from a random place in the roster on.

        Not a sample of all of them: looking at a thousand members to take two costs more than the
        rest of this task.
        """
        assert self.replica is not None
        roster, wall_now = self.replica.roster, self._clock.now()
        for peer in roster.peers_from(self._rng.below(max(1, len(roster)))):
            if peer in self._connected or peer in self._dialled_at:
                continue
            member = roster.get(peer)
            reachable = member is not None and member.record.message.reachable
            if reachable and peer != self._transport.peer_id and roster.is_live(peer, wall_now):
                self._dialled_at[peer] = now
                return peer
        return None

    async def _dial_any(self, addresses: Sequence[str]) -> bool:
        """Dial all at once; True as soon as one answers."""
        dials = [asyncio.create_task(self._dial(address)) for address in addresses]
        try:
            for dial in asyncio.as_completed(dials):
                if await dial:
                    return True
        finally:
            for task in dials:
                task.cancel()
        return False

    async def _dial(self, address: str) -> bool:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await self._transport.connect(address)
        except (TransportError, TimeoutError) as error:
            log.debug("cannot connect", address=address, error=str(error))
            return False
        self._answered.pop(address, None)
        self._answered[address] = None
        if len(self._answered) > REMEMBERED_MAX:
            del self._answered[next(iter(self._answered))]
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
