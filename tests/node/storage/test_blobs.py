import asyncio
import errno
import os
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from node.storage import files, sharded_files
from node.storage.arrival import IncomingFile
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from protocol.core import crypto
from protocol.shardcast import index as shard_index
from roles.ports.storage import Owner, Purpose, StorageFullError
from tests.node.storage.blob_stores import index_of, name_of, one_shard, open_one, owner

DATA = bytes(range(256)) * 40
CHUNK_BYTES = 1000
DIGEST = crypto.digest(DATA)
INDEX = one_shard(DATA, CHUNK_BYTES)
INDEX_BYTES = len(shard_index.encode(INDEX))
NAME = name_of(INDEX)
CHUNKS = INDEX.shards[0].chunks
ONE, TWO, WEIGHTS = owner(b"one"), owner(b"two"), Owner(Purpose.WEIGHTS, NAME)


def chunk(index: int) -> bytes:
    return DATA[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


async def begin(blobs: FileBlobs) -> IncomingFile:
    return await open_one(blobs, INDEX)


async def fill(partial: IncomingFile) -> None:
    for index in partial.missing():
        assert await partial.write_chunk(index, chunk(index))


def every_file(directory: Path) -> list[str]:
    """Return the names of all files except those of owners."""
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
    await fill(await begin(blobs))
    policies = PolicyDirectory(tmp_path / "weights", tmp_path / "genesis", tmp_path / "task", blobs)
    (tmp_path / "blobs" / "files" / "whole" / NAME.hex()).unlink()
    with pytest.raises(LookupError):
        await policies.link(NAME, policies.weights(1))
    assert every_file(tmp_path) == [NAME.hex()], "the index"


# Crashes


async def test_what_has_no_owner_is_deleted_at_the_start(tmp_path: Path) -> None:
    """A crash in the middle of a release leaves blobs whose owner is gone."""
    blobs = FileBlobs(tmp_path)
    kept = await blobs.put(b"kept", TWO)
    await blobs.put(DATA, ONE)
    await begin(blobs)
    whole = one_shard(b"whole", 5)
    await (await open_one(blobs, whole)).write_chunk(0, b"whole")
    for path in (tmp_path / "owners").rglob("*"):
        if path.is_file() and path.name != TWO.subject.hex():
            path.unlink()
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
    for folder in ("complete/xx", "files/arriving", "files/whole", f"owners/{ONE.purpose}"):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "README").write_text("by hand")
    assert FileBlobs(tmp_path).used_bytes == 0
    assert len([*tmp_path.rglob("README")]) == 4


async def test_an_arrival_trusts_only_its_bytes(tmp_path: Path) -> None:
    first = await begin(FileBlobs(tmp_path))
    for index in (0, 1, 4):
        await first.write_chunk(index, chunk(index))
    with (tmp_path / "files" / "arriving" / NAME.hex()).open("r+b") as file:
        file.seek(CHUNK_BYTES + 5)
        file.write(b"rot")
    blobs = FileBlobs(tmp_path)
    assert blobs.used_bytes == len(DATA) + INDEX_BYTES
    assert not blobs.has(DIGEST)
    assert blobs.size(DIGEST) is None, "nobody is kept waiting for it before it is resumed"
    second = await begin(blobs)
    assert sorted({*range(len(CHUNKS))} - {*second.missing()}) == [0, 4]
    assert blobs.used_bytes == len(DATA) + INDEX_BYTES


@pytest.mark.parametrize("seed", range(8))
async def test_chunks_may_come_in_any_order_at_once_and_twice(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    content = draw.randbytes(draw.randrange(1, 40 * CHUNK_BYTES))
    index = one_shard(content, CHUNK_BYTES)
    numbers = list(range(len(index.shards[0].chunks)))
    for part in (draw.sample(numbers, len(numbers) // 3), 2 * numbers):
        draw.shuffle(part)
        partial = await open_one(FileBlobs(tmp_path), index)
        pieces = [content[number * CHUNK_BYTES :][:CHUNK_BYTES] for number in part]
        assert all(await asyncio.gather(*map(partial.write_chunk, part, pieces)))
    blobs = FileBlobs(tmp_path)
    assert await blobs.get(index.shards[0].digest) == content
    assert blobs.has_file(name_of(index))


async def test_a_disk_that_cannot_be_read_for_a_while_makes_no_other_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partial = await begin(FileBlobs(tmp_path))
    for index in (2, 1):
        await partial.write_chunk(index, chunk(index))

    def half_read(path: Path, offset: int, length: int) -> Iterator[bytes]:
        yield path.read_bytes()[offset : offset + length // 2]
        raise OSError(errno.EIO, "once")

    with monkeypatch.context() as broken:
        broken.setattr(files, "slice_of", half_read)
        with pytest.raises(OSError, match="once"):
            await partial.write_chunk(0, chunk(0))
    await fill(partial)
    assert await FileBlobs(tmp_path).get(DIGEST) == DATA


def test_a_slice_that_a_file_does_not_have_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "short"
    path.write_bytes(DATA)
    with pytest.raises(ValueError, match="short ends before its slice"):
        list(islice(files.slice_of(path, 1, len(DATA)), 3))


async def test_a_file_of_many_shards_is_resumed_where_it_was(tmp_path: Path) -> None:
    content = DATA[:9500]
    index = index_of(content, 4000, CHUNK_BYTES)
    partials = await FileBlobs(tmp_path).open_file(index, Purpose.WEIGHTS)
    for shard, number in ((0, 3), (1, 0), (1, 1), (1, 2), (1, 3), (2, 1)):
        start = shard * 4000 + number * CHUNK_BYTES
        assert await partials[shard].write_chunk(
            number, content[start : start + CHUNK_BYTES][:1000]
        )
    blobs = FileBlobs(tmp_path)
    again = await blobs.open_file(index, Purpose.WEIGHTS)
    assert [partial.missing() for partial in again] == [[0, 1, 2], [], [0]]
    assert [blobs.has(shard.digest) for shard in index.shards] == [False, True, False]
    for shard, partial in enumerate(again):
        for number in partial.missing():
            start = shard * 4000 + number * CHUNK_BYTES
            await partial.write_chunk(number, content[start : start + CHUNK_BYTES])
    assert blobs.path_of(name_of(index)).read_bytes() == content
    assert not list((tmp_path / "files" / "arriving").iterdir())


async def test_a_file_whose_index_is_gone_is_deleted_at_the_start(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    await fill(await begin(blobs))
    other = one_shard(DATA[::-1], CHUNK_BYTES)
    await open_one(blobs, other)
    for index in (INDEX, other):
        (tmp_path / "complete" / name_of(index).hex()[:2] / name_of(index).hex()).unlink()
    assert FileBlobs(tmp_path).used_bytes == 0
    assert every_file(tmp_path) == []


async def test_an_arrival_that_was_all_here_is_completed_on_opening(tmp_path: Path) -> None:
    await begin(FileBlobs(tmp_path))
    (tmp_path / "files" / "arriving" / NAME.hex()).write_bytes(DATA)
    blobs = FileBlobs(tmp_path)
    assert not blobs.has(DIGEST)
    assert (await begin(blobs)).missing() == []
    assert blobs.has(DIGEST)
    assert every_file(tmp_path) == [NAME.hex()] * 2, "the index and the file"
    assert (tmp_path / "files" / "whole" / NAME.hex()).exists()


# Disk space


async def test_the_quota_refuses_before_anything_is_written(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path, quota_bytes=len(DATA) + 10)
    small = await blobs.put(b"twelve bytes", TWO)
    with pytest.raises(StorageFullError):
        await blobs.put(DATA, ONE)
    assert every_file(tmp_path) == [small.hex()]
    assert await blobs.put(b"twelve bytes", ONE) == small, "what is here needs no room"
    assert blobs.used_bytes == 12


@pytest.mark.parametrize("way", ["arrives", "is put"])
async def test_a_file_without_room_leaves_no_more_than_its_index(tmp_path: Path, way: str) -> None:
    index = INDEX if way == "arrives" else index_of(DATA, 4000, CHUNK_BYTES)
    index_bytes = len(shard_index.encode(index))
    blobs = FileBlobs(tmp_path / "blobs", quota_bytes=len(DATA) + index_bytes - 1)
    (tmp_path / "file").write_bytes(DATA)
    ways = {
        "arrives": lambda: begin(blobs),
        "is put": lambda: blobs.put_file(tmp_path / "file", 4000, CHUNK_BYTES, Purpose.WEIGHTS),
    }
    with pytest.raises(StorageFullError):
        await ways[way]()
    name = name_of(index)
    assert (blobs.used_bytes, every_file(tmp_path / "blobs")) == (index_bytes, [name.hex()])
    await blobs.release(Owner(Purpose.WEIGHTS, name))
    assert (blobs.used_bytes, every_file(tmp_path / "blobs")) == (0, [])


async def test_an_arrival_that_is_not_resumed_keeps_its_room(tmp_path: Path) -> None:
    """Only its owner can release it; a peer that makes us fetch something else must not."""
    await (await begin(FileBlobs(tmp_path))).write_chunk(0, chunk(0))
    blobs = FileBlobs(tmp_path, quota_bytes=len(DATA) + INDEX_BYTES)
    with pytest.raises(StorageFullError):
        await blobs.put(b"new", TWO)
    assert 0 not in (await begin(blobs)).missing()
    assert blobs.used_bytes == len(DATA) + INDEX_BYTES
    await blobs.release(WEIGHTS)
    await blobs.put(b"new", TWO)
    assert blobs.used_bytes == 3


@pytest.mark.parametrize("resumed", [False, True])
async def test_an_arrival_is_replaced_by_the_file(tmp_path: Path, *, resumed: bool) -> None:
    await begin(FileBlobs(tmp_path / "blobs"))
    blobs = FileBlobs(tmp_path / "blobs")
    if resumed:
        await begin(blobs)
    (tmp_path / "file").write_bytes(DATA)
    for _ in range(2):
        await blobs.put_file(tmp_path / "file", len(DATA), CHUNK_BYTES, Purpose.WEIGHTS)
        assert blobs.used_bytes == len(DATA) + INDEX_BYTES
        assert every_file(tmp_path / "blobs") == [NAME.hex()] * 2
    assert blobs.path_of(NAME).samefile(tmp_path / "file"), "it is not on the disk twice"


async def test_a_file_system_without_links_has_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    blobs = FileBlobs(tmp_path / "blobs")
    policies = PolicyDirectory(tmp_path / "weights", tmp_path / "genesis", tmp_path / "task", blobs)
    policies.weights(1).write_bytes(DATA)
    stored = await blobs.put_file(policies.weights(1), 4000, CHUNK_BYTES, Purpose.WEIGHTS)
    policies.weights(1).write_bytes(b"something else")
    await policies.link(stored.digest, policies.weights(2))
    assert policies.weights(2).read_bytes() == DATA


async def test_a_file_that_is_replaced_while_it_is_stored_is_stored_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name may be reused for another version; the indexed bytes must stay."""
    link, path = files.link_synced, tmp_path / "file"

    def link_and_replace(source: Path, target: Path) -> None:
        link(source, target)
        source.unlink()
        source.write_bytes(DATA[::-1])

    path.write_bytes(DATA)
    monkeypatch.setattr(files, "link_synced", link_and_replace)
    blobs = FileBlobs(tmp_path / "blobs")
    stored = await blobs.put_file(path, len(DATA), CHUNK_BYTES, Purpose.WEIGHTS)
    assert stored.digest == NAME
    assert await blobs.get(DIGEST) == DATA


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
    await fill(await begin(blobs))
    with monkeypatch.context() as patch:
        patch.setattr(files, "link_synced" if broken == "write_synced" else broken, full)
        with pytest.raises(StorageFullError):
            await policies.link(NAME, policies.weights(1))
    assert every_file(tmp_path) == [NAME.hex()] * 2


@pytest.mark.parametrize("broken", ["link_synced", "write_synced", "promote"])
async def test_a_file_that_finds_no_room_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    (tmp_path / "file").write_bytes(DATA)
    blobs = FileBlobs(tmp_path / "blobs")
    with monkeypatch.context() as patch:
        patch.setattr(files, broken, full)
        with pytest.raises(StorageFullError):
            await blobs.put_file(tmp_path / "file", len(DATA), CHUNK_BYTES, Purpose.WEIGHTS)
    assert (blobs.used_bytes, every_file(tmp_path / "blobs")) == (0, [])
    assert not blobs.has_file(NAME)


async def test_a_disk_that_fills_at_the_last_chunk_takes_it_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    blobs = FileBlobs(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sharded_files.os, "posix_fallocate", full)
        with pytest.raises(StorageFullError):
            await begin(blobs)
    assert (blobs.used_bytes, every_file(tmp_path)) == (INDEX_BYTES, [NAME.hex()])
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
