"""A member that says more of itself than is true, and more than one thing at once."""

import asyncio

from typing_extensions import override

from protocol.crypto import digest, public_key_from_peer_id
from protocol.messages import WITNESSED_MAX, NodeRecord, seal
from protocol.replica import Replica
from protocol.rng import Rng
from protocol.shardcast.rates import RATE_CLASS_MAX
from protocol.types import Topic
from simulations.adversaries.gossiping import GossipingTransport
from simulations.ports.parts import Parts

UPLOAD_BYTES_PER_SECOND = 2**53
"""The largest number of a message."""


class SpammingTransport(GossipingTransport):
    """Gossips two records with one sequence number as often as records are news.

    Half of its peers get one of them, half the other; both say that it, and whoever does the same,
    sends faster than any line.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._next_at = 0.0

    @override
    async def act(self, replica: Replica) -> None:
        now = asyncio.get_running_loop().time()
        member = replica.roster.get(self.peer_id)
        if member is None or now < self._next_at:
            return
        self._next_at = now + replica.roster.pause_seconds
        sequence = max(member.record.message.sequence + 1, self._milliseconds())
        frames = []
        for software in ("one", "other"):
            record = self._lie(member.record.message, sequence, software)
            envelope = seal(record, replica.run_id, self.parts.signer).envelope
            frames.append(self.gossiped(replica, Topic.ROSTER, envelope))
        for peer in await self.victims():
            half = digest(peer.encode())[0] % len(frames)
            self.tasks.spawn(self.write(peer, frames[half]))

    def _milliseconds(self) -> int:
        return int(1000 * self.parts.ports.clock.now())

    def _lie(self, honest: NodeRecord, sequence: int, software: str) -> NodeRecord:
        keys = map(public_key_from_peer_id, sorted(self.parts.accomplices))
        known = [key for key in keys if key is not None][:WITNESSED_MAX]
        lies = {
            "sequence": sequence,
            "software": software,
            "upload_bytes_per_second": UPLOAD_BYTES_PER_SECOND,
            "reachable": True,
            "witnessed": tuple(known),
            "upload_classes": (RATE_CLASS_MAX,) * len(known),
        }
        return honest.model_copy(update=lies)


def record_spam(parts: Parts, _rng: Rng) -> Parts:
    """Say everything of itself, as often as anybody listens."""
    return parts.with_ports(transport=SpammingTransport(parts))
