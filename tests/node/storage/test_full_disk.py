"""Blobs, files and the store on a file system that is really full, and then has room again."""

import shutil
from types import SimpleNamespace

import pytest

from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.storage.state import SqliteStore
from protocol.crypto import digest
from protocol.shardcast.index import chunk_digests
from roles.ports.storage import Put, StorageFullError
from tests.node.storage.blob_stores import owner
from tests.worlds.small_disk import small_disk

DATA = bytes(range(256)) * 400
DIGEST = digest(DATA)
CHUNK_BYTES = 10_000
ONE, TWO = owner(b"one"), owner(b"two")
LEFT_BYTES = [0, 4096, 8192, 50_000]


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk", 1_000_000) as disk:
        yield disk


@pytest.fixture
def unasked(monkeypatch):
    """Let the blobs not ask for room first: another program may take it meanwhile."""
    plenty = SimpleNamespace(free=1 << 40)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: plenty)


def begin(blobs):
    chunks = chunk_digests([DATA], CHUNK_BYTES)
    return blobs.open_partial(DIGEST, len(DATA), CHUNK_BYTES, chunks, ONE)


async def test_room_is_asked_for_first(disk):
    blobs = FileBlobs(disk.path / "blobs")
    disk.fill(50_000)
    with pytest.raises(StorageFullError, match="no room for"):
        await blobs.put(DATA, ONE)
    with pytest.raises(StorageFullError, match="no room for"):
        await begin(blobs)
    assert disk.names() == []


@pytest.mark.usefixtures("unasked")
@pytest.mark.parametrize("left_bytes", LEFT_BYTES)
async def test_blobs_tell_that_the_disk_is_full(disk, left_bytes):
    blobs = FileBlobs(disk.path / "blobs")
    kept = await blobs.put(b"kept", TWO)
    (disk.path / "file").write_bytes(DATA)
    disk.fill(left_bytes)
    for operation in (
        blobs.put(DATA, ONE),
        blobs.put_file(disk.path / "file", 0, len(DATA), ONE),
        begin(blobs),
    ):
        with pytest.raises(StorageFullError):
            await operation
    assert [name for name in disk.names() if name == DIGEST.hex()] == []
    assert blobs.used_bytes == 4
    disk.empty()
    partial = await begin(blobs)
    await blobs.put(DATA, ONE)
    assert partial.missing() == []
    again = FileBlobs(disk.path / "blobs")
    assert await again.get(DIGEST) == DATA
    assert await again.get(kept) == b"kept"


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
async def test_a_file_is_assembled_whole_or_not_at_all(disk, left_bytes):
    blobs = FileBlobs(disk.path / "blobs")
    files = PolicyDirectory(disk.path / "weights", disk.path / "genesis", disk.path / "task", blobs)
    await blobs.put(DATA, ONE)
    path = files.weights(1)
    path.write_bytes(b"before")
    disk.fill(left_bytes)
    with pytest.raises(StorageFullError):
        await files.assemble([DIGEST], path)
    assert path.read_bytes() == b"before"
    assert not [name for name in disk.names() if name.endswith("partial")]
    disk.empty()
    await files.assemble([DIGEST], path)
    assert path.read_bytes() == DATA


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
