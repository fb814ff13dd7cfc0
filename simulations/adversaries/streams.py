"""Peers that open streams, to hold the slots or to cause the cost of opening."""

from collections import Counter
from contextlib import suppress
from itertools import cycle, islice

from typing_extensions import override

from node.network.streams.deadline import within
from node.network.streams.protocols import GOSSIP, STREAM_PROTOCOLS
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.replica.replica import Replica
from roles.ports.transport import StreamHandler, TransportError
from simulations.adversaries.gossiping import WRITE_SECONDS, GossipingTransport
from simulations.adversaries.passthrough import word_of
from simulations.ports.parts import Parts

FIRST_BYTES = b"\0"
"""The beginning of a frame's length."""

STREAMS_AT_ONCE = 32
"""Streams that a flood opens to one peer at a time: 64 a second per attacker."""

STREAMS_PER_PEER = {item.word: item.streams_per_peer for item in STREAM_PROTOCOLS}


class OpeningTransport(GossipingTransport):
    """Knows the protocols of a daemon besides gossip."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.protocols: dict[str, int] = {}
        """Protocol to the limit of streams per peer."""

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        await super().handle(protocol, handler)
        if protocol != GOSSIP.name:
            self.protocols[protocol] = STREAMS_PER_PEER[word_of(protocol)]


class HoldingTransport(OpeningTransport):
    """Holds the maximum of streams of every protocol open to all genesis keys.

    Elections and versions depend on these nodes. A closed stream is opened again.
    """

    pause_seconds = 1.0

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._held: Counter[tuple[PeerId, str]] = Counter()

    @override
    async def act(self, replica: Replica) -> None:
        connected = dict.fromkeys(await self.victims())
        genesis = replica.manifest.genesis
        for peer in map(PeerId, (*genesis.validators, *genesis.trainers)):
            if peer not in connected:
                self.approach(replica, peer)
                continue
            for protocol, most in self.protocols.items():
                for _ in range(most - self._held[peer, protocol]):
                    self._held[peer, protocol] += 1
                    self.tasks.spawn(self._hold(peer, protocol))

    async def _hold(self, peer: PeerId, protocol: str) -> None:
        try:
            with suppress(TransportError):
                stream = await within(WRITE_SECONDS, self.open_stream(peer, protocol))
                try:
                    await stream.write(FIRST_BYTES)
                    while await stream.read(1 << 16) and self.parts.acting():
                        pass
                finally:
                    await stream.close()
        finally:
            self._held[peer, protocol] -= 1


class StreamFlood(OpeningTransport):
    """Opens streams of all protocols to one peer after another, and closes them at once."""

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts)
        self._rng = rng

    @override
    async def act(self, replica: Replica) -> None:
        protocols = islice(cycle(self.protocols), STREAMS_AT_ONCE)
        for peer in self._rng.sample(await self.victims(), 1):
            for protocol in protocols:
                self.tasks.spawn(self._open(peer, protocol))

    async def _open(self, peer: PeerId, protocol: str) -> None:
        with suppress(TransportError):
            stream = await within(WRITE_SECONDS, self.open_stream(peer, protocol))
            await stream.close()


def stream_flood(parts: Parts, rng: Rng) -> Parts:
    """Open streams without any use."""
    return parts.with_ports(transport=StreamFlood(parts, rng))


def slow_streams(parts: Parts, _rng: Rng) -> Parts:
    """Hold the stream slots of other peers."""
    return parts.with_ports(transport=HoldingTransport(parts))
