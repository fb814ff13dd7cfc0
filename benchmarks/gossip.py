"""The project's gossip router and go-libp2p-pubsub: latency and loss along a chain of three nodes.

Both sides use three p2pd processes on this machine in a chain 0 - 1 - 2. This Python process
publishes at node 0 and reads at nodes 1 (one hop) and 2 (two hops).

* Ours: p2pd without pubsub; the three routers run in this process, in one Python thread.
* Go: ``p2pd -pubsub``; the routers run in the three p2pd, and this process publishes and reads over
  their control sockets, one more copy to Python.

Both sign and verify every message. A latency runs from the publish call to delivery in this
process, so it includes the wait of a slowed publisher. A message missing after ``QUIET_SECONDS``
without any message is lost; one that gossip recovers counts with its latency.

Usage: ``python benchmarks/gossip.py [--quick] [--json FILE]``
"""

import argparse
import asyncio
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import uvloop

from node.live.hivemind_p2p import HivemindTransport
from node.local.system import SystemClock
from node.network.connections.manager import ConnectionManager
from node.network.gossip.driver import Gossip
from protocol.core.crypto import Identity
from protocol.core.rng import Rng
from protocol.core.types import PeerId, ValidationResult
from protocol.gossipsub.params import Params
from roles.ports.transport import Stream, StreamHandler
from tests.live.go_pubsub import GoConnection, GoPubsub

TOPIC = "benchmark/commits"
NODES = 3
CHAIN = [1, 2, 1]
"""Number of neighbours of each node."""
PUBLISHERS_MAX = 64
PACED_PUBLISHERS = 8
QUIET_SECONDS = 4.0
"""Three heartbeats to advertise a message, and one to fetch it."""
STAMP_BYTES = 12
"""Scenario (4 bytes) and publish time (8 bytes) at the start of each message."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Load: ``rate`` messages per second in total; 0 is as fast as possible."""

    payload_bytes: int
    publishers: int
    rate: int
    messages: int

    def __str__(self) -> str:
        """Format as a table cell."""
        pace = f"{self.rate}/s paced" if self.rate else f"burst, {self.publishers} publishers"
        return f"{self.payload_bytes // 1000:>3} KB {pace}"


FULL = [
    Scenario(1000, PACED_PUBLISHERS, 500, 2500),
    Scenario(100_000, PACED_PUBLISHERS, 50, 250),
    Scenario(1000, 8, 0, 3000),
    Scenario(1000, 64, 0, 6400),
    Scenario(100_000, 8, 0, 304),
    Scenario(100_000, 64, 0, 640),
]
QUICK = [
    Scenario(1000, PACED_PUBLISHERS, 200, 100),
    Scenario(100_000, 8, 0, 16),
]


@dataclass(frozen=True, slots=True)
class Row:
    """One side's result at one hop; latencies in milliseconds (None without any message)."""

    side: str
    scenario: str
    hop: int
    sent: int
    lost: int
    p50_ms: float | None
    p99_ms: float | None
    delivered_per_second: float


class Inbox:
    """Latencies per (scenario, hop)."""

    def __init__(self) -> None:
        self.latencies: dict[tuple[int, int], list[float]] = {}
        self.last_at = time.perf_counter()

    def take(self, hop: int, data: bytes) -> None:
        """Record one delivery."""
        self.last_at = time.perf_counter()
        number = int.from_bytes(data[:4], "big")
        stamp = int.from_bytes(data[4:STAMP_BYTES], "big")
        latency = (time.perf_counter_ns() - stamp) / 1e6
        self.latencies.setdefault((number, hop), []).append(latency)

    def count(self, number: int) -> int:
        """Return the number of a scenario's deliveries, over all hops."""
        return sum(len(self.latencies.get((number, hop), ())) for hop in range(1, NODES))


@dataclass(frozen=True, slots=True)
class Side:
    """A running chain; ``publish(publisher, data)`` publishes at node 0."""

    name: str
    publish: Callable[[int, bytes], Awaitable[None]]
    inbox: Inbox


class Neighbours:
    """Transport that restricts gossip to the chain's neighbours.

    The address look-up of our p2pd would connect nodes 0 and 2 by itself after a moment.
    """

    def __init__(self, transport: HivemindTransport) -> None:
        self._transport = transport
        self._allowed: dict[PeerId, None] = {}
        self.peer_id = transport.peer_id
        self.addresses = transport.addresses
        self.disconnect = transport.disconnect
        self.open_stream = transport.open_stream

    def allow(self, peer: PeerId) -> None:
        """Make ``peer`` a neighbour."""
        self._allowed[peer] = None

    async def connect(self, address: str) -> PeerId:
        """Dial a neighbour."""
        peer = await self._transport.connect(address)
        self.allow(peer)
        return peer

    async def peers(self) -> list[PeerId]:
        """Return the connected neighbours."""
        return [peer for peer in await self._transport.peers() if peer in self._allowed]

    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        """Serve neighbours; close every other peer's stream at once."""

        async def serve(stream: Stream) -> None:
            if stream.peer in self._allowed:
                await handler(stream)

        await self._transport.handle(protocol, serve)


@asynccontextmanager
async def our_chain(directory: Path) -> AsyncIterator[Side]:
    """Start three of our nodes in a chain."""
    inbox = Inbox()
    async with AsyncExitStack() as stack:
        nodes: list[Gossip] = []
        before: Neighbours | None = None
        for hop in range(NODES):
            identity = Identity(bytes([hop + 1]) * 32)
            key = directory / f"{hop}.key"
            key.write_bytes(identity.to_protobuf())
            p2pd = await HivemindTransport.create(identity, key)
            stack.push_async_callback(p2pd.close)
            transport = Neighbours(p2pd)
            params = Params(message_bytes_max=1 << 18)
            rng = Rng(bytes([hop]))
            peers = ConnectionManager(transport, SystemClock(), rng, [])
            gossip = Gossip(peers, identity, SystemClock(), rng, params=params)
            await gossip.start()
            stack.push_async_callback(gossip.stop)
            looking = asyncio.create_task(peers.run())
            stack.callback(looking.cancel)
            gossip.subscribe(TOPIC, accept, reader(inbox, hop))
            if before is not None:
                before.allow(transport.peer_id)
                await transport.connect((await before.addresses())[0])
            before = transport
            nodes.append(gossip)
        async with asyncio.timeout(30):
            while [len(node.mesh_peers(TOPIC)) for node in nodes] != CHAIN:  # noqa: ASYNC110 - others do it
                await asyncio.sleep(0.05)

        async def publish(_publisher: int, data: bytes) -> None:
            await nodes[0].publish(TOPIC, data)

        yield Side("ours", publish, inbox)


def accept(_author: PeerId, _data: bytes) -> ValidationResult:
    """Accept everything, as Go does after its signature check."""
    return ValidationResult.ACCEPT


def reader(inbox: Inbox, hop: int) -> Callable[[PeerId, bytes], None]:
    """Return a delivery callback for one node."""
    return lambda _author, data: inbox.take(hop, data)


@asynccontextmanager
async def go_chain(directory: Path) -> AsyncIterator[Side]:
    """Start three Go nodes in a chain."""
    inbox = Inbox()
    async with AsyncExitStack() as stack:
        nodes: list[GoPubsub] = []
        for hop in range(NODES):
            node = await GoPubsub.start(directory, f"go{hop}")
            stack.push_async_callback(node.stop)
            pipe = await node.subscribe(TOPIC)
            stack.callback(pipe.close)
            reading = asyncio.create_task(read_for_ever(pipe, inbox, hop))
            stack.callback(reading.cancel)
            if nodes:
                await node.connect(nodes[-1].addresses[0])
            nodes.append(node)
        async with asyncio.timeout(30):
            while [len(await node.topic_peers(TOPIC)) for node in nodes] != CHAIN:  # noqa: ASYNC110 - others do it
                await asyncio.sleep(0.05)
        await asyncio.sleep(2)  # two heartbeats: the mesh itself cannot be queried
        publishers = [await nodes[0].connection() for _ in range(PUBLISHERS_MAX)]
        for publisher in publishers:
            stack.callback(publisher.close)

        async def publish(number: int, data: bytes) -> None:
            await publishers[number].publish(TOPIC, data)

        yield Side("go", publish, inbox)


async def read_for_ever(pipe: GoConnection, inbox: Inbox, hop: int) -> None:
    """Read a Go subscription; node 0 receives its own messages, which are not counted."""
    while True:
        message = await pipe.receive()
        if hop:
            inbox.take(hop, message.data)


async def run_scenario(side: Side, number: int, scenario: Scenario) -> list[Row]:
    """Publish one scenario, wait until it is quiet, and return a row per hop."""
    padding = os.urandom(scenario.payload_bytes - STAMP_BYTES)
    turns: asyncio.Queue[None] = asyncio.Queue()

    async def publisher(which: int) -> None:
        while not turns.empty() or not paced.done():
            try:
                async with asyncio.timeout(0.1):
                    await turns.get()
            except TimeoutError:
                continue
            stamp = time.perf_counter_ns().to_bytes(8, "big")
            await side.publish(which, number.to_bytes(4, "big") + stamp + padding)

    started = side.inbox.last_at = time.perf_counter()
    paced = asyncio.create_task(give_turns(turns, scenario))
    await asyncio.gather(paced, *(publisher(which) for which in range(scenario.publishers)))
    expected = scenario.messages * (NODES - 1)
    side.inbox.last_at = max(side.inbox.last_at, time.perf_counter())
    while side.inbox.count(number) < expected:
        if time.perf_counter() - side.inbox.last_at > QUIET_SECONDS:
            break
        await asyncio.sleep(0.02)
    seconds = side.inbox.last_at - started
    return [summary(side, scenario, number, hop, seconds) for hop in range(1, NODES)]


async def give_turns(turns: asyncio.Queue[None], scenario: Scenario) -> None:
    """Release messages at the scenario's rate, or all at once."""
    started = time.perf_counter()
    for index in range(scenario.messages):
        if scenario.rate:
            await asyncio.sleep(max(0.0, started + index / scenario.rate - time.perf_counter()))
        turns.put_nowait(None)


def summary(side: Side, scenario: Scenario, number: int, hop: int, seconds: float) -> Row:
    """Return the row of one hop."""
    latencies = sorted(side.inbox.latencies.get((number, hop), []))
    return Row(
        side=side.name,
        scenario=str(scenario),
        hop=hop,
        sent=scenario.messages,
        lost=scenario.messages - len(latencies),
        p50_ms=quantile(latencies, 0.50),
        p99_ms=quantile(latencies, 0.99),
        delivered_per_second=round(len(latencies) / seconds, 1),
    )


def quantile(ordered: list[float], share: float) -> float | None:
    """Return the value below which ``share`` of a sorted list lies (nearest rank)."""
    if not ordered:
        return None
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


def machine() -> dict[str, object]:
    """Describe the machine and software of the measurement."""
    repository = Path(__file__).parent
    revision = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    return {
        "commit": revision.stdout.strip() or "none",
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "loop": f"uvloop {version('uvloop')}",
    }


async def measure(scenarios: list[Scenario]) -> list[Row]:
    """Run every scenario on both sides, one side after the other within each scenario."""
    directory = Path(tempfile.mkdtemp(prefix="gossip-bench-"))
    try:
        async with our_chain(directory) as ours, go_chain(directory) as go:
            rows: list[Row] = []
            for side in (ours, go):  # the first messages warm up
                await run_scenario(side, len(scenarios), Scenario(1000, 1, 0, 20))
            for number, scenario in enumerate(scenarios):
                for side in (ours, go):
                    results = await run_scenario(side, number, scenario)
                    rows += results
                    for row in results:
                        print(line(row), flush=True)
            return rows
    finally:
        shutil.rmtree(directory, ignore_errors=True)


HEADER = (
    f"{'side':5} {'load':30} hop   sent   lost {'loss':>7} {'p50 ms':>9} {'p99 ms':>9} {'/s':>8}"
)


def line(row: Row) -> str:
    """Return a row of the table."""
    loss = f"{100 * row.lost / row.sent:.2f} %"
    p50, p99 = ("-" if each is None else f"{each:.2f}" for each in (row.p50_ms, row.p99_ms))
    return (
        f"{row.side:5} {row.scenario:30} {row.hop:>3} {row.sent:>6} {row.lost:>6} {loss:>7} "
        f"{p50:>9} {p99:>9} {row.delivered_per_second:>8}"
    )


def main() -> None:
    """Run the benchmark and print its table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smoke run of some seconds")
    parser.add_argument("--json", type=Path, help="write the results to this file")
    arguments = parser.parse_args()
    environment = machine()
    print(", ".join(f"{key} {value}" for key, value in environment.items()))
    print(HEADER)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rows = runner.run(measure(QUICK if arguments.quick else FULL))
    if arguments.json:
        document = {**environment, "rows": [asdict(row) for row in rows]}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
