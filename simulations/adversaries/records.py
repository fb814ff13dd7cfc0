"""Members that publish false or conflicting records of themselves."""

from typing_extensions import override

from node.network.streams.deadline import loop_time
from protocol.core.crypto import digest, public_key_from_peer_id
from protocol.core.rng import Rng
from protocol.core.types import RATE_CLASS_MAX, Topic
from protocol.messages import OBSERVATIONS_MAX, NodeRecord, seal
from protocol.replica.replica import Replica
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.relays import stall
from simulations.ports.parts import Parts

UPLOAD_BYTES_PER_SECOND = 2**53
"""The largest integer in a message."""


class LyingTransport(GossipingTransport):
    """Gossips a record at the maximum accepted rate, with an upload rate above that of any line.

    It also reports this rate for its accomplices.
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
        """Return the variants of the record, each for an equal part of the peers."""
        return [record]

    def _lie(self, honest: NodeRecord, sequence: int) -> NodeRecord:
        keys = map(public_key_from_peer_id, sorted(self.parts.accomplices))
        known = [key for key in keys if key is not None][:OBSERVATIONS_MAX]
        lies = {
            "sequence": sequence,
            "upload_bytes_per_second": UPLOAD_BYTES_PER_SECOND,
            "reachable": True,
            "witnessed": tuple(known),
            "upload_classes": (RATE_CLASS_MAX,) * len(known),
        }
        return honest.model_copy(update=lies)


class SpammingTransport(LyingTransport):
    """Sends half of its peers another record of equal content with the same sequence number."""

    @override
    def versions(self, record: NodeRecord) -> list[NodeRecord]:
        return [record.model_copy(update={"software": word}) for word in ("one", "other")]


class ConflictingTransport(LyingTransport):
    """Sends half of its peers a record of presence, and the other half one of departure."""

    @override
    def versions(self, record: NodeRecord) -> list[NodeRecord]:
        return [record, record.model_copy(update={"leaving": True})]


def record_spam(parts: Parts, _rng: Rng) -> Parts:
    """Publish conflicting, exaggerated records at the maximum accepted rate."""
    return parts.with_ports(transport=SpammingTransport(parts))


def conflicting_records(parts: Parts, _rng: Rng) -> Parts:
    """Publish presence and departure under one sequence number."""
    return parts.with_ports(transport=ConflictingTransport(parts))


def capacity_liar(parts: Parts, rng: Rng) -> Parts:
    """Send measured traffic at full speed, claim far more, and serve hardly any weights."""
    return stall(parts.with_ports(transport=LyingTransport(parts)), rng)
