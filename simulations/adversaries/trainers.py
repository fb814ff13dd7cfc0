"""Trainers that publish what they may not, beside or instead of what their daemon publishes."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from typing_extensions import override

from protocol.messages import CheckpointManifest, Signed
from protocol.replica import Replica
from protocol.rng import Rng
from protocol.types import DIGEST_BYTES, Topic
from roles.ports.engines import TrainingEngine
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.passthrough import OtherEngines, PassingTraining
from simulations.ports.parts import Behaviour, Parts
from simulations.ports.storage import Disk

TERM_MAX = 2**53
"""The largest integer that a message carries."""

INVENTED_COMMITS = 8
REWARD_MILLIONTHS = 1_000_000
PAUSE_EPOCHS = 6
VERSIONS_BEFORE = 3
"""Versions that there are before a standby acts: something to roll back."""

Forge = Callable[[Replica, Signed[CheckpointManifest], CheckpointManifest], CheckpointManifest]
"""``(replica, head, successor) -> what to publish``; the successor repeats the head's weights."""


class PublishingTransport(GossipingTransport):
    """Publishes a version of its own now and then while another trainer leads."""

    def __init__(self, parts: Parts, forge: Forge) -> None:
        super().__init__(parts)
        self._forge = forge
        self._next_at = 0.0

    @override
    async def act(self, replica: Replica) -> None:
        now, head = self.parts.ports.clock.now(), replica.ledger.head
        me = self.parts.signer.peer_id
        if head is None or head.message.version < VERSIONS_BEFORE or now < self._next_at:
            return
        if replica.leader(now) in (me, None):
            return
        self._next_at = now + PAUSE_EPOCHS * replica.manifest.epochs.seconds
        successor = head.message.model_copy(
            update={
                "version": head.message.version + 1,
                "term": replica.manifest.term_of(me, head.message.term + 1),
                "parent": head.digest,
                "batch": (),
                "created_at": round(now * 1000),
            }
        )
        await self.publish(replica, Topic.CHECKPOINTS, self._forge(replica, head, successor))


def _publishes(forge: Forge) -> Behaviour:
    def behaviour(parts: Parts, _rng: Rng) -> Parts:
        transport = PublishingTransport(parts, forge)
        return replace(parts, ports=replace(parts.ports, transport=transport))

    return behaviour


def _invented(
    _replica: Replica, head: Signed[CheckpointManifest], successor: CheckpointManifest
) -> CheckpointManifest:
    rng = Rng(head.digest)
    batch = tuple(rng.bytes(DIGEST_BYTES) for _ in range(INVENTED_COMMITS))
    return successor.model_copy(update={"batch": batch, "reward_mean": REWARD_MILLIONTHS})


def _rolled_back(
    replica: Replica, _head: Signed[CheckpointManifest], successor: CheckpointManifest
) -> CheckpointManifest:
    genesis = replica.ledger.checkpoint(0)
    parent = b"" if genesis is None else genesis.digest
    return successor.model_copy(update={"version": 1, "parent": parent})


def _far_term(
    replica: Replica, head: Signed[CheckpointManifest], successor: CheckpointManifest
) -> CheckpointManifest:
    trainers = len(replica.manifest.genesis.trainers)
    far = (TERM_MAX - head.message.term) // trainers - 1
    return successor.model_copy(update={"term": successor.term + far * trainers})


invented_batch = _publishes(_invented)
rolled_back = _publishes(_rolled_back)
term_jump = _publishes(_far_term)


class PoisonedTraining(PassingTraining):
    """Trains honestly, and hands other weights to the trainer that comes after it."""

    def __init__(self, honest: TrainingEngine, disk: Disk, rng: Rng) -> None:
        super().__init__(honest)
        self._disk = disk
        self._rng = rng

    @override
    async def save_state(self, path: Path) -> None:
        await super().save_state(path)
        self._disk.files[path] = self._rng.bytes(len(self._disk.files[path]))


def poisoned_state(parts: Parts, rng: Rng) -> Parts:
    """Publish an optimiser state that is not that of the version."""

    def poisoned(honest: TrainingEngine) -> TrainingEngine:
        return PoisonedTraining(honest, parts.disk, rng.child("state"))

    return replace(parts, engines=OtherEngines(parts.engines, training=poisoned))
