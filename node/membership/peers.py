"""The peers of a node: who is connected, who is dialled, and who is kept away.

The transport is polled here and nowhere else, since p2pd announces neither connections nor their
end; gossip follows what is found. Services open and serve their streams through the table: a member
is dialled before a stream to it is opened, and a peer that is kept away gets none.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress

import structlog
from typing_extensions import override

from node.context import Peers
from node.local.addresses import place_of
from node.membership.anchors import anchors, crowded, network_of
from node.membership.bans import BAN_SECONDS, Bans
from node.membership.dials import Dials
from node.streams.deadline import loop_time, within
from protocol.faults import Fault
from protocol.membership import Roster
from protocol.rng import Rng
from protocol.types import PeerId, Role
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


TOLD_MAX = 4
"""Addresses of which a person is told why they do not answer."""


class PeerTable(Peers):
    """Keeps this node connected; ``roster`` is None until the run is known.

    ``initial`` are addresses of bootstrap peers, and of peers that answered an earlier process.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        rng: Rng,
        initial: Sequence[str],
        roster: Roster | None = None,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._initial = list(initial)
        self._dials = Dials(initial, self._is_relay)
        self._own: list[str] = []
        self._roster = roster
        self._connected: dict[PeerId, None] = {}
        self._answered: dict[str, None] = {}
        self._retry_seconds = RETRY_SECONDS_MIN
        self._dialled_at: dict[PeerId, float] = {}
        self._chosen: dict[PeerId, None] = {}
        self._places: dict[PeerId, tuple[str, ...]] = {}
        self._few = asyncio.Event()
        self._look_now = asyncio.Event()
        self._bans = Bans()
        self._followers: list[Callable[[Sequence[PeerId]], None]] = []
        self._refusals: dict[str, str] = {}
        self.dial_failures = 0
        self.unreachable_since: float | None = None

    @property
    def unreachable(self) -> str:
        """Why nobody answers, in one line; empty while somebody does, or before anyone is dialled.

        It says so of the first few addresses.
        """
        if self.unreachable_since is None:
            return ""
        told = (f"{_place(address)} {why}" for address, why in self._refusals.items())
        return f"looking for peers; no bootstrap peer answers ({', '.join(told)}); trying again"

    @property
    @override
    def peer_id(self) -> PeerId:
        return self._transport.peer_id

    @property
    @override
    def connected(self) -> list[PeerId]:
        return list(self._connected)

    @property
    def banned(self) -> int:
        """How many peers are kept away."""
        return len(self._bans.held(loop_time()))

    @property
    @override
    def in_local_swarm(self) -> bool:
        return self._dials.is_local(self._own)

    @override
    def follow(self, follower: Callable[[Sequence[PeerId]], None]) -> None:
        self._followers.append(follower)

    @property
    @override
    def chosen(self) -> AbstractSet[PeerId]:
        return self._chosen.keys()

    @property
    @override
    def places(self) -> Mapping[PeerId, tuple[str, ...]]:
        return self._places

    def block_of(self, peer: PeerId) -> Hashable:
        """Return where a connected peer is; itself where that is not known."""
        return self._places.get(peer) or peer

    # Streams

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        if not await self.ensure(peer):
            raise TransportError(f"{peer} is not connected and its addresses do not answer")
        return await self._transport.open_stream(peer, protocol)

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        async def serve(stream: Stream) -> None:
            if stream.peer not in self._bans.held(loop_time()):
                self._connected[stream.peer] = None  # before the next look
                await handler(stream)

        await self._transport.handle(protocol, serve)

    # Blame

    @override
    def blame(self, peer: PeerId, fault: Fault) -> None:
        if self._bans.blame(peer, fault, loop_time()):
            log.warning("peer kept away", peer=peer, fault=str(fault), seconds=BAN_SECONDS)
            self._connected.pop(peer, None)
            self._look_now.set()
        else:
            log.debug("peer at fault", peer=peer, fault=str(fault))

    @override
    def faults(self) -> Mapping[PeerId, int]:
        return self._bans.faults(loop_time())

    @override
    async def disconnect(self, peer: PeerId) -> None:
        with suppress(TransportError):
            await within(CONNECT_SECONDS, self._transport.disconnect(peer))

    # Connections

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
                answered = filter(self._connected.__contains__, map(_peer_of, addresses))
                self._chosen.update(dict.fromkeys(answered))
                await self._look()
                await self._wait_for_a_peer(POLL_SECONDS)
                continue
            if self.unreachable_since is None:
                self.unreachable_since = self._clock.now()
            first = addresses[:TOLD_MAX]
            self._refusals = {each: self._refusals.get(each, "no answer") for each in first}
            log.debug("no bootstrap peer answers; trying again", peers=self._refusals)
            await self._wait_for_a_peer(self._retry_seconds * (0.5 + self._rng.uniform()))
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)

    async def run(self) -> None:
        """Keep connections until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._dial_for_ever())
            while True:  # a peer that does not answer must not keep us from seeing the others
                await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._look_now.wait()
                self._look_now.clear()

    async def ensure(self, peer: PeerId) -> bool:
        """Connect to a member if we are not; False when its addresses do not answer."""
        if peer in self._connected:
            return True
        if peer in self._bans.held(loop_time()):
            return False
        return await self._dial_any(self._addresses_of(peer))

    def reachable_addresses(self) -> list[str]:
        """Return addresses of connected members: what a later start may try first.

        Those that we have chosen come before those that have chosen us.
        """
        peers = sorted(self._connected, key=lambda peer: peer not in self._chosen)
        return anchors(peers, {peer: self._addresses_of(peer) for peer in peers})

    def _is_relay(self, address: str) -> bool:
        """Tell whether a member which relays gives an address as its own."""
        roster, peer = self._roster, _peer_of(address)
        member = roster.get(peer) if roster is not None else None
        if roster is None or member is None or not roster.is_live(peer, self._clock.now()):
            return False
        message = member.record.message
        return Role.RELAY in message.roles and address in message.addresses

    def _addresses_of(self, peer: PeerId) -> list[str]:
        """Return what a member says of itself; an address of somebody else is left out."""
        member = self._roster.get(peer) if self._roster is not None else None
        addresses = member.record.message.addresses if member is not None else ()
        return [address for address in addresses if address.endswith(f"/p2p/{peer}")]

    def _addresses(self) -> list[str]:
        """Return where somebody may answer who is not us: bootstrap peers, and some we knew."""
        records = self._roster.records() if self._roster is not None else []
        members = [
            address
            for record in records
            if record.message.reachable
            for address in self._addresses_of(record.signer)
        ]
        known = [
            *self._rng.sample(list(self._answered), TRIED_MAX),
            *self._rng.sample(members, TRIED_MAX),
        ]
        nobody = (self.peer_id, *self._bans.held(loop_time()))
        addresses = dict.fromkeys((*self._initial, *known))
        return [address for address in addresses if _peer_of(address) not in nobody]

    async def _look(self) -> None:
        """Poll the transport; end the connections of peers that are kept away."""
        try:
            peers = await within(CONNECT_SECONDS, self._transport.peers())
        except TransportError:
            self._connected = {}
            self._few.set()
            return
        await self._look_at_ourselves()
        self._connected = dict.fromkeys(peers)
        self._chosen = {peer: None for peer in self._chosen if peer in self._connected}
        away = [peer for peer in self._bans.held(loop_time()) if peer in self._connected]
        for peer in away:
            del self._connected[peer]
        await asyncio.gather(*map(self.disconnect, away))
        await self._locate()
        if self._connected:
            self.unreachable_since = None
            self._refusals.clear()
            self._retry_seconds = RETRY_SECONDS_MIN
        if len(self._connected) < CONNECTIONS_TARGET:
            self._few.set()
        for follower in self._followers:
            follower(self.connected)

    async def _look_at_ourselves(self) -> None:
        """Learn our own addresses, where they tell what swarm this is."""
        if not self._initial:
            with suppress(TransportError):  # then no dial gets through either
                self._own = list(await self._transport.addresses())

    async def _locate(self) -> None:
        """Ask once where each peer is that is new."""
        if self._places.keys() == self._connected.keys():
            return
        known = {peer: self._places[peer] for peer in self._connected if peer in self._places}
        with suppress(TransportError):  # asked again at the next look
            for peer in [peer for peer in self._connected if peer not in known]:
                found = await within(CONNECT_SECONDS, self._transport.remote_addresses(peer))
                if found:  # else it has just left
                    places = dict.fromkeys(map(place_of, found))
                    known[peer] = tuple(place for place in places if place is not None)
        self._places = known

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
        now = loop_time()
        self._dialled_at = {
            peer: at for peer, at in self._dialled_at.items() if at > now - RETRY_SECONDS_MAX
        }
        chosen: list[PeerId] = []
        while len(chosen) < DIALS_AT_ONCE and (peer := self._choose_stranger(now)) is not None:
            chosen.append(peer)
        if chosen:
            await asyncio.gather(*map(self._dial_member, chosen))

    async def _dial_member(self, peer: PeerId) -> None:
        if await self.ensure(peer):
            self._chosen[peer] = None

    def _choose_stranger(self, now: float) -> PeerId | None:
        """Return a member to dial, the first one from a random place in the roster on.

        One of a network in which we have not chosen enough yet, if there is such a member.
        Not a sample of all of them: looking at a thousand members to take two costs more than the
        rest of this task.
        """
        roster, wall_now = self._roster, self._clock.now()
        if roster is None:
            return None
        networks = (network_of(self._addresses_of(peer)) for peer in self._chosen)
        full, second_best = crowded(networks), None
        for peer in roster.peers_from(self._rng.below(max(1, len(roster)))):
            if peer in self._connected or peer in self._dialled_at:
                continue
            member = roster.get(peer)
            reachable = member is not None and member.record.message.reachable
            if reachable and peer != self.peer_id and roster.is_live(peer, wall_now):
                if not full or network_of(self._addresses_of(peer)) not in full:
                    self._dialled_at[peer] = now
                    return peer
                second_best = second_best or peer
        if second_best is not None:
            self._dialled_at[second_best] = now
        return second_best

    async def _dial_any(self, addresses: Sequence[str]) -> bool:
        """Dial at once all that may be dialled; True as soon as one answers."""
        await self._look_at_ourselves()
        allowed = self._dials.allowed(addresses, self._own, loop_time())
        dials = [asyncio.create_task(self._dial(address)) for address in allowed]
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
            peer = await within(CONNECT_SECONDS, self._transport.connect(address))
        except TransportError as error:
            log.debug("cannot connect", address=address, error=str(error))
            self._refusals[address] = str(error) or self._refusals.get(address, "no answer")
            self._dials.note(address, loop_time(), answered=False)
            self.dial_failures += 1
            return False
        self._dials.note(address, loop_time(), answered=True)
        self._connected[peer] = None
        self._answered.pop(address, None)
        self._answered[address] = None
        if len(self._answered) > REMEMBERED_MAX:
            del self._answered[next(iter(self._answered))]
        return True


def _place(address: str) -> str:
    return address.rpartition("/p2p/")[0]


def _peer_of(address: str) -> PeerId:
    return PeerId(address.rpartition("/p2p/")[2])
