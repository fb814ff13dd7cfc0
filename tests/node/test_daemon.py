"""Whole swarms of real daemons in virtual time, some parts of which fail."""

import asyncio
from contextlib import contextmanager

import pytest

from node import daemon as daemon_module
from node.network.connections.manager import PeerValue
from node.network.gossip.driver import Gossip
from node.network.streams.protocols import HOP, STREAM_PROTOCOLS
from tests.worlds.messages import World, all_certified, run_manifest
from tests.worlds.network import eventually
from tests.worlds.swarm import Swarm

pytestmark = pytest.mark.virtual

WORLD = World(run_manifest())
SMALL = {"validator": 3}


def trained_on_certified_only(world, name="relay-0"):
    return all_certified(world.ledger(name))


async def test_a_swarm_trains_on_certified_rollouts_only():
    world = Swarm(**SMALL, inference=2, grpo__steps=5)
    world.start_all()
    await world.reach(5, "relay-0")
    await asyncio.sleep(15)  # records are refreshed every ten seconds
    statuses = [
        world.daemon(f"{name}-0").status() for name in ("relay", "worker", "validator", "trainer")
    ]
    await world.finish()
    status, worker, validator, trainer = statuses
    assert status.restored
    assert sum(status.generations.counts) == sum(status.checks.counts) == 0
    assert sum(worker.generations.counts) >= worker.yours.committed > 0
    assert sum(worker.checks.counts) == sum(validator.generations.counts) == 0
    assert 0 < sum(validator.checks.counts) <= status.rollouts.committed
    assert worker.generations.seconds > 0 < validator.checks.seconds
    first, *_, last = [point.created_at for point in trainer.checkpoints]
    assert status.steps.began_at is None
    assert first < trainer.steps.began_at < last - trainer.steps.seconds < last
    assert status.state == "ready"
    assert status.rollouts.trained == 20
    assert status.rollouts.rejected == 0
    assert sum(point.trained_without_certificate for point in status.checkpoints) == 0
    assert status.policy_lag_max <= 2
    assert {member.policy_version for member in status.members} == {5}


async def test_gossip_names_the_connections_that_are_pruned_first_and_last(monkeypatch):
    values = []

    def noted(*arguments):
        values.append(PeerValue(*arguments))
        return values[-1]

    monkeypatch.setattr(daemon_module, "PeerValue", noted)
    world = Swarm(**SMALL, inference=2, grpo__steps=5)
    world.start("relay-0")
    world.start_all()
    await world.reach(1, "relay-0")
    value, peers = values[0], world.daemon("relay-0").context.peers.connected
    meshed = value.meshed()
    assert meshed != frozenset()
    assert meshed <= set(peers)
    assert value.above_gossip_threshold(peers) == peers
    monkeypatch.setattr(Gossip, "above_gossip_threshold", lambda _, peers: peers[1:])
    assert value.above_gossip_threshold(peers) == peers[1:] != []
    await world.finish()


@pytest.mark.parametrize("victim", ["relay-0", "worker-0", "validator-0"])
async def test_training_goes_on_when_a_node_dies(victim):
    world = Swarm(**SMALL, inference=2, grpo__steps=40)
    world.start_all()
    await world.reach(3, "relay-0")
    world.crash(victim)
    await world.reach(15, "trainer-0")
    assert trained_on_certified_only(world, "trainer-0")
    world.start(victim)
    await world.reach(18, victim)
    await world.finish()


async def test_a_restarted_trainer_goes_on_from_the_last_published_version():
    world = Swarm(**SMALL, inference=2, grpo__steps=40)
    world.start_all()
    await world.reach(4, "relay-0")
    world.crash("trainer-0")
    before = [entry.manifest.digest for entry in world.ledger("relay-0").chain.checkpoints]
    await asyncio.sleep(5)
    world.start("trainer-0")
    await world.reach(len(before) + 3, "relay-0")
    after = [entry.manifest.digest for entry in world.ledger("relay-0").chain.checkpoints]
    assert after[: len(before)] == before
    assert trained_on_certified_only(world)
    terms = {entry.manifest.message.term for entry in world.ledger("relay-0").chain.checkpoints}
    await world.finish()
    assert terms == {0}


async def test_the_next_trainer_takes_over_and_the_first_one_follows_when_it_is_back():
    world = Swarm(**SMALL, inference=2, trainer=2, grpo__steps=60)
    world.start_all()
    await world.reach(3, "relay-0")
    world.crash("trainer-0")
    version = world.ledger("relay-0").chain.version
    await world.reach(version + 4, "relay-0")
    world.start("trainer-0")
    await world.reach(version + 8, "relay-0")
    chain = [entry.manifest for entry in world.ledger("relay-0").chain.checkpoints]
    await asyncio.sleep(3)
    states = [world.ledger(name).chain.get(version + 8) for name in ("trainer-0", "relay-0")]
    await world.finish()
    heir = world.machines["trainer-1"].signer.peer_id
    assert {item.signer for item in chain[version + 1 :]} == {heir}
    assert {item.message.term for item in chain[version + 1 :]} == {1}
    assert states[0].digest == states[1].digest


@pytest.mark.parametrize("returns", [True, False])
async def test_a_rollout_whose_worker_dies_is_certified_after_its_return_or_expires(returns):
    world = Swarm(**SMALL, inference=2, grpo__steps=60)
    world.start_all()
    await world.reach(2, "relay-0")
    worker = world.machines["worker-0"].signer.peer_id
    # The first commit announced and not yet checked: its body is on one machine only.
    await eventually(lambda: world.ledger("relay-0").commits.in_flight(worker) > 0, 30)
    commit = world.ledger("relay-0").commits.open_entries(worker)[0].commit.digest
    world.crash("worker-0")
    await asyncio.sleep(4)
    if returns:
        world.start("worker-0")
    await asyncio.sleep(45)
    entry = world.ledger("relay-0").commits.entries[commit]
    version = world.ledger("relay-0").chain.version
    await asyncio.sleep(10)
    goes_on = world.ledger("relay-0").chain.version > version or version == 60
    await world.finish()
    assert goes_on
    assert entry.state == "certified" if returns else entry.state in ("certified", "expired")


async def test_a_new_node_learns_the_run_and_its_rollout_is_certified():
    world = Swarm(**SMALL, inference=3, grpo__steps=60)
    world.start_all(but=["worker-2"])
    await world.reach(3, "relay-0")
    world.start("worker-2")
    await eventually(lambda: world.daemon("worker-2").status().yours.certified > 0, 60)
    await world.finish()


DISHONEST = {
    "sampling": "edited-tokens",
    "computation": "forged-proofs",
    "reward": "forged-rewards",
}


@pytest.mark.parametrize("reason", sorted(DISHONEST))
async def test_a_dishonest_worker_is_found_out_slashed_and_never_learned_from(reason):
    world = Swarm(**SMALL, inference=3, grpo__steps=8)
    world.machines["worker-2"].behaviour = DISHONEST[reason]
    world.start_all()
    await world.reach(8, "relay-0")
    await asyncio.sleep(10)
    status = world.daemon("relay-0").status()
    why = world.daemon("worker-2").why()
    await world.finish()
    counts = status.workers[world.machines["worker-2"].signer.peer_id]
    assert counts.committed > 0
    assert counts.certified == 0
    assert counts.trained == 0
    # The commits that were in flight with the first rejected one may be rejected or expire.
    assert set(counts.rejected_reasons) <= {reason, "format", "reward", "history", "reward-history"}
    assert counts.rejected_reasons[reason] > 0
    assert status.rollouts.rejected == counts.rejected
    assert why.slashed
    assert why.rollouts[0].verdicts[0].reason == reason


async def test_late_joiner_learns_of_slashed_workers():
    """A node that joins long after the lie learns of it, also over its own restart."""
    world = Swarm(**SMALL, inference=3, relay=2, committee__expire_after_epochs=8)
    world.machines["worker-2"].behaviour = "forged-proofs"
    liar = world.machines["worker-2"].signer.peer_id
    world.start_all(but=["relay-1"])
    ledger = world.ledger()
    await eventually(lambda: ledger.workers.is_slashed(liar), 60)
    await eventually(
        lambda: not any(e.commit.signer == liar for e in ledger.commits.entries.values()), 300
    )
    world.start("relay-1")
    await eventually(lambda: world.ledger("relay-1").workers.is_slashed(liar), 60)
    reputations = {one.peer_id: one.reputation for one in world.daemon("relay-1").status().members}
    assert reputations.pop(liar) == "slashed"
    assert "slashed" not in reputations.values()
    await asyncio.sleep(3)
    world.crash("relay-1")
    for name in world.running:
        if name != "relay-0":
            await world.leave(name)
    world.crash("relay-0")  # no peer is there to ask
    world.start("relay-1")
    await eventually(lambda: world.daemon("relay-1").status().restored)
    assert world.ledger("relay-1").workers.is_slashed(liar)


# One daemon


@contextmanager
def alone():
    world = Swarm()
    world.start("relay-0")
    yield world, world.machines["relay-0"]


async def test_a_daemon_serves_the_stream_protocols_of_the_table_and_no_others():
    with alone() as (world, machine):
        await asyncio.sleep(1)
        run_id = machine.daemon.replica.run_id
        names = {protocol.on(run_id) for protocol in STREAM_PROTOCOLS}
        names.remove(HOP.name)  # this network has no circuits
        assert set(world.network.running(machine.signer.peer_id)._handlers) == names
        await world.finish()


async def test_leaving_node_announces_it():
    world = Swarm()
    for name in ("relay-0", "worker-0"):
        world.start(name)
    await asyncio.sleep(6)
    roster, worker = world.replica("relay-0").roster, world.machines["worker-0"].signer.peer_id
    assert not roster.get(worker).record.message.leaving
    await world.leave("worker-0")
    await asyncio.sleep(2)
    assert roster.get(worker).record.message.leaving
    await world.finish()


async def test_batched_messages_are_stored_at_the_end():
    with alone() as (world, machine):
        await asyncio.sleep(1)
        (commit,) = WORLD.chain(WORLD.workers[0], 1)
        machine.daemon._message_log.later(commit.envelope)
        await world.leave("relay-0")
        assert commit.envelope in machine.disk.tables["messages"].values()


@pytest.mark.parametrize("how", ["returns", "is cancelled", "fails"])
async def test_a_service_that_ends_ends_the_node(how):
    with alone() as (_, machine):

        async def run():
            await asyncio.sleep(1)
            if how == "is cancelled":
                raise asyncio.CancelledError
            if how == "fails":
                raise KeyError("a defect")

        machine.daemon.policies.run = run
        with pytest.raises(ExceptionGroup) as caught:
            async with asyncio.timeout(60):
                await machine.task
        (error,) = caught.value.exceptions
        assert isinstance(error, KeyError if how == "fails" else RuntimeError)
        assert "policies" in str(error) or how == "fails"
