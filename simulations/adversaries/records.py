"""Members that say more of themselves than is true, and more than one thing at once."""

from typing_extensions import override

from node.network.streams.deadline import loop_time
from protocol.core.crypto import digest, public_key_from_peer_id
from protocol.core.rng import Rng
from protocol.core.types import RATE_CLASS_MAX, Topic
from protocol.messages import WITNESSED_MAX, NodeRecord, seal
from protocol.replica.replica import Replica
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.relays import stall
from simulations.ports.parts import Parts

UPLOAD_BYTES_PER_SECOND = 2**53
"""The largest number of a message."""


class LyingTransport(GossipingTransport):
    """Gossips a record as often as records are news: that it sends faster than any line.

    And so does, it says, whoever does the same.
    """

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._next_at = 0.0

    @override
    async def act(self, replica: Replica) -> None:
        now = loop_time()
        member = replica.roster.get(self.peer_id)
        if member is None or now < self._next_at:
            return
        self._next_at = now + replica.roster.pause_seconds
        sequence = max(member.record.message.sequence + 1, self._milliseconds())
        frames = []
        for record in self.versions(self._lie(member.record.message, sequence)):
            envelope = seal(record, replica.run_id, self.parts.signer).envelope
            frames.append(self.gossiped(replica, Topic.ROSTER, envelope))
        for peer in await self.victims():
            half = digest(peer.encode())[0] % len(frames)
            self.tasks.spawn(self.write(peer, frames[half]))

    def _milliseconds(self) -> int:
        return int(1000 * self.parts.ports.clock.now())

    def versions(self, record: NodeRecord) -> list[NodeRecord]:
        """Return what is told, each to an equal part of the peers."""
        return [record]

    def _lie(self, honest: NodeRecord, sequence: int) -> NodeRecord:
        keys = map(public_key_from_peer_id, sorted(self.parts.accomplices))
        known = [key for key in keys if key is not None][:WITNESSED_MAX]
        lies = {
            "sequence": sequence,
            "upload_bytes_per_second": UPLOAD_BYTES_PER_SECOND,
            "reachable": True,
            "witnessed": tuple(known),
            "upload_classes": (RATE_CLASS_MAX,) * len(known),
        }
        return honest.model_copy(update=lies)


class SpammingTransport(LyingTransport):
    """Tells half of its peers another record with the same sequence number, which says the same."""

    @override
    def versions(self, record: NodeRecord) -> list[NodeRecord]:
        return [record.model_copy(update={"software": word}) for word in ("one", "other")]


class ConflictingTransport(LyingTransport):
    """Tells half of its peers that it is here, and the other half that it leaves."""

    @override
    def versions(self, record: NodeRecord) -> list[NodeRecord]:
        return [record, record.model_copy(update={"leaving": True})]


def record_spam(parts: Parts, _rng: Rng) -> Parts:
    """Say everything of itself, as often as anybody listens."""
    return parts.with_ports(transport=SpammingTransport(parts))


def conflicting_records(parts: Parts, _rng: Rng) -> Parts:
    """Say that it is here and that it is not, under one sequence number."""
    return parts.with_ports(transport=ConflictingTransport(parts))


def capacity_liar(parts: Parts, rng: Rng) -> Parts:
    """Send what is measured as fast as it can, call that far more, and give hardly any weights."""
    return stall(parts.with_ports(transport=LyingTransport(parts)), rng)
