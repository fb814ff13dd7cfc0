import asyncio
import math

import pytest

from simulations.ports.throughput import SharedThroughput
from tests.worlds.network import run_virtual

pytestmark = pytest.mark.virtual


def ended(rate, *jobs):
    """Return the end of each job; a job is (start, amount)."""

    async def scenario():
        machine, at = SharedThroughput(rate), []
        loop = asyncio.get_running_loop()

        async def one(begins, amount):
            await asyncio.sleep(begins)
            await machine.work(amount)
            return loop.time()

        at = await asyncio.gather(*(one(*job) for job in jobs))
        assert machine.done == pytest.approx(sum(amount for _, amount in jobs))
        return at

    return run_virtual(scenario())


def test_one_job_takes_what_it_is():
    assert ended(lambda _: 10.0, (0, 50), (100, 20)) == pytest.approx([5, 102])


def test_jobs_share_what_the_machine_makes():
    assert ended(lambda _: 10.0, (0, 50), (0, 50)) == pytest.approx([10, 10])
    assert ended(lambda n: 10.0 * n, (0, 50), (0, 50)) == pytest.approx([5, 5])
    # One second alone, then both at 5 a second each, until the shorter one has ended.
    assert ended(lambda _: 10.0, (0, 50), (1, 10)) == pytest.approx([6, 3])


def test_throughput_that_grows_less_than_jobs_do():
    rate = lambda n: 10.0 * math.sqrt(n)  # noqa: E731 - a formula
    assert ended(rate, *[(0, 100)] * 4) == pytest.approx([20] * 4)


async def test_who_is_cancelled_leaves_the_machine_to_the_others():
    machine = SharedThroughput(lambda _: 10.0)
    other = asyncio.create_task(machine.work(1000))
    mine = asyncio.create_task(machine.work(20))
    await asyncio.sleep(2)
    other.cancel()
    await mine
    assert asyncio.get_running_loop().time() == pytest.approx(3)
    assert machine.done == pytest.approx(30)
