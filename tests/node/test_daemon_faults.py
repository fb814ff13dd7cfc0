"""Whole swarms in virtual time while disks fill, machines die at any write, and peers lie."""

import asyncio

import pytest

from protocol.crypto import digest
from protocol.messages import RolloutCommit
from protocol.types import Role, Topic
from roles.inference.flow import InferenceFlow
from tests.worlds.fault_world import TINY, FaultWorld, ShiftedClock, StrictEngine, outage
from tests.worlds.memory_transport import eventually, run_virtual
from tests.worlds.messages import all_certified
from tests.worlds.swarm_world import ToyTask

THREE = [*TINY, ("validator-2", Role.VALIDATOR)]


def certified_only(world, name="trainer"):
    return all_certified(world.replica(name).ledger)


# Crashes


@pytest.mark.parametrize("victim", ["trainer", "worker", "validator-0"])
def test_a_node_that_dies_at_any_write_contradicts_nothing_it_said(tmp_path, victim):
    """Life n ends at its n-th touch of the disk, just before or just after something is stored.

    Short and long lives take turns: a version that is stored in one life must be announced in a
    later one before the others have forgotten what it learned from.
    """

    async def scenario():
        world = FaultWorld(tmp_path)
        world.start_all()
        await world.reach(1, "validator-1")
        await world.crash(victim)
        for life in sorted(range(1, 40), key=lambda life: (min(life, 40 - life), life)):
            fate = world.fates[victim]
            fate.touches, fate.dies_at = 0, life
            world.start(victim)
            await world.buried(victim)
        world.fates[victim].dies_at = None
        world.start(victim)
        await asyncio.sleep(3)
        await world.more(3, "validator-1", 120)
        assert certified_only(world, "validator-1")
        await world.finish()

    run_virtual(scenario())


def test_a_draining_trainer_lets_the_version_under_way_out(tmp_path):
    async def scenario():
        world = FaultWorld(tmp_path)
        world.start_all()
        await world.reach(2)
        trainer = world.machines["trainer"]
        release, begun = trainer.daemon._policies.release, asyncio.Event()

        async def slowly(policy):
            begun.set()
            await asyncio.sleep(5)
            return await release(policy)

        trainer.daemon._policies.release = slowly
        await begun.wait()
        version = world.replica().ledger.version
        await asyncio.sleep(3)  # the next step is done, and waits for this publication
        trainer.daemon.stop()
        await trainer.task
        assert world.replica("validator-0").ledger.version == version + 1
        await world.finish()

    run_virtual(scenario())


def test_rollouts_under_way_are_checked_although_all_validators_restart(tmp_path):
    async def scenario():
        world = FaultWorld(tmp_path, committee__expire_after_epochs=300)
        world.start_all()
        await world.reach(2)
        worker = world.machines["worker"].identity.peer_id
        await eventually(lambda: world.replica().ledger.in_flight(worker) > 0, 30)
        for name in ("validator-0", "validator-1"):
            await world.crash(name)
        await eventually(lambda: world.replica().ledger.in_flight(worker) == 2, 30)
        await asyncio.sleep(4)  # they come back in a later epoch than the one of the election
        for name in ("validator-0", "validator-1"):
            world.start(name)
        await world.more(3, seconds=60)
        await world.finish()

    run_virtual(scenario())


def test_a_trainer_that_lost_its_disk_goes_on_above_what_it_may_have_said(tmp_path):
    async def scenario():
        world = FaultWorld(tmp_path)
        world.start_all()
        await world.reach(4)
        await world.crash("trainer")
        chain = [entry.manifest.digest for entry in world.replica("worker").ledger.checkpoints]
        machine = world.machines["trainer"]
        machine.store.tables.clear()
        machine.blobs.complete.clear()
        for file in (machine.directory / "weights").iterdir():
            file.unlink()
        # It finds a node first that knows as little as itself.
        others = [m.identity.peer_id for n, m in world.machines.items() if n != "trainer"]
        world.hub.partition(others)
        world.start("trainer")
        await asyncio.sleep(10)
        world.hub.heal()
        await world.reach(len(chain) + 3, "worker")
        after = world.replica("worker").ledger.checkpoints
        assert [entry.manifest.digest for entry in after][: len(chain)] == chain
        assert after[-1].manifest.message.term == 1
        await world.finish()

    run_virtual(scenario())


def test_a_worker_that_lost_its_disk_and_restarts_once_more_still_listens_first(tmp_path):
    """It may have used slots that nobody it asks knows of."""

    async def scenario():
        world = FaultWorld(tmp_path, [*TINY, ("other", Role.INFERENCE)])
        world.start_all()
        await world.reach(4, "worker")
        await world.crash("worker")
        machine, counts = world.machines["worker"], world.replica().ledger.workers
        machine.store.tables.clear()
        await asyncio.sleep(2)  # what it said last is heard
        before = counts[machine.identity.peer_id].committed
        for life in range(4):  # each time it hears at once that it was here before, and listens
            world.start("worker")
            await asyncio.sleep(3)
            assert counts[machine.identity.peer_id].committed == before, f"in life {life}"
            if life < 3:
                await world.crash("worker")
        await eventually(lambda: counts[machine.identity.peer_id].committed > before, 60)
        await world.finish()

    run_virtual(scenario())


@pytest.mark.parametrize("left", [b"", b"half a state"])
def test_a_trainer_with_a_damaged_state_goes_on_from_its_weights(tmp_path, left):
    async def scenario():
        world = FaultWorld(tmp_path)
        world.start_all()
        await world.reach(3)
        await world.crash("trainer")
        for file in (world.machines["trainer"].directory / "weights").glob("*.state"):
            file.write_bytes(left)
        world.start("trainer")
        await asyncio.sleep(1)
        await world.more(3)
        await world.finish()

    run_virtual(scenario())


@pytest.mark.parametrize("victim", ["worker", "validator-0"])
@pytest.mark.parametrize("shards", ["good", "damaged"])
def test_a_policy_damaged_on_disk_is_made_again(tmp_path, victim, shards):
    async def scenario():
        world = FaultWorld(tmp_path)
        world.start_all()
        await world.reach(3, victim)
        await asyncio.sleep(1)
        await world.crash(victim)
        machine = world.machines[victim]
        for file in (machine.directory / "weights").iterdir():
            file.write_bytes(b"\0" + file.read_bytes()[1:])
        if shards == "damaged":
            large = {key: data for key, data in machine.blobs.complete.items() if len(data) > 1e5}
            assert large
            machine.blobs.complete.update({key: bytes(len(data)) for key, data in large.items()})
        world.start(victim)
        await world.more(6, seconds=100)
        assert not machine.task.done()
        assert machine.daemon.status().state == "ready"
        await world.finish()

    run_virtual(scenario())


# Disks


@pytest.mark.parametrize("victim", ["trainer", "worker", "validator-0"])
def test_a_full_disk_pauses_a_node_and_costs_nothing_it_said(tmp_path, victim):
    async def scenario():
        world = FaultWorld(tmp_path, THREE)
        world.start_all()
        await world.reach(2)
        fate = world.fates[victim]
        daemon = world.machines[victim].daemon
        reasons = set()
        for _ in range(8):  # at eight different moments of its work
            fate.full = True
            await asyncio.sleep(2.7)
            reasons.add(daemon.status().reason)
            fate.full = False
            await asyncio.sleep(0.9)
        assert any("disk full" in reason for reason in reasons)
        assert not world.machines[victim].task.done()
        await world.crash(victim)
        world.start(victim)
        await world.more(4)
        assert daemon.status().rollouts.rejected == 0
        await world.finish()

    run_virtual(scenario())


# Lies


def test_a_trainer_whose_weights_are_not_what_it_signs_stops_nobody(tmp_path):
    async def scenario():
        world = FaultWorld(tmp_path)
        world.start_all()
        await world.reach(2)
        trainer = world.machines["trainer"].daemon._policies
        release = trainer.release

        async def other(policy):
            policy.path.write_bytes(policy.path.read_bytes()[::-1])
            return await release(policy)

        trainer.release = other
        await world.more(2, "worker")
        await asyncio.sleep(40)
        status = world.machines["worker"].daemon.status()
        assert "not what its trainer signed" in status.reason
        assert status.policy_version < status.policy_version_newest
        await world.finish()

    run_virtual(scenario())


async def commit(machine, world, version, slot, previous, body):
    """Publish a commit by hand."""
    context = machine.daemon._role_context()
    checkpoint = context.replica.ledger.checkpoint(version)
    sampling = world.manifest.manifest.sampling
    return await context.network.publish(
        Topic.COMMITS,
        RolloutCommit(
            epoch=context.epoch(),
            version=version,
            checkpoint=checkpoint.digest,
            slot=slot,
            previous=previous,
            body=body,
            body_bytes=1000,
            sequences=sampling.group_size * sampling.prompts_per_rollout,
            tokens=4,
        ),
    )


def test_commits_for_old_versions_do_not_kill_validators(tmp_path):
    """Their engines have dropped these policies, and load them again."""

    async def scenario():
        world = FaultWorld(tmp_path, [*THREE, ("stranger", Role.RELAY)])
        world.start_all()
        await world.reach(7, "stranger")
        await asyncio.sleep(1)
        stranger = world.machines["stranger"].daemon
        flow = InferenceFlow(stranger._role_context(), StrictEngine(), ToyTask())
        for back in (5, 4, 3, 5, 4, 3):
            policy = stranger._policies.get(stranger.replica.ledger.version - back)
            assert await flow._load(policy)
            await flow._roll_out(policy)
            await asyncio.sleep(1)
        await world.more(3)
        own = stranger.status().own_rollouts
        assert (own.rejected, own.committed) == (0, 6)
        await world.finish()

    run_virtual(scenario())


def test_withheld_bodies_hold_up_neither_validators_nor_workers(tmp_path):
    async def scenario():
        silent = [f"silent-{n}" for n in range(2)]
        world = FaultWorld(tmp_path, [*THREE, *((name, Role.RELAY) for name in silent)])
        world.start_all()
        await world.reach(2)
        for name in silent:
            await world.reach(2, name)
            machine, previous = world.machines[name], b""
            for slot in range(16):
                body = digest(f"{name} {slot}".encode())
                machine.blobs.withheld[body] = None
                previous = (await commit(machine, world, 2, slot, previous, body)).digest
        await asyncio.sleep(2)
        await world.more(8, seconds=25)  # before those have expired
        await world.finish()

    run_virtual(scenario())


# Network and time


def test_a_restart_of_p2pd_costs_a_pause(tmp_path):
    async def scenario():
        world = FaultWorld(tmp_path, THREE)
        world.start_all()
        await world.reach(2)
        for name in ("trainer", "validator-0", "worker"):
            machine = world.machines[name]
            end = outage(machine)
            for other in world.machines.values():
                world.hub.disconnect(machine.identity.peer_id, other.identity.peer_id)
            await asyncio.sleep(6)
            end()
            await asyncio.sleep(2)
        await world.more(3)
        outage(world.machines["worker"])  # also while it stops
        await world.finish()

    run_virtual(scenario())


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
def test_a_clock_that_is_set_costs_one_node_a_pause(tmp_path, seconds):
    async def scenario():
        world = FaultWorld(tmp_path, THREE)
        clocks = {name: ShiftedClock() for name, _ in THREE}
        for name, clock in clocks.items():
            world.machines[name].clock = clock
        world.start_all()
        await world.reach(2)
        for name in ("validator-0", "worker"):
            clocks[name].offset = seconds
            await asyncio.sleep(8)
            clocks[name].offset = 0.0
            await asyncio.sleep(3)
        counts = world.replica().ledger.totals
        certified = counts.certified
        await world.more(4)
        await asyncio.sleep(10)
        live = world.replica().roster.live(world.machines["trainer"].clock.now())
        assert len(live) == len(THREE)
        assert counts.certified > certified
        assert not world.replica().ledger.slashed(world.machines["worker"].identity.peer_id)
        await world.finish()

    run_virtual(scenario())


def test_one_slow_validator_does_not_set_the_pace(tmp_path):
    async def scenario():
        world = FaultWorld(tmp_path, THREE, committee__escalated_size=3)
        world.machines["validator-0"].engines.seconds = 20.0
        world.start_all()
        await world.reach(8, seconds=120)
        await world.finish()

    run_virtual(scenario())


def test_a_slow_directory_costs_nobody_the_place_on_the_roster(tmp_path, monkeypatch):
    async def scenario():
        world = FaultWorld(tmp_path)
        world.start_all()
        for machine in world.machines.values():
            directory = machine.daemon._context.ports.directory

            async def never(*_arguments):
                await asyncio.sleep(3600)

            monkeypatch.setattr(directory, "publish", never)
            monkeypatch.setattr(directory, "lookup", never)
        await world.reach(2)
        for _ in range(60):
            await asyncio.sleep(1)
            now = world.machines["trainer"].clock.now()
            assert len(world.replica().roster.live(now)) == len(TINY)
        await world.finish()

    run_virtual(scenario())


def test_after_a_partition_everybody_follows_the_later_term(tmp_path):
    """The old trainer goes on alone for a while; what it published then is taken back."""

    async def scenario():
        world = FaultWorld(
            tmp_path,
            [
                *TINY,
                ("worker-1", Role.INFERENCE),
                ("validator-2", Role.VALIDATOR),
                ("validator-3", Role.VALIDATOR),
                ("heir", Role.TRAINER),
            ],
            epochs__record_epochs=6,
            epochs__refresh_epochs=2,
        )
        world.start_all()
        await world.reach(3, "heir")
        sides = [
            ("trainer", "worker", "validator-0", "validator-1"),
            ("heir", "worker-1", "validator-2", "validator-3"),
        ]
        world.hub.partition(
            *([world.machines[name].identity.peer_id for name in side] for side in sides)
        )
        await world.more(2, "heir")
        await world.more(1, "trainer")
        world.hub.heal()
        heir = world.machines["heir"].identity.peer_id

        def agree():
            heads = {world.replica(name).ledger.head.digest for name in world.machines}
            return len(heads) == 1 and world.replica().ledger.head.signer == heir

        await eventually(agree, 120)
        await world.more(3, "worker")
        await asyncio.sleep(3)
        holds = {m.daemon.status().policy_version for m in world.machines.values()}
        assert min(holds) >= world.replica().ledger.version - 1
        rejected = {world.replica(name).ledger.totals.rejected for name in world.machines}
        assert rejected == {0}, "an honest worker must not be blamed for a superseded version"
        await world.finish()

    run_virtual(scenario())


# Room


def test_a_long_run_needs_no_more_room_than_a_short_one(tmp_path):
    async def scenario():
        world = FaultWorld(tmp_path)
        world.start_all()
        sizes = []
        for version in (20, 60):
            await world.reach(version)
            await asyncio.sleep(2)
            sizes.append(
                {
                    name: (
                        len(machine.blobs.complete) + len(machine.blobs.partial),
                        len(machine.store.tables["policies"]),
                        len(list((machine.directory / "weights").iterdir())),
                    )
                    for name, machine in world.machines.items()
                }
            )
        for name, later in sizes[1].items():
            for before, after in zip(sizes[0][name], later, strict=True):
                assert after <= before + 8, (name, sizes)
        messages = len(world.machines["validator-0"].store.tables["messages"])
        assert messages < 2000
        await world.finish()

    run_virtual(scenario())


def test_a_node_that_was_away_for_long_keeps_no_bodies_of_then(tmp_path):
    async def scenario():
        world = FaultWorld(tmp_path)
        world.start_all()
        await world.reach(3, "validator-1")
        await world.crash("validator-1")
        machine = world.machines["validator-1"]
        then = {
            entry.commit.message.body
            for entry in world.replica("validator-1").ledger.entries.values()
        }
        assert then & machine.blobs.complete.keys()
        await asyncio.sleep(150)  # its commits are forgotten by now
        world.start("validator-1")
        await world.more(4, "trainer")
        assert not then & machine.blobs.complete.keys()
        await world.finish()

    run_virtual(scenario())


def test_two_heirs_that_lead_at_once_end_on_one_chain(tmp_path):
    """The trainer dies, and the network is cut between the next two in line."""

    async def scenario():
        world = FaultWorld(
            tmp_path,
            [
                *TINY,
                ("worker-1", Role.INFERENCE),
                ("validator-2", Role.VALIDATOR),
                ("validator-3", Role.VALIDATOR),
                ("heir-0", Role.TRAINER),
                ("heir-1", Role.TRAINER),
            ],
            epochs__record_epochs=6,
            epochs__refresh_epochs=2,
        )
        world.start_all()
        await asyncio.gather(*(world.reach(3, name) for name in world.machines))
        sides = [
            ("heir-0", "worker", "validator-0", "validator-1"),
            ("heir-1", "worker-1", "validator-2", "validator-3"),
        ]
        await world.crash("trainer")
        world.hub.partition(
            *([world.machines[name].identity.peer_id for name in side] for side in sides)
        )
        await asyncio.gather(world.more(4, "heir-0"), world.more(2, "heir-1"))
        terms = [world.replica(side[0]).ledger.head.message.term for side in sides]
        assert terms == [1, 2], "a term is one trainer's"
        world.hub.heal()
        heir = world.machines["heir-1"].identity.peer_id

        def agree():
            heads = [world.replica(name).ledger.head for side in sides for name in side]
            return len({head.digest for head in heads}) == 1 and heads[0].signer == heir

        await eventually(agree, 120)
        await world.more(2, "worker")
        await world.finish()

    run_virtual(scenario())
