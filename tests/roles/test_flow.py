import asyncio

from protocol.assignment import SequenceAssignment
from roles.flow import ChangeSignal, Conditions, reward
from tests.worlds.messages import run_manifest
from tests.worlds.network import LoopClock, run_virtual


def test_a_beat_between_looking_and_waiting_is_not_lost():
    async def scenario():
        changes = ChangeSignal()
        seen = changes.count
        changes.notify()
        began = LoopClock().now()
        await changes.wait(60, seen)
        assert LoopClock().now() - began < 0.01
        await changes.wait(60, changes.count)
        assert LoopClock().now() >= began + 60

    run_virtual(scenario())


def test_a_beat_wakes_everyone_and_who_was_cancelled_leaves_no_trace():
    async def scenario():
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

    run_virtual(scenario())


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


class Task:
    def __init__(self, value):
        self.value = value

    def score(self, _seed, _completion):
        return self.value


def test_a_reward_is_the_tasks_less_what_the_length_costs():
    manifest = run_manifest(sampling={"length_targets": (4,), "length_penalty": 0.25})
    plain = SequenceAssignment(0, 1, 2, None)
    aimed = SequenceAssignment(0, 1, 2, 4)
    assert reward(manifest, Task(0.5), plain, [1, 2]) == 500_000
    assert reward(manifest, Task(1.0), aimed, [1, 2, 3]) == 750_000
    assert reward(manifest, Task(1.0), aimed, [1] * 5) == 750_000
    assert reward(manifest, Task(0.125), aimed, [1]) == -625_000
    assert reward(manifest, Task(1.0), aimed, [1] * 12) == -1_000_000
    assert reward(manifest, Task(7.0), aimed, [1] * 4) == 1_000_000
    assert reward(manifest, Task(-7.0), aimed, [1] * 4) == 0
    assert reward(manifest, Task(float("nan")), plain, [1]) == 0
