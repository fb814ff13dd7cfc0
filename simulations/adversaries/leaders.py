"""Trainers that abuse their lead: two versions of one number, no batches, no end of the term."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from typing_extensions import override

from protocol.core.rng import Rng
from protocol.core.types import Digest, Topic
from protocol.messages import CheckpointManifest, Message, Signed, seal
from protocol.replica.replica import Replica
from simulations.adversaries.gossip import GossipRewritingTransport
from simulations.adversaries.gossiping import GossipingTransport
from simulations.ports.parts import Parts

PAUSE_SECONDS = 10.0
"""Interval between two versions of a former leader."""


class TwoVersionsTransport(GossipRewritingTransport):
    """Gossips to half of its peers another version of each number.

    Both have the same weights, which every node can get. Each is the parent of the next one that
    the same peers receive.
    """

    kind: type[Message] = CheckpointManifest
    to_half = True
    changes: Mapping[str, Any] = MappingProxyType({})
    """Fields of the other versions."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._others: dict[Digest, Digest] = {}
        """Own version to the other one of its number."""

    @override
    def other(
        self, own: Signed[CheckpointManifest], replica: Replica
    ) -> Signed[CheckpointManifest]:
        fields, parent = own.message, Digest(own.message.parent)
        if fields.version == 0 or own.signer != self.parts.signer.peer_id:
            return own
        changes = {"created_at": fields.created_at + 1, "parent": self._others.get(parent, parent)}
        changed = fields.model_copy(update={**changes, **self.changes})
        other = seal(changed, replica.run_id, self.parts.signer)
        self._others[own.digest] = other.digest
        return other


class EmptyBatchTransport(TwoVersionsTransport):
    """Gossips to all peers versions that name no rollouts."""

    to_half = False
    changes: Mapping[str, Any] = MappingProxyType({"batch": (), "omitted": ()})


class FormerLeaderTransport(GossipingTransport):
    """Publishes versions after its last one in its term, once another trainer leads.

    They are well formed, and their weights are those of its last version.
    """

    pause_seconds = PAUSE_SECONDS

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._newest: Signed[CheckpointManifest] | None = None

    @override
    async def act(self, replica: Replica) -> None:
        me = self.parts.signer.peer_id
        if replica.leader == me:
            self._newest = None
            return
        checkpoints = replica.ledger.chain.checkpoints
        own = [entry.manifest for entry in checkpoints if entry.manifest.signer == me]
        self._newest = self._newest or (own[-1] if own else None)
        if self._newest is None or self._newest.message.version >= replica.manifest.grpo.steps:
            return
        before = self._newest.message
        changes = {
            "version": before.version + 1,
            "parent": self._newest.digest,
            "batch": (),
            "omitted": (),
            "created_at": round(self.parts.ports.clock.now() * 1000),
        }
        self._newest = seal(before.model_copy(update=changes), replica.run_id, self.parts.signer)
        await self.publish(replica, Topic.CHECKPOINTS, self._newest.message)


def two_versions(parts: Parts, _rng: Rng) -> Parts:
    """Publish two versions of each number, for different peers."""
    return parts.with_ports(transport=TwoVersionsTransport(parts))


def empty_batch(parts: Parts, _rng: Rng) -> Parts:
    """Publish versions that state no batch."""
    return parts.with_ports(transport=EmptyBatchTransport(parts))


def former_leader(parts: Parts, _rng: Rng) -> Parts:
    """Go on publishing after its term."""
    return parts.with_ports(transport=FormerLeaderTransport(parts))
