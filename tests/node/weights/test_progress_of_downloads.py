"""Progress records of real downloads between real nodes."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from node.api.v1.weights import download_statuses, receiver_statuses
from node.network.blobs.config import ExchangeLimits
from node.network.blobs.exchange import BlobExchange
from node.weights.download_progress import DownloadLog, Form, Label
from roles.ports.storage import StorageFullError
from tests.node.weights.test_download import (
    CHUNK_BYTES,
    ROOT,
    Node,
    Swarm,
    first_chunks,
    swarm,
)

pytestmark = pytest.mark.virtual

LABEL = Label("version 5", 5, Form.PLANES, 77)


async def limited(world: Swarm, bytes_per_second: int) -> Node:
    root, limits = world.nodes[ROOT], ExchangeLimits(upload_bytes_per_second=bytes_per_second)
    root.exchange = BlobExchange(world.hub.transports[ROOT], root.blobs, limits=limits)
    await root.exchange.start()
    return root


def seen(arrivals: DownloadLog):
    return download_statuses(arrivals, asyncio.get_running_loop().time(), 1e9)


async def test_a_download_under_way_shows_its_pieces_its_rate_and_its_source(tmp_path: Path):
    world = await swarm(tmp_path, 4_000_000)
    node, arrivals = await world.add("n0"), DownloadLog()
    root = await limited(world, 400_000)
    weights = replace((await world.publish())[0], label=LABEL)
    running = asyncio.create_task(
        world.download(node, weights, arrivals=arrivals, limits=None).run(node.path)
    )
    await asyncio.sleep(5.0)
    (status,) = seen(arrivals)
    assert (status.name, status.version, status.form) == ("version 5", 5, "planes")
    assert (status.saved_bytes, status.root, status.arrived_at) == (77, ROOT, None)
    assert status.total_bytes == 4_000_000
    assert status.bytes_here == pytest.approx(5 * 400_000, rel=0.3)
    assert status.bytes_per_second == pytest.approx(400_000, rel=0.25)
    left_bytes = status.total_bytes - status.bytes_here
    assert status.seconds_to_go == pytest.approx(left_bytes / 400_000, rel=0.3)
    assert status.seconds == pytest.approx(5.0, abs=0.1)
    assert status.pieces == -(-4_000_000 // CHUNK_BYTES)
    assert status.pieces_here * CHUNK_BYTES == status.bytes_here
    assert [stripe.parent for stripe in status.stripes] == [ROOT] * 4
    (source,) = status.sources
    assert (source.name, source.http_bytes) == (ROOT, 0)
    assert status.bytes_here <= source.stream_bytes == status.root_bytes < 4_000_000
    now = asyncio.get_running_loop().time()
    (receiver,) = receiver_statuses(root.exchange.sent, now)
    assert receiver.name == node.peer
    assert receiver.bytes_per_second == pytest.approx(400_000, rel=0.25)
    assert await running == node.path
    (status,) = seen(arrivals)
    assert (status.bytes_here, status.seconds_to_go) == (4_000_000, 0.0)
    assert status.seconds == pytest.approx(10.0, rel=0.2)
    assert status.stream_bytes == status.root_bytes == 4_000_000


async def test_who_feeds_a_stripe_is_its_parent_in_the_forest(tmp_path: Path):
    world = await swarm(tmp_path, 4_000_000)
    nodes = [await world.add(f"n{number}") for number in range(6)]
    await limited(world, 1_000_000)
    weights = replace((await world.publish())[0], label=LABEL)
    records = {node.peer: DownloadLog() for node in nodes}
    running = [
        asyncio.create_task(
            world.download(node, weights, fanout=2, limits=None, arrivals=records[node.peer]).run(
                node.path
            )
        )
        for node in nodes
    ]
    await asyncio.sleep(2.5)
    as_planned = []
    for node in nodes:
        (status,) = seen(records[node.peer])
        download = world.download(node, weights, fanout=2)
        assert {stripe.parent for stripe in status.stripes} <= {ROOT, *(it.peer for it in nodes)}
        firsts = [order[0] for order in download._candidates]
        as_planned += [stripe.parent == firsts[stripe.number] for stripe in status.stripes]
        assert {source.name for source in status.sources} <= {ROOT, *records} - {node.peer}
    assert sum(as_planned) > 0.75 * len(as_planned)  # a late one is skipped
    await asyncio.gather(*running)
    came = [seen(arrivals)[0] for arrivals in records.values()]
    received = sum(node.exchange.received.total() for node in nodes)
    told = sum(status.http_bytes + status.stream_bytes for status in came)
    assert told == pytest.approx(received, rel=0.02)  # all but the indexes
    from_root = sum(status.root_bytes for status in came)
    assert from_root == pytest.approx(world.nodes[ROOT].exchange.sent.total(), rel=0.15)
    assert from_root < told / 2


async def test_what_was_here_before_a_restart_is_here_from_the_start(tmp_path: Path):
    world = await swarm(tmp_path, 4_000_000)
    node, arrivals = await world.add("n0"), DownloadLog()
    await limited(world, 4_000_000)
    weights = replace((await world.publish())[0], label=LABEL)
    download = world.download(node, weights, arrivals=arrivals)
    running = asyncio.create_task(download.run(node.path))
    await first_chunks(node)
    (before,) = seen(arrivals)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert seen(arrivals) == ()
    await world.run([node], weights, arrivals=arrivals)
    (after,) = seen(arrivals)
    assert after.bytes_here == 4_000_000
    assert after.stream_bytes <= 4_000_000 - before.bytes_here


async def test_what_does_not_come_is_not_counted_as_come(tmp_path: Path):
    world = await swarm(tmp_path, 1_000_000)
    node, arrivals = await world.add("n0", quota_bytes=600_000), DownloadLog()
    weights = replace((await world.publish())[0], label=LABEL)
    with pytest.raises(StorageFullError):
        await world.download(node, weights, arrivals=arrivals).run(node.path)
    huge = replace(weights, index_bytes=1 << 40)
    await world.download(node, huge, arrivals=arrivals).run(node.path)
    assert seen(arrivals) == ()
    assert sum(arrivals.durations[Form.PLANES].counts) == 0
