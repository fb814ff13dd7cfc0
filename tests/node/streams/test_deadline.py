import asyncio

import pytest

from node.streams.deadline import within
from roles.ports.transport import TransportError
from tests.worlds.network import run_virtual


def test_what_takes_too_long_is_a_broken_stream_and_is_cancelled():
    async def scenario():
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

    run_virtual(scenario())
