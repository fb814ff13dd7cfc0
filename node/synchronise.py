"""Synchronisation: what one peer has accepted and another has missed, pulled on request.

A newcomer takes everything that still matters this way, a restarted node what it slept through, and
every node now and then what gossip lost. The server lists message ids; the client asks for those it
lacks; each envelope then passes the same door as gossip (``Replica.receive``).
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import structlog

from node.frames import read_frame, write_frame
from protocol.codec import decode, encode
from protocol.messages import ENVELOPE_BYTES_MAX, Signed
from protocol.replica import Received, Replica
from protocol.types import DIGEST_BYTES, Digest, Fault, PeerId, Relay
from roles.ports import Clock, Stream, Streams, TransportError

log = structlog.get_logger()

IDS_MAX = 8192
"""Ids in one answer: 270 KB; a longer history takes several rounds."""

ENVELOPES_MAX = 1024
EXCHANGE_SECONDS = 30.0
REQUEST_BYTES_MAX = IDS_MAX * (DIGEST_BYTES + 2) + 1024

Accepted = Callable[[bytes, Received], None]


class Synchroniser:
    """Serves and pulls the messages of one run."""

    def __init__(
        self, streams: Streams, replica: Replica, clock: Clock, accepted: Accepted
    ) -> None:
        self._streams = streams
        self._replica = replica
        self._clock = clock
        self._accepted = accepted
        self._protocol = f"/prime-node/1/{replica.run_id.hex()[:16]}/sync"
        self.synchronised = False

    async def start(self) -> None:
        """Serve the protocol."""
        await self._streams.handle(self._protocol, self._serve)

    async def pull(self, peer: PeerId) -> bool:
        """Take what ``peer`` has and we lack; False when it could not be reached in time."""
        try:
            async with asyncio.timeout(EXCHANGE_SECONDS):
                while await self._round(peer):
                    pass
        except (TransportError, TimeoutError) as error:
            log.info("synchronisation failed", peer=peer[-8:], error=str(error))
            return False
        self.synchronised = True
        return True

    async def _round(self, peer: PeerId) -> bool:
        """Ask once; True when there was more news than fits one answer."""
        stream = await self._streams.open_stream(peer, self._protocol)
        try:
            await write_frame(stream, encode({"version": self._replica.ledger.version + 1}))
            ids = _ids(await read_frame(stream, REQUEST_BYTES_MAX))
            known = {signed.digest: None for signed in _current(self._replica, 0)}
            wanted = [item for item in ids if item not in known][:ENVELOPES_MAX]
            await write_frame(stream, encode({"ids": wanted}))
            news = 0
            for _ in wanted:
                envelope = await read_frame(stream, ENVELOPE_BYTES_MAX)
                if isinstance(envelope, Fault):
                    return False
                received = self._replica.receive(envelope, self._clock.now())
                if received.relay is Relay.ACCEPT:
                    news += 1
                    self._accepted(envelope, received)
        finally:
            await stream.close()
        return news > 0 and len(wanted) == ENVELOPES_MAX

    async def _serve(self, stream: Stream) -> None:
        async with asyncio.timeout(EXCHANGE_SECONDS):
            request = decode_frame(await read_frame(stream, 64))
            version = request.get("version")
            if not isinstance(version, int):
                return
            offered = {
                signed.digest: signed.envelope for signed in _current(self._replica, version)
            }
            await write_frame(stream, encode({"ids": list(offered)[:IDS_MAX]}))
            for wanted in _ids(await read_frame(stream, REQUEST_BYTES_MAX))[:ENVELOPES_MAX]:
                envelope = offered.get(wanted)
                if envelope is None:
                    return
                await write_frame(stream, envelope)


def decode_frame(frame: bytes | Fault) -> dict[str, object]:
    """Return the map that a frame holds, empty when it holds none."""
    value = frame if isinstance(frame, Fault) else decode(frame, bytes_max=REQUEST_BYTES_MAX)
    return value if isinstance(value, dict) else {}


def _ids(frame: bytes | Fault) -> list[Digest]:
    ids = decode_frame(frame).get("ids")
    if not isinstance(ids, tuple) or len(ids) > IDS_MAX:
        return []
    return [Digest(item) for item in ids if isinstance(item, bytes) and len(item) == DIGEST_BYTES]


def _current(replica: Replica, from_version: int) -> Iterable[Signed[Any]]:
    """Yield what matters now, in an order in which it can be taken in.

    Members first, since certificates are checked against the roster; then versions from
    ``from_version`` on, commits before the certificates that settle them.
    """
    ledger = replica.ledger
    yield from replica.roster.records()
    for checkpoint in ledger.checkpoints[max(0, from_version) :]:
        yield checkpoint.manifest
    yield from (entry.commit for entry in ledger.entries.values())
    yield from (
        entry.certificate for entry in ledger.entries.values() if entry.certificate is not None
    )
