"""State of a key over restarts, lost disks, full disks and clock changes."""

import asyncio

import pytest

from node.context import NodeContext, Ports
from node.membership.key_guard import CAREFUL_EPOCHS, SLOTS_SKIPPED, KeyGuard
from protocol.core.rng import Rng
from protocol.ledger.final_ledger import FinalLedger
from protocol.replica.replica import Replica
from roles.ports.storage import StorageFullError
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.disks import MemoryStore
from tests.worlds.messages import World, run_manifest
from tests.worlds.network import LoopClock

pytestmark = pytest.mark.virtual

EPOCH_SECONDS = 10.0
LISTENS_SECONDS = CAREFUL_EPOCHS * EPOCH_SECONDS


class Clock:
    offset = 0.0

    def now(self):
        return LoopClock().now() + self.offset


class Machine:
    """A worker's machine; ``begin`` restarts the process."""

    def __init__(self):
        made = run_manifest(epochs={"seconds": EPOCH_SECONDS})
        genesis = made.genesis.model_copy(update={"created_at": round(LoopClock().now())})
        self.world = World(made.model_copy(update={"genesis": genesis}))
        self.own = self.world.workers[0]
        self.store, self.clock = MemoryStore(), Clock()
        self.synchronised = asyncio.Event()
        self.synchronised.set()
        self.task = None
        self.place = b"here"
        self.addresses = ("/ip4/192.0.2.1/tcp/4001",)

    async def begin(self) -> KeyGuard:
        if self.task is not None:
            self.task.cancel()
        self.replica = Replica(self.world.manifest, lambda *_: True)
        self.replica.receive(self.world.genesis().envelope, self.clock.now())
        ports = Ports(self.clock, Rng(b"1"), None, None, None, self.store, None, None)
        self.conditions = Conditions()
        context = NodeContext(self.own, self.replica, ports, None, ChangeSignal(), self.conditions)
        self.key_guard = KeyGuard(context, self.place)
        await self.key_guard.begin()
        self.task = asyncio.create_task(self.key_guard.run(self.synchronised.wait))
        return self.key_guard

    def lose_disk(self):
        self.store.tables.clear()

    async def say(self, **changes):
        """Return the record that is announced now."""
        await self.key_guard.advance(leaving=False)
        fields = {
            "sequence": self.key_guard.sequence,
            "joined_at": self.key_guard.joined_at,
            "addresses": self.addresses,
        }
        record = self.world.record(self.own, ("inference",), **fields | changes)
        self.key_guard.said(record.message)
        return record

    def show(self, signed, *, is_news=False):
        self.key_guard.shown(signed, is_news=is_news)

    def version(self, number):
        head = self.replica.ledger.chain.head
        signed = self.world.checkpoint(head)
        assert signed.message.version == number
        self.replica.receive(signed.envelope, self.clock.now())


async def test_what_this_disk_said_tells_nothing_new():
    machine = Machine()
    for _ in range(2):
        await machine.begin()
        assert not machine.key_guard.may_have_evaluated(0)
        first = await machine.say()
        await asyncio.sleep(20)
        for record in (first, await machine.say()):
            machine.show(record)
        assert not machine.key_guard.may_have_evaluated(0)
        await asyncio.sleep(20)


@pytest.mark.parametrize("announced", [False, True])
@pytest.mark.parametrize("kind", ["record", "commit"])
async def test_what_another_disk_said_tells_that_it_is_lost(announced, kind):
    machine = Machine()
    await machine.begin()
    record = await machine.say()
    await asyncio.sleep(5)
    machine.lose_disk()
    await machine.begin()
    if announced:
        await machine.say()
    assert not machine.key_guard.may_have_evaluated(0)
    if kind == "record":
        machine.show(record)
    else:
        commit = machine.world.commit(machine.own)
        machine.show(commit, is_news=False)
        assert not machine.key_guard.may_have_evaluated(0), "our replica has it already"
        machine.show(commit, is_news=True)
    assert machine.key_guard.may_have_evaluated(0)


async def test_what_a_replica_forgot_and_takes_again_is_no_proof():
    """Its clock was ahead for a while, so its commits are old."""
    machine = Machine()
    await machine.begin()
    await asyncio.sleep(2 * EPOCH_SECONDS)
    machine.show(machine.world.commit(machine.own, epoch=1), is_news=True)
    machine.show(machine.world.genesis(), is_news=True)
    assert not machine.key_guard.may_have_evaluated(0)


async def test_a_record_with_a_number_that_this_disk_never_gave_is_of_another():
    """The other clock was slightly ahead of ours."""
    machine = Machine()
    machine.clock.offset = 2.0
    await machine.begin()
    record = await machine.say()
    machine.clock.offset = 0.0
    machine.lose_disk()
    await machine.begin()
    machine.show(record)
    assert machine.key_guard.may_have_evaluated(0)


async def test_versions_that_were_heard_of_while_it_listened_are_left_alone_for_good():
    machine = Machine()
    await machine.begin()
    machine.show(machine.world.record(machine.own, ("inference",), sequence=1, joined_at=1))
    machine.version(1)
    await asyncio.sleep(LISTENS_SECONDS - 1)
    assert machine.key_guard.may_have_evaluated(99)
    machine.version(2)
    await asyncio.sleep(2)
    for _ in range(2):
        assert machine.key_guard.may_have_evaluated(2)
        assert not machine.key_guard.may_have_evaluated(3)
        await machine.begin()


async def test_used_slots_are_stored():
    machine = Machine()
    await machine.begin()
    assert machine.key_guard.first_slot == 0
    await machine.key_guard.use(4)
    await machine.key_guard.use(2)
    for _ in range(2):
        assert machine.key_guard.first_slot == 5
        await machine.begin()


async def test_slots_that_a_lost_disk_may_have_used_are_left_out_for_good():
    machine = Machine()
    await machine.begin()
    await machine.key_guard.use(1)
    machine.show(machine.world.record(machine.own, ("inference",), sequence=1, joined_at=1))
    assert machine.key_guard.first_slot is None
    await asyncio.sleep(LISTENS_SECONDS - 1)
    epoch = machine.world.manifest.epoch_at(machine.clock.now())
    late = machine.world.commit(machine.own, 6, epoch=epoch)
    machine.replica.ledger.restore_commit(late)
    assert machine.key_guard.first_slot is None
    await asyncio.sleep(2)
    for _ in range(2):
        assert machine.key_guard.first_slot == 7 + SLOTS_SKIPPED
        await machine.begin()


async def test_a_key_with_a_lost_disk_uses_no_slot_before_it_has_counted_the_final_pages(
    monkeypatch,
):
    machine = Machine()
    await machine.begin()
    monkeypatch.setattr(FinalLedger, "is_behind", True)
    machine.show(machine.world.record(machine.own, ("inference",), sequence=1, joined_at=1))
    await asyncio.sleep(3 * LISTENS_SECONDS)
    assert machine.key_guard.first_slot is None
    monkeypatch.undo()
    await asyncio.sleep(2 * EPOCH_SECONDS)
    assert machine.key_guard.first_slot == SLOTS_SKIPPED


async def test_a_restart_while_it_listens_begins_that_anew_when_a_peer_has_told_what_it_missed():
    machine = Machine()
    await machine.begin()
    record = machine.world.record(machine.own, ("inference",), sequence=1, joined_at=1)
    machine.show(record)
    for _ in range(3):
        await asyncio.sleep(LISTENS_SECONDS / 2)
        await machine.begin()
        assert machine.key_guard.may_have_evaluated(0)
    machine.synchronised.clear()
    await machine.begin()
    await asyncio.sleep(10 * LISTENS_SECONDS)
    assert machine.key_guard.may_have_evaluated(99), "nobody has told it anything"
    machine.synchronised.set()
    await asyncio.sleep(LISTENS_SECONDS + 1)
    assert not machine.key_guard.may_have_evaluated(1)


async def test_a_full_disk_keeps_nothing_from_us_and_is_tried_again():
    machine = Machine()
    commit = machine.store.commit

    async def full(_changes):
        raise StorageFullError("full")

    machine.store.commit = full
    await machine.begin()
    machine.show(machine.world.commit(machine.own), is_news=True)
    assert machine.key_guard.may_have_evaluated(0)
    await asyncio.sleep(EPOCH_SECONDS / 2)
    machine.store.commit = commit
    await asyncio.sleep(EPOCH_SECONDS)
    await machine.begin()
    assert machine.key_guard.may_have_evaluated(0), "it was written down as soon as there was room"


async def test_verdicts_are_left_to_others_for_commits_from_before_this_disk():
    machine = Machine()
    await machine.begin()
    assert not machine.key_guard.may_have_judged(0)
    await asyncio.sleep(3 * EPOCH_SECONDS)
    await machine.say()
    await machine.begin()
    assert not machine.key_guard.may_have_judged(0), "a restart loses nothing"
    machine.lose_disk()
    await machine.begin()
    assert machine.key_guard.may_have_judged(2)
    assert not machine.key_guard.may_have_judged(3)


async def test_no_vote_in_an_epoch_in_which_another_disk_may_have_voted():
    """A vote is of the present epoch, also by a clock that is ahead within its tolerance."""
    machine = Machine()
    await asyncio.sleep(3 * EPOCH_SECONDS + 0.5)
    await machine.begin()
    assert machine.key_guard.may_have_voted(3)
    assert not machine.key_guard.may_have_voted(4)
    await asyncio.sleep(2 * EPOCH_SECONDS)
    await machine.begin()
    assert not machine.key_guard.may_have_voted(4), "a restart loses nothing"
    machine.lose_disk()
    started = machine.world.manifest.epoch_at(machine.clock.now()) + 1
    until = machine.world.manifest.epoch_start(started) - machine.clock.now()
    await asyncio.sleep(until - 1)
    await machine.begin()
    assert machine.key_guard.may_have_voted(started), "its clock may have been in the next epoch"
    assert not machine.key_guard.may_have_voted(started + 1)


async def test_a_clock_that_was_ahead_and_is_set_back_looks_like_no_other_disk():
    machine = Machine()
    machine.clock.offset = 3600.0
    await machine.begin()
    await machine.say()
    machine.clock.offset = 0.0
    record = await machine.say()
    machine.show(record)
    assert not machine.key_guard.may_have_evaluated(0)


@pytest.mark.parametrize("stored", [b"", b"\xc1", bytes(1000)])
async def test_a_damaged_row_is_none(stored):
    machine = Machine()
    machine.store.tables["incarnation"] = {b"own": stored}
    await machine.begin()
    assert machine.key_guard.is_new
    await machine.say()
    await machine.begin()
    assert not machine.key_guard.is_new
