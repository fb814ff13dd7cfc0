"""What was stored is there after the power has failed at the very moment it was said to be."""

import sqlite3

import pytest

from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.storage.state import SqliteStore
from protocol.crypto import digest
from protocol.shardcast.index import chunk_digests
from roles.ports.storage import Purpose
from tests.node.storage.blob_stores import owner
from tests.worlds.power_loss import power_loss

DATA = bytes(range(256)) * 20
DIGEST = digest(DATA)
CHUNK_BYTES = 1000
CHUNKS = chunk_digests([DATA], CHUNK_BYTES)
ONE, TWO = owner(b"one"), owner(b"two", Purpose.WEIGHTS)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture(params=["put", "put_file", "arrival", "arrival that was all here"])
def store(request, root):
    """Return a way to store ``DATA``."""

    async def put(blobs):
        await blobs.put(DATA, ONE)

    async def put_file(blobs):
        (root / "file").write_bytes(DATA)
        await blobs.put_file(root / "file", 0, len(DATA), ONE)

    async def arrive(blobs):
        partial = await blobs.open_partial(DIGEST, len(DATA), CHUNK_BYTES, CHUNKS, ONE)
        for index in range(len(CHUNKS)):
            await partial.write_chunk(index, DATA[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])

    async def finish(blobs):
        await blobs.open_partial(DIGEST, len(DATA), CHUNK_BYTES, CHUNKS, ONE)
        (root / "blobs" / "arriving" / DIGEST.hex()).write_bytes(DATA)
        await FileBlobs(root / "blobs").open_partial(DIGEST, len(DATA), CHUNK_BYTES, CHUNKS, ONE)

    ways = {"put": put, "put_file": put_file, "arrival": arrive}
    return ways.get(request.param, finish)


async def test_a_blob_and_its_owner_survive(root, store):
    with power_loss(root) as power:
        await store(FileBlobs(root / "blobs"))
        power.survivors()
    again = FileBlobs(root / "blobs")
    assert await again.get(DIGEST) == DATA
    assert again.owners(ONE.purpose) == [ONE]


async def test_whenever_the_power_fails_only_whole_blobs_with_owners_are_here(root, store):
    """Or arrivals, whose bytes are checked again when they are resumed."""
    with power_loss(root) as power:
        blobs = FileBlobs(root / "blobs")
        await store(blobs)
        await blobs.put(DATA, TWO)
        await blobs.release(ONE)
        assert len(power.on_sync) > 5
        for files in power.on_sync:
            whole = [name for name in files if name.startswith("blobs/complete/")]
            assert all(files[name] == DATA for name in whole)
            owned = [data for name, data in files.items() if name.startswith("blobs/owners/")]
            assert not whole or DIGEST in owned
        power.survivors()
    assert await FileBlobs(root / "blobs").get(DIGEST) == DATA


async def test_an_owner_that_joined_survives(root):
    with power_loss(root) as power:
        blobs = FileBlobs(root / "blobs")
        await blobs.put(DATA, ONE)
        await blobs.put(b"other", ONE)
        await blobs.put(DATA, TWO)
        await blobs.release(ONE)
        power.survivors()
    again = FileBlobs(root / "blobs")
    await again.release(ONE)  # to release it again does no harm
    assert await again.get(DIGEST) == DATA


async def test_an_assembled_file_is_old_or_whole_and_survives(root):
    blobs = FileBlobs(root / "blobs")
    files = PolicyDirectory(root / "weights", root / "genesis", root / "task", blobs)
    await blobs.put(DATA, ONE)
    files.weights(1).write_bytes(b"before")
    with power_loss(root) as power:
        await files.assemble([DIGEST, DIGEST], files.weights(1))
        states = {held["weights/v1.safetensors"] for held in power.on_sync}
        assert states == {b"before", DATA + DATA}
        power.survivors()
    assert files.weights(1).read_bytes() == DATA + DATA


# SQLite calls fsync by itself, where no test of Python sees it. That a commit waits for the disk is
# a setting of each connection: FULL syncs the log at every commit, NORMAL at checkpoints only, OFF
# never. The database is asked for it.

FULL = 2


async def test_the_store_waits_for_the_disk_at_every_commit(tmp_path):
    store = SqliteStore(tmp_path / "state.sqlite")
    for connection in (store._writer, store._reader):
        assert connection.execute("PRAGMA synchronous").fetchone() == (FULL,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()
    plain = sqlite3.connect(tmp_path / "state.sqlite")
    plain.execute("PRAGMA synchronous = NORMAL")
    assert plain.execute("PRAGMA synchronous").fetchone() != (FULL,), "it tells them apart"
    plain.close()
