"""Circuit relay service: connects members to members with a reservation, within quotas.

A node with a reservation is connected to the relay, so the relay dials no one. Both ends must be
members of the run: other libp2p nodes are refused. A circuit ends after ``HOP.exchange_seconds`` or
``CIRCUIT_BYTES_MAX`` in one direction; the caller may open another. Circuit bytes count towards the
upload cap. Slots follow the common rule: trusted peers first, and untrusted peers share by address
block (``node.network.resources.stream_slots``).
"""

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace

import structlog

from node.context import NodeContext
from node.local.addresses import is_circuit
from node.network.relay.wire import (
    HOP_SHAPE,
    STOP_SHAPE,
    CircuitMessage,
    CircuitMessageKind,
    CircuitStatus,
    ask,
    receive,
    send,
)
from node.network.resources.stream_limiter import StreamLimiter
from node.network.resources.stream_slots import StreamSlot, StreamSlots
from node.network.resources.upload_scheduler import UploadScheduler
from node.network.streams.deadline import loop_time, within
from node.network.streams.protocols import HOP, REQUEST_SECONDS, STOP_NAME
from protocol.core.containers import SizeGauge
from protocol.core.faults import Fault
from protocol.core.types import PeerId
from roles.ports.transport import Stream, TransportError

log = structlog.get_logger()

RESERVATIONS_MAX = 128
"""go-libp2p's limit; an idle node behind NAT needs a few hundred bytes per minute."""

RESERVATION_SECONDS = 600.0
"""Renewed at half of it. A guess, a sixth of go-libp2p's, so that slots of dead nodes free soon."""

UNDISTURBED_SECONDS = 60.0
"""Time before an untrusted peer can lose its reservation to another one; a guess."""

CIRCUITS_PER_TARGET_MAX = 16
"""Concurrent circuits to one node: a committee, its trainers, some body requests; as go-libp2p."""

CIRCUIT_BYTES_MAX = 64 << 20
"""Limit per direction: a few bodies of the largest run. go-libp2p's default of 128 KiB only
suffices to arrange a direct connection, which many homes never get."""

_PIECE_BYTES = 64 * 1024


@dataclass(slots=True)
class _GrantedReservation:
    place: StreamSlot
    expires_at: float


class CircuitRelay:
    """Serves reservations and circuits."""

    def __init__(self, context: NodeContext, upload_cap: UploadScheduler) -> None:
        self._context = context
        self._transport = context.ports.transport
        self._cap = upload_cap
        self._places = StreamSlots(1, RESERVATIONS_MAX, UNDISTURBED_SECONDS, context.trust)
        self._reserved: dict[PeerId, _GrantedReservation] = {}
        self._circuits_to: Counter[PeerId] = Counter()
        self._bounded = StreamLimiter(self._serve, HOP, context.trust)
        reservations = SizeGauge("reservations", RESERVATIONS_MAX, self._reserved.__len__)
        context.tables.register(*self._bounded.tables, reservations)
        self.carried_bytes = 0
        """Total bytes relayed."""

    @property
    def reservations(self) -> int:
        """Number of reservations."""
        return len(self._reserved)

    @property
    def circuits(self) -> int:
        """Number of open circuits."""
        return self._circuits_to.total()

    async def start(self) -> None:
        """Serve the protocol from now on."""
        await self._context.peers.handle(HOP.name, self._bounded)

    async def _serve(self, stream: Stream) -> None:
        assert HOP.exchange_seconds is not None
        with suppress(TransportError):  # the peer left, or the circuit expired
            await within(HOP.exchange_seconds, self._answer(stream))

    async def _answer(self, stream: Stream) -> None:
        request = await within(REQUEST_SECONDS, receive(stream, HOP_SHAPE))
        if isinstance(request, Fault):
            self._context.peers.blame(stream.peer, request)
            await self._tell(stream, CircuitStatus.MALFORMED_MESSAGE)
        elif not await self._may_ask(stream.peer):
            await self._tell(stream, CircuitStatus.PERMISSION_DENIED)
        elif request.kind is CircuitMessageKind.RESERVE:
            await self._reserve(stream)
        elif request.kind is CircuitMessageKind.CONNECT and request.peer is not None:
            await self._connect(stream, request.peer)
        else:
            await self._tell(stream, CircuitStatus.MALFORMED_MESSAGE)

    async def _may_ask(self, peer: PeerId) -> bool:
        """Return whether a peer is a live member that is connected directly."""
        if not self._context.replica.roster.is_live(peer, self._context.ports.clock.now()):
            return False
        remote = await self._transport.remote_addresses(peer)
        return not all(map(is_circuit, remote))

    async def _tell(self, stream: Stream, status: CircuitStatus, expires_at: float = 0.0) -> None:
        answer = CircuitMessage(CircuitMessageKind.STATUS, None, status, round(expires_at))
        if status is CircuitStatus.OK:
            answer = _limited(answer)
        await within(HOP.stall_seconds, send(stream, answer, HOP_SHAPE))

    # Reservations

    async def _reserve(self, stream: Stream) -> None:
        peer, now = stream.peer, loop_time()
        await self._forget()
        known = self._reserved.get(peer)
        if known is None:
            place, lost = self._places.take(peer, now)
            for one in lost:
                self._reserved.pop(one.peer, None)
            if place is None:
                await self._tell(stream, CircuitStatus.RESERVATION_REFUSED)
                return
            known = self._reserved[peer] = _GrantedReservation(place, 0.0)
        known.expires_at = now + RESERVATION_SECONDS
        expires_at = self._context.ports.clock.now() + RESERVATION_SECONDS
        await self._tell(stream, CircuitStatus.OK, expires_at)

    async def _forget(self) -> None:
        """Drop expired reservations and those of disconnected peers."""
        here, now = dict.fromkeys(await self._transport.peers()), loop_time()
        for peer, reservation in list(self._reserved.items()):
            if peer not in here or reservation.expires_at <= now:
                del self._reserved[peer]
                self._places.leave(reservation.place, now)

    # Circuits

    async def _connect(self, stream: Stream, target: PeerId) -> None:
        await self._forget()
        if target not in self._reserved:
            await self._tell(stream, CircuitStatus.NO_RESERVATION)
            return
        if self._circuits_to[target] >= CIRCUITS_PER_TARGET_MAX:
            await self._tell(stream, CircuitStatus.RESOURCE_LIMIT_EXCEEDED)
            return
        self._circuits_to[target] += 1
        try:
            await self._carry(stream, target)
        finally:
            self._circuits_to[target] -= 1
            if not self._circuits_to[target]:
                del self._circuits_to[target]

    async def _carry(self, stream: Stream, target: PeerId) -> None:
        try:
            onwards = await within(HOP.stall_seconds, self._connect_target(stream.peer, target))
        except TransportError as error:
            log.debug("no circuit", target=target, error=str(error))
            await self._tell(stream, CircuitStatus.CONNECTION_FAILED)
            return
        try:
            await self._tell(stream, CircuitStatus.OK)
            await self._splice(stream, onwards)
        finally:
            await onwards.close()

    async def _connect_target(self, caller: PeerId, target: PeerId) -> Stream:
        """Open a stream to the target and have it accept the caller's connection."""
        onwards = await self._transport.open_stream(target, STOP_NAME)
        try:
            await ask(
                onwards, _limited(CircuitMessage(CircuitMessageKind.CONNECT, caller)), STOP_SHAPE
            )
        except BaseException:
            await onwards.close()
            raise
        return onwards

    async def _splice(self, one: Stream, other: Stream) -> None:
        loop = asyncio.get_running_loop()
        trusted = any(map(self._context.trust.trusted, (one.peer, other.peer)))
        copies = (self._copy(*ends, trusted=trusted) for ends in ((one, other), (other, one)))
        ways = [loop.create_task(copy) for copy in copies]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            ends = await asyncio.gather(*ways, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, TransportError):
                raise end

    async def _copy(self, source: Stream, sink: Stream, *, trusted: bool) -> None:
        left = CIRCUIT_BYTES_MAX
        while left and (data := await source.read(min(_PIECE_BYTES, left))):
            left -= len(data)
            await self._cap.take(len(data), trusted=trusted)
            await within(HOP.stall_seconds, sink.write(data))
            self.carried_bytes += len(data)


def _limited(message: CircuitMessage) -> CircuitMessage:
    """Add the duration and byte limits of a circuit to a message."""
    assert HOP.exchange_seconds is not None
    seconds = round(HOP.exchange_seconds)
    return replace(message, limit_seconds=seconds, limit_bytes=CIRCUIT_BYTES_MAX)
