"""One key on two machines: heard of before the second one works, and else the end of both."""

import asyncio

import pytest

from protocol.membership import CLOCK_SKEW_SECONDS_MAX
from tests.node.membership.test_incarnation import EPOCH_SECONDS, Machine
from tests.worlds.network import run_virtual


class Watched(Machine):
    """A machine whose start is watched; ``of`` is one whose directory or key was copied."""

    def __init__(self, of=None, *, with_disk=True):
        super().__init__()
        if of is not None:
            self.world, self.own, self.place = of.world, of.own, b"there"
            if with_disk:
                self.store.tables.update({k: dict(v) for k, v in of.store.tables.items()})

    async def start(self):
        await self.begin()
        self.listening = asyncio.create_task(self.incarnation.listen(self.synchronised.wait))
        self.alone = asyncio.create_task(self.incarnation.wait_alone())
        self.twin = asyncio.create_task(self.incarnation.wait_twin())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def works(self):
        return self.alone.done()


async def started(machine):
    await machine.start()
    return machine


def test_a_usual_restart_works_at_once():
    async def scenario():
        machine = await started(Watched())
        assert machine.works
        record = await machine.say()
        await asyncio.sleep(5)
        await machine.start()
        assert machine.works
        machine.show(record)
        assert not machine.twin.done()
        await machine.begin()
        machine.show(record)
        await asyncio.wait_for(machine.incarnation.listen(machine.synchronised.wait), 1)

    run_virtual(scenario())


def test_a_copied_directory_listens_and_hears_the_other_one():
    """The copy has all that the other disk has: its own records tell it nothing."""

    async def scenario():
        one = await started(Watched())
        await one.say()
        await asyncio.sleep(2)
        two = await started(Watched(one))
        assert not two.works
        assert "listening for another node with our key" in str(two.conditions)
        await asyncio.sleep(5)
        two.show(await one.say())
        await asyncio.sleep(1)
        assert not two.works
        told = two.twin.result()
        assert told.startswith(f"another node uses our key ({two.own.peer_id})")
        await asyncio.sleep(2 * two.incarnation.listen_seconds)
        assert not two.works, "not even later"

    run_virtual(scenario())


def test_a_directory_that_has_moved_works_when_nobody_was_heard():
    async def scenario():
        one = await started(Watched())
        last = await one.say()
        two = await started(Watched(one))
        two.show(last)  # as whoever heard it last still tells
        await asyncio.sleep(two.incarnation.listen_seconds - 1)
        assert not two.works
        await asyncio.sleep(2)
        assert (two.works, str(two.conditions)) == (True, "")
        await two.start()
        assert two.works, "it is at home here now"

    run_virtual(scenario())


def test_who_restarts_while_it_listens_begins_anew():
    async def scenario():
        one = await started(Watched())
        await one.say()
        two = await started(Watched(one))
        await asyncio.sleep(two.incarnation.listen_seconds - 1)
        await two.say()  # nothing does; what is written must not end the listening
        await two.start()
        await asyncio.sleep(two.incarnation.listen_seconds - 1)
        assert not two.works

    run_virtual(scenario())


@pytest.mark.parametrize("leaving", [False, True])
def test_a_key_alone_listens_if_somebody_has_just_heard_of_it(leaving):
    async def scenario():
        one = await started(Watched())
        record = await one.say(leaving=leaving)
        await asyncio.sleep(1)
        two = Watched(one, with_disk=False)
        await two.begin()
        two.show(record)
        listening = asyncio.create_task(two.incarnation.listen(two.synchronised.wait))
        await asyncio.sleep(1)
        assert listening.done() == leaving

    run_virtual(scenario())


def test_a_twin_that_comes_while_we_work_ends_us():
    async def scenario():
        one, two = await started(Watched()), Watched()
        two.world, two.own = one.world, one.own
        await two.start()
        assert one.works
        assert two.works, "both were new, and heard of nobody"
        for machine, other in ((one, two), (two, one)):
            await asyncio.sleep(CLOCK_SKEW_SECONDS_MAX + 1)
            machine.show(await other.say())
            await asyncio.sleep(0)
            assert machine.twin.done()

    run_virtual(scenario())


def test_what_was_said_before_our_start_is_no_twin():
    """Its clock may have been ahead of ours as far as others bear with it."""

    async def scenario():
        one = await started(Watched())
        one.clock.offset = CLOCK_SKEW_SECONDS_MAX - 0.5
        last = await one.say()
        two = await started(Watched(one, with_disk=False))
        two.show(last)
        await asyncio.sleep(EPOCH_SECONDS)
        assert not two.twin.done()

    run_virtual(scenario())
