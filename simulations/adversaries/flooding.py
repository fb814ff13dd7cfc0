"""A peer that does its work and floods others with gossip and requests.

It gossips junk, repeats its messages, requests far too often, and opens requests without finishing
them. Its worker's computations and commits stay honest.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import asdict

from typing_extensions import override

from node.network.blobs.wire import BlobKind, BlobRequest
from node.network.streams.deadline import within
from node.network.streams.framing import length_prefixed
from node.network.streams.protocols import GOSSIP
from protocol.core.codec import encode
from protocol.core.rng import Rng
from protocol.core.types import DIGEST_BYTES, Digest, PeerId
from protocol.replica.replica import Replica
from roles.ports.transport import Stream, StreamHandler, TransportError
from simulations.adversaries.gossiping import WRITE_SECONDS, GossipingTransport
from simulations.adversaries.junk import Junk
from simulations.adversaries.passthrough import RewritingStream, word_of
from simulations.ports.parts import Parts

VICTIMS = 2
"""Peers that get a burst after each pause, drawn anew each time."""

REQUESTS_PER_BURST = 8
HOLD_SECONDS = 20.0
"""Duration of an open request: longer than any deadline for its rest."""

RANGE_BYTES = 1 << 24
REPEATED = 4
"""Earlier gossip writes repeated in each burst."""


class FloodingTransport(GossipingTransport):
    """Opens the streams of a daemon, and writes to them and to streams of its own."""

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts)
        self._rng = rng
        self._protocols: dict[str, None] = {}
        self._said: deque[bytes] = deque(maxlen=REPEATED)
        self._junk: Junk | None = None

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        await super().handle(protocol, handler)
        if protocol != GOSSIP.name:
            self._protocols[protocol] = None

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        stream = await super().open_stream(peer, protocol)
        return RewritingStream(stream, self._overheard) if protocol == GOSSIP.name else stream

    def _overheard(self, frames: bytes) -> bytes:
        """Remember the daemon's gossip, to repeat it."""
        self._said.append(frames)
        return frames

    @override
    async def act(self, replica: Replica) -> None:
        junk = self._junk = self._junk or Junk(replica, self.parts.signer, self._rng.child("junk"))
        for peer in self._rng.sample(await self.victims(), VICTIMS):
            self.tasks.spawn(self.write(peer, b"".join((*self._said, junk.burst()))))
            for _ in range(REQUESTS_PER_BURST):
                self.tasks.spawn(self._ask(peer))

    async def _ask(self, peer: PeerId) -> None:
        """Send a request and do not read the response."""
        protocol = self._rng.sample(list(self._protocols), 1)[0]
        with suppress(TransportError):
            stream = await within(WRITE_SECONDS, super().open_stream(peer, protocol))
            try:
                await within(WRITE_SECONDS, stream.write(self._question(word_of(protocol))))
                await asyncio.sleep(HOLD_SECONDS)
            finally:
                await stream.close()

    def _question(self, word: str) -> bytes:
        """Return a request, an unanswerable one, or the beginning of one."""
        kind = self._rng.below(3)
        if kind == 0:
            return bytes(1)
        if word == "blobs":
            return self._blob_request(known=kind == 1)
        request = encode({"skip": 0, "version": 0}) if kind == 1 else self._rng.bytes(64)
        return length_prefixed(request)

    def _blob_request(self, *, known: bool) -> bytes:
        held = list(self.parts.disk.blobs) if known else []
        digest = self._rng.sample(held, 1)[0] if held else Digest(self._rng.bytes(DIGEST_BYTES))
        request = encode(
            asdict(BlobRequest(digest, 0, RANGE_BYTES, wait=True, kind=BlobKind.WEIGHTS))
        )
        return length_prefixed(request, length_bytes=2)


def flood(parts: Parts, rng: Rng) -> Parts:
    """Flood peers with gossip and requests."""
    return parts.with_ports(transport=FloodingTransport(parts, rng.child("flood")))
