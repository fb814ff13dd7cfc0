"""One key on two machines: detected before the second one works, or ended on one of them."""

import asyncio

import pytest

from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX
from tests.node.membership.test_key_guard import EPOCH_SECONDS, Machine

pytestmark = pytest.mark.virtual


class Watched(Machine):
    """Machine with a recorded start; ``of`` is one whose directory or key was copied."""

    def __init__(self, of=None, *, with_disk=True):
        super().__init__()
        if of is not None:
            self.world, self.own, self.place = of.world, of.own, b"there"
            if with_disk:
                self.store.tables.update({k: dict(v) for k, v in of.store.tables.items()})

    async def start(self):
        await self.begin()
        self.listening = asyncio.create_task(self.key_guard.listen(self.synchronised.wait))
        self.alone = asyncio.create_task(self.key_guard.wait_alone())
        self.twin = asyncio.create_task(self.key_guard.wait_duplicate())
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    @property
    def works(self):
        return self.alone.done()


async def started(machine):
    await machine.start()
    return machine


async def test_a_usual_restart_works_at_once():
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
    await asyncio.wait_for(machine.key_guard.listen(machine.synchronised.wait), 1)


async def test_a_copied_directory_listens_and_hears_the_other_one():
    """The copy has the full state of the other disk: the own records prove nothing to it."""
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
    await asyncio.sleep(2 * two.key_guard.listen_seconds)
    assert not two.works, "not even later"


async def test_a_directory_that_has_moved_works_when_nobody_was_heard():
    one = await started(Watched())
    last = await one.say()
    two = await started(Watched(one))
    two.show(last)  # as a peer still holds it
    await asyncio.sleep(two.key_guard.listen_seconds - 1)
    assert not two.works
    await asyncio.sleep(2)
    assert (two.works, str(two.conditions)) == (True, "")
    await two.start()
    assert two.works, "it is at home here now"


async def test_who_restarts_while_it_listens_begins_anew():
    one = await started(Watched())
    await one.say()
    two = await started(Watched(one))
    await asyncio.sleep(two.key_guard.listen_seconds - 1)
    await two.say()  # normally it sends nothing; this write must not end the listening
    await two.start()
    await asyncio.sleep(two.key_guard.listen_seconds - 1)
    assert not two.works


@pytest.mark.parametrize("leaving", [False, True])
async def test_a_key_alone_listens_if_somebody_has_just_heard_of_it(leaving):
    one = await started(Watched())
    record = await one.say(leaving=leaving)
    await asyncio.sleep(1)
    two = Watched(one, with_disk=False)
    await two.begin()
    two.show(record)
    listening = asyncio.create_task(two.key_guard.listen(two.synchronised.wait))
    await asyncio.sleep(1)
    assert listening.done() == leaving


async def both_new(*, apart_seconds=0.0):
    """Return two machines that work with one key, and have announced themselves."""
    one, two = await started(Watched()), Watched()
    first = await one.say()
    await asyncio.sleep(apart_seconds)
    two.world, two.own = one.world, one.own
    await two.start()
    assert one.works
    assert two.works, "both were new, and heard of nobody"
    second = await two.say()
    if not apart_seconds:  # each takes the other's record for its own, from a lost disk
        one.show(second)
        two.show(first)
    await asyncio.sleep(CLOCK_SKEW_SECONDS_MAX + 1)
    return one, two


async def ends(machine, record):
    machine.show(record)
    await asyncio.sleep(0)
    return machine.twin.done()


async def test_of_two_that_work_the_one_that_came_later_ends():
    one, two = await both_new(apart_seconds=1)
    assert not await ends(one, await two.say())
    assert await ends(two, await one.say())
    await asyncio.sleep(10 * one.key_guard.listen_seconds)
    assert not one.twin.done()
    assert one.key_guard.may_have_evaluated(0), "the other one may have used the same slots"


@pytest.mark.parametrize("higher", [0, 1])
async def test_of_two_that_came_at_once_the_one_with_the_higher_addresses_ends(higher):
    pair = await both_new()
    pair[higher].addresses = ("/ip4/192.0.2.2/tcp/4001",)
    told = [await machine.say() for machine in pair]
    assert await ends(pair[higher], told[1 - higher])
    assert not await ends(pair[1 - higher], told[higher])


async def test_two_that_nothing_tells_apart_both_end():
    one, two = await both_new()
    first, second = await one.say(), await two.say()
    assert await ends(one, second)
    assert await ends(two, first)


async def test_who_goes_on_ends_when_the_other_one_does_not():
    one, two = await both_new(apart_seconds=1)
    assert not await ends(one, await two.say())
    await asyncio.sleep(one.key_guard.listen_seconds - 1)
    assert not await ends(one, await two.say())
    await asyncio.sleep(2)
    assert await ends(one, await two.say())


async def test_what_was_said_before_our_start_is_no_twin():
    """The clock of its process may have been ahead by the allowed skew."""
    one = await started(Watched())
    one.clock.offset = CLOCK_SKEW_SECONDS_MAX - 0.5
    last = await one.say()
    two = await started(Watched(one, with_disk=False))
    two.show(last)
    await asyncio.sleep(EPOCH_SECONDS)
    assert not two.twin.done()


async def test_a_twin_whose_record_is_of_no_year_is_told_in_one_line():
    one = await started(Watched())
    await one.say()
    await asyncio.sleep(60)
    twins = one.world.record(one.own, ("inference",), sequence=2**53 - 1, joined_at=1)
    one.show(twins, is_news=True)
    text = await asyncio.wait_for(one.twin, 60)
    assert "is of a year that no calendar has and not made here" in text
