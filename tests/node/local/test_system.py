import asyncio
import threading
import time

import pytest

from node.local.system import ThreadBackground


@pytest.fixture
def background():
    made = ThreadBackground()
    yield made
    made.close()
    made.close()


async def test_calls_run_one_after_another_in_one_other_thread(background):
    threads, running = [], []

    def work(number):
        threads.append(threading.get_ident())
        running.append(number)
        time.sleep(0.01)
        assert running == [number]
        running.remove(number)
        return number

    made = await asyncio.gather(*(background.run(lambda n=n: work(n)) for n in range(5)))
    assert made == [0, 1, 2, 3, 4]
    assert len(set(threads)) == 1 and threading.get_ident() not in threads


async def test_it_is_not_the_thread_that_files_wait_for(background):
    busy, free = threading.Event(), threading.Event()

    def block():
        busy.set()
        assert free.wait(10)

    blocked = asyncio.create_task(background.run(block))
    for _ in range(40):  # more than the loop has file threads
        await asyncio.to_thread(busy.wait, 10)
    free.set()
    await blocked


async def test_an_error_comes_to_who_asked(background):
    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await background.run(fail)
    assert await background.run(lambda: 7) == 7


async def test_a_cancelled_call_runs_to_its_end(background):
    started, ended = threading.Event(), []

    def work():
        started.set()
        time.sleep(0.05)
        ended.append(True)

    task = asyncio.create_task(background.run(work))
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    await asyncio.wait([task])
    await background.run(lambda: None)
    assert ended == [True]
