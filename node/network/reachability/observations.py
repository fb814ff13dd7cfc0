"""Dial-back service: tests members' addresses and measures their upload rate.

A node dials a requester only at a host from which it is connected, so an untrusted peer cannot make
it dial a third party. A node with a public address dials no local ones: members elsewhere cannot.

The node publishes each observation in its records while the member is live and the observation is
fresh. Other nodes count it if they trust the observer (``protocol.membership.measured_capacity``).
A node therefore reports trusted members, and a few untrusted ones that it has known for some time:
a new relay starts that way.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from node.context import NodeContext
from node.local.addresses import host_of, is_circuit, is_local
from node.network.resources.stream_limiter import StreamLimiter
from node.network.streams.deadline import loop_time, within
from node.network.streams.framing import read_frame
from node.network.streams.protocols import DIAL_BACK, REQUEST_SECONDS, SAMPLE_BYTES_MAX
from protocol.core.containers import BoundedDict
from protocol.core.crypto import public_key_from_peer_id
from protocol.core.faults import Fault
from protocol.core.types import PeerId, rate_class
from protocol.membership.measured_capacity import AGE_EPOCHS
from protocol.messages import OBSERVATIONS_MAX
from roles.ports.transport import Stream, TransportError

log = structlog.get_logger()

FINDING_RECORDS = 4
"""Lifetime of an observation, in record lifetimes; a guess: bandwidth changes rarely."""

FOUND_MAX = 512
"""Remembered members: far more than fit into one record, since most come and go."""

UNTRUSTED_MAX = OBSERVATIONS_MAX // 4
"""Untrusted members per record."""

SAMPLE_SECONDS = 4.0
"""Maximum duration of a bandwidth sample."""

ADDRESSES_MAX = 8
"""Same as in a record."""

ANSWERED, SILENT = b"\x01", b"\x00"

_PIECE_BYTES = 64 * 1024
_CLOCK_SECONDS = 1e-3
"""Resolution of the time measurement."""


@dataclass(frozen=True, slots=True)
class _Finding:
    upload_class: int  # 0: not reachable
    at: float


class ReachabilityProber:
    """Serves dial-backs and keeps the observations."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._trusted = context.trust.trusted
        self._found = BoundedDict[PeerId, _Finding](FOUND_MAX, "observations")  # the oldest first
        self._bounded = StreamLimiter(self._serve, DIAL_BACK, context.trust)
        context.tables.register(*self._bounded.tables, self._found)
        epochs = context.replica.manifest.epochs
        self.finding_seconds = FINDING_RECORDS * epochs.record_epochs * epochs.seconds
        """Lifetime of an observation."""

    async def start(self) -> None:
        """Serve the protocol from now on."""
        context = self._context
        await context.peers.handle(DIAL_BACK.on(context.replica.run_id), self._bounded)

    def findings(self) -> dict[bytes, int]:
        """Return the rate class of each reported member, by public key."""
        roster, now = self._context.replica.roster, self._context.ports.clock.now()
        epoch_seconds = self._context.replica.manifest.epochs.seconds
        fresh = loop_time() - self.finding_seconds
        trusted, untrusted = {}, {}
        for peer, finding in reversed(self._found.items()):
            member = roster.get(peer)
            key = public_key_from_peer_id(peer)
            if member is None or key is None or finding.at < fresh or not roster.is_live(peer, now):
                continue
            if self._trusted(peer):
                trusted[key] = finding.upload_class
            elif now >= member.heard_since + AGE_EPOCHS * epoch_seconds:
                untrusted[key] = finding.upload_class
        rows = [*trusted.items(), *list(untrusted.items())[:UNTRUSTED_MAX]]
        return dict(rows[:OBSERVATIONS_MAX])

    async def _serve(self, stream: Stream) -> None:
        assert DIAL_BACK.exchange_seconds is not None
        with suppress(TransportError):  # the peer left or took too long
            await within(DIAL_BACK.exchange_seconds, self._answer(stream))

    async def _answer(self, stream: Stream) -> None:
        reading = read_frame(stream, DIAL_BACK.opener_bytes_max, length_bytes=2)
        request = await within(REQUEST_SECONDS, reading)
        if isinstance(request, Fault):
            self._context.peers.blame(stream.peer, request)
            return
        peer, addresses = stream.peer, request.decode(errors="replace").split("\n")
        known = self._found.get(peer)
        if known is not None and loop_time() < known.at + self.finding_seconds / 2:
            await stream.write(ANSWERED if known.upload_class else SILENT)
            return
        address = await self._where(peer, addresses[:ADDRESSES_MAX])
        if address is None:
            return
        upload_class = 0
        if await self._gets_through(address):
            await stream.write(ANSWERED)
            upload_class = max(1, rate_class(await self._sample(stream)))
        else:
            await stream.write(SILENT)
        self._note(peer, upload_class)

    async def _where(self, peer: PeerId, addresses: Sequence[str]) -> str | None:
        """Return the first address that this node may dial for a peer."""
        transport = self._context.ports.transport
        remotes = await transport.remote_addresses(peer)
        here = [host_of(remote) for remote in remotes if not is_circuit(remote)]
        ours = [host_of(address) for address in await transport.addresses()]
        for address in addresses:
            host = host_of(address)
            if host not in here or not address.endswith(f"/p2p/{peer}"):
                continue
            if not is_local(host) or all(map(is_local, ours)):
                return address
        return None

    async def _gets_through(self, address: str) -> bool:
        try:
            await within(DIAL_BACK.stall_seconds, self._context.ports.transport.probe(address))
        except TransportError as error:
            log.debug("dial-back failed", address=address, error=str(error))
            return False
        return True

    async def _sample(self, stream: Stream) -> int:
        """Return the upload rate of the other end in bytes/s, measured after its first piece."""
        first_at, last_at, count = None, 0.0, 0
        with suppress(TransportError, TimeoutError):
            async with asyncio.timeout(SAMPLE_SECONDS):
                while count < SAMPLE_BYTES_MAX and (piece := await stream.read(_PIECE_BYTES)):
                    last_at = loop_time()
                    if first_at is None:
                        first_at = last_at
                    else:
                        count += len(piece)
        if first_at is None:
            return 0
        return round(count / max(_CLOCK_SECONDS, last_at - first_at))

    def _note(self, peer: PeerId, upload_class: int) -> None:
        self._found.set_newest(peer, _Finding(upload_class, loop_time()))
