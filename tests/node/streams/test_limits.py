import asyncio
from dataclasses import replace

import pytest

from node.streams.limits import Bounded
from node.streams.protocols import MESSAGE
from protocol.types import PeerId
from tests.worlds.network import Hub, run_virtual

SERVER = PeerId("server")


class Server:
    """Serves each stream until it is told what comes of it."""

    def __init__(self):
        self.hub = Hub()
        self.served = []
        self.bounded = Bounded(self.serve, replace(MESSAGE, streams_per_peer=2, streams_total=3))
        self.transport = self.hub.transport(SERVER)

    async def serve(self, stream):
        self.served.append(stream.peer)
        await self.outcome

    async def opened(self, *names):
        """Open a stream for each name; return which of them were ended at once."""
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


def test_a_peer_and_all_peers_have_so_many_streams_at_once():
    async def scenario():
        server = Server()
        assert await server.opened("a", "a", "a", "b", "c") == [2, 4]
        assert server.served == ["a", "a", "b"]
        server.outcome.cancel()

    run_virtual(scenario())


@pytest.mark.parametrize("fails", [False, True])
def test_a_stream_that_ends_makes_room(fails):
    async def scenario():
        server = Server()
        assert await server.opened("a", "a", "b", "c") == [3]
        if fails:
            server.outcome.cancel()
        else:
            server.outcome.set_result(None)
        await asyncio.sleep(0.1)
        assert not server.bounded._serving
        assert await server.opened("c", "a", "a", "b") == [3]
        server.outcome.cancel()

    run_virtual(scenario())
