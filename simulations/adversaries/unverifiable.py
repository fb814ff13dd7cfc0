"""Keys without reputation that commit to unverifiable rollouts.

The bodies are other nodes' weights, or do not exist.
"""

from typing_extensions import override

from node.network.streams.protocols import BLOBS
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import DIGEST_BYTES, Digest, Topic, Version
from protocol.messages import CheckpointManifest, RolloutCommit, Signed
from protocol.replica.replica import Replica
from protocol.shardcast import index as shard_index
from roles.ports.transport import StreamHandler
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.passthrough import while_acting, word_of
from simulations.adversaries.relays import hold
from simulations.ports.parts import Parts

COMMITS_OPEN_MAX = 12
"""Nodes accept at most 16 of one key; the daemon's own worker, if any, needs some."""


def unfounded(
    replica: Replica,
    head: Signed[CheckpointManifest],
    now: float,
    slot: int,
    body: bytes,
    body_bytes: int = 1,
) -> RolloutCommit:
    """Return a well-formed commit, dated like honest ones, to a body without a rollout."""
    sampling = replica.manifest.sampling
    return RolloutCommit(
        epoch=replica.manifest.epoch_at(now),
        version=Version(head.message.version),
        checkpoint=head.digest,
        slot=slot,
        body=body,
        body_bytes=body_bytes,
        sequences=sampling.group_size * sampling.prompts_per_rollout,
        tokens=1,
    )


class NamingTransport(GossipingTransport):
    """Commits, for every version, to its index, its state and its shards as rollouts.

    They are dated like honest commits. They expire unverified, and a node that deletes the bodies
    of expired commits would then delete weights.
    """

    pause_seconds = 2.0

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._named: dict[Digest, None] = {}
        self._slot = 0

    @override
    async def act(self, replica: Replica) -> None:
        head = replica.ledger.chain.head
        if head is None:
            return
        room = COMMITS_OPEN_MAX - replica.ledger.commits.in_flight(self.parts.signer.peer_id)
        blobs = [blob for blob in self.bodies(head) if blob not in self._named]
        for blob in blobs[:room]:
            self._named[blob] = None
            await self._commit(replica, head, blob)

    def bodies(self, head: Signed[CheckpointManifest]) -> list[Digest]:
        """Return the blobs to commit to: the known ones of the newest version."""
        index, state = Digest(head.message.index), Digest(head.message.state)
        decoded = shard_index.decode(self.parts.disk.blobs.get(index, b""))
        shards = () if isinstance(decoded, Fault) else decoded.shards
        return [index, *([state] if state else []), *(shard.digest for shard in shards)]

    async def _commit(
        self, replica: Replica, head: Signed[CheckpointManifest], body: Digest
    ) -> None:
        now = self.parts.ports.clock.now()
        body_bytes = len(self.parts.disk.blobs.get(body, b"?"))
        commit = unfounded(replica, head, now, self._slot, body, body_bytes)
        self._slot += 1
        await self.publish(replica, Topic.COMMITS, commit)


class JunkTransport(NamingTransport):
    """Commits to bodies that do not exist, and stalls requests for them."""

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts)
        self._rng = rng

    @override
    def bodies(self, head: Signed[CheckpointManifest]) -> list[Digest]:
        return [Digest(self._rng.bytes(DIGEST_BYTES))]

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        if word_of(protocol) == BLOBS.word:
            handler = while_acting(self.parts, hold, handler)
        await super().handle(protocol, handler)


def weights_as_bodies(parts: Parts, _rng: Rng) -> Parts:
    """Commit to rollouts whose bodies are the weights of the newest version."""
    return parts.with_ports(transport=NamingTransport(parts))


def junk_commits(parts: Parts, rng: Rng) -> Parts:
    """Commit to nonexistent rollouts, every two seconds."""
    return parts.with_ports(transport=JunkTransport(parts, rng.child("junk")))
