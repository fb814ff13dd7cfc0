"""Real processes killed with SIGKILL during downloads and publications.

Announcements stay true, stored bytes are not fetched again, and readers never get a wrong byte.
"""

import asyncio
import random
from contextlib import aclosing, suppress
from pathlib import Path

from node.network.blobs.config import ExchangeLimits
from node.network.blobs.exchange import BlobExchange
from node.network.blobs.wire import BlobKind
from node.storage.blobs import FileBlobs
from protocol.core import crypto
from protocol.core.types import PeerId
from protocol.shardcast import index as shard_index
from roles.ports.storage import Purpose
from roles.ports.transport import TransportError
from tests.node.weights import publisher
from tests.node.weights.downloader import CHILD, ROOT
from tests.node.weights.test_patches import weights
from tests.worlds.mortal import Mortal
from tests.worlds.socket_streams import SocketStreams

SHARD_BYTES, CHUNK_BYTES = 262_144, 65_536
CONTENT = random.Random(9).randbytes(16 * SHARD_BYTES + 777)
RATE = ExchangeLimits(upload_bytes_per_second=1_500_000)
"""About 20 chunks a second: each life ends within the first of them, even if this process must wait
for a core."""

LIVES = 6
LIVES_MAX = 60
"""A trainer on a slow machine announces fewer versions per life."""
IN_FLIGHT_BYTES = 4 * SHARD_BYTES
"""Most bytes that hedged requests may transfer twice: a guess."""


def here_bytes(directory: Path, index) -> int:
    """Return the valid bytes that a dead process left in its file."""
    name = crypto.digest(shard_index.encode(index)).hex()
    arriving = directory / "blobs" / "files" / "arriving" / name
    whole = directory / "blobs" / "files" / "whole" / name
    data = b"".join(path.read_bytes() for path in (arriving, whole) if path.exists())
    assert not whole.exists() or data == CONTENT
    pieces = range(0, len(data), CHUNK_BYTES)
    right = [CONTENT[at : at + CHUNK_BYTES] == data[at : at + CHUNK_BYTES] for at in pieces]
    lengths = [len(CONTENT[at : at + CHUNK_BYTES]) for at in pieces]
    return sum(length for length, good in zip(lengths, right, strict=True) if good)


async def read_along(sockets: Path, index, read: list[int], rng: random.Random) -> None:
    """Request random ranges while a process lives, and check the bytes."""
    exchange = BlobExchange(SocketStreams(sockets, PeerId("reader")), blobs=None)
    while True:
        number = rng.randrange(len(index.shards))
        shard = index.shards[number]
        offset = rng.randrange(shard.length)
        length = min(rng.choice([1, 1000, CHUNK_BYTES]), shard.length - offset)
        arguments = {"piece_bytes": length, "wait": rng.random() < 0.2, "kind": BlobKind.WEIGHTS}
        pieces = exchange.fetch_range(CHILD, shard.digest, offset, length, **arguments)
        with suppress(TransportError):
            async with aclosing(pieces):
                async for piece in pieces:
                    start = number * SHARD_BYTES + offset
                    assert piece == CONTENT[start : start + length]
                    read.append(length)
        await asyncio.sleep(0.002)


def cut_off(directory: Path, rng: random.Random) -> None:
    for path in (directory / "blobs" / "files" / "arriving").iterdir():
        with path.open("r+b") as file:
            file.truncate(rng.randrange(len(CONTENT) // 3, len(CONTENT)))


def test_a_download_that_is_killed_goes_on_from_what_is_on_the_disk(tmp_path: Path) -> None:
    asyncio.run(killed_downloads(tmp_path))


async def killed_downloads(tmp_path: Path) -> None:
    rng, read = random.Random(4), []
    blobs = FileBlobs(tmp_path / "root")
    (tmp_path / "file").write_bytes(CONTENT)
    stored = await blobs.put_file(tmp_path / "file", SHARD_BYTES, CHUNK_BYTES, Purpose.WEIGHTS)
    index, directory = stored.index, tmp_path / "child"
    sockets = tmp_path / "sockets"
    sockets.mkdir()
    streams = SocketStreams(sockets, ROOT)
    await BlobExchange(streams, blobs, limits=RATE).start()
    named = stored.digest.hex(), stored.index_bytes, stored.total_bytes
    said_bytes = 0
    async with Mortal("tests.node.weights.downloader") as child:
        for life in range(LIVES + 1):
            left_bytes = here_bytes(directory, index) if life else 0
            assert left_bytes >= said_bytes, "what it said to have is on the disk"
            if life == LIVES // 2:
                cut_off(directory, rng)
                left_bytes = here_bytes(directory, index)
            await child.begin(directory, sockets, *named)
            assert await child.line() == "serves"
            reading = asyncio.create_task(read_along(sockets, index, read, rng))
            said = [await child.line()]
            assert said == [f"here {left_bytes}"], "what is on the disk is not fetched again"
            lines = rng.randrange(8) if life < LIVES else len(CONTENT)
            while len(said) <= lines and not said[-1].startswith("done"):
                said.append(await child.line())
            await asyncio.sleep(rng.uniform(0, 0.01))
            said += await child.kill()
            reading.cancel()
            (outcome,) = await asyncio.gather(reading, return_exceptions=True)
            assert isinstance(outcome, asyncio.CancelledError), outcome
            said_bytes = max(int(line.split()[1]) for line in said if line.startswith("here"))
            done = [int(line.split()[1]) for line in said if line.startswith("done")]
            if done:  # too early, where this process had to wait for a core
                break
    assert life > LIVES // 2
    assert done[0] <= len(CONTENT) - left_bytes + IN_FLIGHT_BYTES
    await streams.stop()
    await asyncio.sleep(0.05)
    assert (directory / "weights" / "v1.safetensors").read_bytes() == CONTENT
    assert read, "somebody read along"


def test_a_trainer_that_is_killed_has_announced_nothing_that_it_has_not(tmp_path: Path) -> None:
    asyncio.run(killed_publications(tmp_path))


async def killed_publications(tmp_path: Path) -> None:
    rng, newest = random.Random(5), -1
    forgotten: set[int] = set()
    """Versions deleted in any life: a kill may leave one half deleted, and the next life may be
    killed before it continues."""
    async with Mortal("tests.node.weights.publisher") as child:
        for life in range(LIVES_MAX):
            await child.begin(tmp_path)
            first = await child.line()
            await asyncio.sleep(rng.uniform(0, 0.08))
            said = [line.split() for line in [first, *await child.kill()]]
            ports = publisher.machine(tmp_path)
            kept = publisher.announced(ports)
            told = [int(number) for word, number in said if word == "announced"]
            forgotten |= {int(number) for word, number in said if word == "forgets"}
            assert max(kept) >= max([newest, *told]), "what it announced is announced"
            newest = max(kept)
            await everything_is_there(ports, {v: kept[v] for v in kept if v not in forgotten})
            used = ports.blobs.used_bytes
            assert used <= (publisher.KEPT + 3) * 2 * len(weights(0)), "nothing piles up"
            ports.store.close()
            if life >= 2 * LIVES and newest > 2 * LIVES:
                break
    assert newest > 2 * LIVES


async def everything_is_there(ports, kept) -> None:
    for version, indexes in kept.items():
        assert ports.files.weights(version).read_bytes() == weights(version)
        for name in indexes:
            data = await ports.blobs.get(name)
            index = shard_index.decode(data)
            assert ports.blobs.has_file(name)
            for shard in index.shards:
                assert crypto.digest(await ports.blobs.get(shard.digest)) == shard.digest
