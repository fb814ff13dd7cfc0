"""Concurrent slots: their start, the order of commits, and their end."""

import asyncio

import pytest

from protocol.ledger.worker_stats import CREDIT_MAX
from protocol.rollout.assignment import assign
from protocol.rollout.body import decode_body
from roles.inference import flow as flow_module
from roles.inference.flow import InferenceFlow
from roles.inference.slots import RolloutPipeline
from roles.ports.engines import EngineError
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.shared_lock import SharedLock
from tests.worlds.flow_world import Engine, FlowWorld, Task, Unsure
from tests.worlds.messages import found, set_outcome

pytestmark = pytest.mark.virtual

EPOCH_SECONDS = 10.0
PLENTY = {"rollouts_per_step": 16, "rollouts_ahead": 2}
MORE = {"rollouts_per_step": 128, "rollouts_ahead": 3}


class Busy(Engine):
    """Takes ``seconds`` per call in order, the last value for all others; records their overlap."""

    def __init__(self, *seconds):
        super().__init__()
        self.seconds = list(seconds)
        self.turns = SharedLock()
        self.begun = self.ended = 0
        self.most = 0

    @property
    def running(self):
        return self.begun - self.ended

    async def load(self, policy):
        async with self.turns.alone():
            await super().load(policy)

    async def generate(self, requests, temperature):
        async with self.turns.together():
            seconds = self.seconds[min(self.begun, len(self.seconds) - 1)]
            self.begun += 1
            self.most = max(self.most, self.running)
            try:
                await asyncio.sleep(seconds)
                return await super().generate(requests, temperature)
            finally:
                self.ended += 1


def flow_of(world, engine, task=None, at_once=4):
    """Return a flow that begins so many slots at once; its slots are ``world.making``."""

    def noted(*arguments):
        world.making = RolloutPipeline(*arguments)
        world.making.concurrency.limit = at_once
        return world.making

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flow_module, "RolloutPipeline", noted)
        return InferenceFlow(world.context, engine, task or world.asked(Task()))


def started(tmp_path, engine, at_once=4, task=None, **options):
    options.setdefault("grpo", PLENTY)
    world = FlowWorld(tmp_path, "worker 0", **options)
    return world, flow_of(world, engine, task, at_once)


def slots(world):
    return [(one.message.version, one.message.slot) for one in world.network.published]


def settle_all(world):
    for signed in world.network.published:
        entry = world.replica.ledger.commits.entries[signed.digest]
        if entry.certificate is None:
            set_outcome(world.replica.ledger, world.world.certificate(signed), found())
    world.changes.notify()


async def settling(world, seconds):
    """Let time pass; every commit is certified within a second."""
    for _ in range(round(seconds)):
        await world.rest(1)
        settle_all(world)


async def test_slots_are_made_together_and_committed_in_their_order(tmp_path):
    """The first one takes longest."""
    engine = Busy(9, 3, 6, 1)
    world, flow = started(tmp_path, engine)
    world.run(flow)
    await world.rest(8)
    assert engine.most == 4
    assert slots(world) == []
    assert str(world.conditions) == "", "nothing was tried and refused"
    await world.rest(3)
    settle_all(world)
    await settling(world, 4)
    assert slots(world)[:4] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    for signed in world.network.published:
        body = decode_body(await world.context.blobs.get(signed.message.body), world.manifest)
        assert sum(len(item.tokens) for item in body) == signed.message.tokens
    await world.stop()


async def test_no_more_is_begun_than_the_engine_is_worth(tmp_path):
    engine = Busy(3)
    world, flow = started(tmp_path, engine, at_once=2)
    world.run(flow)
    await settling(world, 30)
    assert engine.most == 2
    assert len(slots(world)) > 8
    await world.stop()


async def test_demand_decides_how_many_are_begun(tmp_path):
    """Three are wanted: fifty would be discarded."""
    engine = Busy(5)
    grpo = {"rollouts_per_step": 3, "rollouts_ahead": 1}
    world, flow = started(tmp_path, engine, at_once=50, grpo=grpo)
    world.run(flow)
    await world.rest(3)
    assert engine.begun == 3
    await settling(world, 60)
    assert engine.begun == 3, "they wait for a version to learn from them"
    world.version(*world.network.published)
    await world.rest(1)
    assert engine.begun == 6
    await world.stop()


async def test_demand_is_shared_among_workers(tmp_path):
    """Workers do not see each other's unfinished rollouts, so each would make all of them."""
    engine = Busy(5)
    grpo = {"rollouts_per_step": 8, "rollouts_ahead": 1}
    world, flow = started(tmp_path, engine, at_once=50, grpo=grpo)
    world.live(*world.world.workers, roles=("inference",))
    world.run(flow)
    await world.rest(3)
    assert engine.begun == 8 // 3
    await world.stop()


async def test_worker_begins_its_share_of_slots_by_deliveries(tmp_path):
    engine = Busy(5)
    grpo = {"rollouts_per_step": 8, "rollouts_ahead": 1}
    world, flow = started(tmp_path, engine, at_once=50, grpo=grpo)
    world.live(*world.world.workers, roles=("inference",))
    chain = world.world.chain(world.signer, 3, checkpoint=world.replica.ledger.chain.head.digest)
    other = world.world.commit(
        world.world.workers[1], checkpoint=world.replica.ledger.chain.head.digest
    )
    for commit in (*chain, other):
        world.take(commit)
        set_outcome(world.replica.ledger, world.world.certificate(commit), found())
    world.version(*chain, other)
    world.run(flow)
    await world.rest(3)
    assert engine.begun == 8 * 3 // 4
    await world.stop()


async def test_worker_has_at_most_half_of_the_ledgers_slots_open(tmp_path):
    engine = Busy(1)
    world, flow = started(tmp_path, engine, at_once=20, grpo=MORE)
    world.run(flow)
    await world.rest(5)
    assert len(slots(world)) == 2, "nobody knows it yet"
    await settling(world, 20)
    made = len(slots(world))
    await world.rest(5)
    assert len(slots(world)) - made <= CREDIT_MAX
    assert world.replica.ledger.commits.in_flight(world.signer.peer_id) == CREDIT_MAX
    assert len(world.making) == 19
    await world.stop()


async def test_a_new_version_waits_for_what_runs_and_nothing_of_the_old_one_is_begun(tmp_path):
    engine = Busy(4, 5, 8)
    world, flow = started(tmp_path, engine)
    world.run(flow)
    await world.rest(1)
    assert engine.begun == 4
    world.version(policy=world.hold(1, b"policy 1").digest)
    await world.rest(5)
    assert engine.begun == 4, "two have ended"
    assert engine.loads == [0]
    assert slots(world) == [(0, 0), (0, 1)], "they are committed to meanwhile"
    await settling(world, 6)
    assert engine.loads == [0, 1]
    assert slots(world) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    await settling(world, 12)
    assert slots(world)[4:8] == [(1, 4), (1, 5), (1, 6), (1, 7)]
    await world.stop()


async def test_slots_of_old_versions_are_dropped(tmp_path):
    engine = Busy(1000, 1000, 1)
    world, flow = started(tmp_path, engine, at_once=2, grpo=PLENTY | {"async_level": 1})
    world.run(flow)
    await world.rest(1)
    for _ in range(2):
        head = world.replica.ledger.chain.version
        world.version(policy=world.hold(head + 1, b"policy %d" % (head + 1)).digest)
    await world.rest(3)
    assert engine.loads == [0, 2]
    assert {version for version, _ in slots(world)} == {2}
    assert slots(world)[0] == (2, 0)
    await world.stop()


async def test_slots_of_superseded_versions_or_slashed_workers_are_dropped(tmp_path):
    engine = Busy(1, 1000)
    world, flow = started(tmp_path, engine, at_once=3)
    world.run(flow)
    await world.rest(3)
    assert slots(world) == [(0, 0)]
    assert engine.running == 3
    lie = world.world.certificate(world.network.published[0], accepted=False, escalated=True)
    set_outcome(world.replica.ledger, lie, found("computation"))
    world.changes.notify()
    await world.rest(30)
    assert engine.running == 0
    assert engine.begun == 4
    await world.stop()


async def test_failure_of_several_slots_counts_once(tmp_path):
    """The rollouts fail one after another, the last one while the role pauses."""
    engine = Busy(1, 1.5, 2, 2.5, 1)
    engine.errors = [EngineError("CUDA out of memory")] * 4
    world, flow = started(tmp_path, engine)
    world.run(flow)
    await world.rest(4)
    assert engine.ended == 4
    assert "CUDA out of memory; trying again" in str(world.conditions)
    assert engine.begun == 4, "nothing is begun meanwhile"
    await settling(world, 0.5 * EPOCH_SECONDS + 1)
    assert str(world.conditions) == "", "one pause"
    assert world.making.concurrency.limit == 2, "it may have been too much at once"
    await settling(world, 5)
    assert slots(world)[:4] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert engine.loads == [0, 0]
    await world.stop()


async def test_finished_slots_survive_the_failure_of_another(tmp_path):
    engine = Busy(3, 1)
    generate = engine.generate

    async def first_fails(*arguments):
        number = engine.begun
        made = await generate(*arguments)
        if number == 0:
            raise EngineError("gone")
        return made

    engine.generate = first_fails
    world, flow = started(tmp_path, engine)
    world.run(flow)
    await settling(world, 20)
    assert slots(world)[:4] == [(0, 0), (0, 1), (0, 2), (0, 3)]
    assert engine.begun == len(slots(world)) + len(world.making) + 1
    await world.stop()


async def test_a_slot_that_failed_is_made_again_with_a_newer_version_and_later_ones_wait(tmp_path):
    """The first one failed, and a new version arrived before its retry."""
    engine = Busy(1, 3, 3, 3, 2 * EPOCH_SECONDS)
    engine.errors = [EngineError("gone")]
    world, flow = started(tmp_path, engine)
    world.run(flow)
    await world.rest(2)
    world.version(policy=world.hold(1, b"policy 1").digest)
    await world.rest(2 * EPOCH_SECONDS)
    assert slots(world) == []
    assert engine.loads == [0, 1]
    await settling(world, 4 * EPOCH_SECONDS)
    assert slots(world)[:4] == [(1, 0), (0, 1), (0, 2), (0, 3)]
    await world.stop()


async def test_a_slot_of_a_superseded_version_is_made_again_with_a_newer_one(tmp_path):
    engine = Busy(6, 6, 6, 6, 1)
    world, flow = started(tmp_path, engine, grpo=PLENTY | {"async_level": 0})
    world.run(flow)
    await world.rest(2)
    world.version(policy=world.hold(1, b"policy 1").digest)
    await settling(world, 20)
    assert slots(world)[:4] == [(1, slot) for slot in range(4)]
    await world.stop()


async def test_a_restart_uses_no_slot_twice_and_skips_none(tmp_path):
    world, flow = started(tmp_path, Busy(1, 2, 50, 1))
    world.run(flow)
    await settling(world, 5)
    assert slots(world) == [(0, 0), (0, 1)]
    assert len(world.making) >= 3
    await world.stop()
    again = flow_of(world, Busy(1))
    world.run(again)
    await settling(world, 10)
    assert slots(world)[:8] == [(0, slot) for slot in range(8)]
    assert world.replica.ledger.workers.forks == {}
    await world.stop()


@pytest.mark.parametrize("unsure", [0, 2])
async def test_a_slot_without_a_score_is_left_out_and_no_other(tmp_path, unsure):
    """Slots without a score are found in any order."""
    engine = Busy(9, 5, 3, 1)
    world, _ = started(tmp_path / "a", engine)
    task = Unsure(world.background)
    items = assign(world.manifest, world.signer.peer_id, unsure)
    task.unsure[items[1].problem_seed] = None
    flow = flow_of(world, engine, task)
    world.run(flow)
    await settling(world, 60)
    made = [slot for _, slot in slots(world)]
    assert made == [slot for slot in range(len(made) + 1) if slot != unsure]
    assert len(made) > 8
    assert str(world.conditions) == ""
    await world.stop()


@pytest.mark.parametrize("error", [RefusedError("not now"), StorageFullError("the store")])
async def test_uncommitted_slots_are_kept_for_a_retry(tmp_path, error):
    engine = Busy(1, 1, 1, 1, 1000)
    world, flow = started(tmp_path, engine)
    world.network.errors += [error] * 3
    world.run(flow)
    await world.rest(8)
    assert slots(world) == []
    assert engine.begun == 4
    await settling(world, 30)
    assert slots(world) == [(0, 0), (0, 1), (0, 2), (0, 3)]
    await world.stop()


async def test_slots_that_another_disk_used_are_not_used_again(tmp_path):
    """Peers may send or announce own commits of this key while slots are in progress."""
    engine = Busy(5)
    world, flow = started(tmp_path, engine)
    world.run(flow)
    await world.rest(2)
    former = world.world.chain(world.signer, 2, checkpoint=world.replica.ledger.chain.head.digest)
    for commit in former:
        world.take(commit)
    await world.rest(8)
    assert {slot for _, slot in slots(world)}.isdisjoint({0, 1})
    made = len(slots(world))
    world.network.first_slot = None
    world.changes.notify()
    await settling(world, 30)
    assert len(slots(world)) == made
    assert world.replica.ledger.workers.forks == {}
    assert engine.running == 0
    await world.stop()


async def test_a_worker_learns_how_much_its_engine_is_worth(tmp_path):
    """An engine that computes four rollouts in the time of one gets four."""
    engine = Busy(8)
    world, flow = started(tmp_path, engine, at_once=1, grpo=MORE)
    world.run(flow)
    await settling(world, 200)
    assert world.making.concurrency.limit >= 4
    assert engine.most >= 4
    await world.stop()
