"""Whole swarms of real daemons in virtual time: what must go on when parts of it do not."""

import asyncio
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pytest

from node.streams.protocols import STREAM_PROTOCOLS
from protocol.types import Role
from tests.worlds.memory_transport import eventually, run_virtual
from tests.worlds.messages import all_certified
from tests.worlds.swarm_world import SwarmWorld, ToyEngine, ToyEngines, ToyTask

SMALL = [
    ("relay", Role.RELAY),
    ("trainer", Role.TRAINER),
    ("worker-0", Role.INFERENCE),
    ("worker-1", Role.INFERENCE),
    ("validator-0", Role.VALIDATOR),
    ("validator-1", Role.VALIDATOR),
    ("validator-2", Role.VALIDATOR),
]
PATIENCE_SECONDS = 300


def ledger(world, name="relay"):
    return world.machines[name].daemon.replica.ledger


async def reach(world, version, name="relay"):
    await eventually(lambda: ledger(world, name).version >= version, PATIENCE_SECONDS)


def trained_on_certified_only(world, name="relay"):
    return all_certified(ledger(world, name))


def test_a_swarm_trains_on_certified_rollouts_only(tmp_path):
    async def scenario():
        world = SwarmWorld(tmp_path, SMALL, grpo__steps=5)
        world.start_all()
        await reach(world, 5)
        await asyncio.sleep(5)
        status = world.machines["relay"].daemon.status()
        await world.stop()
        return status

    status = run_virtual(scenario())
    assert status.state == "ready"
    assert status.rollouts.trained == 20
    assert status.rollouts.rejected == 0
    assert sum(point.trained_without_certificate for point in status.checkpoints) == 0
    assert status.policy_lag_max <= 2
    assert {member.policy_version for member in status.members} == {5}


@pytest.mark.parametrize("victim", ["relay", "worker-0", "validator-0"])
def test_training_goes_on_when_a_node_dies(tmp_path, victim):
    async def scenario():
        world = SwarmWorld(tmp_path, SMALL, grpo__steps=40)
        world.start_all()
        await reach(world, 3)
        await world.crash(victim)
        await reach(world, 15, "trainer")
        assert trained_on_certified_only(world, "trainer")
        world.start(victim)
        await reach(world, 18, victim)
        await world.stop()

    run_virtual(scenario())


def test_a_restarted_trainer_goes_on_from_the_last_published_version(tmp_path):
    async def scenario():
        world = SwarmWorld(tmp_path, SMALL, grpo__steps=40)
        world.start_all()
        await reach(world, 4)
        await world.crash("trainer")
        before = [entry.manifest.digest for entry in ledger(world).checkpoints]
        await asyncio.sleep(5)
        world.start("trainer")
        await reach(world, len(before) + 3)
        after = [entry.manifest.digest for entry in ledger(world).checkpoints]
        await world.stop()
        assert after[: len(before)] == before
        assert trained_on_certified_only(world)
        return {entry.manifest.message.term for entry in ledger(world).checkpoints}

    assert run_virtual(scenario()) == {0}


def test_the_next_trainer_takes_over_and_the_first_one_follows_when_it_is_back(tmp_path):
    async def scenario():
        world = SwarmWorld(tmp_path, [*SMALL, ("heir", Role.TRAINER)], grpo__steps=60)
        world.start_all()
        await reach(world, 3)
        await world.crash("trainer")
        version = ledger(world).version
        await reach(world, version + 4)
        world.start("trainer")
        await reach(world, version + 8)
        chain = [entry.manifest for entry in ledger(world).checkpoints]
        await asyncio.sleep(3)
        states = [ledger(world, name).checkpoint(version + 8) for name in ("trainer", "relay")]
        await world.stop()
        heir = world.machines["heir"].identity.peer_id
        assert {item.signer for item in chain[version + 1 :]} == {heir}
        assert {item.message.term for item in chain[version + 1 :]} == {1}
        assert states[0].digest == states[1].digest

    run_virtual(scenario())


@pytest.mark.parametrize("returns", [True, False])
def test_a_rollout_whose_worker_dies_is_certified_after_its_return_or_expires(tmp_path, returns):
    async def scenario():
        world = SwarmWorld(tmp_path, SMALL, grpo__steps=60)
        world.start_all()
        await reach(world, 2)
        worker = world.machines["worker-0"].identity.peer_id
        # The first commit that is announced and not yet checked: its body is on one machine only.
        await eventually(lambda: ledger(world).in_flight(worker) > 0, 30)
        commit = next(iter(ledger(world)._in_flight[worker]))
        await world.crash("worker-0")
        await asyncio.sleep(4)
        if returns:
            world.start("worker-0")
        await asyncio.sleep(45)
        entry = ledger(world).entries[commit]
        version = ledger(world).version
        await asyncio.sleep(10)
        goes_on = ledger(world).version > version or version == 60
        await world.stop()
        return entry.state, goes_on

    state, goes_on = run_virtual(scenario())
    assert goes_on
    assert state == "certified" if returns else state in ("certified", "expired")


def test_a_newcomer_learns_the_run_and_its_rollout_is_certified(tmp_path):
    async def scenario():
        world = SwarmWorld(tmp_path, [*SMALL, ("newcomer", Role.INFERENCE)], grpo__steps=60)
        for name, _ in SMALL:
            world.start(name)
        await reach(world, 3)
        daemon = world.start("newcomer")
        await eventually(lambda: daemon.status().own_rollouts.certified > 0, 60)
        await world.stop()

    run_virtual(scenario())


class OtherTokens(ToyEngine):
    async def generate(self, requests, temperature):
        honest = await super().generate(requests, temperature)
        return [replace(honest[0], tokens=(2 + honest[0].tokens[0] % 8, 1)), *honest[1:]]


class OtherPolicy(ToyEngine):
    async def generate(self, requests, temperature):
        honest = await super().generate(requests, temperature)
        return [replace(item, proofs=(b"?" * 32,)) for item in honest]


class Generous(ToyTask):
    def score(self, seed, completion):
        return 1.0 - super().score(seed, completion)


@dataclass
class DishonestEngines(ToyEngines):
    make_engine: type[ToyEngine] = ToyEngine
    make_task: type[ToyTask] = ToyTask

    def generation(self, manifest):
        return self.make_engine()

    def environment(self, manifest):
        return self.make_task()


DISHONEST = {
    "sampling": DishonestEngines(make_engine=OtherTokens),
    "computation": DishonestEngines(make_engine=OtherPolicy),
    "reward": DishonestEngines(make_task=Generous),
}


@pytest.mark.parametrize("reason", sorted(DISHONEST))
def test_a_dishonest_worker_is_found_out_slashed_and_never_learned_from(tmp_path, reason):
    async def scenario():
        world = SwarmWorld(tmp_path, [*SMALL, ("liar", Role.INFERENCE)], grpo__steps=8)
        for name, _ in SMALL:
            world.start(name)
        world.machines["liar"].engines = DISHONEST[reason]
        world.start("liar")
        await reach(world, 8)
        await asyncio.sleep(10)
        status = world.machines["relay"].daemon.status()
        why = world.machines["liar"].daemon.why()
        await world.stop()
        return status.workers[world.machines["liar"].identity.peer_id], status, why

    counts, status, why = run_virtual(scenario())
    assert counts.committed > 0
    assert counts.certified == 0
    assert counts.trained == 0
    # The commits that were in flight with the first rejected one may be rejected or expire.
    assert set(counts.rejected_reasons) <= {reason, "format", "reward"}
    assert counts.rejected_reasons[reason] > 0
    assert status.rollouts.rejected == counts.rejected
    assert why["slashed"]
    assert why["rollouts"][0]["verdicts"][0]["reason"] == reason


# One daemon


@contextmanager
def alone(tmp_path):
    """Yield a world with one relay, which runs."""
    world = SwarmWorld(tmp_path, SMALL)
    world.start("relay")
    yield world.machines["relay"]


def test_a_daemon_serves_the_stream_protocols_of_the_table_and_no_others(tmp_path):
    async def scenario():
        with alone(tmp_path) as machine:
            await asyncio.sleep(1)
            run_id = machine.daemon.replica.run_id
            names = {protocol.on(run_id) for protocol in STREAM_PROTOCOLS}
            assert set(machine.transport._handlers) == names
            machine.daemon.stop()
            await machine.task

    run_virtual(scenario())


def test_who_leaves_says_so(tmp_path):
    async def scenario():
        world = SwarmWorld(tmp_path, SMALL)
        for name in ("relay", "worker-0"):
            world.start(name)
        await asyncio.sleep(6)
        relay, worker = (world.machines[name] for name in ("relay", "worker-0"))
        roster = relay.daemon.replica.roster
        assert not roster.get(worker.identity.peer_id).record.message.leaving
        worker.daemon.stop()
        await worker.task
        await asyncio.sleep(2)
        assert roster.get(worker.identity.peer_id).record.message.leaving
        await world.stop()

    run_virtual(scenario())


def test_what_others_said_last_is_stored_at_the_end(tmp_path):
    async def scenario():
        with alone(tmp_path) as machine:
            await asyncio.sleep(1)
            machine.daemon.stop()
            machine.daemon._message_log.later(b"the last message")
            await machine.task
            assert b"the last message" in machine.store.tables["messages"].values()

    run_virtual(scenario())


@pytest.mark.parametrize("how", ["returns", "is cancelled", "fails"])
def test_a_service_that_ends_ends_the_node(tmp_path, how):
    async def scenario():
        with alone(tmp_path) as machine:

            async def run():
                await asyncio.sleep(1)
                if how == "is cancelled":
                    raise asyncio.CancelledError
                if how == "fails":
                    raise KeyError("a defect")

            machine.daemon._policies.run = run
            with pytest.raises(ExceptionGroup) as caught:
                await machine.task
            (error,) = caught.value.exceptions
            assert isinstance(error, KeyError if how == "fails" else RuntimeError)
            assert "policies" in str(error) or how == "fails"

    run_virtual(scenario())
