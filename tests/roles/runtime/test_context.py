import asyncio

import pytest

from protocol.core.types import Role
from roles.runtime.context import ChangeSignal, Conditions
from tests.worlds.network import LoopClock

pytestmark = pytest.mark.virtual


async def test_a_beat_between_looking_and_waiting_is_not_lost():
    changes = ChangeSignal()
    seen = changes.count
    changes.notify()
    began = LoopClock().now()
    await changes.wait(60, seen)
    assert LoopClock().now() - began < 0.01
    await changes.wait(60, changes.count)
    assert LoopClock().now() >= began + 60


async def test_a_beat_wakes_everyone_and_who_was_cancelled_leaves_no_trace():
    changes = ChangeSignal()
    waiting = [asyncio.create_task(changes.wait(60, changes.count)) for _ in range(3)]
    await asyncio.sleep(1)
    waiting[0].cancel()
    await asyncio.sleep(0)
    began = LoopClock().now()
    changes.notify()
    await asyncio.wait(waiting)
    assert LoopClock().now() - began < 0.01
    assert [task.cancelled() for task in waiting] == [True, False, False]
    changes.notify()


def test_conditions_are_joined_for_people():
    conditions = Conditions()
    assert str(conditions) == ""
    conditions.set("disk", "full")
    conditions.set("weights", "on their way")
    conditions.set("disk", "still full")
    assert str(conditions) == "still full; on their way"
    assert conditions["disk"] == "still full"
    conditions.clear("disk")
    conditions.clear("disk")
    assert conditions["disk"] == ""
    assert str(conditions) == "on their way"


def test_a_role_is_left_and_taken_up_again():
    conditions = Conditions()
    conditions.resign(Role.TRAINER)
    conditions.resign(Role.TRAINER)
    assert conditions.has_resigned(Role.TRAINER) and not conditions.has_resigned(Role.RELAY)
    assert str(conditions) == "", "the reason is told by who resigned"
    conditions.take_up(Role.TRAINER)
    conditions.take_up(Role.TRAINER)
    assert not conditions.has_resigned(Role.TRAINER)


def test_what_is_awaited_is_not_wrong():
    conditions = Conditions()
    conditions.wait("task", "fetching the run's bundle", 0.5)
    assert conditions.wrong == ""
    assert (conditions.awaited.reason, conditions.awaited.share) == (conditions["task"], 0.5)
    conditions.set("task", "not stored")
    assert (conditions.wrong, conditions.awaited) == ("not stored", None)
    conditions.wait("task", "asking")
    assert (conditions.wrong, str(conditions)) == ("", "asking")
    conditions.clear("task")
    assert (conditions.awaited, str(conditions)) == (None, "")
