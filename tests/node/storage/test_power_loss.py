"""Durability at a power loss in the moment when a write was reported as done."""

import sqlite3

import pytest

from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.storage.state import SqliteStore
from protocol.core.crypto import digest
from roles.ports.storage import Owner, Purpose
from tests.node.storage.blob_stores import name_of, one_shard, open_one, owner
from tests.worlds.power_loss import power_loss

DATA = bytes(range(256)) * 20
DIGEST = digest(DATA)
CHUNK_BYTES = 1000
INDEX = one_shard(DATA, CHUNK_BYTES)
NAME = name_of(INDEX)
ONE, TWO = owner(b"one"), owner(b"two", Purpose.WEIGHTS)
FILE = Owner(Purpose.WEIGHTS, NAME)


@pytest.fixture
def root(tmp_path):
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture(params=["put", "put_file", "arrival", "arrival that was all here"])
def stored(request, root):
    """Return a function that stores ``DATA``, and its purpose."""

    async def put(blobs):
        await blobs.put(DATA, ONE)

    async def put_file(blobs):
        (root / "file").write_bytes(DATA)
        await blobs.put_file(root / "file", len(DATA), CHUNK_BYTES, Purpose.WEIGHTS)

    async def arrive(blobs):
        partial = await open_one(blobs, INDEX)
        for index in partial.missing():
            await partial.write_chunk(index, DATA[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])

    async def finish(blobs):
        await open_one(blobs, INDEX)
        (root / "blobs" / "files" / "arriving" / NAME.hex()).write_bytes(DATA)
        await open_one(FileBlobs(root / "blobs"), INDEX)

    ways = {"put": (put, ONE), "put_file": (put_file, FILE), "arrival": (arrive, FILE)}
    return ways.get(request.param, (finish, FILE))


async def test_a_blob_and_its_owner_survive(root, stored):
    store, owner = stored
    with power_loss(root) as power:
        await store(FileBlobs(root / "blobs"))
        power.survivors()
    again = FileBlobs(root / "blobs")
    assert await again.get(DIGEST) == DATA
    assert again.owners(owner.purpose) == [owner]


async def test_whenever_the_power_fails_only_whole_blobs_with_owners_are_here(root, stored):
    """Or arrivals, whose bytes are verified again when they are resumed."""
    store, owner = stored
    named = DIGEST if owner is ONE else NAME
    with power_loss(root) as power:
        blobs = FileBlobs(root / "blobs")
        await store(blobs)
        await blobs.put(DATA, TWO)
        await blobs.release(owner)
        assert len(power.on_sync) > 5
        for files in power.on_sync:
            places = [f"blobs/complete/{DIGEST.hex()[:2]}/{DIGEST.hex()}"]
            places.append(f"blobs/files/whole/{NAME.hex()}")
            whole = [name for name in places if name in files]
            assert all(files[name] == DATA for name in whole)
            owned = [data for name, data in files.items() if name.startswith("blobs/owners/")]
            assert not whole or named in owned or DIGEST in owned
            assert (
                places[1] not in whole or f"blobs/complete/{NAME.hex()[:2]}/{NAME.hex()}" in files
            )
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
    await again.release(ONE)  # a second release is harmless
    assert await again.get(DIGEST) == DATA


async def test_a_linked_file_is_old_or_whole_and_survives(root):
    blobs = FileBlobs(root / "blobs")
    files = PolicyDirectory(root / "weights", root / "genesis", root / "task", blobs)
    files.weights(2).write_bytes(DATA)
    stored = await blobs.put_file(files.weights(2), 1000, 1000, Purpose.WEIGHTS)
    files.weights(1).write_bytes(b"before")
    with power_loss(root) as power:
        await files.link(stored.digest, files.weights(1))
        states = {held["weights/v1.safetensors"] for held in power.on_sync}
        assert states == {b"before", DATA}
        power.survivors()
    assert files.weights(1).read_bytes() == DATA


# SQLite calls fsync by itself, invisible to Python tests. The durability of a commit is a setting
# of each connection: FULL syncs the log at every commit, NORMAL at checkpoints only, OFF never. So
# the test reads the setting.

FULL = 2


async def test_the_store_waits_for_the_disk_at_every_commit(tmp_path, connections):
    store = SqliteStore(tmp_path / "state.sqlite")
    assert len(connections) == 2
    for connection in connections:
        assert connection.execute("PRAGMA synchronous").fetchone() == (FULL,)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    store.close()
    plain = sqlite3.connect(tmp_path / "state.sqlite")
    plain.execute("PRAGMA synchronous = NORMAL")
    assert plain.execute("PRAGMA synchronous").fetchone() != (FULL,), "it tells them apart"
    plain.close()
