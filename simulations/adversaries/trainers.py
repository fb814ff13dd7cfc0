"""Trainers that publish invalid versions, beside or instead of their daemon's."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

from typing_extensions import override

from protocol.core.rng import Rng
from protocol.core.types import DIGEST_BYTES, PeerId, Topic
from protocol.ledger.commits import CommitState
from protocol.messages import BATCH_MAX, CheckpointManifest, Signed
from protocol.replica.replica import Replica
from protocol.run.manifest import RunManifest
from roles.ports.engines import StepMetrics, TrainingEngine
from roles.ports.storage import Purpose, StoredFile
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.passthrough import OtherEngines
from simulations.ports.blobs import SimBlobs
from simulations.ports.engines import SimEngines, SimTraining
from simulations.ports.parts import Behaviour, Parts
from simulations.runtime.content import Extent, poisoned_seed, policy_digest

TERM_MAX = 2**53
"""The largest integer in a message."""

INVENTED_COMMITS = 8
REWARD_MILLIONTHS = 1_000_000
PAUSE_EPOCHS = 6
VERSIONS_BEFORE = 3
"""Versions published before a standby acts, so that it has something to roll back."""

MakeTraining = Callable[[Parts, SimEngines, Rng, RunManifest], TrainingEngine]
"""Makes the training engine of one node."""

Forge = Callable[
    [Replica, Signed[CheckpointManifest], CheckpointManifest], CheckpointManifest | None
]
"""``(replica, head, successor)`` to the manifest to publish, if any; the successor repeats the
head's weights."""


class PublishingTransport(GossipingTransport):
    """Publishes a forged version now and then: in its next term, or in its present one."""

    def __init__(self, parts: Parts, forge: Forge) -> None:
        super().__init__(parts)
        self._forge = forge
        self._next_at = 0.0

    @override
    async def act(self, replica: Replica) -> None:
        now, head = self.parts.ports.clock.now(), replica.ledger.chain.head
        me = self.parts.signer.peer_id
        if head is None or head.message.version < VERSIONS_BEFORE or now < self._next_at:
            return
        self._next_at = now + PAUSE_EPOCHS * replica.manifest.epochs.seconds
        successor = head.message.model_copy(
            update={
                "version": head.message.version + 1,
                "term": _own_term(replica, me),
                "parent": head.digest,
                "page": replica.pages.root.digest,
                "batch": (),
                "omitted": (),
                "created_at": round(now * 1000),
            }
        )
        forged = self._forge(replica, head, successor)
        if forged is not None:
            await self.publish(replica, Topic.CHECKPOINTS, forged)


def _own_term(replica: Replica, me: PeerId) -> int:
    """Return the first term from the present one on in which a trainer leads."""
    return next(term for term in count(replica.lead.term) if replica.manifest.leader(term) == me)


def _publishes(forge: Forge) -> Behaviour:
    def behaviour(parts: Parts, _rng: Rng) -> Parts:
        return parts.with_ports(transport=PublishingTransport(parts, forge))

    return behaviour


def _invented(
    _replica: Replica, head: Signed[CheckpointManifest], successor: CheckpointManifest
) -> CheckpointManifest:
    rng = Rng(head.digest)
    batch = tuple(rng.bytes(DIGEST_BYTES) for _ in range(INVENTED_COMMITS))
    return successor.model_copy(update={"batch": batch, "reward_mean": REWARD_MILLIONTHS})


def _stale(
    replica: Replica, _head: Signed[CheckpointManifest], successor: CheckpointManifest
) -> CheckpointManifest | None:
    """Return a version that learned from remaining certified rollouts, if there are any."""
    oldest = successor.version - 1 - replica.manifest.grpo.async_level
    batch = tuple(
        digest
        for digest, entry in replica.ledger.commits.entries.items()
        if entry.version < oldest
        and entry.state is CommitState.CERTIFIED
        and entry.trained_in is None
    )
    return successor.model_copy(update={"batch": batch[:BATCH_MAX]}) if batch else None


def _rolled_back(
    replica: Replica, _head: Signed[CheckpointManifest], successor: CheckpointManifest
) -> CheckpointManifest:
    genesis = replica.ledger.chain.get(0)
    parent = b"" if genesis is None else genesis.digest
    return successor.model_copy(update={"version": 1, "parent": parent})


def _far_term(
    replica: Replica, head: Signed[CheckpointManifest], successor: CheckpointManifest
) -> CheckpointManifest:
    trainers = len(replica.manifest.genesis.trainers)
    far = (TERM_MAX - head.message.term) // trainers - 1
    return successor.model_copy(update={"term": successor.term + far * trainers})


invented_batch = _publishes(_invented)
stale_batch = _publishes(_stale)
rolled_back = _publishes(_rolled_back)
term_jump = _publishes(_far_term)


class PoisonedTraining(SimTraining):
    """Trains, and then replaces the weights by others that are far away."""

    def __init__(self, parts: Parts, machine: SimEngines, rng: Rng, manifest: RunManifest) -> None:
        super().__init__(machine, rng, manifest)
        self._acting = parts.acting

    @override
    async def end_step(self) -> StepMetrics:
        metrics = await super().end_step()
        if self._steps > VERSIONS_BEFORE and self._acting():
            self._seed = poisoned_seed(self._seed)
            poisoned = Extent.of(self._seed, 0, self._machine.workload.weights_bytes)
            self._machine.emit("policy-poisoned", digest=policy_digest(poisoned).hex())
        return metrics


def with_training(parts: Parts, engine: MakeTraining, rng: Rng, label: str) -> Parts:
    """Return a node's parts with another engine for modelled training; ``label`` splits ``rng``."""
    machine = parts.engines
    if not isinstance(machine, SimEngines):
        raise TypeError("only modelled training can be replaced")

    def training(_honest: TrainingEngine, manifest: RunManifest) -> TrainingEngine:
        return engine(parts, machine, rng.child(label), manifest)

    return replace(parts, engines=OtherEngines(machine, training=training))


def poisoned_weights(parts: Parts, rng: Rng) -> Parts:
    """Publish versions whose weights do not follow from the version before."""
    return with_training(parts, PoisonedTraining, rng, "poison")


class PoisonedStates(SimBlobs):
    """Publishes correct weights with an optimiser state that holds other weights."""

    @override
    async def put_file(
        self, path: Path, shard_bytes: int, chunk_bytes: int, purpose: Purpose
    ) -> StoredFile:
        poisoned = path.with_suffix(".poisoned")
        if purpose is Purpose.OPTIMISER_STATE:
            self._disk.files[poisoned] = bytes(self._disk.files[path])[::-1]
            path = poisoned
        return await super().put_file(path, shard_bytes, chunk_bytes, purpose)


def poisoned_state(parts: Parts, _rng: Rng) -> Parts:
    """Publish an optimiser state that does not match the version."""
    return parts.with_ports(blobs=PoisonedStates(parts.disk, parts.session))
