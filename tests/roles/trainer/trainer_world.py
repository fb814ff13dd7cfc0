"""A trainer's flow over a real replica, with certified rollouts to learn from."""

from protocol.core.crypto import digest
from protocol.messages import CheckpointManifest
from protocol.rollout.body import RolloutSequence, encode_body
from roles.trainer.flow import TrainerFlow
from tests.worlds.flow_world import ANSWER, END, FlowWorld, Task, Trainer
from tests.worlds.messages import found, set_outcome

EPOCH_SECONDS = 10.0


class World(FlowWorld):
    def __init__(self, tmp_path, name="trainer 0", **sections):
        sections.setdefault("trainers", 2)
        super().__init__(tmp_path, name, **sections)
        self.engine = Trainer()
        self.environment = Task()
        self.flow = TrainerFlow(self.context, self.engine, self.asked(self.environment))
        self.files.genesis.write_bytes(b"policy 0")

    def start(self):
        """Run as a live member."""
        self.live(self.signer, policy_version=-1)
        self.run(self.flow)

    def rollout(self, body=None, worker=0, *, version=None, held=True, certified=True):
        """Accept a certified commit to ``body``, by default an honest one, and store its body."""
        signer = self.world.workers[worker]
        count = self.manifest.sampling.group_size * self.manifest.sampling.prompts_per_rollout
        good = RolloutSequence((ANSWER, END), (-0.5, -0.5), 1_000_000, (b"proof",))
        version = self.version_now if version is None else version
        number = self.replica.ledger.commits.next_slot(signer.peer_id)
        unique = RolloutSequence((ANSWER, END), (-0.5, -0.5), number, (signer.public_key,))
        data = encode_body([good] * (count - 1) + [unique]) if body is None else body
        signed = self.world.commit(
            signer,
            number,
            epoch=self.context.epoch(),
            version=version,
            checkpoint=self.replica.ledger.chain.get(version).digest,
            body=digest(data),
            body_bytes=len(data),
            tokens=2 * count,
        )
        self.take(signed)
        if certified:
            set_outcome(self.replica.ledger, self.world.certificate(signed), found())
        if held:
            self.network.bodies[digest(data)] = data
        self.changes.notify()
        return signed

    def batch(self):
        return [self.rollout(worker=worker) for worker in range(2)]

    @property
    def version_now(self):
        return self.replica.ledger.chain.version

    @property
    def published(self) -> list[CheckpointManifest]:
        return [signed.message for signed in self.network.published]


def fresh(tmp_path, **options):
    """Return a world without any version."""
    return World(tmp_path, begun=False, **options)


async def led(world):
    """Let the trainer publish version 0."""
    world.start()
    await world.rest(5)
    assert [item.version for item in world.published] == [0]
