import asyncio
from dataclasses import replace

import pytest

from node.network.resources.stream_limiter import TRUSTED_FACTOR, UNDISTURBED_SECONDS, StreamLimiter
from node.network.resources.stream_slots import SERVED_TIMES
from node.network.streams.protocols import MESSAGE
from protocol.core.containers import table_sizes
from protocol.core.types import PeerId
from roles.ports.transport import Trust
from tests.worlds.network import Hub

pytestmark = pytest.mark.virtual

SERVER = PeerId("server")


class Silent:
    """Stream that sends nothing."""

    peer = SERVER


class Server:
    """Serves each stream until the test sets its outcome."""

    def __init__(self, **changes):
        self.hub = Hub()
        self.served, self.serving = [], []
        limits = replace(MESSAGE, **{"streams_per_peer": 2, "streams_total": 3, **changes})
        self.bounded = StreamLimiter(
            self.serve, limits, Trust(lambda peer: peer == "genesis", lambda peer: peer[0])
        )
        self.transport = self.hub.transport(SERVER)

    async def serve(self, stream):
        self.served.append(stream.peer)
        self.serving.append(stream.peer)
        try:
            await asyncio.shield(self.outcome)
        finally:
            self.serving.remove(stream.peer)

    async def opened(self, *names):
        """Open a stream for each name; return those that were reset at once."""
        self.outcome = asyncio.get_running_loop().create_future()
        await self.transport.handle("p", self.bounded)
        streams = []
        for name in names:
            peer = PeerId(name)
            transport = self.hub.transports.get(peer) or self.hub.transport(peer)
            self.hub.connect(peer, SERVER)
            streams.append(await transport.open_stream(SERVER, "p"))
        await asyncio.sleep(0.1)
        ended = []
        for number, stream in enumerate(streams):
            try:
                ended += [number] if await asyncio.wait_for(stream.read(1), 0.1) == b"" else []
            except TimeoutError:
                continue
        return ended


async def test_a_peer_and_all_peers_have_so_many_streams_at_once():
    server = Server()
    assert await server.opened("a", "a", "a", "b", "b") == [2, 4]
    assert server.served == ["a", "a", "b"]
    assert table_sizes(server.bounded.tables)["streams_message"] == 3
    server.outcome.cancel()
    await asyncio.sleep(0.1)
    assert table_sizes(server.bounded.tables)["streams_message"] == 0


async def test_peer_that_opens_streams_too_often_is_not_served():
    server, served = Server(streams_per_second=0.1, streams_burst=4), []
    for name in ("a-1", "a-2", "a-1", "a-2", "a-1", "b", *["genesis"] * 4 * TRUSTED_FACTOR):
        served.append(not await server.opened(name))
        server.outcome.set_result(None)
    assert served == [True] * 4 + [False, True] + [True] * 4 * TRUSTED_FACTOR
    await asyncio.sleep(10)
    assert await server.opened("a") == []
    server.outcome.set_result(None)
    assert await server.opened("a") == [0]


@pytest.mark.parametrize("fails", [False, True])
async def test_a_stream_that_ends_makes_room(fails):
    server = Server()
    assert await server.opened("a", "b", "c", "d") == [3]
    if fails:
        server.outcome.cancel()
    else:
        server.outcome.set_result(None)
    await asyncio.sleep(0.1)
    assert table_sizes(server.bounded.tables)["streams_message"] == 0
    assert await server.opened("d", "a", "b", "c") == [3]
    server.outcome.cancel()


async def test_evicted_stream_ends_at_once():
    server = Server()
    assert await server.opened("a", "b", "c", "genesis") == [0]
    assert server.served == ["a", "b", "c", "genesis"]
    assert server.serving == ["b", "c", "genesis"]
    server.outcome.set_result(None)
    await asyncio.sleep(0.1)
    assert table_sizes(server.bounded.tables)["streams_message"] == 0


async def test_stalled_stream_is_not_evicted_for_a_moment():
    server = Server()
    assert await server.opened("a", "b", "c", "d") == [3]
    await asyncio.sleep(UNDISTURBED_SECONDS)
    assert await server.opened("d") == []
    assert server.serving == ["b", "c", "d"]
    server.outcome.cancel()


async def test_a_fault_of_ours_is_not_lost():
    async def broken(_stream):
        raise RuntimeError("our own fault")

    bounded = StreamLimiter(broken, MESSAGE, Trust())
    with pytest.raises(RuntimeError, match="our own fault"):
        await bounded(Silent())
    assert table_sizes(bounded.tables)["streams_message"] == 0


async def test_a_node_that_stops_ends_what_it_serves():
    ended = []

    async def slow(_stream):
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    bounded = StreamLimiter(slow, MESSAGE, Trust())
    serving = asyncio.create_task(bounded(Silent()))
    await asyncio.sleep(1)
    serving.cancel()
    await asyncio.sleep(0.1)
    assert ended == [True]
    assert serving.cancelled()
    assert table_sizes(bounded.tables)["streams_message"] == 0


async def test_stalled_streams_are_evicted_before_waiting_ones():
    hub, slow, serving = Hub(), {}, set()

    async def serve(stream):
        bounded.note_slow(stream, slow=slow[stream.peer])
        serving.add(stream.peer)
        try:
            await asyncio.sleep(1000)
        finally:
            serving.remove(stream.peer)

    bounded = StreamLimiter(serve, replace(MESSAGE, streams_total=3), Trust(), untrusted=2)
    transport = hub.transport(SERVER)
    await transport.handle("p", bounded)

    async def comes(name, *, is_slow):
        slow[PeerId(name)] = is_slow
        other = hub.transport(PeerId(name))
        hub.connect(PeerId(name), SERVER)
        await other.open_stream(SERVER, "p")
        await asyncio.sleep(0.1)
        return sorted(serving)

    assert await comes("waits", is_slow=False) == ["waits"]
    assert await comes("slow", is_slow=True) == ["slow", "waits"]
    assert await comes("early", is_slow=False) == ["slow", "waits"], "two untrusted peers at most"
    await asyncio.sleep(UNDISTURBED_SECONDS)
    assert await comes("next", is_slow=False) == ["next", "waits"]
    await asyncio.sleep(UNDISTURBED_SECONDS)
    assert await comes("late", is_slow=False) == ["next", "waits"]
    await asyncio.sleep(SERVED_TIMES * UNDISTURBED_SECONDS)
    assert await comes("last", is_slow=False) == ["last", "next"]
