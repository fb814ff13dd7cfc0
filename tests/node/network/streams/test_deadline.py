import asyncio

import pytest

from node.network.streams.deadline import within
from roles.ports.transport import TransportError

pytestmark = pytest.mark.virtual


async def test_what_takes_too_long_is_a_broken_stream_and_is_cancelled():
    loop = asyncio.get_running_loop()
    cancelled = []

    async def slow():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            cancelled.append(loop.time())
            raise

    began = loop.time()
    with pytest.raises(TransportError, match="5"):
        await within(5, slow())
    assert cancelled == [pytest.approx(began + 5)]
    assert await within(5, asyncio.sleep(4, "done")) == "done"


async def test_a_cancellation_from_outside_goes_on_even_beside_the_deadline():
    async def waits():
        await within(5, asyncio.sleep(10))

    for seconds in (1, 5):  # before the deadline, and at it
        task = asyncio.create_task(waits())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_later(seconds, task.cancel)
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_a_deadline_leaves_no_cancellation_behind():
    async def stubborn():
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            return "late"

    task = asyncio.current_task()
    with pytest.raises(TransportError):
        await within(5, asyncio.sleep(10))
    assert await within(5, stubborn()) == "late"
    assert task.cancelling() == 0
