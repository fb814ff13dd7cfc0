"""Blobs, files and the store on a really full file system, and after space was freed."""

import shutil
from types import SimpleNamespace

import pytest

from node.storage.blobs import FileBlobs
from node.storage.state import SqliteStore
from protocol.core.crypto import digest
from roles.ports.storage import Owner, Purpose, Put, StorageFullError
from tests.node.storage.blob_stores import name_of, one_shard, open_one, owner
from tests.worlds.small_disk import small_disk

DATA = bytes(range(256)) * 400
DIGEST = digest(DATA)
CHUNK_BYTES = 10_000
INDEX = one_shard(DATA, CHUNK_BYTES)
NAME = name_of(INDEX)
ONE, TWO, WEIGHTS = owner(b"one"), owner(b"two"), Owner(Purpose.WEIGHTS, NAME)
LEFT_BYTES = [0, 4096, 8192, 50_000]


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 1_000_000) as disk:
        yield disk


@pytest.fixture
def unasked(monkeypatch):
    """Skip the check of free space: another program may take the space meanwhile."""
    plenty = SimpleNamespace(free=1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: plenty)


def begin(blobs):
    return open_one(blobs, INDEX)


async def test_room_is_asked_for_first(disk):
    blobs = FileBlobs(disk.path / "blobs")
    disk.fill(50_000)
    with pytest.raises(StorageFullError, match="no room for"):
        await blobs.put(DATA, ONE)
    with pytest.raises(StorageFullError, match="no room for"):
        await begin(blobs)
    await blobs.release(WEIGHTS)
    assert disk.names() == []


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("left_bytes", LEFT_BYTES)
async def test_blobs_tell_that_the_disk_is_full(disk, left_bytes):
    blobs = FileBlobs(disk.path / "blobs")
    kept = await blobs.put(b"kept", TWO)
    (disk.path / "file").write_bytes(DATA)
    disk.fill(left_bytes)
    for operation in (blobs.put(DATA, ONE), begin(blobs)):
        with pytest.raises(StorageFullError):
            await operation
    assert not blobs.has(DIGEST)
    await blobs.release(WEIGHTS)
    assert blobs.used_bytes == 4
    disk.empty()
    partial = await begin(blobs)
    await blobs.put_file(disk.path / "file", len(DATA), CHUNK_BYTES, Purpose.WEIGHTS)
    assert partial.missing() == []
    again = FileBlobs(disk.path / "blobs")
    assert await again.get(DIGEST) == DATA
    assert await again.get(kept) == b"kept"


async def test_a_file_that_is_here_can_be_stored_where_little_room_is_left(disk):
    blobs = FileBlobs(disk.path / "blobs")
    (disk.path / "file").write_bytes(DATA)
    disk.fill(30_000)
    await blobs.put_file(disk.path / "file", len(DATA), CHUNK_BYTES, Purpose.WEIGHTS)
    assert await FileBlobs(disk.path / "blobs").get(DIGEST) == DATA


@pytest.mark.usefixtures("unasked")
async def test_releasing_needs_no_room(disk):
    blobs = FileBlobs(disk.path / "blobs")
    await blobs.put(DATA, ONE)
    disk.fill()
    with pytest.raises(StorageFullError):
        await blobs.put(DATA, TWO)
    await blobs.release(ONE)
    assert disk.free_bytes >= len(DATA)
    await blobs.put(DATA, TWO)
    assert FileBlobs(disk.path / "blobs").has(DIGEST)


@pytest.mark.parametrize("left_bytes", LEFT_BYTES)
async def test_the_store_tells_that_the_disk_is_full_and_keeps_what_it_had(disk, left_bytes):
    store = SqliteStore(disk.path / "state.sqlite")
    await store.commit([Put("t", b"kept", b"x")])
    disk.fill(left_bytes)
    stored = []

    async def store_until_full():
        for number in range(200):
            await store.commit([Put("t", b"%03d" % number, bytes(1000))])
            stored.append(b"%03d" % number)

    with pytest.raises(StorageFullError):
        await store_until_full()
    assert [key for key, _ in store.scan("t")] == sorted([*stored, b"kept"])
    for _ in range(3):
        with pytest.raises(StorageFullError):
            await store.commit([Put("t", b"large", bytes(60_000))])
    disk.empty()
    await store.commit([Put("t", b"large", bytes(60_000))])
    assert store.get("t", b"large") == bytes(60_000)
    store.close()
    again = SqliteStore(disk.path / "state.sqlite")
    assert [key for key, _ in again.scan("t")] == sorted([*stored, b"kept", b"large"])
    again.close()
