"""Relay reservations: keep slots at relays while the node cannot be dialled.

Relays are members with the relay role in their records. Peers accept a circuit address only if its
relay part is in the relay's record (``node.network.connections.dial_policy``). The node prefers two
relays in different networks, so that one failure does not disconnect it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import structlog

from node.context import NodeContext
from node.local.addresses import CIRCUIT, host_of, is_circuit, is_local
from node.network.connections.peer_selection import network_of
from node.network.reachability.autonat import Reachability
from node.network.relay.relay import RESERVATION_SECONDS
from node.network.relay.wire import HOP_SHAPE, CircuitMessage, CircuitMessageKind, ask
from node.network.streams.deadline import loop_time, within
from node.network.streams.protocols import HOP
from protocol.core.types import PeerId, Role
from roles.ports.transport import TransportError

log = structlog.get_logger()

RELAYS_TARGET = 2
LOOK_SECONDS = 5.0
RETRY_SECONDS = 60.0
"""Pause after a refusal by a relay; guesses."""

ASKED_AT_ONCE_MAX = 4
"""Relays requested per round: some will be full."""

LOOKED_AT_MAX = 256
"""Records inspected per round."""


@dataclass(frozen=True, slots=True)
class _Reservation:
    address: str  # of the relay
    renew_at: float


class Reservations:
    """Reservations of one node, held while ``reachability`` reports that it is unreachable."""

    def __init__(self, context: NodeContext, reachability: Reachability) -> None:
        self._context = context
        self._reachability = reachability
        self._rng = context.ports.rng.child("relays")
        self._held: dict[PeerId, _Reservation] = {}
        self._refused: dict[PeerId, float] = {}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Circuit addresses of this node."""
        own = self._context.peers.peer_id
        return tuple(f"{kept.address}{CIRCUIT}/p2p/{own}" for kept in self._held.values())

    async def run(self, changed: Callable[[], None]) -> None:
        """Reserve, renew and replace until cancelled; call ``changed`` on new ``addresses``."""
        while True:
            before = self.addresses
            if self._reachability.reachable:
                self._held.clear()
            else:
                await self._keep()
                await self._add()
            if self.addresses != before:
                log.info("relay addresses changed", addresses=self.addresses)
                changed()
            await asyncio.sleep(LOOK_SECONDS)

    async def _keep(self) -> None:
        """Renew reservations past half their lifetime, and those lost with the connection."""
        connected = frozenset(self._context.peers.connected)
        for relay, kept in list(self._held.items()):
            if relay not in connected or kept.renew_at <= loop_time():
                del self._held[relay]
                await self._reserve(relay)

    async def _add(self) -> None:
        now = loop_time()
        self._refused = {peer: at for peer, at in self._refused.items() if at + RETRY_SECONDS > now}
        candidates = self._candidates() if len(self._held) < RELAYS_TARGET else []
        for _ in range(min(ASKED_AT_ONCE_MAX, len(candidates))):
            if len(self._held) >= RELAYS_TARGET:
                return
            networks = {network_of([kept.address]) for kept in self._held.values()}
            relay = min(candidates, key=lambda peer: self._network(peer) in networks)
            candidates.remove(relay)
            await self._reserve(relay)

    def _candidates(self) -> list[PeerId]:
        """Return relays to request, from a random roster position on."""
        found = []
        roster, now = self._context.replica.roster, self._context.ports.clock.now()
        place = self._rng.below(max(1, len(roster)))
        for peer in islice(roster.peers_from(place), LOOKED_AT_MAX):
            member = roster.get(peer)
            known = peer in self._held or peer in self._refused
            if member is None or known or peer == self._context.peers.peer_id:
                continue
            message = member.record.message
            relays = Role.RELAY in message.roles and message.reachable
            if relays and roster.is_live(peer, now) and self._address_of(peer) is not None:
                found.append(peer)
        return found

    def _network(self, relay: PeerId) -> str | None:
        return network_of([self._address_of(relay) or ""])

    def _address_of(self, relay: PeerId) -> str | None:
        """Return the address in a relay's record that others can dial, with its ``/p2p`` part."""
        member = self._context.replica.roster.get(relay)
        local = self._context.peers.in_local_swarm
        for address in () if member is None else member.record.message.addresses:
            own = address.endswith(f"/p2p/{relay}") and not is_circuit(address)
            if own and (local or not is_local(host_of(address))):
                return address
        return None

    async def _reserve(self, relay: PeerId) -> None:
        address = self._address_of(relay)
        if address is None:
            return
        try:
            opening = self._context.peers.open_stream(relay, HOP.name)
            stream = await within(HOP.stall_seconds, opening)
            try:
                asking = ask(stream, CircuitMessage(CircuitMessageKind.RESERVE), HOP_SHAPE)
                answer = await within(HOP.stall_seconds, asking)
            finally:
                await stream.close()
        except TransportError as error:
            log.info("reservation failed", relay=relay, error=str(error))
            self._refused[relay] = loop_time()
            return
        left_seconds = answer.expires_at - self._context.ports.clock.now()
        lasts_seconds = min(max(left_seconds, 2 * LOOK_SECONDS), RESERVATION_SECONDS)
        self._held[relay] = _Reservation(address, loop_time() + lasts_seconds / 2)
