import asyncio
import errno
from pathlib import Path

import pytest

from node.storage import arrival, files
from node.storage.arrival import Arrival
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from protocol import crypto
from protocol.shardcast.index import chunk_digests
from roles.ports.storage import StorageFullError
from tests.node.storage.blob_stores import owner

DATA = bytes(range(256)) * 40
CHUNK_BYTES = 1000
CHUNKS = chunk_digests([DATA], CHUNK_BYTES)
DIGEST = crypto.digest(DATA)
ONE, TWO = owner(b"one"), owner(b"two")


def chunk(index: int) -> bytes:
    return DATA[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


async def begin(blobs: FileBlobs) -> Arrival:
    return await blobs.open_partial(DIGEST, len(DATA), CHUNK_BYTES, CHUNKS, ONE)


def every_file(directory: Path) -> list[str]:
    """Return the names of all files but those that say who owns what."""
    return sorted(
        path.name
        for path in directory.rglob("*")
        if path.is_file() and "owners" not in path.parent.parts
    )


async def test_what_was_released_leaves_nothing(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    await blobs.put(DATA, ONE)
    await blobs.put(DATA, ONE)
    assert blobs.used_bytes == len(DATA)
    assert FileBlobs(tmp_path).used_bytes == len(DATA)
    await blobs.release(ONE)
    assert blobs.used_bytes == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


async def test_a_file_deleted_behind_our_back_is_not_here(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    await blobs.put(DATA, ONE)
    next((tmp_path / "blobs" / "complete").glob("*/*")).unlink()
    assert await blobs.get(DIGEST) is None
    with pytest.raises(LookupError):
        [piece async for piece in blobs.stream(DIGEST, 0, 10)]
    policies = PolicyDirectory(tmp_path / "weights", tmp_path / "genesis", tmp_path / "task", blobs)
    with pytest.raises(LookupError):
        await policies.assemble([DIGEST], policies.weights(1))
    assert every_file(tmp_path) == []


# Crashes: what a restart finds


async def test_what_has_no_owner_is_deleted_at_the_start(tmp_path: Path) -> None:
    """A crash in the middle of a release leaves blobs whose owner is gone."""
    blobs = FileBlobs(tmp_path)
    kept = await blobs.put(b"kept", TWO)
    await blobs.put(DATA, ONE)
    other = crypto.digest(b"other")
    await blobs.open_partial(other, 5, 5, [other], ONE)
    (tmp_path / "owners" / ONE.purpose / ONE.subject.hex()).unlink()
    again = FileBlobs(tmp_path)
    assert every_file(tmp_path) == [kept.hex()]
    assert again.used_bytes == 4
    assert again.owners(ONE.purpose) == [TWO]


async def test_an_owner_whose_blob_never_came_is_released_like_any_other(tmp_path: Path) -> None:
    """A crash after the owner was written and before the blob was."""
    blobs = FileBlobs(tmp_path)
    blobs._owners.write_file(ONE, DIGEST)
    again = FileBlobs(tmp_path)
    assert again.owners(ONE.purpose) == [ONE]
    assert not again.has(DIGEST)
    await again.put(DATA, ONE)
    assert await FileBlobs(tmp_path).get(DIGEST) == DATA
    await again.release(ONE)
    assert FileBlobs(tmp_path).owners(ONE.purpose) == []


@pytest.mark.parametrize("left_bytes", [1, 31])
async def test_a_half_written_owner_is_written_again(tmp_path: Path, left_bytes: int) -> None:
    blobs = FileBlobs(tmp_path)
    first = await blobs.put(b"first", ONE)
    path = tmp_path / "owners" / ONE.purpose / ONE.subject.hex()
    path.write_bytes(path.read_bytes() + b"x" * left_bytes)
    again = FileBlobs(tmp_path)
    second = await again.put(b"second", ONE)
    assert path.read_bytes() == first + second
    once_more = FileBlobs(tmp_path)
    assert once_more.has(first)
    assert once_more.has(second)


async def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    FileBlobs(tmp_path)
    for folder in ("complete/xx", "arriving", f"owners/{ONE.purpose}"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "README").write_text("by hand")
    assert FileBlobs(tmp_path).used_bytes == 0
    assert len([*tmp_path.rglob("README")]) == 3


async def test_an_arrival_trusts_only_its_bytes(tmp_path: Path) -> None:
    first = await begin(FileBlobs(tmp_path))
    for index in (0, 1, 4):
        await first.write_chunk(index, chunk(index))
    with (tmp_path / "arriving" / DIGEST.hex()).open("r+b") as file:
        file.seek(CHUNK_BYTES + 5)
        file.write(b"rot")
    blobs = FileBlobs(tmp_path)
    assert blobs.used_bytes == len(DATA)
    second = await begin(blobs)
    assert sorted({*range(len(CHUNKS))} - {*second.missing()}) == [0, 4]
    assert blobs.used_bytes == len(DATA)


async def test_an_arrival_that_was_all_here_is_completed_on_opening(tmp_path: Path) -> None:
    await begin(FileBlobs(tmp_path))
    (tmp_path / "arriving" / DIGEST.hex()).write_bytes(DATA)
    blobs = FileBlobs(tmp_path)
    assert not blobs.has(DIGEST)
    assert (await begin(blobs)).missing() == []
    assert blobs.has(DIGEST)
    assert every_file(tmp_path) == [DIGEST.hex()]


# Room


async def test_the_quota_refuses_before_anything_is_written(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path, quota_bytes=len(DATA) + 10)
    small = await blobs.put(b"twelve bytes", TWO)
    with pytest.raises(StorageFullError):
        await blobs.put(DATA, ONE)
    with pytest.raises(StorageFullError):
        await begin(blobs)
    assert every_file(tmp_path) == [small.hex()]
    assert await blobs.put(b"twelve bytes", ONE) == small, "what is here needs no room"
    for one in (ONE, TWO):
        await blobs.release(one)
    await begin(blobs)
    assert blobs.used_bytes == len(DATA)


async def test_an_arrival_that_is_not_resumed_keeps_its_room(tmp_path: Path) -> None:
    """Only its owner can give it up: whoever makes us fetch something else must not."""
    await (await begin(FileBlobs(tmp_path))).write_chunk(0, chunk(0))
    blobs = FileBlobs(tmp_path, quota_bytes=len(DATA))
    with pytest.raises(StorageFullError):
        await blobs.put(b"new", TWO)
    assert 0 not in (await begin(blobs)).missing()
    assert blobs.used_bytes == len(DATA)
    await blobs.release(ONE)
    await blobs.put(b"new", TWO)
    assert blobs.used_bytes == 3


async def test_an_arrival_is_replaced_by_the_blob(tmp_path: Path) -> None:
    await begin(FileBlobs(tmp_path))
    blobs = FileBlobs(tmp_path)
    await blobs.put(DATA, TWO)
    assert blobs.used_bytes == len(DATA)
    assert every_file(tmp_path) == [DIGEST.hex()]


@pytest.mark.parametrize("broken", ["write_synced", "promote"])
async def test_a_full_disk_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    blobs = FileBlobs(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(files, broken, full)
        with pytest.raises(StorageFullError):
            await blobs.put(DATA, ONE)
    assert (blobs.used_bytes, every_file(tmp_path)) == (0, [])
    policies = PolicyDirectory(tmp_path / "weights", tmp_path / "genesis", tmp_path / "task", blobs)
    await blobs.put(DATA, ONE)
    with monkeypatch.context() as patch:
        patch.setattr(files, "append" if broken == "write_synced" else broken, full)
        with pytest.raises(StorageFullError):
            await policies.assemble([DIGEST], policies.weights(1))
    assert every_file(tmp_path) == [DIGEST.hex()]


async def test_a_disk_that_fills_at_the_last_chunk_takes_it_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    blobs = FileBlobs(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(arrival.os, "posix_fallocate", full)
        with pytest.raises(StorageFullError):
            await begin(blobs)
    assert (blobs.used_bytes, every_file(tmp_path)) == (0, [])
    partial = await begin(blobs)
    for index in range(len(CHUNKS) - 1):
        await partial.write_chunk(index, chunk(index))
    last = len(CHUNKS) - 1
    with monkeypatch.context() as patch:
        patch.setattr(files, "promote", full)
        with pytest.raises(StorageFullError):
            await partial.write_chunk(last, chunk(last))
        assert partial.missing() == [last]
        again = FileBlobs(tmp_path)
        with pytest.raises(StorageFullError):
            await begin(again)
    assert await partial.write_chunk(last, chunk(last))
    assert blobs.has(DIGEST)


async def test_a_cancelled_write_is_finished_and_counted(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    writing = asyncio.create_task(blobs.put(DATA, ONE))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert blobs.has(DIGEST)
    assert blobs.used_bytes == len(DATA)


async def test_other_errors_of_the_disk_are_not_taken_for_a_full_one(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path / "blobs")
    (tmp_path / "blobs" / "temporary").rmdir()
    with pytest.raises(FileNotFoundError):
        await blobs.put(DATA, ONE)
