"""Connection manager: polls, dials, prunes and bans peers.

Only this module polls the transport, because p2pd reports neither new nor closed connections;
gossip follows the result. Services open and serve streams through ``ConnectionManager``: it dials a
member before opening a stream, and opens none to a banned peer.
"""

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass
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
"""Four gossip meshes of eight; other peers are dialled on demand."""

CONNECTIONS_HIGH = 480
CONNECTIONS_LOW = 448
"""High and low watermark of pruning. p2pd prunes above its own 512, regardless of reputation."""

RETRY_SECONDS_MIN = 0.5
RETRY_SECONDS_MAX = 15.0
POLL_SECONDS = 2.0

DIALS_AT_ONCE = 2
"""Concurrent dials of members below the connection target; a guess."""

TRIED_MAX = 4
"""While a node has no peers, it dials the bootstrap peers and up to 4 addresses each of earlier
answers, members and trusted members; a guess."""

BOOTSTRAP_NETWORKS = 3
"""Join through bootstrap peers of three networks, if known: one bootstrap peer alone could eclipse
the node, and one of three is honest (guess)."""

TOLD_MAX = 4
"""Unreachable addresses whose errors are reported."""


@dataclass(frozen=True, slots=True)
class PeerValue:
    """Value of peers to this node: which of them to dial, to keep, and to prune first."""

    trusted: Callable[[PeerId], bool] = lambda _peer: False
    above_gossip_threshold: Callable[[Sequence[PeerId]], Sequence[PeerId]] = list
    """Returns the peers above the gossip threshold; the others are pruned first."""
    meshed: Callable[[], frozenset[PeerId]] = frozenset
    """Returns the gossip mesh peers, whose connections are pruned last."""


class ConnectionManager(PeerView):
    """Manages the connections of this node.

    ``initial`` are addresses of bootstrap peers and of peers that answered an earlier process.
    ``roster`` is None until the run is known.
    """

    def __init__(
        self,
        transport: Transport,
        clock: Clock,
        rng: Rng,
        initial: Sequence[str],
        roster: Roster | None = None,
        value: PeerValue = PeerValue(),
    ) -> None:
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._initial = list(initial)
        self._book = AddressBook(roster, clock)
        self._dialler = Dialler(transport, self._initial, self._book.is_relay, self._on_answer)
        self._value = value
        self._connected: dict[PeerId, None] = {}
        self._retry_seconds = RETRY_SECONDS_MIN
        self._candidates = Candidates(self.peer_id, roster, self._book, clock, rng)
        self._trusted_peers = TrustedPeers(value.trusted)
        self._seek_trusted_at = 0.0
        self._chosen: dict[PeerId, None] = {}
        self._locations = Locations(transport)
        self._few = asyncio.Event()
        self._look_now = asyncio.Event()
        self._bans = Bans()
        self.inbound = ConnectionGater(
            value.trusted, self._bans, self.blame, self.disconnect, self._admit
        )
        self._followers: list[Callable[[Sequence[PeerId]], None]] = []
        self.unreachable_since: float | None = None
        self.tables: tuple[Table, ...] = (
            SizeGauge("connected", Params().peers_max, lambda: len(self._connected)),
            *self.inbound.openings.tables,
            *self._bans.tables,
            *self._dialler.tables,
        )

    @property
    def unreachable(self) -> str:
        """Errors of the first few addresses, in one line; empty while connected or not dialling."""
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
        """Number of banned peers."""
        return len(self._bans.held(loop_time()))

    @property
    @override
    def in_local_swarm(self) -> bool:
        return self._dialler.in_local_swarm

    @property
    def dial_failures(self) -> int:
        """Number of failed dials since the start."""
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
        return self._trusted_peers.peers

    @property
    @override
    def places(self) -> Mapping[PeerId, tuple[str, ...]]:
        return self._locations.places

    def block_of(self, peer: PeerId) -> Hashable:
        """Return the address block of a connected peer; the peer itself if unknown."""
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

    # Faults and bans

    @override
    def blame(self, peer: PeerId, fault: Fault) -> None:
        seconds = self._bans.blame(peer, fault, loop_time())
        if seconds:
            log.warning("peer banned", peer=peer, fault=str(fault), seconds=round(seconds))
            self._connected.pop(peer, None)
            self._look_now.set()
        else:
            log.debug("peer fault", peer=peer, fault=str(fault))

    @override
    def faults(self) -> Mapping[PeerId, int]:
        return self._bans.faults(loop_time())

    @override
    async def disconnect(self, peer: PeerId) -> None:
        with suppress(TransportError):
            await within(CONNECT_SECONDS, self._transport.disconnect(peer))

    # Connections

    async def reach(self) -> list[PeerId]:
        """Return the connected peers; while there are none, dial all known addresses.

        Retries with backoff until a peer answers; each attempt logs the unreachable addresses.
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
        """Maintain connections until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._dial_for_ever())
            group.create_task(self._join_through_several())
            while True:  # apart from dialling: an unresponsive peer must not delay polling
                await self._look()
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._look_now.wait()
                self._look_now.clear()

    async def ensure(self, peer: PeerId) -> bool:
        """Connect to a member if not connected; False when no address answers."""
        if peer in self._connected:
            return True
        if self._is_full(peer) or self._bans.holds(peer, loop_time()):
            return False
        return await self._dialler.any(self._book.addresses_of(peer))

    def reachable_addresses(self) -> list[str]:
        """Return addresses for a later start: connected members first, then earlier answers.

        Outbound peers come before inbound ones.
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
        return len(self._connected) + self._dialler.dialling

    def _admit(self, peer: PeerId) -> bool:
        """Return whether there is room; if so, count the peer as connected before the next poll."""
        if self._is_full(peer):
            return False
        self._connected[peer] = None
        return True

    def _is_full(self, peer: PeerId) -> bool:
        """Return whether one more connection exceeds the limit; if so, prune now."""
        if self._taken <= CONNECTIONS_HIGH or peer in self._connected or self._is_kept(peer):
            return False
        self._look_now.set()
        return True

    def _is_kept(self, peer: PeerId) -> bool:
        """Return whether a connection is exempt from pruning: outbound or trusted."""
        return peer in self._chosen or self._value.trusted(peer)

    def _addresses(self) -> list[str]:
        """Return bootstrap addresses and a sample of known ones, except our own and banned."""
        outcomes, known, book = self._dialler.outcomes, [], self._book
        for addresses in (
            outcomes.answered(),
            book.reachable(),
            book.reachable(self._value.trusted),
        ):
            drawn = self._rng.sample(addresses, 2 * TRIED_MAX)
            known += outcomes.best_first(drawn)[:TRIED_MAX]
        nobody = (self.peer_id, *self._bans.held(loop_time()))
        tried = dict.fromkeys((*self._initial, *known))
        return [address for address in tried if peer_of(address) not in nobody]

    async def _look(self) -> None:
        """Poll the transport and notify the followers."""
        try:
            peers = await within(CONNECT_SECONDS, self._transport.peers())
        except TransportError:
            self._connected = {}
            self._few.set()
            return
        await self._dialler.look_at_ourselves()
        now, here = loop_time(), dict.fromkeys(peers)
        if here != self._connected:  # at equal size, a third of the cost of comparing keys
            stayed = (peer for peer in self._connected if peer in here)
            self._connected = dict.fromkeys((*stayed, *here))  # in order of arrival
        if not self._chosen.keys() <= self._connected.keys():
            self._chosen = {peer: None for peer in self._chosen if peer in self._connected}
        await self._end_connections(now)
        await self._locations.look(self._connected)
        if self._connected:
            self.unreachable_since = None
            self._dialler.refusals.clear()
            self._retry_seconds = RETRY_SECONDS_MIN
        if self._trusted_peers.look(self._connected, now):
            with suppress(TransportError):  # repeated at the next poll
                kept = self._value.meshed().union(self._chosen, self._trusted_peers.peers)
                await within(CONNECT_SECONDS, self._transport.keep(kept))
        if len(self._connected) < CONNECTIONS_TARGET or self._lacks_trusted_peers(now):
            self._few.set()
        for follower in self._followers:
            follower(self.connected)

    async def _end_connections(self, now: float) -> None:
        """Close connections of banned peers and, above the limit, of untrusted ones."""
        away = dict.fromkeys(filter(self._connected.__contains__, self._bans.held(now)))
        if self._taken > CONNECTIONS_HIGH:
            meshed = self._value.meshed()
            others = [
                peer for peer in self._connected if peer not in meshed and not self._is_kept(peer)
            ]
            above = frozenset(self._value.above_gossip_threshold(others))
            count = self._taken - CONNECTIONS_LOW
            away |= dict.fromkeys(surplus(others, self.places, above, count))
        if away:
            for peer in away:
                del self._connected[peer]
            await asyncio.gather(*map(self.disconnect, away))

    async def _wait_for_a_peer(self, seconds: float) -> None:
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
        """Dial bootstrap peers until peers of several networks have answered.

        Dials one at a time, and only while connected: otherwise ``reach`` dials all of them.
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

    def _lacks_trusted_peers(self, now: float) -> bool:
        return now >= self._seek_trusted_at and self._trusted_peers.few(self.peer_id)

    async def _dial_members(self) -> None:
        """Dial trusted members while too few are connected, and random members."""
        drawn, now = dict[PeerId, None](), loop_time()
        if self._lacks_trusted_peers(now):
            drawn |= self._draw(self._value.trusted)
            if not drawn:
                self._seek_trusted_at = now + RETRY_SECONDS_MAX
        if len(self._connected) < CONNECTIONS_TARGET:
            drawn |= self._draw(lambda _peer: True)
        await asyncio.gather(*map(self._dial_member, drawn))

    def _draw(self, wanted: Callable[[PeerId], bool]) -> dict[PeerId, None]:
        arguments = loop_time(), self._connected, self._chosen, wanted
        drawn = iter(lambda: self._candidates.draw(*arguments), None)  # until no candidate is left
        return dict.fromkeys(islice(drawn, DIALS_AT_ONCE))

    async def _dial_member(self, peer: PeerId) -> None:
        if await self.ensure(peer):
            self._chosen[peer] = None
