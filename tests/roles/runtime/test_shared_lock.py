import asyncio

from roles.runtime.shared_lock import SharedLock


async def test_a_change_waits_for_those_inside_and_those_after_it_wait_for_the_change():
    turns, told = SharedLock(), []

    async def call(name, seconds):
        async with turns.together():
            told.append(f"{name} in")
            await asyncio.sleep(seconds)
            told.append(f"{name} out")

    async def change():
        async with turns.alone():
            told.append("change")
            await asyncio.sleep(0.02)
            told.append("changed")

    await asyncio.gather(call("a", 0.03), call("b", 0.01), change(), call("c", 0), call("d", 0))
    inside, after = told[: told.index("change")], told[told.index("changed") + 1 :]
    assert inside == ["a in", "b in", "b out", "a out"]
    assert sorted(after) == ["c in", "c out", "d in", "d out"]


async def test_who_is_cancelled_holds_nobody_up():
    turns = SharedLock()

    async def inside(way):
        async with way():
            await asyncio.sleep(60)

    tasks = []
    for way in (turns.together, turns.alone, turns.together, turns.alone):
        tasks.append(asyncio.create_task(inside(way)))
        await asyncio.sleep(0)
    for task in reversed(tasks):
        task.cancel()
        await asyncio.wait([task])
    async with asyncio.timeout(60):
        await turns.alone().__aenter__()
