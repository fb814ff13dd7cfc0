"""Relays that serve wrong bytes of weights, or accept requests and then send hardly anything."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from typing_extensions import override

from node.network.blobs.wire import BlobStatus, read_request, reply
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import Digest
from roles.ports.transport import Stream, StreamHandler
from simulations.adversaries.passthrough import PassingTransport, while_acting, word_of
from simulations.ports.blobs import SimBlobs
from simulations.ports.parts import Parts
from simulations.ports.storage import Disk, Session
from simulations.runtime.content import Extent

STALLING = ("blobs", "manifest", "sync")
"""Protocols that serve requests."""

TRICKLE_SECONDS = 1.0
"""Interval between two bytes of a stalling relay: short enough for every read deadline."""

HALF_SHARE = 0.5
"""Share of the requests that a stalling relay does not answer at all."""


class WrongBytes(SimBlobs):
    """Serves weights of no version, and the index of another version if it has one."""

    def __init__(
        self, disk: Disk, session: Session, acting: Callable[[], bool] = lambda: True
    ) -> None:
        super().__init__(disk, session)
        self._acting = acting

    @override
    async def stream(self, digest: Digest, offset: int, length: int) -> AsyncGenerator[bytes, None]:
        other = self._other(digest)
        async with aclosing(super().stream(digest, offset, length)) as pieces:
            async for piece in pieces:
                if not self._acting():
                    yield piece
                elif isinstance(piece, Extent):
                    yield Extent.of(b"other" + piece.seed, piece.start, len(piece))
                else:
                    yield piece if other is None else other[offset : offset + len(piece)]
                offset += len(piece)

    def _other(self, digest: Digest) -> bytes | None:
        """Return the newest other index: all of them have the same length."""
        length = self.size(digest)
        others = (
            content
            for name, content in reversed(self._disk.blobs.items())
            if name != digest and len(content) == length and not isinstance(content, Extent)
        )
        return next(others, None)


class StallingTransport(PassingTransport):
    """Accepts requests, and answers with nothing or with single bytes."""

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts)
        self._rng = rng

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        word = word_of(protocol)
        stalls = {"blobs": self._trickle} if word == "blobs" else dict.fromkeys(STALLING, hold)
        stalling = stalls.get(word, handler)
        await super().handle(protocol, while_acting(self.parts, stalling, handler))

    async def _trickle(self, stream: Stream) -> None:
        """Announce the requested range, and send it a byte at a time."""
        request = await read_request(stream)
        if (
            isinstance(request, Fault)
            or self._rng.uniform() < HALF_SHARE
            or (content := self.parts.disk.blobs.get(request.digest)) is None
        ):
            await hold(stream)
            return
        await reply(stream, BlobStatus.OK, len(content))
        while True:
            await asyncio.sleep(TRICKLE_SECONDS)
            await stream.write(content[request.offset : request.offset + 1])


async def hold(stream: Stream) -> None:
    """Read without a response until the other end closes the stream."""
    while await stream.read(1 << 16):
        pass


def bad_bytes(parts: Parts, _rng: Rng) -> Parts:
    """Serve wrong bytes."""
    return parts.with_ports(blobs=WrongBytes(parts.disk, parts.session, parts.acting))


def stall(parts: Parts, rng: Rng) -> Parts:
    """Accept requests and serve next to nothing."""
    return parts.with_ports(transport=StallingTransport(parts, rng.child("stall")))
