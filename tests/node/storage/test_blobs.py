import asyncio
import errno
from pathlib import Path

import pytest

from node.storage import arrival, files
from node.storage.arrival import Arrival
from node.storage.blobs import PIECE_BYTES, FileBlobs
from protocol import crypto
from protocol.shardcast.index import chunk_digests
from protocol.types import Digest
from roles.ports.storage import Blobs, PartialBlob, StorageFullError

DATA = bytes(range(256)) * 40
CHUNK_BYTES = 1000
CHUNKS = chunk_digests([DATA], CHUNK_BYTES)
DIGEST = crypto.digest(DATA)


def chunk(index: int) -> bytes:
    return DATA[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


async def begin(blobs: FileBlobs) -> Arrival:
    return await blobs.open_partial(DIGEST, len(DATA), CHUNK_BYTES, CHUNKS)


async def read(blobs: FileBlobs, offset: int = 0, length: int = len(DATA)) -> bytes:
    return b"".join([piece async for piece in blobs.stream(DIGEST, offset, length)])


def every_file(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


async def test_a_blob_survives_a_restart_and_can_be_deleted(tmp_path: Path) -> None:
    blobs: Blobs = FileBlobs(tmp_path)
    assert await blobs.put(DATA) == DIGEST
    assert await blobs.put(DATA) == DIGEST
    again = FileBlobs(tmp_path)
    assert again.has(DIGEST)
    assert again.size(DIGEST) == len(DATA) == again.used_bytes
    assert await again.get(DIGEST) == DATA
    assert await read(again, 100, 300) == DATA[100:400]
    await again.delete(DIGEST)
    await again.delete(DIGEST)
    assert (again.has(DIGEST), again.size(DIGEST), again.used_bytes) == (False, None, 0)
    assert await again.get(DIGEST) is None
    assert every_file(tmp_path) == []


async def test_a_file_deleted_behind_our_back_is_not_here(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    await blobs.put(DATA)
    next((tmp_path / "complete").glob("*/*")).unlink()
    assert await blobs.get(DIGEST) is None
    with pytest.raises(LookupError):
        await read(blobs)


async def test_slices_of_a_file_are_blobs_and_make_the_file_again(tmp_path: Path) -> None:
    source = tmp_path / "source"
    content = DATA * 100
    source.write_bytes(content)
    blobs = FileBlobs(tmp_path / "blobs")
    cut = PIECE_BYTES + 17
    first = await blobs.put_file(source, 0, cut)
    second = await blobs.put_file(source, cut, len(content) - cut)
    assert await blobs.get(first) == content[:cut]
    target = tmp_path / "target"
    await blobs.concatenate([first, second], target)
    assert target.read_bytes() == content
    with pytest.raises(ValueError, match="ends before"):
        await blobs.put_file(source, 10, len(content))
    with pytest.raises(LookupError):
        await blobs.concatenate([first, DIGEST], tmp_path / "never")
    assert not (tmp_path / "never").exists()
    assert blobs.used_bytes == len(content)


async def test_an_arrival_is_checked_chunk_by_chunk_and_becomes_a_blob(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    partial: PartialBlob = await begin(blobs)
    assert partial.missing() == list(range(len(CHUNKS)))
    assert not await partial.write_chunk(0, chunk(1))
    assert not await partial.write_chunk(0, chunk(0)[:-1])
    for index in reversed(range(len(CHUNKS))):
        assert not blobs.has(DIGEST)
        assert await partial.write_chunk(index, chunk(index))
    assert partial.missing() == []
    assert await partial.write_chunk(3, chunk(3)), "a second sender of the tail is no liar"
    assert not await partial.write_chunk(3, chunk(4))
    assert await blobs.get(DIGEST) == DATA
    assert every_file(tmp_path) == [DIGEST.hex()]
    assert (await begin(blobs)).missing() == []


async def test_an_arrival_resumes_after_a_restart_and_trusts_only_its_bytes(tmp_path: Path) -> None:
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
    for index in second.missing():
        await second.write_chunk(index, chunk(index))
    assert await blobs.get(DIGEST) == DATA


async def test_an_arrival_that_was_all_here_is_completed_on_opening(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    (tmp_path / "arriving" / DIGEST.hex()).write_bytes(DATA)
    blobs = FileBlobs(tmp_path)
    assert not blobs.has(DIGEST)
    assert (await begin(blobs)).missing() == []
    assert blobs.has(DIGEST)


async def test_readers_get_chunks_while_they_arrive(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    partial = await begin(blobs)
    readers = [asyncio.create_task(read(blobs, 500 * n)) for n in range(1)]
    readers += [asyncio.create_task(read(blobs, 1500, 3000))]
    for index in range(len(CHUNKS)):
        await asyncio.sleep(0)
        assert not readers[0].done()
        await partial.write_chunk(index, chunk(index))
    assert await readers[0] == DATA
    assert await readers[1] == DATA[1500:4500]


async def test_a_reader_is_told_when_the_arrival_is_abandoned(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    partial = await begin(blobs)
    await partial.write_chunk(0, chunk(0))
    reader = asyncio.create_task(read(blobs))
    await asyncio.sleep(0.01)
    await blobs.delete(DIGEST)
    with pytest.raises(LookupError):
        await reader
    with pytest.raises(LookupError):
        await partial.write_chunk(1, chunk(1))
    assert blobs.used_bytes == 0
    assert every_file(tmp_path) == []


async def test_a_reader_goes_on_when_the_blob_comes_another_way(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    partial = await begin(blobs)
    reader = asyncio.create_task(read(blobs))
    await asyncio.sleep(0.01)
    await blobs.put(DATA)
    assert await reader == DATA
    assert partial.missing() == []
    assert blobs.used_bytes == len(DATA)
    assert every_file(tmp_path) == [DIGEST.hex()]


async def test_ranges_outside_and_unknown_blobs_are_refused(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    with pytest.raises(LookupError):
        await read(blobs)
    await blobs.put(DATA)
    for offset, length in ((-1, 2), (1, len(DATA))):
        with pytest.raises(ValueError, match="no range"):
            await read(blobs, offset, length)


async def test_plans_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    first = await begin(blobs)
    assert await begin(blobs) is first
    with pytest.raises(ValueError, match="other sizes"):
        await blobs.open_partial(DIGEST, len(DATA), CHUNK_BYTES, CHUNKS[::-1])
    with pytest.raises(ValueError, match="add up"):
        await blobs.open_partial(DIGEST, len(DATA), CHUNK_BYTES, CHUNKS[1:])
    small = await blobs.put(b"small")
    with pytest.raises(ValueError, match="other sizes"):
        await blobs.open_partial(small, 6, 6, [small])


async def test_chunks_that_do_not_make_the_blob_leave_nothing(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path)
    other = Digest(b"x" * 32)
    partial = await blobs.open_partial(other, len(DATA), CHUNK_BYTES, CHUNKS)
    for index in range(len(CHUNKS) - 1):
        await partial.write_chunk(index, chunk(index))
    with pytest.raises(ValueError, match="do not make"):
        await partial.write_chunk(len(CHUNKS) - 1, chunk(len(CHUNKS) - 1))
    assert blobs.size(other) is None
    assert blobs.used_bytes == 0
    assert every_file(tmp_path) == []


async def test_the_quota_refuses_before_anything_is_written(tmp_path: Path) -> None:
    blobs = FileBlobs(tmp_path, quota_bytes=len(DATA) + 10)
    small = await blobs.put(b"twelve bytes")
    with pytest.raises(StorageFullError):
        await blobs.put(DATA)
    with pytest.raises(StorageFullError):
        await begin(blobs)
    assert every_file(tmp_path) == [small.hex()]
    await blobs.delete(small)
    await begin(blobs)
    assert blobs.used_bytes == len(DATA)


async def test_arrivals_that_nobody_resumed_give_way(tmp_path: Path) -> None:
    await (await begin(FileBlobs(tmp_path))).write_chunk(0, chunk(0))
    blobs = FileBlobs(tmp_path, quota_bytes=len(DATA))
    assert blobs.used_bytes == len(DATA)
    small = await blobs.put(b"new")
    assert blobs.used_bytes == 3
    assert every_file(tmp_path) == [small.hex()]


async def test_resuming_does_not_count_twice(tmp_path: Path) -> None:
    await begin(FileBlobs(tmp_path))
    blobs = FileBlobs(tmp_path, quota_bytes=len(DATA))
    await begin(blobs)
    assert blobs.used_bytes == len(DATA)


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
            await blobs.put(DATA)
    assert (blobs.used_bytes, every_file(tmp_path)) == (0, [])
    target = tmp_path / "target"
    await blobs.put(DATA)
    with monkeypatch.context() as patch:
        patch.setattr(files, broken, full)
        with pytest.raises(StorageFullError):
            await blobs.concatenate([DIGEST], target)
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
    writing = asyncio.create_task(blobs.put(DATA))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert blobs.has(DIGEST)
    assert blobs.used_bytes == len(DATA)


async def test_other_errors_of_the_disk_are_not_taken_for_a_full_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await FileBlobs(tmp_path / "blobs").put_file(tmp_path / "nothing", 0, 1)
