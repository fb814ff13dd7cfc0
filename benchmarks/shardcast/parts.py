"""One version on its way to a swarm, in virtual time: the project's own machines, and others' ways.

Each node is its transport, its blob exchange and its download, as a daemon wires them, on the
simulated network; gossip, engines and membership are left out: everybody knows the version and the
members at the same moment. Content is never there, only its digests and sizes.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from typing_extensions import override

from node.blobs.exchange import BlobExchange, ExchangeLimits
from node.weights.download import Weights, WeightsDownload, publish_file
from protocol import crypto
from protocol.rng import Rng
from protocol.shardcast import index as shard_index
from protocol.shardcast.forest import ForestMember
from protocol.shardcast.index import ShardIndex
from protocol.types import PeerId
from roles.ports.transport import Stream, StreamHandler, Streams
from simulations.network.connections import Host, LinkConditions
from simulations.network.network import SimNetwork
from simulations.network.transport import SimTransport, address_of
from simulations.ports.storage import Disk, Session, SimBlobs, SimPolicyFiles
from simulations.runtime.content import Extent
from simulations.runtime.loop import VirtualLoop, run_virtual
from simulations.scenario.scenario import NetworkSection

PATH = Path("v1.safetensors")
PROGRESS_SECONDS = 10.0
"""Of the machine's time, between lines on the standard error."""

DEADLINE_RATIO = 200.0
"""What has not arrived after so many times the bound never will."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is sent to whom, in bytes and bytes a second; ``dying`` is a share of the nodes."""

    nodes: int
    total_bytes: int
    shard_bytes: int
    chunk_bytes: int
    upload_bytes_per_second: float
    download_bytes_per_second: float
    dying: float
    seed: int
    stripes: int
    fanout: int

    @property
    def bound_seconds(self) -> float:
        """The time that the slower line takes for the file."""
        return self.total_bytes / min(self.upload_bytes_per_second, self.download_bytes_per_second)


class Dialling(Streams):
    """Connects to whoever a stream is opened to, as the table of peers of a daemon does."""

    def __init__(self, network: SimNetwork, hosts: dict[PeerId, Host], transport: SimTransport):
        self._network = network
        self._hosts = hosts
        self._transport = transport

    @property
    @override
    def peer_id(self) -> PeerId:
        return self._transport.peer_id

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        if peer not in self._hosts[self.peer_id].connections:
            await self._transport.connect(address_of(self._hosts[peer]))
        return await self._transport.open_stream(peer, protocol)

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        await self._transport.handle(protocol, handler)


@dataclass(slots=True)
class Node:
    """A machine and what runs on it."""

    peer: PeerId
    blobs: SimBlobs
    files: SimPolicyFiles
    disk: Disk
    exchange: BlobExchange
    task: asyncio.Task[None] | None = None
    finished_at: float | None = None
    dead: bool = False


@dataclass(slots=True)
class Swarm:
    """The first node is the root."""

    plan: Plan
    network: SimNetwork
    nodes: list[Node] = field(default_factory=list)

    @property
    def root(self) -> Node:
        """Who publishes."""
        return self.nodes[0]


Download = Callable[[Swarm, Node, Weights, ShardIndex], Awaitable[object]]
"""Brings the version to one node."""


async def by_forest(swarm: Swarm, node: Node, weights: Weights, _index: ShardIndex) -> object:
    """Download as a daemon does."""
    plan = swarm.plan
    rate = int(plan.upload_bytes_per_second)
    members = [ForestMember(other.peer, rate, reachable=True) for other in swarm.nodes]
    return await WeightsDownload(
        node.exchange,
        node.blobs,
        node.files,
        weights,
        members,
        stripes=plan.stripes,
        fanout=plan.fanout,
    ).run(PATH)


def broadcast(plan: Plan, download: Download, name: str) -> dict[str, float]:
    """Simulate; return ``makespan_seconds``, ``makespan_ratio`` and what the simulation took."""
    began = time.monotonic()
    found = run_virtual(_broadcast(plan, download, name))
    return {**found, "wall_seconds": round(time.monotonic() - began, 1)}


async def _broadcast(plan: Plan, download: Download, name: str) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    rng = Rng(plan.seed.to_bytes(8, "big"))
    swarm = await _swarm(plan, loop, rng)
    root = swarm.root
    root.disk.files[PATH] = Extent.of(b"weights", 0, plan.total_bytes)
    digest, index = await publish_file(
        PATH, root.files, root.blobs, plan.shard_bytes, plan.chunk_bytes
    )
    version = crypto.digest(plan.seed.to_bytes(8, "big"))
    weights = Weights(version, digest, len(shard_index.encode(index)), root.peer)
    began = loop.time()

    async def run(node: Node) -> None:
        await download(swarm, node, weights, index)
        node.finished_at = loop.time() - began

    for node in swarm.nodes[1:]:
        node.task = asyncio.create_task(run(node))
    others = [asyncio.create_task(_progress(swarm, name, plan.bound_seconds))]
    for node in rng.child("dying").sample(swarm.nodes[1:], round(plan.dying * plan.nodes)):
        after = rng.child(f"dies/{node.peer}").uniform() * plan.bound_seconds
        others.append(asyncio.create_task(_die(swarm, node, after)))
    tasks = [node.task for node in swarm.nodes[1:] if node.task]
    async with asyncio.timeout(DEADLINE_RATIO * plan.bound_seconds):
        for task in tasks:
            await asyncio.gather(task, return_exceptions=True)
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
    for task in others:
        task.cancel()
    return _result(swarm)


async def _swarm(plan: Plan, loop: VirtualLoop, rng: Rng) -> Swarm:
    distances = NetworkSection()
    conditions = LinkConditions(rng.child("conditions"), distances.jitter, distances.loss)
    network = SimNetwork(loop, rng.child("paths"), conditions, distances.round_trip_seconds)
    swarm = Swarm(plan, network)
    hosts: dict[PeerId, Host] = {}
    limits = ExchangeLimits(piece_bytes=plan.chunk_bytes)
    for number in range(plan.nodes + 1):
        peer = PeerId(f"n{number}")
        hosts[peer] = network.add_host(
            peer,
            peer,
            region=_region(distances, rng.child(f"region/{number}").uniform()),
            upload_bytes_per_second=plan.upload_bytes_per_second,
            download_bytes_per_second=plan.download_bytes_per_second,
        )
        streams = Dialling(network, hosts, network.attach(peer, _handler_failed))
        disk, session = Disk(), Session()
        blobs = SimBlobs(disk, session)
        files = SimPolicyFiles(disk, session, Path("weights"), Path("genesis"), Path("task"))
        exchange = BlobExchange(streams, blobs, limits=limits)
        await exchange.start()
        swarm.nodes.append(Node(peer, blobs, files, disk, exchange))
    return swarm


def _region(distances: NetworkSection, drawn: float) -> str:
    for region, share in distances.regions.items():
        drawn -= share
        if drawn < 0:
            return region
    return next(iter(distances.regions))


def _handler_failed(error: BaseException) -> None:
    raise error


async def _die(swarm: Swarm, node: Node, after_seconds: float) -> None:
    """Lose power: nobody is told, what is sent there is never answered."""
    await asyncio.sleep(after_seconds)
    if node.finished_at is None and node.task is not None:
        node.dead = True
        swarm.network.stall(node.peer)
        node.task.cancel()


async def _progress(swarm: Swarm, name: str, bound_seconds: float) -> None:
    loop = asyncio.get_running_loop()
    said_at = time.monotonic()
    while True:
        await asyncio.sleep(bound_seconds / 100)
        if time.monotonic() - said_at < PROGRESS_SECONDS:
            continue
        said_at = time.monotonic()
        done = sum(node.finished_at is not None for node in swarm.nodes)
        ratio = loop.time() / bound_seconds
        received = sum(node.exchange.received.total() for node in swarm.nodes)
        share = received / (swarm.plan.nodes * swarm.plan.total_bytes)
        print(
            f"{name}: at {ratio:.2f} of the bound {share:.1%} of all bytes, {done} nodes done",
            file=sys.stderr,
        )


def _result(swarm: Swarm) -> dict[str, float]:
    plan = swarm.plan
    times = sorted(node.finished_at for node in swarm.nodes if node.finished_at is not None)
    live = [node for node in swarm.nodes[1:] if not node.dead]
    received = sum(node.exchange.received.total() for node in live)
    bound = plan.bound_seconds
    return {
        "finished": len(times),
        "died": sum(node.dead for node in swarm.nodes),
        "makespan_seconds": round(times[-1], 2),
        "makespan_ratio": round(times[-1] / bound, 3),
        "median_ratio": round(times[len(times) // 2] / bound, 3),
        "received_ratio": round(received / len(live) / plan.total_bytes, 3),
        "root_sent_ratio": round(swarm.root.exchange.sent.total() / plan.total_bytes, 3),
    }
