"""The same broadcast with the daemon's own parts on the simulated network, to check ``broadcast``.

Each node is its transport, blob exchange and download, wired as in a daemon; simulation takes ten
times as long. Gossip, engines and membership are left out: all nodes learn the version and the
members at the same time. Only digests and sizes are simulated, not content.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from broadcast import Plan
from typing_extensions import override

from node.network.blobs.config import ExchangeLimits
from node.network.blobs.exchange import BlobExchange
from node.weights.download import RemoteWeights, WeightsDownload
from protocol.core import crypto
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.shardcast.forest import ForestMember
from roles.ports.storage import Purpose
from roles.ports.transport import Stream, StreamHandler, Streams
from simulations.network.connections import Host, LinkConditions
from simulations.network.network import SimNetwork
from simulations.network.transport import SimTransport, address_of
from simulations.ports.blobs import SimBlobs
from simulations.ports.policy_files import SimPolicyFiles
from simulations.ports.storage import Disk, Session
from simulations.runtime.content import Extent
from simulations.runtime.loop import VirtualLoop, run_virtual
from simulations.scenario.scenario import NetworkSection

PATH = Path("v1.safetensors")


class Dialling(Streams):
    """Connects to a peer when a stream is opened, as a daemon's connection manager does."""

    def __init__(self, hosts: dict[PeerId, Host], transport: SimTransport) -> None:
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
    """A machine and the parts that run on it."""

    peer: PeerId
    blobs: SimBlobs
    files: SimPolicyFiles
    disk: Disk
    exchange: BlobExchange
    task: asyncio.Task[Path | Fault] | None = None


@dataclass(slots=True)
class Swarm:
    """All nodes; the first is the root."""

    network: SimNetwork
    nodes: list[Node] = field(default_factory=list)


def makespan_ratio(plan: Plan, stripes: int, fanout: int) -> float:
    """Simulate; return the last live node's finish over the bound."""
    return run_virtual(_broadcast(plan, stripes, fanout))


async def _broadcast(plan: Plan, stripes: int, fanout: int) -> float:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    rng = Rng(plan.seed.to_bytes(8, "big"))
    swarm = await _swarm(plan, loop, rng)
    root, others = swarm.nodes[0], swarm.nodes[1:]
    root.disk.files[PATH] = Extent.of(b"weights", 0, plan.total_bytes)
    sizes = plan.shard_bytes, plan.chunk_bytes
    stored = await root.blobs.put_file(PATH, *sizes, Purpose.WEIGHTS)
    version = crypto.digest(plan.seed.to_bytes(8, "big"))
    sizes = stored.index_bytes, stored.total_bytes
    weights = RemoteWeights(version, stored.digest, *sizes, root.peer)
    rate = int(plan.upload_bytes_per_second)
    members = [ForestMember(node.peer, rate, reachable=True) for node in swarm.nodes]
    began = loop.time()
    for node in others:
        download = WeightsDownload(
            node.exchange,
            node.blobs,
            node.files,
            weights,
            members,
            stripes=stripes,
            fanout=fanout,
        )
        node.task = asyncio.create_task(download.run(PATH))
    dying = rng.child("dying").sample(others, round(plan.dying * plan.nodes))
    for node in dying:
        after = rng.child(f"dies/{node.peer}").uniform() * plan.bound_seconds
        loop.call_later(after, _die, swarm, node)
    live = [node.task for node in others if node.task and node not in dying]
    assert await asyncio.gather(*live) == [PATH] * len(live)
    seconds = loop.time() - began
    assert all(
        node.disk.files[PATH] == root.disk.files[PATH] for node in others if node.task in live
    )
    return seconds / plan.bound_seconds


def _die(swarm: Swarm, node: Node) -> None:
    """Lose power: no notice, and no response to later messages."""
    if node.task is not None and not node.task.done():
        swarm.network.stall(node.peer)
        node.task.cancel()


async def _swarm(plan: Plan, loop: VirtualLoop, rng: Rng) -> Swarm:
    distances = NetworkSection()
    conditions = LinkConditions(rng.child("conditions"), distances.jitter, distances.loss)
    network = SimNetwork(loop, rng.child("paths"), conditions, distances.round_trip_seconds)
    swarm = Swarm(network)
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
        streams = Dialling(hosts, network.attach(peer, _handler_failed))
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
