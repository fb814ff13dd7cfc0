"""The peers of a node: who is connected, who is dialled, and who is kept away.

The transport is polled here and nowhere else, since p2pd announces neither connections nor their
end; gossip follows what is found. Services open and serve their streams through the table: a member
is dialled before a stream to it is opened, and a peer that is kept away gets none.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from itertools import islice

import structlog
from typing_extensions import override

from node.context import PeerView
from node.local.addresses import is_circuit, peer_of
from node.network.connections.address_book import AddressBook, Locations
from node.network.connections.dialer import CONNECT_SECONDS, Dialler
from node.network.connections.gater import Bans, ConnectionGater
from node.network.connections.peer_selection import (
    Candidates,
    TrustedPeers,
    anchors,
    independent,
    surplus,
)
from node.network.streams.deadline import loop_time, within
from protocol.core.containers import SizeGauge, Table
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.gossipsub.params import Params
from protocol.membership.roster import Roster
from roles.ports.clock import Clock
from roles.ports.transport import Stream, StreamHandler, Transport, TransportError

log = structlog.get_logger()

CONNECTIONS_TARGET = 32
"""Four gossip meshes of eight; others are dialled when they are needed."""

CONNECTIONS_HIGH = 480
CONNECTIONS_LOW = 448
"""Above the one we end connections down to the other: those that p2pd would end above its 512 are
anybody's."""

RETRY_SECONDS_MIN = 0.5
RETRY_SECONDS_MAX = 15.0
POLL_SECONDS = 2.0

DIALS_AT_ONCE = 2
"""Of members, while there are too few connections; a guess."""

TRIED_MAX = 4
"""Addresses that answered once, and as many of members' and of those with standing, that a lonely
node tries at once besides the bootstrap peers; a guess."""

BOOTSTRAP_NETWORKS = 3
"""A node joins through bootstrap peers of so many networks if it knows them, since one that answers
may show it what it wants: of three one will be honest, a guess."""

TOLD_MAX = 4
"""Addresses of which a person is told why they do not answer."""


class ConnectionManager(PeerView):
    """Keeps this node connected; ``roster`` is None until the run is known, ``trusted`` its trust.

    ``initial`` are addresses of bootstrap peers, and of peers that answered an earlier process.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        rng: Rng,
        initial: Sequence[str],
        roster: Roster | None = None,
        trusted: Callable[[PeerId], bool] = lambda _peer: False,
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._initial = list(initial)
        self._book = AddressBook(roster, clock)
        self._dialler = Dialler(transport, self._initial, self._book.is_relay, self._on_answer)
        self._proven = trusted
        self._connected: dict[PeerId, None] = {}
        self._retry_seconds = RETRY_SECONDS_MIN
        self._candidates = Candidates(self.peer_id, roster, self._book, clock, rng)
        self._standing = TrustedPeers(trusted)
        self._seek_standing_at = 0.0
        self._chosen: dict[PeerId, None] = {}
        self._locations = Locations(transport)
        self._few = asyncio.Event()
        self._look_now = asyncio.Event()
        self._bans = Bans()
        self.inbound = ConnectionGater(
            trusted, self._bans, self.blame, self.disconnect, self._admit
        )
        self._followers: list[Callable[[Sequence[PeerId]], None]] = []
        self.gossip_ok: Callable[[Sequence[PeerId]], Sequence[PeerId]] = list
        """Returns those of some peers that are worth a connection; the others lose theirs first."""
        self.meshed: Callable[[], frozenset[PeerId]] = frozenset
        """Returns the few through whom gossip comes, whose connections end last."""
        self.unreachable_since: float | None = None
        self.tables: tuple[Table, ...] = (
            SizeGauge("connected", Params().peers_max, lambda: len(self._connected)),
            *self.inbound.openings.tables,
            *self._bans.tables,
            *self._dialler.tables,
        )

    @property
    def unreachable(self) -> str:
        """Why the first few do not answer, in one line; empty while one does or none is dialled."""
        if self.unreachable_since is None:
            return ""
        told = (f"{at.rpartition('/p2p/')[0]} {why}" for at, why in self._dialler.refusals.items())
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
        return self._dialler.in_local_swarm

    @property
    def dial_failures(self) -> int:
        """How many dials nobody answered, since the start."""
        return self._dialler.failures

    @override
    def follow(self, follower: Callable[[Sequence[PeerId]], None]) -> None:
        self._followers.append(follower)

    @property
    @override
    def chosen(self) -> AbstractSet[PeerId]:
        return self._chosen.keys()

    @property
    @override
    def trusted(self) -> AbstractSet[PeerId]:
        return self._standing.peers

    @property
    @override
    def places(self) -> Mapping[PeerId, tuple[str, ...]]:
        return self._locations.places

    def block_of(self, peer: PeerId) -> Hashable:
        """Return where a connected peer is; itself where that is not known."""
        return self._locations.block_of(peer)

    # Streams

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        if not await self.ensure(peer):
            raise TransportError(f"{peer} is not connected and its addresses do not answer")
        return await self._transport.open_stream(peer, protocol)

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        await self._transport.handle(protocol, self.inbound.guarded(handler))

    # Blame

    @override
    def blame(self, peer: PeerId, fault: Fault) -> None:
        seconds = self._bans.blame(peer, fault, loop_time())
        if seconds:
            log.warning("peer kept away", peer=peer, fault=str(fault), seconds=round(seconds))
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
            if await self._dialler.any(addresses):
                answered = filter(self._connected.__contains__, map(peer_of, addresses))
                self._chosen.update(dict.fromkeys(answered))
                await self._look()
                await self._wait_for_a_peer(POLL_SECONDS)
                continue
            if self.unreachable_since is None:
                self.unreachable_since = self._clock.now()
            refusals = self._dialler.refusals
            told = {each: refusals.get(each, "no answer") for each in addresses[:TOLD_MAX]}
            self._dialler.refusals = told
            log.debug("no bootstrap peer answers; trying again", peers=told)
            await self._wait_for_a_peer(self._retry_seconds * (0.5 + self._rng.uniform()))
            self._retry_seconds = min(2 * self._retry_seconds, RETRY_SECONDS_MAX)

    async def run(self) -> None:
        """Keep connections until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._dial_for_ever())
            group.create_task(self._join_through_several())
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
        if self._is_full(peer) or self._bans.holds(peer, loop_time()):
            return False
        return await self._dialler.any(self._book.addresses_of(peer))

    def reachable_addresses(self) -> list[str]:
        """Return what a later start may try first: addresses of connected members, then others.

        Those that we have chosen come before those that have chosen us; the others are those that
        have answered before.
        """
        peers = sorted(self._connected, key=lambda peer: peer not in self._chosen)
        now = anchors(peers, {peer: self._book.addresses_of(peer) for peer in peers})
        before = self._dialler.outcomes.answered() if now else []
        away = self._bans.held(loop_time())
        kept = (each for each in before if not is_circuit(each) and peer_of(each) not in away)
        return list(dict.fromkeys((*now, *kept)))

    def _on_answer(self, peer: PeerId) -> None:
        self._connected[peer] = None

    @property
    def _taken(self) -> int:
        """How many connections there are, with those that are on their way."""
        return len(self._connected) + self._dialler.dialling

    def _admit(self, peer: PeerId) -> bool:
        """Return whether there is room; then the peer counts as connected before the next look."""
        if self._is_full(peer):
            return False
        self._connected[peer] = None
        return True

    def _is_full(self, peer: PeerId) -> bool:
        """Return whether one more would be too many; then connections are ended now."""
        if self._taken <= CONNECTIONS_HIGH or peer in self._connected or self._is_kept(peer):
            return False
        self._look_now.set()
        return True

    def _is_kept(self, peer: PeerId) -> bool:
        """Return whether a connection has a place of its own: we chose it, or it has standing."""
        return peer in self._chosen or self._proven(peer)

    def _addresses(self) -> list[str]:
        """Return where somebody may answer who is not us: bootstrap peers, and some we knew."""
        outcomes, known, book = self._dialler.outcomes, [], self._book
        for addresses in (outcomes.answered(), book.reachable(), book.reachable(self._proven)):
            drawn = self._rng.sample(addresses, 2 * TRIED_MAX)
            known += outcomes.best_first(drawn)[:TRIED_MAX]
        nobody = (self.peer_id, *self._bans.held(loop_time()))
        tried = dict.fromkeys((*self._initial, *known))
        return [address for address in tried if peer_of(address) not in nobody]

    async def _look(self) -> None:
        """Poll the transport, and tell the followers who is connected."""
        try:
            peers = await within(CONNECT_SECONDS, self._transport.peers())
        except TransportError:
            self._connected = {}
            self._few.set()
            return
        await self._dialler.look_at_ourselves()
        now, here = loop_time(), dict.fromkeys(peers)
        if here != self._connected:  # of equal size it takes a third of what comparing keys does
            stayed = (peer for peer in self._connected if peer in here)
            self._connected = dict.fromkeys((*stayed, *here))  # in the order in which they came
        if not self._chosen.keys() <= self._connected.keys():
            self._chosen = {peer: None for peer in self._chosen if peer in self._connected}
        await self._end_connections(now)
        await self._locations.look(self._connected)
        if self._connected:
            self.unreachable_since = None
            self._dialler.refusals.clear()
            self._retry_seconds = RETRY_SECONDS_MIN
        if self._standing.look(self._connected, now):
            with suppress(TransportError):  # told again at the next look
                kept = self.meshed().union(self._chosen, self._standing.peers)
                await within(CONNECT_SECONDS, self._transport.keep(kept))
        if len(self._connected) < CONNECTIONS_TARGET or self._lacks_standing(now):
            self._few.set()
        for follower in self._followers:
            follower(self.connected)

    async def _end_connections(self, now: float) -> None:
        """End those of peers that are kept away, and of too many those of strangers."""
        away = dict.fromkeys(filter(self._connected.__contains__, self._bans.held(now)))
        if self._taken > CONNECTIONS_HIGH:
            meshed = self.meshed()
            others = [
                peer for peer in self._connected if peer not in meshed and not self._is_kept(peer)
            ]
            gossip_ok, count = frozenset(self.gossip_ok(others)), self._taken - CONNECTIONS_LOW
            away |= dict.fromkeys(surplus(others, self.places, gossip_ok, count))
        if away:
            for peer in away:
                del self._connected[peer]
            await asyncio.gather(*map(self.disconnect, away))

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
            else:
                await self._dial_members()
            await asyncio.sleep(POLL_SECONDS)

    async def _join_through_several(self) -> None:
        """Go on to dial bootstrap peers until those of several networks have answered.

        One by one and not while nobody is there: then ``reach`` dials all of them.
        """
        met: dict[str, None] = {}
        while True:
            met |= {each: None for each in self._initial if peer_of(each) in self._connected}
            missing = independent(self._initial, met, BOOTSTRAP_NETWORKS)
            if not missing:
                return
            nobody = (self.peer_id, *self._bans.held(loop_time()))
            others = [address for address in missing if peer_of(address) not in nobody]
            best = self._dialler.outcomes.best_first(others)[:TRIED_MAX] if self._connected else []
            for address in best:
                if await self._dialler.any([address]):
                    self._chosen[peer_of(address)] = None
                    break
            await asyncio.sleep(POLL_SECONDS if not best else RETRY_SECONDS_MAX / 2)

    def _lacks_standing(self, now: float) -> bool:
        return now >= self._seek_standing_at and self._standing.few(self.peer_id)

    async def _dial_members(self) -> None:
        """Dial some who have standing while there are too few of them, and some of all."""
        drawn, now = dict[PeerId, None](), loop_time()
        if self._lacks_standing(now):
            drawn |= self._draw(self._proven)
            if not drawn:
                self._seek_standing_at = now + RETRY_SECONDS_MAX
        if len(self._connected) < CONNECTIONS_TARGET:
            drawn |= self._draw(lambda _peer: True)
        await asyncio.gather(*map(self._dial_member, drawn))

    def _draw(self, wanted: Callable[[PeerId], bool]) -> dict[PeerId, None]:
        arguments = loop_time(), self._connected, self._chosen, wanted
        drawn = iter(lambda: self._candidates.draw(*arguments), None)  # until there is nobody
        return dict.fromkeys(islice(drawn, DIALS_AT_ONCE))

    async def _dial_member(self, peer: PeerId) -> None:
        if await self.ensure(peer):
            self._chosen[peer] = None
