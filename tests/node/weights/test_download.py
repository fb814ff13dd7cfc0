import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from node.network.blobs.config import ExchangeLimits
from node.network.blobs.exchange import BlobExchange
from node.network.blobs.wire import BlobKind
from node.network.streams.protocols import BLOBS
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.weights.download import TICK_SECONDS, RemoteWeights, WeightsDownload
from protocol.core import codec, crypto
from protocol.core.containers import table_sizes
from protocol.core.faults import Fault
from protocol.core.types import Digest, PeerId
from protocol.shardcast import forest
from protocol.shardcast import index as shard_index
from protocol.shardcast.events import ChunkCorrupt, Tick, TransferLimits
from protocol.shardcast.forest import ForestMember
from protocol.shardcast.index import ShardIndex
from protocol.shardcast.source_history import SourceReputation
from roles.ports.storage import Owner, Purpose, StorageFullError
from roles.ports.transport import Stream
from tests.worlds.network import Hub
from tests.worlds.small_disk import small_disk

pytestmark = pytest.mark.virtual

SHARD_BYTES, CHUNK_BYTES = 262_144, 65_536
ROOT = PeerId("root")
QUICK = TransferLimits(
    late_seconds_initial=1.0,
    late_seconds_min=0.3,
    patience_seconds=0.5,
    retry_seconds=0.02,
    pause_seconds=0.2,
)


OWNER = Owner(Purpose.WEIGHTS, crypto.digest(b"another version"))


class CorruptBlobs(FileBlobs):
    """Store whose owner alters the served bytes."""

    async def stream(self, digest: Digest, offset: int, length: int) -> Any:
        async with aclosing(super().stream(digest, offset, length)) as pieces:
            async for piece in pieces:
                yield b"\0" + piece[1:] if self.size(digest) == SHARD_BYTES else piece


class StalledBlobs(FileBlobs):
    """Store that promises shards and never delivers."""

    async def stream(self, digest: Digest, offset: int, length: int) -> Any:
        if self.size(digest) == SHARD_BYTES:
            await asyncio.sleep(3600)
        async with aclosing(super().stream(digest, offset, length)) as pieces:
            async for piece in pieces:
                yield piece


@dataclass
class Node:
    peer: PeerId
    blobs: FileBlobs
    files: PolicyDirectory
    exchange: BlobExchange
    path: Path
    blamed: list[PeerId] = field(default_factory=list)
    progress: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class Swarm:
    directory: Path
    content: bytes
    hub: Hub = field(default_factory=Hub)
    nodes: dict[PeerId, Node] = field(default_factory=dict)

    async def add(
        self,
        name: str,
        store: type[FileBlobs] = FileBlobs,
        quota_bytes: int | None = None,
        limits: ExchangeLimits | None = None,
    ) -> Node:
        peer = PeerId(name)
        blobs = store(self.directory / name, quota_bytes)
        transport = self.hub.transport(peer)
        exchange = BlobExchange(transport, blobs, limits=limits)
        await exchange.start()
        for other in self.nodes:
            if other != peer and other in self.hub.transports:
                self.hub.connect(peer, other)
        files = PolicyDirectory(
            self.directory / f"{name}-weights",
            Path("genesis"),
            self.directory / f"{name}-task",
            blobs,
        )
        self.nodes[peer] = Node(peer, blobs, files, exchange, files.weights(1))
        return self.nodes[peer]

    async def publish(self) -> tuple[RemoteWeights, ShardIndex]:
        root = self.nodes[ROOT]
        root.path.unlink(missing_ok=True)
        root.path.write_bytes(self.content)
        stored = await root.blobs.put_file(root.path, SHARD_BYTES, CHUNK_BYTES, Purpose.WEIGHTS)
        sizes = stored.index_bytes, stored.total_bytes
        return RemoteWeights(crypto.digest(b"version"), stored.digest, *sizes, ROOT), stored.index

    @property
    def members(self) -> list[ForestMember]:
        return [ForestMember(peer, 10**6, reachable=True) for peer in self.nodes if peer != ROOT]

    def download(self, node: Node, weights: RemoteWeights, **options: Any) -> WeightsDownload:
        arguments = {"stripes": 4, "fanout": 4, "limits": QUICK} | options
        return WeightsDownload(
            node.exchange,
            node.blobs,
            node.files,
            weights,
            self.members,
            on_blame=lambda peer, _fault: node.blamed.append(peer),
            on_progress=lambda here, total: node.progress.append((here, total)),
            **arguments,
        )

    async def run(self, nodes: Sequence[Node], weights: RemoteWeights, **options: Any) -> None:
        async with asyncio.timeout(60):
            results = await asyncio.gather(
                *(self.download(node, weights, **options).run(node.path) for node in nodes)
            )
        assert results == [node.path for node in nodes]
        assert all(node.path.read_bytes() == self.content for node in nodes)


async def swarm(directory: Path, size: int, seed: int = 1) -> Swarm:
    made = Swarm(directory, random.Random(seed).randbytes(size))
    await made.add(ROOT)
    return made


def feeder_of(members: Sequence[ForestMember], weights: RemoteWeights, stripe: int) -> PeerId:
    parents = forest.tree(tuple(members), ROOT, weights.version_digest, stripe, 4, 4).parents
    return next(iter(parents))


async def first_chunks(node: Node) -> None:
    """Wait until a download has more than a tenth of its bytes."""
    async with asyncio.timeout(30):
        while not node.progress or node.progress[-1][0] * 10 < node.progress[-1][1]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_decoding_that_fails_leaves_no_stream_open(tmp_path: Path) -> None:
    """A stream that the garbage collector finds would be closed at an arbitrary moment."""
    world = await swarm(tmp_path, SHARD_BYTES)
    node = await world.add("n0")
    weights, _ = await world.publish()
    opened = []

    async def failing(pieces: Any, _path: Path) -> None:
        opened.append(pieces)
        await anext(pieces)
        raise ArithmeticError("no such encoding")

    with pytest.raises(ArithmeticError):
        await asyncio.wait_for(world.download(node, weights).run(node.path, failing), 20)
    (pieces,) = opened
    assert pieces.ag_frame is None


async def test_eight_nodes_download_and_the_root_sends_about_one_copy(tmp_path: Path) -> None:
    world = await swarm(tmp_path, 4_000_000)
    nodes = [await world.add(f"n{number}") for number in range(8)]
    weights, _ = await world.publish()
    await world.run(nodes, weights, limits=None)
    root, size = world.nodes[ROOT].exchange, len(world.content)
    assert size <= root.sent[BlobKind.WEIGHTS] < 2 * size
    assert max(node.exchange.sent.total() for node in nodes) < 3 * size
    assert all(node.exchange.received[BlobKind.WEIGHTS] < 1.5 * size for node in nodes)
    assert all(node.progress[-1] == (size, size) for node in nodes)
    assert not [node for node in nodes if node.blamed]


async def test_a_node_that_corrupts_is_named_and_everyone_completes(tmp_path: Path) -> None:
    world = await swarm(tmp_path, 2_400_000)
    for number in range(5):
        await world.add(f"n{number}")
    liar = feeder_of(
        [*world.members, ForestMember(PeerId("n5"), 10**6, reachable=True)],
        (await world.publish())[0],
        0,
    )
    await world.add("n5")
    await world.add(liar, CorruptBlobs)
    weights, _ = await world.publish()
    await world.run([node for node in world.nodes.values() if node.peer != ROOT], weights)
    blamed = [node.blamed for node in world.nodes.values() if node.blamed]
    assert blamed
    assert {peer for peers in blamed for peer in peers} == {liar}
    assert all(len(peers) == 1 for peers in blamed)


async def test_a_parent_that_stalls_is_replaced(tmp_path: Path) -> None:
    world = await swarm(tmp_path, 2_400_000)
    for number in range(4):
        await world.add(f"n{number}")
    weights, _ = await world.publish()
    await world.add(feeder_of(world.members, weights, 0), StalledBlobs)
    await world.run([node for node in world.nodes.values() if node.peer != ROOT], weights)


@pytest.mark.parametrize("store", [StalledBlobs, CorruptBlobs])
async def test_source_that_failed_is_last_for_the_next_version(
    tmp_path: Path, store: type[FileBlobs]
) -> None:
    world = await swarm(tmp_path, 9 * SHARD_BYTES)
    bad, node = await world.add("bad", store), await world.add("node")
    weights, _ = await world.publish()
    await world.run([bad], weights)
    experience = SourceReputation()
    first = world.download(node, weights, source_history=experience)
    assert any(order[0] == bad.peer for order in first._candidates)
    assert await asyncio.wait_for(first.run(node.path), 30) == node.path
    following = replace(weights, version_digest=crypto.digest(b"next"))
    orders = world.download(node, following, source_history=experience)._candidates
    assert {order[0] for order in orders} == {ROOT}
    assert any(order[-1] == bad.peer for order in orders)


async def test_a_source_has_as_long_to_begin_as_those_of_the_version_before(
    tmp_path: Path,
) -> None:
    world = await swarm(tmp_path, 2_400_000)
    node = await world.add("node")
    weights, _ = await world.publish()
    experience = SourceReputation()
    await world.run([node], weights, source_history=experience)
    assert experience.begin_seconds(60.0) < 60.0
    begun = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "node.weights.download.Transfer", lambda *arguments, **_: begun.append(arguments[3])
        )
        limits = TransferLimits(late_seconds_initial=60.0)
        again = world.download(node, weights, source_history=experience, limits=limits)
        with pytest.raises(AttributeError):
            await again.run(node.path)
    assert [limit.late_seconds_initial for limit in begun] == [experience.begin_seconds(60.0)]


@pytest.mark.parametrize(("trusted", "seconds"), [(False, (1.0, 1.5)), (True, (6.0, 9.0))])
async def test_a_parent_that_holds_every_request_costs_less_if_untrusted(
    tmp_path: Path, trusted: bool, seconds: tuple[float, float]
) -> None:
    world = await swarm(tmp_path, 600_000)
    node, holder = await world.add("node"), PeerId("holder")

    async def hold(_stream: Stream) -> None:
        await asyncio.sleep(3600)

    await world.hub.transport(holder).handle(BLOBS.name, hold)
    world.hub.connect(node.peer, holder)
    weights, _ = await world.publish()
    history = SourceReputation()
    for _ in range(50):
        history.begun(0.1)
    members = [*world.members, ForestMember(holder, 10**6, reachable=True, trusted=trusted)]
    download = world.download(node, weights, source_history=history, limits=TransferLimits())
    orders = ((holder, ROOT),) * 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "_plan", lambda _members: (orders, ()))
        download.change_members(members)
    now = asyncio.get_running_loop().time
    started_at = now()
    assert await download.run(node.path) == node.path
    assert seconds[0] <= now() - started_at < seconds[1]


async def test_late_source_that_delivered_is_not_doubted(tmp_path: Path) -> None:
    world = await swarm(tmp_path, 600_000)
    node = await world.add("node")
    weights, _ = await world.publish()
    history = SourceReputation()
    download = world.download(node, weights, source_history=history)
    slow, silent = PeerId("slow"), PeerId("silent")
    download._late.update({slow: None, silent: None})
    download._delivered[slow] = None
    download._learn()
    assert not history.is_doubted(slow)
    assert history.is_doubted(silent)


async def test_a_deadline_is_noticed_in_time_however_much_happens(tmp_path: Path) -> None:
    world = await swarm(tmp_path, 600_000)
    node = await world.add("node")
    weights, _ = await world.publish()
    download = world.download(node, weights)
    now = asyncio.get_running_loop().time
    ticks = []
    while now() < 10 * TICK_SECONDS:
        download._events.put_nowait(ChunkCorrupt(0, 0))  # there is always an event
        event = await download._next_event()
        if isinstance(event, Tick):
            ticks.append(now())
        await asyncio.sleep(TICK_SECONDS / 10)
    assert len(ticks) >= 9
    assert max(later - at for at, later in pairwise(ticks)) <= 1.2 * TICK_SECONDS


async def test_a_download_that_is_cancelled_leaves_no_request_behind(tmp_path: Path) -> None:
    world = Swarm(tmp_path, random.Random(1).randbytes(600_000))
    root, node = await world.add(ROOT, StalledBlobs), await world.add("node")
    weights, _ = await world.publish()
    before = asyncio.all_tasks()
    downloading = asyncio.create_task(world.download(node, weights).run(node.path))
    async with asyncio.timeout(30):
        while not node.progress or not table_sizes(root.exchange.tables)["streams_blobs"]:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    downloading.cancel()
    await asyncio.wait([downloading])
    serving = table_sizes(root.exchange.tables)["streams_blobs"]
    assert len(asyncio.all_tasks() - before) == serving > 0


async def test_a_parent_that_trickles_the_index_is_passed_over(tmp_path: Path) -> None:
    world = await swarm(tmp_path, 600_000)
    for number in range(4):
        await world.add(f"n{number}")
    weights, _ = await world.publish()
    parent = feeder_of(world.members, weights, 0)
    asked = []

    async def trickle(stream: Any) -> None:
        asked.append(stream.peer)
        await stream.read_exactly(int.from_bytes(await stream.read_exactly(2), "big"))
        header = codec.encode({"status": "ok", "total_bytes": weights.index_bytes})
        await stream.write(len(header).to_bytes(2, "big") + header)
        while True:
            await stream.write(b"x")
            await asyncio.sleep(0.1)

    await world.hub.transports[parent].handle(BLOBS.name, trickle)
    children = [node for node in world.nodes.values() if node.peer not in (ROOT, parent)]
    experience = SourceReputation()
    await world.run(children, weights, source_history=experience)
    assert asked  # it was the first choice of a node
    assert experience.is_doubted(parent)


async def test_the_index_goes_down_the_tree_without_asking_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await swarm(tmp_path, 600_000)
    nodes = [await world.add(f"n{number}") for number in range(12)]
    weights, _ = await world.publish()
    stream, open_file = FileBlobs.stream, FileBlobs.open_file
    now, arrivals = asyncio.get_running_loop().time, []

    async def late(self: FileBlobs, digest: Digest, offset: int, length: int) -> Any:
        await asyncio.sleep(max(0.0, 0.5 - now()))  # meanwhile every node asks its parent
        async for piece in stream(self, digest, offset, length):
            yield piece

    async def opened(self: FileBlobs, index: ShardIndex, *purpose: Purpose) -> Any:
        arrivals.append(now())
        return await open_file(self, index, *purpose)

    monkeypatch.setattr(FileBlobs, "stream", late)
    monkeypatch.setattr(FileBlobs, "open_file", opened)
    await world.run(nodes, weights)
    assert len(arrivals) == len(nodes)
    assert 0.5 < min(arrivals) <= max(arrivals) < 0.55, "no pause after the root's half second"


async def test_dead_members_are_replaced_and_a_late_root_is_waited_for(tmp_path: Path) -> None:
    world = await swarm(tmp_path, 1_000_000)
    node = await world.add("n0")
    weights, _ = await world.publish()
    members = [ForestMember(PeerId(f"dead{number}"), 10**9, reachable=True) for number in range(6)]
    world.hub.partition([ROOT])
    download = world.download(node, weights)
    download.change_members([*members, *world.members])
    running = asyncio.create_task(download.run(node.path))
    await asyncio.sleep(0.3)
    world.hub.heal()
    world.hub.connect(node.peer, ROOT)
    assert await asyncio.wait_for(running, 30) == node.path
    assert node.path.read_bytes() == world.content


async def test_a_publisher_that_dies_when_each_byte_has_left_it_once_stops_nobody(
    tmp_path: Path,
) -> None:
    world = await swarm(tmp_path, 20 * SHARD_BYTES)
    nodes = [await world.add(f"n{number}") for number in range(8)]
    capped = ExchangeLimits(upload_bytes_per_second=4_000_000)
    root = world.nodes[ROOT]
    root.exchange = BlobExchange(world.hub.transports[ROOT], root.blobs, limits=capped)
    await root.exchange.start()
    weights, index = await world.publish()

    async def die() -> int:
        sent = root.exchange.sent
        while sent.total() < index.total_bytes or not _together(nodes, index):  # noqa: ASYNC110
            await asyncio.sleep(0.0005)
        world.hub.remove(ROOT)
        return sum(node.progress[-1][0] < index.total_bytes for node in nodes)

    dying = asyncio.create_task(die())
    await world.run(nodes, weights)
    assert dying.result() >= 4, "so many had parts of it only"
    assert not [node for node in nodes if node.blamed]


def _together(nodes: Sequence[Node], index: ShardIndex) -> bool:
    """Return whether each chunk is on at least one of the nodes."""
    for shard in index.shards:
        held = 0
        for node in nodes:
            holding = node.blobs.holding(shard.digest)
            held |= -1 if node.blobs.has(shard.digest) else holding.mask if holding else 0
        if held & 0b1111 != 0b1111:
            return False
    return True


async def test_chunks_stored_before_a_crash_are_not_fetched_again(tmp_path: Path) -> None:
    world = await swarm(tmp_path, 4_000_000)
    node = await world.add("n0")
    slow = ExchangeLimits(upload_bytes_per_second=4_000_000)
    world.nodes[ROOT].exchange = BlobExchange(
        world.hub.transports[ROOT], world.nodes[ROOT].blobs, limits=slow
    )
    await world.nodes[ROOT].exchange.start()
    weights, _ = await world.publish()
    running = asyncio.create_task(world.download(node, weights).run(node.path))
    await first_chunks(node)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert not node.path.exists()
    before = node.exchange.received.total()
    here = node.progress[-1][0]
    again = await world.add("n0")  # the same directory, a new process
    await world.run([again], weights)
    assert again.progress[0][0] >= here
    assert again.exchange.received.total() <= len(world.content) - here
    assert before + again.exchange.received.total() < 1.5 * len(world.content)


async def test_a_full_disk_stops_the_download_which_resumes_when_there_is_room(
    tmp_path: Path,
) -> None:
    world = await swarm(tmp_path, 1_000_000)
    node = await world.add("n0", quota_bytes=600_000)
    weights, _ = await world.publish()
    with pytest.raises(StorageFullError):
        await world.download(node, weights).run(node.path)
    assert not node.path.exists()
    node = await world.add("n0", quota_bytes=2_000_000)
    await world.run([node], weights)


async def test_a_disk_that_is_really_full_for_a_while_holds_nobody_else_up(tmp_path: Path) -> None:
    with small_disk(tmp_path / "full", 3_000_000) as disk:
        world = await swarm(tmp_path, 1_000_000)
        full, *others = [await world.add(name) for name in ("full", "n1", "n2", "n3")]
        weights, _ = await world.publish()
        disk.fill(500_000)
        waiting = asyncio.create_task(world.download(full, weights).run(full.path))
        await world.run(others, weights)
        with pytest.raises(StorageFullError):
            await waiting
        assert not [node for node in others if node.blamed], "it is not bad, it has nothing"
        disk.empty()
        await world.run([full], weights)


async def test_a_disk_that_fills_in_the_middle_raises_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await swarm(tmp_path, 1_000_000)
    node = await world.add("n0")
    weights, _ = await world.publish()

    async def full(*_arguments: object) -> bool:
        await asyncio.sleep(0)
        raise StorageFullError

    with monkeypatch.context() as patch:
        patch.setattr("node.storage.arrival.IncomingFile.write_chunk", full)
        with pytest.raises(StorageFullError):
            await world.download(node, weights).run(node.path)
    await world.run([node], weights)


async def test_inconsistent_index_blames_its_publisher(tmp_path: Path) -> None:
    world = await swarm(tmp_path, 600_000)
    node = await world.add("n0")
    weights, index = await world.publish()
    blobs = world.nodes[ROOT].blobs

    async def verdict(data: bytes) -> Path | Fault:
        lie = replace(weights, index_digest=await blobs.put(data, OWNER), index_bytes=len(data))
        return await asyncio.wait_for(world.download(node, lie).run(node.path), 20)

    assert isinstance(await verdict(b"not an index"), Fault)
    huge = replace(weights, index_bytes=1 << 40)
    assert isinstance(await world.download(node, huge).run(node.path), Fault)
    first = index.shards[0]
    swapped = replace(first, chunks=first.chunks[::-1])
    lying = replace(index, shards=(swapped, first, index.shards[2]))
    result = await verdict(shard_index.encode(lying))
    assert isinstance(result, Fault)
    assert result.code == "index-inconsistent"
    assert not node.path.exists()


async def test_verified_chunks_of_a_corrupt_shard_blame_the_publisher(
    tmp_path: Path,
) -> None:
    world = await swarm(tmp_path, SHARD_BYTES)
    node = await world.add("n0")
    weights, index = await world.publish()
    other = Digest(b"o" * 32)

    class Lying(FileBlobs):
        """Store that serves the shard under another digest, too."""

        def size(self, digest: Digest) -> int | None:
            return SHARD_BYTES if digest == other else super().size(digest)

        def stream(self, digest: Digest, offset: int, length: int) -> Any:
            here = index.shards[0].digest if digest == other else digest
            return super().stream(here, offset, length)

    root = (await world.add(ROOT, Lying)).blobs
    lying = replace(index, shards=(replace(index.shards[0], digest=other),))
    data = shard_index.encode(lying)
    lie = replace(weights, index_digest=await root.put(data, OWNER), index_bytes=len(data))
    result = await asyncio.wait_for(world.download(node, lie).run(node.path), 20)
    assert isinstance(result, Fault)
    assert result.code == "index-inconsistent"
    assert node.blamed == []


def test_publishing_does_not_hold_the_loop(tmp_path: Path) -> None:
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def publish() -> ShardIndex:
        blobs = FileBlobs(tmp_path / "blobs")
        path = tmp_path / "file"
        path.write_bytes(bytes(40_000_000))
        taking = asyncio.create_task(take_turns())
        stored = await blobs.put_file(path, 8_000_000, 1 << 20, Purpose.WEIGHTS)
        taking.cancel()
        return stored.index

    assert len(asyncio.run(publish()).shards) == 5
    assert turns > 1000  # while threads read and hash; it takes some tens of awaits itself
