import asyncio

import pytest

from protocol.crypto import digest
from protocol.messages import CheckpointManifest
from protocol.rollout import RolloutSequence, encode_body
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.trainer.flow import TrainerFlow
from tests.worlds.flow_world import ANSWER, END, FlowWorld, Task, Trainer
from tests.worlds.memory_transport import run_virtual
from tests.worlds.messages import identity

EPOCH_SECONDS = 10.0


class World(FlowWorld):
    def __init__(self, tmp_path, name="trainer 0", **sections):
        sections.setdefault("trainers", 2)
        super().__init__(tmp_path, name, **sections)
        self.engine = Trainer()
        self.flow = TrainerFlow(self.context, self.engine, Task())
        self.policies.genesis = tmp_path / "genesis"
        self.policies.genesis.write_bytes(b"policy 0")

    def start(self):
        """Run, as a live member."""
        self.live(self.signer, policy_version=-1)
        self.run(self.flow)

    def rollout(self, body=None, worker=0, *, version=None, held=True, certified=True):
        """Take a certified commit to ``body``, by default an honest one, and hold its body."""
        signer = self.world.workers[worker]
        count = self.manifest.sampling.group_size * self.manifest.sampling.prompts_per_rollout
        good = RolloutSequence((ANSWER, END), (-0.5, -0.5), 1_000_000, (b"proof",))
        version = self.version_now if version is None else version
        number, previous = self.replica.ledger.next_slot(signer.peer_id, version)
        unique = RolloutSequence((ANSWER, END), (-0.5, -0.5), number, (signer.public_key,))
        data = encode_body([good] * (count - 1) + [unique]) if body is None else body
        signed = self.world.commit(
            signer,
            number,
            previous,
            epoch=self.context.epoch(),
            version=version,
            checkpoint=self.replica.ledger.checkpoint(version).digest,
            body=digest(data),
            body_bytes=len(data),
            tokens=2 * count,
        )
        self.take(signed)
        if certified:
            self.replica.ledger.offer_certificate(self.world.certificate(signed), "")
        if held:
            self.network.bodies[digest(data)] = data
        self.changes.notify()
        return signed

    def batch(self):
        return [self.rollout(worker=worker) for worker in range(2)]

    @property
    def version_now(self):
        return self.replica.ledger.version

    @property
    def published(self) -> list[CheckpointManifest]:
        return [signed.message for signed in self.network.published]


def fresh(tmp_path, **options):
    """Return a world in which nothing has been published."""
    return World(tmp_path, begun=False, **options)


async def led(world):
    """Let the trainer publish version 0."""
    world.start()
    await world.rest(5)
    assert [item.version for item in world.published] == [0]


def test_it_begins_learns_and_publishes(tmp_path):
    async def scenario():
        world = fresh(tmp_path)
        await led(world)
        first = world.batch()
        await world.rest(2)
        assert [item.version for item in world.published] == [0, 1]
        message = world.published[1]
        assert set(message.batch) == {signed.digest for signed in first}
        assert message.parent == world.network.published[0].digest
        assert message.term == 0
        count = world.manifest.sampling.group_size * world.manifest.sampling.prompts_per_rollout
        (batch,) = world.engine.batches
        assert len(batch) == 2 * count
        assert {item.group for item in batch} == {0, 1, 2, 3}
        assert message.reward_mean == 1_000_000, "rewards are recomputed"
        world.batch()
        await world.rest(2)
        assert [item.version for item in world.published] == [0, 1, 2]
        assert str(world.conditions) == ""
        await world.stop()

    run_virtual(scenario())


def test_it_waits_until_it_is_told_what_it_missed(tmp_path):
    async def scenario():
        world = fresh(tmp_path)
        world.network.synchronised = False
        world.start()
        await world.rest(30)
        assert world.published == []
        assert world.engine.loaded == []
        await world.stop()

    run_virtual(scenario())


def test_it_does_not_begin_a_run_that_others_know(tmp_path):
    """Then it has lost its disk, and must not use version 0 again."""

    async def scenario():
        world = World(tmp_path, begun=False)
        await asyncio.sleep(5)
        world.live(world.world.validators[0], roles=("validator",), policy_version=3)
        world.start()
        await world.rest(20)
        assert world.published == []
        assert "what others know" in str(world.conditions)
        await world.stop()

    run_virtual(scenario())


def test_a_stranger_cannot_keep_it_from_beginning(tmp_path):
    async def scenario():
        world = fresh(tmp_path)
        world.live(identity("stranger"), roles=("relay",), policy_version=9)
        await led(world)
        await world.stop()

    run_virtual(scenario())


def test_without_a_genesis_policy_it_waits(tmp_path):
    async def scenario():
        world = World(tmp_path, begun=False)
        world.policies.genesis = None
        world.start()
        await world.rest(20)
        assert "waiting for the genesis policy" in str(world.conditions)
        await world.stop()

    run_virtual(scenario())


def test_a_genesis_policy_of_another_run_is_told(tmp_path):
    async def scenario():
        world = World(tmp_path, begun=False)
        world.engine.damaged["genesis"] = None
        world.start()
        await world.rest(20)
        assert "is not the genesis policy" in str(world.conditions)
        await world.stop()

    run_virtual(scenario())


def test_weights_that_came_out_otherwise_are_not_published(tmp_path):
    async def scenario():
        world = World(tmp_path, begun=False)
        world.engine.learned = 7  # it writes something else than it read
        world.start()
        await world.rest(20)
        assert world.published == []
        assert "wrong-genesis" in str(world.conditions)
        await world.stop()

    run_virtual(scenario())


# Whose turn it is


def test_the_next_in_line_waits_for_the_ones_before_it(tmp_path):
    async def scenario():
        world = World(tmp_path, "trainer 1", epochs={"seconds": 10.0, "record_epochs": 20})
        world.start()
        await world.rest(190)
        assert world.engine.loaded == []
        world.live(world.signer, policy_version=0)
        await world.rest(20)
        assert world.engine.loaded == ["v0.safetensors"]
        world.live(*world.world.validators, roles=("validator",), policy_version=0)
        world.batch()
        await world.rest(5)
        assert [(item.version, item.term) for item in world.published] == [(1, 1)]
        await world.stop()

    run_virtual(scenario())


def test_what_held_it_up_is_forgotten_when_another_one_leads(tmp_path):
    async def scenario():
        world = World(tmp_path)
        world.policies.held.clear()
        world.start()
        await world.rest(10)
        assert "waiting for the weights of version 0" in str(world.conditions)
        world.live(world.world.trainers[1], policy_version=0)
        world.version(trainer=1, term=1)
        await world.rest(10)
        assert str(world.conditions) == ""
        await world.stop()

    run_virtual(scenario())


def test_a_complete_run_is_left_alone(tmp_path):
    async def scenario():
        world = World(tmp_path, grpo={"steps": 1})
        world.start()
        world.version()
        await world.rest(20)
        assert world.engine.loaded == []
        await world.stop()

    run_virtual(scenario())


# Where it goes on from


def own_head(world, version=1):
    """Let the head be a version of ours, whose state is on our disk."""
    world.version()
    world.policies.state_path(version).write_text("state")
    world.hold(version, b"policy 1")


def test_it_goes_on_from_its_own_state_and_says_again_what_it_said_last(tmp_path):
    async def scenario():
        world = World(tmp_path)
        own_head(world)
        world.start()
        await world.rest(5)
        assert world.engine.loaded == ["v1.state"]
        assert world.network.announced == [world.replica.ledger.head.envelope]
        world.batch()
        await world.rest(5)
        assert [(item.version, item.term) for item in world.published] == [(2, 0)]
        await world.stop()

    run_virtual(scenario())


@pytest.mark.parametrize("published", ["good", "damaged", "of other weights", "gone"])
def test_a_damaged_state_is_replaced_and_the_term_raised(tmp_path, published):
    async def scenario():
        world = World(tmp_path)
        world.version(state=digest(b"state"), state_bytes=5)
        world.policies.state_path(1).write_text("half")
        world.engine.damaged["v1.state"] = None
        world.hold(1, b"policy 1")
        policy = world.replica.ledger.head.message.policy
        world.engine.states["published.state"] = policy
        if published != "gone":
            world.policies.published_state = tmp_path / "published.state"
        if published == "of other weights":
            world.engine.states["published.state"] = digest(b"other weights")
        if published == "damaged":
            world.engine.damaged["published.state"] = None
        world.start()
        await world.rest(5)
        expected = "published.state" if published == "good" else "v1.safetensors"
        assert world.engine.loaded == [expected]
        assert world.network.announced == []
        world.batch()
        await world.rest(5)
        assert [(item.version, item.term) for item in world.published] == [(2, 2)]
        await world.stop()

    run_virtual(scenario())


def test_its_own_state_of_a_version_that_it_made_twice_is_not_used(tmp_path):
    """It made version 1 again, and was killed before it could publish it."""

    async def scenario():
        world = World(tmp_path)
        own_head(world)
        world.engine.states["v1.state"] = digest(b"made again")
        world.start()
        await world.rest(5)
        assert world.engine.loaded == ["v1.safetensors"]
        await world.stop()

    run_virtual(scenario())


@pytest.mark.parametrize("state_bytes", [100, 101, 2**53])
def test_a_state_is_fetched_only_if_it_can_be_one(tmp_path, state_bytes):
    async def scenario():
        world = World(tmp_path)
        world.policies.published_state = tmp_path / "published.state"
        world.version(trainer=1, term=1, state=digest(b"state"), state_bytes=state_bytes)
        world.hold(1, b"policy 1")
        world.start()
        await world.rest(5)
        usable = state_bytes <= world.engine.state_bytes_max
        assert world.engine.loaded == ["published.state" if usable else "v1.safetensors"]
        await world.stop()

    run_virtual(scenario())


def test_weights_that_are_refused_are_handed_back(tmp_path):
    async def scenario():
        world = World(tmp_path)
        policy = world.policies.held[0]
        world.engine.damaged[policy.path.name] = None
        world.start()
        await world.rest(15)
        assert world.policies.discarded == [0]
        assert "waiting for the weights" in str(world.conditions)
        world.engine.damaged.clear()
        world.policies.held[0] = policy
        await world.rest(15)
        assert world.engine.loaded == ["v0.safetensors"]
        await world.stop()

    run_virtual(scenario())


def test_no_room_for_a_state_is_told_and_waited_for(tmp_path):
    async def scenario():
        world = World(tmp_path)
        world.version(state=digest(b"state"), state_bytes=5)
        world.policies.errors.append(StorageFullError("no room"))
        world.policies.published_state = tmp_path / "published.state"
        world.start()
        await world.rest(5)
        assert "disk full" in str(world.conditions)
        await world.rest(15)
        assert world.engine.loaded == ["published.state"]
        assert str(world.conditions) == ""
        await world.stop()

    run_virtual(scenario())


LIFE_EPOCHS = 12


def orphaned(tmp_path):
    """Return a world whose newest version died with its trainer before anybody had it."""
    world = World(tmp_path, epochs={"seconds": EPOCH_SECONDS, "record_epochs": LIFE_EPOCHS})
    batch = world.batch()
    world.version(*batch, trainer=1, term=1)
    return world, batch


def test_a_version_that_died_with_its_trainer_is_made_again(tmp_path):
    async def scenario():
        world, batch = orphaned(tmp_path)
        lost = world.replica.ledger.head
        world.start()
        await world.rest(LIFE_EPOCHS * EPOCH_SECONDS - 10)
        assert world.engine.loaded == []
        assert "waiting for the weights of version 1" in str(world.conditions)
        world.live(world.signer, policy_version=0)
        await world.rest(30)
        assert world.engine.loaded == ["v0.safetensors"]
        fresh = [world.rollout(worker=worker, version=0) for worker in range(2)]
        await world.rest(5)
        made, after = world.published
        assert (made.version, made.parent) == (1, lost.message.parent)
        assert made.term > lost.message.term
        assert set(made.batch) == {signed.digest for signed in fresh}
        assert set(after.batch) == {signed.digest for signed in batch}, "they were given back"
        assert str(world.conditions) == ""
        await world.stop()

    run_virtual(scenario())


def test_a_version_that_somebody_holds_is_waited_for(tmp_path):
    async def scenario():
        world, _ = orphaned(tmp_path)
        world.start()
        await world.rest(LIFE_EPOCHS * EPOCH_SECONDS - 10)
        world.live(world.signer, policy_version=0)
        holder = world.world.validators[0]
        world.live(holder, roles=("validator",), policy_version=1)
        await world.rest(60)
        assert world.published == []
        world.hold(1, b"policy 1")
        world.changes.notify()
        await world.rest(5)
        assert world.engine.loaded == ["v1.safetensors"]
        await world.stop()

    run_virtual(scenario())


# Bodies


def test_a_few_lost_bodies_hold_nothing_up(tmp_path):
    async def scenario():
        world = World(tmp_path, grpo={"rollouts_per_step": 2, "rollouts_ahead": 9})
        world.start()
        lost = [world.rollout(worker=n % 2, held=False) for n in range(6)]
        assert len(lost) == 6
        await world.rest(10)
        assert world.published == []
        good = [world.rollout(worker=2) for _ in range(2)]
        await world.rest(20)
        assert [set(item.batch) for item in world.published] == [{item.digest for item in good}]
        await world.stop()

    run_virtual(scenario())


def test_a_body_is_asked_of_its_worker_and_of_who_certified_it(tmp_path):
    async def scenario():
        world = World(tmp_path)
        world.start()
        first, _ = world.batch()
        await world.rest(3)
        sources = dict(world.network.asked)[first.message.body]
        entry = world.replica.ledger.entries[first.digest]
        assert sources[0] == first.signer
        assert entry.certificate.signer in sources
        await world.stop()

    run_virtual(scenario())


@pytest.mark.parametrize(
    "body", [b"nonsense", encode_body([RolloutSequence((99, END), (-0.5, -0.5), 0, ())] * 4)]
)
def test_a_certified_body_that_cannot_be_is_not_learned_from(tmp_path, body):
    """A committee may have lied; the model must not choke on what it let through."""

    async def scenario():
        world = World(tmp_path)
        world.start()
        wrong = world.rollout(body)
        good = [world.rollout(worker=worker) for worker in (1, 2)]
        await world.rest(20)
        assert [set(item.batch) for item in world.published] == [{item.digest for item in good}]
        assert wrong.digest not in world.published[0].batch
        await world.stop()

    run_virtual(scenario())


def test_nothing_is_learned_from_without_a_certificate(tmp_path):
    async def scenario():
        world = World(tmp_path)
        world.start()
        world.rollout(worker=0)
        world.rollout(worker=1, certified=False)
        await world.rest(30)
        assert world.engine.batches == []
        await world.stop()

    run_virtual(scenario())


# Publication


def test_a_full_disk_delays_a_version_at_every_write(tmp_path):
    async def scenario():
        world = World(tmp_path)
        world.engine.full = 2
        world.policies.errors.append(StorageFullError("no room"))
        world.network.errors.append(StorageFullError("no room"))
        world.start()
        world.batch()
        reasons = set()
        for _ in range(50):
            await world.rest(1)
            reasons.add(str(world.conditions))
        assert reasons == {"", "disk full: no room; waiting for room"}
        assert [item.version for item in world.published] == [1]
        assert world.policies.releases == 1
        await world.stop()

    run_virtual(scenario())


def test_a_refused_publication_is_dropped_and_the_swarm_followed(tmp_path):
    async def scenario():
        world = World(tmp_path)
        world.network.errors.append(RefusedError("another one leads"))
        world.start()
        world.batch()
        await world.rest(2)
        assert world.published == []
        await world.rest(20)
        assert [item.version for item in world.published] == [1]
        assert world.engine.loaded == ["v0.safetensors", "v0.safetensors"]
        assert len(world.engine.batches) == 2, "the same batch is learned from again"
        await world.stop()

    run_virtual(scenario())


def test_a_step_that_changed_nothing_is_published_all_the_same(tmp_path):
    """Skipping it would leave its rollouts in everybody's backlog."""

    async def scenario():
        world = World(tmp_path)
        step = world.engine.step

        async def refused(batch):
            metrics = await step(batch)
            return type(metrics)(False, *([0.0] * 4), 0)

        world.engine.step = refused
        world.start()
        world.batch()
        await world.rest(5)
        assert len(world.published[0].batch) == 2
        await world.stop()

    run_virtual(scenario())


def test_a_fault_of_ours_in_a_publication_is_not_lost(tmp_path):
    async def scenario():
        world = World(tmp_path)
        world.policies.errors.append(RuntimeError("our own fault"))
        world.start()
        world.batch()
        await asyncio.sleep(2 * EPOCH_SECONDS)
        assert world.task.done()
        with pytest.raises(RuntimeError, match="our own fault"):
            world.task.result()

    run_virtual(scenario())


def test_a_drain_waits_for_a_publication_only_so_long(tmp_path):
    async def scenario():
        world = World(tmp_path)

        async def never(_policy):
            await asyncio.Event().wait()

        world.policies.release = never
        world.start()
        world.batch()
        await world.rest(3)
        began = world.now()
        await world.stop()
        assert 9 <= world.now() - began <= 11

    run_virtual(scenario())
