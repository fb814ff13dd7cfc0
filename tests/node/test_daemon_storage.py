"""What a stranger's messages can do to the storage of others: nothing."""

import asyncio

from node.gossip.driver import Gossip
from protocol.crypto import Identity, digest
from protocol.messages import RolloutCommit, seal
from protocol.rng import Rng
from protocol.shardcast import index as shard_index
from protocol.types import Role, Topic, ValidationResult
from tests.worlds.memory_transport import LoopClock, eventually, run_virtual
from tests.worlds.swarm_world import SwarmWorld, ToyEngines, ToyTrainer

MACHINES = [
    ("trainer", Role.TRAINER),
    *((f"validator-{number}", Role.VALIDATOR) for number in range(3)),
    *((f"worker-{number}", Role.INFERENCE) for number in range(2)),
    ("late", Role.INFERENCE),
]


class SlowEngines(ToyEngines):
    def training(self, manifest):
        return ToyTrainer(12.0)


class Stranger:
    """A free key without a record, which gossips what it likes."""

    def __init__(self, world):
        self.world = world
        self.identity = Identity(digest(b"stranger"))
        transport = world.hub.transport(self.identity.peer_id)
        self.gossip = Gossip(transport, self.identity, LoopClock(), Rng(bytes(32)))
        self.run_id = world.manifest.manifest.run_id
        self.topic = f"prime-node/1/{self.run_id.hex()}/{Topic.COMMITS}"

    async def join(self):
        await self.gossip.start()
        self.gossip.subscribe(self.topic, lambda *_: ValidationResult.IGNORE)
        for machine in self.world.machines.values():
            if machine.daemon is not None:
                self.world.hub.connect(self.identity.peer_id, machine.identity.peer_id)
        await asyncio.sleep(4)

    async def commit_to(self, bodies, ledger, epoch):
        """Promise rollouts of version 0 whose bodies are blobs of others."""
        sampling, previous = self.world.manifest.manifest.sampling, b""
        for slot, (body, body_bytes) in enumerate(bodies):
            commit = seal(
                RolloutCommit(
                    epoch=epoch,
                    version=0,
                    checkpoint=ledger.checkpoint(0).digest,
                    slot=slot,
                    previous=previous,
                    body=body,
                    body_bytes=body_bytes,
                    sequences=sampling.group_size * sampling.prompts_per_rollout,
                    tokens=1,
                ),
                self.run_id,
                self.identity,
            )
            previous = commit.digest
            await self.gossip.publish(self.topic, commit.envelope)


def test_who_names_the_weights_of_others_as_its_rollouts_deletes_none_of_them(tmp_path):
    """The commits are judged or expire, and are old at once: everybody cleans up after them."""

    async def scenario():
        world = SwarmWorld(
            tmp_path,
            MACHINES,
            grpo__rollouts_per_step=1,
            grpo__steps=5,
            shardcast__versions_kept=3,
        )
        for machine in world.machines.values():
            machine.engines = SlowEngines()
        for name in list(world.machines)[:-1]:
            world.start(name)
        trainer = world.machines["trainer"]
        await eventually(lambda: trainer.daemon.replica.ledger.version == 5, 300)
        await asyncio.sleep(10)
        stranger = Stranger(world)
        await stranger.join()
        replica, manifest = trainer.daemon.replica, world.manifest.manifest
        ledger = replica.ledger
        index = shard_index.decode(await trainer.blobs.get(ledger.head.message.index))
        targets = [
            (ledger.head.message.index, ledger.head.message.index_bytes),
            *((shard.digest, shard.length) for shard in index.shards),
        ]
        wanted = {body for body, _ in targets}
        running = [machine for machine in world.machines.values() if machine.daemon is not None]
        assert all(wanted <= machine.blobs.complete.keys() for machine in running)
        await stranger.commit_to(targets, ledger, manifest.epoch_at(LoopClock().now()))
        await asyncio.sleep(2)
        taken = [e for e in ledger.entries.values() if e.commit.message.body in wanted]
        assert taken, "nobody has heard of it"
        await asyncio.sleep((manifest.committee.expire_after_epochs + 3) * manifest.epochs.seconds)
        for machine in running:
            assert wanted <= machine.blobs.complete.keys(), machine.name
        world.start("late")
        late = world.machines["late"].daemon
        await eventually(lambda: late._policies.get(5) is not None, 60)
        await stranger.gossip.stop()
        await world.stop()

    run_virtual(scenario())
