"""Machines on a simulated network, with helpers for streams, connections and times."""

import asyncio
from collections.abc import Callable

from protocol.core.rng import Rng
from simulations.network.connections import LinkConditions
from simulations.network.links import SMALL_BYTES
from simulations.network.network import (
    CONNECTIONS_HIGH,
    CONNECTIONS_LOW,
    DIAL_SECONDS_MAX,
    PATH_SPREAD,
    TRIM_SECONDS,
    SimNetwork,
)
from simulations.network.streams import WINDOW_BYTES
from simulations.network.transport import address_of
from tests.worlds.messages import identity

__all__ = [
    "CONNECTIONS_HIGH",
    "CONNECTIONS_LOW",
    "DIAL_SECONDS_MAX",
    "KEEPALIVE_SECONDS",
    "MEGABYTE",
    "PATH_SPREAD",
    "PROTOCOL",
    "RETRANSMISSION_SECONDS_MIN",
    "SMALL_BYTES",
    "TRIM_SECONDS",
    "WINDOW_BYTES",
    "Machines",
    "everything",
    "now",
]

MEGABYTE = 1_000_000
KEEPALIVE_SECONDS = 30.0
"""yamux's interval."""
RETRANSMISSION_SECONDS_MIN = 0.2
"""Linux's minimum."""
PROTOCOL = "/test"


class Machines:
    """Machines that accept every stream and pass it to the test; must be made in a loop."""

    def __init__(
        self,
        *,
        seed: bytes = b"seed",
        jitter: float = 0.0,
        loss: float = 0.0,
        round_trip_seconds: float | Callable[[str, str], float] = 0.03,
    ) -> None:
        loop = asyncio.get_running_loop()
        rng = Rng(seed)
        conditions = LinkConditions(rng.child("conditions"), jitter, loss)
        constant = round_trip_seconds
        between = constant if callable(constant) else lambda *_: constant
        self.network = SimNetwork(loop, rng.child("network"), conditions, between)
        self.transports = {}
        self.errors: list[BaseException] = []
        self._accepted: dict[str, asyncio.Queue] = {}

    async def add(self, *names, up=1000.0 * MEGABYTE, down=1000.0 * MEGABYTE, **options):
        """Add machines to the network, with lines of these bytes per second."""
        for name in names:
            self.network.add_host(
                name,
                identity(name).peer_id,
                upload_bytes_per_second=up,
                download_bytes_per_second=down,
                **{"region": "eu", **options},
            )
            self._accepted[name] = asyncio.Queue()
            await self.start(name)

    async def start(self, name) -> None:
        transport = self.network.attach(name, self.errors.append)
        self.transports[name] = transport

        async def serve(stream) -> None:
            self._accepted[name].put_nowait(stream)
            await asyncio.Event().wait()

        await transport.handle(PROTOCOL, serve)

    async def connect(self, one, other) -> None:
        await self.transports[one].connect(address_of(self.network.hosts[other]))

    async def stream(self, one, other):
        """Return both ends of a new stream that ``one`` opens; connects them if needed."""
        if not self.connected(one, other):
            await self.connect(one, other)
        ours = await self.transports[one].open_stream(identity(other).peer_id, PROTOCOL)
        return ours, await self._accepted[other].get()

    def connected(self, one, other) -> bool:
        """Return whether two machines are connected; both sides must agree."""
        there = identity(other).peer_id in self.network.hosts[one].connections
        back = identity(one).peer_id in self.network.hosts[other].connections
        assert there == back
        return there

    def latency(self, one, other) -> float:
        """Return the one-way delay of a connection in seconds."""
        return self.network.hosts[one].connections[identity(other).peer_id].latency


def now() -> float:
    return asyncio.get_running_loop().time()


async def everything(stream) -> bytes:
    """Read a stream to its end."""
    pieces = []
    while piece := await stream.read(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)
