"""Whole swarms in virtual time with full disks, crashes at any write, and lying peers."""

import asyncio

import pytest
from structlog.testing import capture_logs

from protocol.core.crypto import digest
from protocol.core.types import Topic
from protocol.messages import RolloutCommit
from roles.inference.flow import InferenceFlow
from simulations.ports.incoming_file import SimIncomingFile
from simulations.runtime.content import Extent
from tests.worlds.messages import all_certified
from tests.worlds.network import eventually
from tests.worlds.swarm import STORAGE_EVENTS, Swarm

pytestmark = pytest.mark.virtual

# Crashes


@pytest.mark.parametrize("victim", ["trainer-0", "worker-0", "validator-0"])
async def test_a_node_that_dies_at_any_write_contradicts_nothing_it_said(victim):
    """Life n ends at its n-th disk access, just before or just after a write.

    Short and long lives alternate. A version stored in one life must be announced in a later one
    before the other nodes have forgotten its batch.
    """
    world = Swarm()
    world.start_all()
    await world.reach(1, "validator-1")
    world.crash(victim)
    for life in sorted(range(1, 40), key=lambda life: (min(life, 40 - life), life)):
        world.start(victim)
        world.die_at(victim, life)
        await world.died(victim)
    world.start(victim)
    await asyncio.sleep(3)
    await world.more(3, "validator-1", 120)
    assert all_certified(world.ledger("validator-1"))
    await world.finish()


async def test_a_draining_trainer_lets_the_version_under_way_out():
    world = Swarm()
    world.start_all()
    await world.reach(2)
    policies = world.daemon("trainer-0").policies
    release, begun = policies.release, asyncio.Event()

    async def slowly(policy):
        begun.set()
        await asyncio.sleep(5)
        return await release(policy)

    policies.release = slowly
    await begun.wait()
    version = world.ledger().chain.version
    await asyncio.sleep(3)  # the next step is done, and waits for this publication
    await world.leave("trainer-0")
    assert world.ledger("validator-0").chain.version == version + 1
    await world.finish()


async def test_rollouts_under_way_are_checked_although_all_validators_restart():
    world = Swarm(committee__expire_after_epochs=300)
    world.start_all()
    await world.reach(2)
    worker = world.machines["worker-0"].signer.peer_id
    await eventually(lambda: world.ledger().commits.in_flight(worker) > 0, 30)
    for name in ("validator-0", "validator-1"):
        world.crash(name)
    await eventually(lambda: world.ledger().commits.in_flight(worker) == 2, 30)
    await asyncio.sleep(4)  # they return in a later epoch than that of the election
    for name in ("validator-0", "validator-1"):
        world.start(name)
    await world.more(3, seconds=60)
    await world.finish()


async def test_a_trainer_that_lost_its_disk_keeps_the_lead_and_goes_on_from_what_others_hold():
    world = Swarm()
    world.start_all()
    worker = world.daemon("worker-0")
    await eventually(lambda: worker.status().policy_version >= 4, 60)
    world.crash("trainer-0", lose_state=True)
    chain = [entry.manifest.digest for entry in world.ledger("worker-0").chain.checkpoints]
    cut = world.network.partition(["trainer-0"])  # at first no peer knows more
    world.start("trainer-0")
    await asyncio.sleep(10)
    world.network.heal(cut)
    await world.reach(len(chain) + 3, "worker-0")
    after = world.ledger("worker-0").chain.checkpoints
    assert [entry.manifest.digest for entry in after][: len(chain)] == chain
    assert {entry.manifest.message.term for entry in after} == {0}
    await world.finish()


async def test_a_worker_that_lost_its_disk_and_restarts_once_more_still_listens_first():
    """It may have used slots that none of its peers knows of."""
    world = Swarm(inference=2)
    world.start_all()
    await world.reach(4, "worker-0")
    world.crash("worker-0", lose_state=True)
    machine, counts = world.machines["worker-0"], world.ledger().workers.counts
    await asyncio.sleep(2)  # its last message arrives
    before = counts[machine.signer.peer_id].committed
    for life in range(4):  # each time it learns at once of its old record, and listens
        world.start("worker-0")
        await asyncio.sleep(3)
        assert counts[machine.signer.peer_id].committed == before, f"in life {life}"
        if life < 3:
            world.crash("worker-0")
    await eventually(lambda: counts[machine.signer.peer_id].committed > before, 60)
    await world.finish()


@pytest.mark.parametrize("lose_state", [False, True])
async def test_a_worker_and_a_validator_show_the_same_work_after_a_restart(lose_state):
    """The worker's own ledger has forgotten old commits, final pages count them."""
    world = Swarm(inference=2, committee__expire_after_epochs=6)
    world.start_all()
    await world.reach(30, "worker-0")
    key = world.machines["worker-0"].signer.peer_id

    def shown(name):
        page = world.daemon(name).reader.contributors.page()
        return page.epoch, {row.peer_id: (row.rollouts, row.tokens) for row in page.rows}

    before = world.daemon("worker-0").status().yours
    world.crash("worker-0", lose_state=lose_state)
    world.start("worker-0")
    worker = world.daemon("worker-0")
    await eventually(lambda: worker.status().restored, 30)
    if not lose_state:
        assert worker.status().yours.certified >= before.certified
    await eventually(lambda: shown("worker-0") == shown("validator-0"), 60)
    own = worker.status().yours
    assert own.certified >= before.certified > worker.replica.ledger.workers.counts[key].certified
    assert (own.certified, own.tokens) == shown("validator-0")[1][key]
    await world.finish()


@pytest.mark.parametrize("left", [b"", b"half a state"])
async def test_a_trainer_with_a_damaged_state_goes_on_from_its_weights(left):
    world = Swarm()
    world.start_all()
    await world.reach(3)
    world.crash("trainer-0")
    files = world.machines["trainer-0"].disk.files
    files.update({path: left for path in files if path.suffix == ".state"})
    world.start("trainer-0")
    await asyncio.sleep(1)
    await world.more(3)
    await world.finish()


@pytest.mark.parametrize("victim", ["worker-0", "validator-0"])
@pytest.mark.parametrize("shards", ["good", "damaged"])
async def test_a_policy_damaged_on_disk_is_made_again(victim, shards):
    world = Swarm(unseen=["policy-loaded"])
    world.start_all()
    await world.reach(3, victim)
    await asyncio.sleep(1)
    world.crash(victim)
    disk = world.machines[victim].disk
    damaged = Extent.of(b"damaged", 0, world.scenario.workload.weights_bytes)
    disk.files.update(dict.fromkeys(disk.files, damaged))
    if shards == "damaged":
        large = {key: data for key, data in disk.blobs.items() if len(data) > 1e5}
        assert large
        disk.blobs.update({key: damaged[: len(data)] for key, data in large.items()})
    world.start(victim)
    await world.more(6, seconds=100)
    assert world.daemon(victim).status().state == "ready"
    await world.finish()


# Disks


@pytest.mark.parametrize("victim", ["trainer-0", "worker-0", "validator-0"])
async def test_a_full_disk_pauses_a_node_and_costs_nothing_it_said(victim):
    world = Swarm(validator=3)
    world.start_all()
    await world.reach(2)
    disk, daemon = world.machines[victim].disk, world.daemon(victim)
    reasons = set()
    for _ in range(8):  # at eight different moments of its work
        disk.quota_bytes = 0
        await asyncio.sleep(2.7)
        reasons.add(daemon.status().reason)
        disk.quota_bytes = None
        await asyncio.sleep(0.9)
    assert any("disk full" in reason for reason in reasons)
    world.crash(victim)
    world.start(victim)
    await world.more(4)
    assert world.daemon(victim).status().rollouts.rejected == 0
    await world.finish()


# Lies


async def test_a_trainer_whose_weights_are_not_what_it_signs_stops_nobody():
    world = Swarm(unseen=["policy-loaded", *STORAGE_EVENTS])
    world.start_all()
    await world.reach(2)
    trainer = world.daemon("trainer-0").policies
    release = trainer.release

    async def other(policy):
        files = world.machines["trainer-0"].disk.files
        files[policy.path] = Extent.of(b"other", 0, len(files[policy.path]))
        return await release(policy)

    trainer.release = other
    await world.more(2, "worker-0")
    await asyncio.sleep(40)
    status = world.daemon("worker-0").status()
    assert "not what its trainer signed" in status.reason
    assert status.policy_version < status.policy_version_newest
    await world.finish()


def role_context(world, name):
    """Return what a role of a node works with."""
    return world.daemon(name)._role_context()


async def commit(world, name, version, slot, body):
    context = role_context(world, name)
    checkpoint = context.replica.ledger.chain.get(version)
    sampling = world.manifest.manifest.sampling
    return await context.network.publish(
        Topic.COMMITS,
        RolloutCommit(
            epoch=context.epoch(),
            version=version,
            checkpoint=checkpoint.digest,
            slot=slot,
            body=body,
            body_bytes=1000,
            sequences=sampling.group_size * sampling.prompts_per_rollout,
            tokens=4,
        ),
    )


async def test_commits_for_old_versions_do_not_kill_validators():
    """Their engines have dropped these policies, and load them again."""
    world = Swarm(validator=3, relay=2)
    world.start_all()
    await world.reach(7, "relay-1")
    await asyncio.sleep(1)
    daemon = world.daemon("relay-1")
    engines, manifest = daemon._engines, world.manifest.manifest
    flow = InferenceFlow(
        role_context(world, "relay-1"),
        engines.generation(manifest),
        engines.environment(manifest),
    )
    for back in (5, 4, 3, 5, 4, 3):
        policy = daemon.policies.get(daemon.replica.ledger.chain.version - back)
        assert await flow._load(policy)
        checkpoint = daemon.replica.ledger.chain.get(policy.version).digest
        slot = flow._choice.next_slot(checkpoint, policy.version)
        making = flow._making
        making.begin(policy.version, checkpoint, slot)
        while len(making):
            await asyncio.sleep(1)
            await flow._commit_made()
    await world.more(3)
    own = daemon.status().yours
    assert (own.rejected, own.committed) == (0, 6)
    await world.finish()


async def test_withheld_bodies_hold_up_neither_validators_nor_workers():
    silent = ["relay-1", "relay-2"]
    world = Swarm(validator=3, relay=3)
    world.start_all()
    await world.reach(2)
    for name in silent:
        await world.reach(2, name)
        for slot in range(16):
            body = digest(f"{name} {slot}".encode())
            # Promised to every peer, and never delivered.
            world.machines[name].disk.arrivals[body] = SimIncomingFile(body, 1000, 1000, [body])
            await commit(world, name, 2, slot, body)
    await asyncio.sleep(2)
    await world.more(6, seconds=25)  # before those have expired
    await world.finish()


# Network and time


async def test_a_restart_of_p2pd_costs_a_pause():
    world = Swarm(validator=3)
    world.start_all()
    await world.reach(2)
    for name in ("trainer-0", "validator-0", "worker-0"):
        world.network.take_down(name)
        await asyncio.sleep(6)
        world.network.bring_up(name)
        await asyncio.sleep(2)
    await world.more(3)
    world.network.take_down("worker-0")  # also while it stops
    await world.finish()


@pytest.mark.parametrize("seconds", [-3600.0, 3600.0])
async def test_a_clock_that_is_set_costs_one_node_a_pause(seconds):
    world = Swarm(unseen=STORAGE_EVENTS, validator=3)
    world.start_all()
    await world.reach(2)
    for name in ("validator-0", "worker-0"):
        world.network.set_skew(name, seconds)
        await asyncio.sleep(8)
        world.network.set_skew(name, 0.0)
        await asyncio.sleep(3)
    counts = world.ledger().workers.totals
    certified = counts.certified
    await world.more(4)
    await asyncio.sleep(10)
    assert len(world.replica().roster.live(world.now)) == len(world.machines)
    assert counts.certified > certified
    assert not world.ledger().workers.is_slashed(world.machines["worker-0"].signer.peer_id)
    await world.finish()


@pytest.mark.parametrize(("seconds", "side"), [(-596.0, "behind"), (596.0, "ahead of")])
async def test_a_wrong_clock_is_named_by_its_own_node_alone(seconds, side):
    with capture_logs() as logs:
        world = Swarm(unseen=STORAGE_EVENTS, validator=3)
        world.start_all(but=["worker-0"])
        await world.reach(0)
        world.network.set_skew("worker-0", seconds)
        world.start("worker-0")
        daemon = world.daemon("worker-0")
        await eventually(lambda: daemon.status().clock, 60)
        status = daemon.status()
        assert status.clock.startswith("your clock seems 59")
        assert f" s {side} " in status.clock
        assert (status.state, daemon.why().reason) == ("paused", status.clock)
        await asyncio.sleep(30)
        peers = [world.daemon(name) for name in world.running if name != "worker-0"]
        assert [one.status().clock for one in peers] == [""] * 5, "one clock is that peer's"
        world.network.set_skew("worker-0", 0.0)
        await eventually(lambda: daemon.status().state == "ready", 120)
        assert daemon.status().clock == ""
        await world.finish()
    told = [one["log_level"] for one in logs if one["event"] == "clock_wrong"]
    assert told == ["warning"], "once"
    refused = [one for one in logs if "clock-skew" in str(one.get("fault"))]
    assert {one["log_level"] for one in refused} <= {"debug"}
    others = {one["peer"] for one in logs if one["event"] == "peer_clock_wrong"}
    assert len(others) <= 1


async def test_one_slow_validator_does_not_set_the_pace():
    world = Swarm(validator=3, committee__escalated_size=3)
    slow = world.machines["validator-0"]
    slow.compute = slow.compute.model_copy(update={"check_tokens_per_second": 2.0})
    world.start_all()
    await world.reach(8, seconds=120)
    await world.finish()


async def test_a_slow_directory_costs_nobody_the_place_on_the_roster(monkeypatch):
    world = Swarm()
    world.start_all()
    for name in world.machines:
        directory = world.daemon(name).context.ports.directory

        async def never(*_arguments):
            await asyncio.sleep(3600)

        monkeypatch.setattr(directory, "publish", never)
        monkeypatch.setattr(directory, "lookup", never)
    await world.reach(2)
    for _ in range(60):
        await asyncio.sleep(1)
        assert len(world.replica().roster.live(world.now)) == len(world.machines)
    await world.finish()


async def test_after_a_partition_everybody_follows_the_later_term():
    """The old trainer is cut off with too few validators for a page, so nothing is certified."""
    world = Swarm(
        inference=2,
        validator=4,
        trainer=2,
        epochs__record_epochs=6,
        epochs__refresh_epochs=2,
    )
    world.start_all()
    await world.reach(3, "trainer-1")
    sides = [
        ("trainer-0", "worker-0", "validator-0", "relay-0"),
        ("trainer-1", "worker-1", "validator-1", "validator-2", "validator-3"),
    ]
    cut = world.network.partition(*sides)
    await world.more(2, "trainer-1")
    world.network.heal(cut)
    heir = world.machines["trainer-1"].signer.peer_id

    def agree():
        heads = {world.ledger(name).chain.head.digest for name in world.machines}
        return len(heads) == 1 and world.ledger().chain.head.signer == heir

    await eventually(agree, 120)
    await world.more(3, "worker-0")
    await asyncio.sleep(3)
    holds = {world.daemon(name).status().policy_version for name in world.machines}
    assert min(holds) >= world.ledger().chain.version - 1
    rejected = {world.ledger(name).workers.totals.rejected for name in world.machines}
    assert rejected == {0}, "an honest worker must not be blamed for a superseded version"
    await world.finish()


# Retention


@pytest.mark.long
async def test_a_long_run_needs_no_more_room_than_a_short_one():
    world = Swarm()
    world.start_all()
    sizes = []
    for version in (20, 60):
        await world.reach(version)
        await asyncio.sleep(2)
        sizes.append(
            {
                name: (
                    len(machine.disk.blobs) + len(machine.disk.arrivals),
                    len(machine.disk.tables["policies"]),
                    len(machine.disk.files),
                )
                for name, machine in world.machines.items()
            }
        )
    for name, later in sizes[1].items():
        for before, after in zip(sizes[0][name], later, strict=True):
            assert after <= before + 8, (name, sizes)
    messages = len(world.machines["validator-0"].disk.tables["messages"])
    assert messages < 2000
    await world.finish()


async def test_a_node_that_was_away_for_long_keeps_no_bodies_of_then():
    world = Swarm()
    world.start_all()
    await world.reach(3, "validator-1")
    entries = world.ledger("validator-1").commits.entries.values()
    world.crash("validator-1")
    machine = world.machines["validator-1"]
    then = {entry.commit.message.body for entry in entries}
    assert then & machine.disk.blobs.keys()
    await asyncio.sleep(150)  # its commits are forgotten by now
    world.start("validator-1")
    await world.more(4, "trainer-0")
    assert not then & machine.disk.blobs.keys()
    await world.finish()


@pytest.mark.parametrize("stopped", ["one of two validators", "all nodes"])
async def test_a_page_that_is_final_after_a_long_pause_is_counted(stopped):
    """It decides a commit. All nodes would have forgotten that, and no page could follow."""
    world = Swarm()
    world.start_all()
    await world.reach(3, "validator-1")
    pages = world.replica("validator-0").pages

    def deciding():
        later = (node for node in pages.tip().path() if node is not pages.root)
        return [node.epoch for node in later if node.page.message.certified]

    await eventually(deciding, 60)
    (epoch,) = deciding()
    for name in world.machines if stopped == "all nodes" else ["validator-1"]:
        world.crash(name)
    await asyncio.sleep(150)
    world.start_all()
    await world.more(4, "trainer-0")
    counted = [world.replica(name).intake.ledger for name in world.machines]
    await eventually(lambda: all(one.accounts.header.epoch > epoch for one in counted), 60)
    await world.finish()


async def test_a_version_that_reached_nobody_is_taken_by_those_that_come_back_much_later():
    """All but the trainer stop; it publishes for nobody and then stops too, for a long time."""
    world = Swarm(inference=2)
    world.start_all()
    others = [name for name in world.machines if name != "trainer-0"]
    await asyncio.gather(*(world.reach(3, name) for name in others))
    ledger, step = world.ledger(), world.replica().manifest.grpo.rollouts_per_step
    await eventually(lambda: len(ledger.backpressure.usable()) >= step, 60)
    await asyncio.sleep(0.2)  # it fetches their bodies
    for name in others:
        world.crash(name)
    await world.more(1)
    alone = ledger.chain.version
    world.crash("trainer-0")
    await asyncio.sleep(150)  # the batch is forgotten by now, but for this
    world.start_all()
    assert world.ledger("validator-0").chain.version < alone
    await asyncio.gather(*(world.reach(alone + 2, name) for name in others))
    await world.finish()


@pytest.mark.long
async def test_two_heirs_that_lead_at_once_end_on_one_chain():
    """The trainer dies, and the network is cut between its next two successors.

    Only one of them has enough validators for pages, and gets rollouts to learn from.
    """
    world = Swarm(
        inference=2,
        validator=4,
        trainer=3,
        # The fork of the later term may give way: its commits have no outcome across the cut.
        tolerated=["one-chain"],
        epochs__record_epochs=6,
        epochs__refresh_epochs=2,
    )
    world.start_all()
    await asyncio.gather(*(world.reach(3, name) for name in world.machines))
    sides = [
        ("trainer-1", "worker-0", "validator-0", "relay-0"),
        ("trainer-2", "worker-1", "validator-1", "validator-2", "validator-3"),
    ]
    world.crash("trainer-0")
    cut = world.network.partition(*sides)
    await world.more(3, "trainer-2")
    assert world.ledger("trainer-2").chain.head.message.term == 2, "a term is one trainer's"
    world.network.heal(cut)

    def agree():
        return len({world.ledger(name).chain.head.digest for name in world.running}) == 1

    await eventually(agree, 120)
    await world.more(2, "worker-0")
    await world.finish()
