"""What every implementation of ``Blobs`` and ``PolicyFiles`` does, the live and the simulated."""

import asyncio

import pytest

from protocol.crypto import digest
from protocol.shardcast.index import chunk_digests
from protocol.types import Digest
from roles.ports.storage import Purpose
from tests.node.storage.blob_stores import MACHINES, owner

DATA = bytes(range(256)) * 40
CHUNK_BYTES = 1000
CHUNKS = chunk_digests([DATA], CHUNK_BYTES)
DIGEST = digest(DATA)
ONE, TWO = owner(b"one"), owner(b"two", Purpose.WEIGHTS)


@pytest.fixture(params=MACHINES)
def machine(request, tmp_path):
    made = MACHINES[request.param](tmp_path)
    made.restart()
    return made


def chunk(index):
    return DATA[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


def begin(machine, whose=ONE):
    return machine.blobs.open_partial(DIGEST, len(DATA), CHUNK_BYTES, CHUNKS, whose)


async def read(machine, offset=0, length=10_240):
    return b"".join([piece async for piece in machine.blobs.stream(DIGEST, offset, length)])


def is_gone(machine):
    return not machine.blobs.has(DIGEST) and machine.blobs.size(DIGEST) is None


# Owners


async def test_a_blob_and_its_owner_survive_a_restart(machine):
    assert await machine.blobs.put(DATA, ONE) == DIGEST
    machine.restart()
    assert machine.blobs.has(DIGEST)
    assert machine.blobs.size(DIGEST) == len(DATA)
    assert await machine.blobs.get(DIGEST) == DATA
    assert await read(machine, 100, 300) == DATA[100:400]
    assert machine.blobs.owners(ONE.purpose) == [ONE]
    assert machine.blobs.owners(TWO.purpose) == []


async def test_a_blob_goes_with_its_last_owner(machine):
    await machine.blobs.put(DATA, ONE)
    await machine.blobs.put(DATA, TWO)
    await machine.blobs.put(DATA, TWO)
    await machine.blobs.release(ONE)
    await machine.blobs.release(ONE)
    machine.restart()
    assert await machine.blobs.get(DIGEST) == DATA
    await machine.blobs.release(owner(b"nobody"))
    assert machine.blobs.has(DIGEST)
    await machine.blobs.release(TWO)
    assert is_gone(machine)
    assert await machine.blobs.get(DIGEST) is None
    machine.restart()
    assert is_gone(machine)
    assert machine.blobs.owners(TWO.purpose) == []


async def test_an_owner_takes_with_it_all_that_only_it_needs(machine):
    shared = await machine.blobs.put(b"shared", ONE)
    await machine.blobs.put(b"shared", TWO)
    own = [await machine.blobs.put(data, ONE) for data in (b"a", b"b", b"c")]
    await machine.blobs.release(ONE)
    assert machine.blobs.has(shared)
    assert not any(map(machine.blobs.has, own))


async def test_a_released_blob_can_be_stored_again(machine):
    for _ in range(3):
        await machine.blobs.put(DATA, ONE)
        await machine.blobs.release(ONE)
    await machine.blobs.put(DATA, ONE)
    machine.restart()
    assert await machine.blobs.get(DIGEST) == DATA


async def test_purposes_of_one_subject_are_apart(machine):
    body, weights = owner(b"same"), owner(b"same", Purpose.WEIGHTS)
    await machine.blobs.put(DATA, body)
    await machine.blobs.put(DATA, weights)
    await machine.blobs.release(body)
    assert machine.blobs.has(DIGEST)
    await machine.blobs.release(weights)
    assert is_gone(machine)


# Arrivals


async def test_an_arrival_is_checked_chunk_by_chunk_and_becomes_a_blob(machine):
    partial = await begin(machine)
    assert partial.missing() == list(range(len(CHUNKS)))
    assert not await partial.write_chunk(0, chunk(1))
    assert not await partial.write_chunk(0, chunk(0)[:-1])
    for index in reversed(range(len(CHUNKS))):
        assert not machine.blobs.has(DIGEST)
        assert machine.blobs.size(DIGEST) == len(DATA)
        assert await partial.write_chunk(index, chunk(index))
    assert partial.missing() == []
    assert await partial.write_chunk(3, chunk(3)), "a second sender of the tail is right too"
    assert not await partial.write_chunk(3, chunk(4))
    assert await machine.blobs.get(DIGEST) == DATA
    assert (await begin(machine)).missing() == []


async def test_an_arrival_resumes_after_a_restart(machine):
    first = await begin(machine)
    for index in (0, 1, 4):
        await first.write_chunk(index, chunk(index))
    machine.restart()
    second = await begin(machine)
    assert sorted({*range(len(CHUNKS))} - {*second.missing()}) == [0, 1, 4]
    for index in second.missing():
        await second.write_chunk(index, chunk(index))
    assert await machine.blobs.get(DIGEST) == DATA


async def test_an_arrival_has_as_many_owners_as_opened_it(machine):
    first, second = await begin(machine, ONE), await begin(machine, TWO)
    await first.write_chunk(0, chunk(0))
    await machine.blobs.release(ONE)
    assert 0 not in second.missing()
    for index in second.missing():
        await second.write_chunk(index, chunk(index))
    assert await machine.blobs.get(DIGEST) == DATA
    await machine.blobs.release(TWO)
    assert is_gone(machine)


async def test_who_opens_what_is_here_owns_it_too(machine):
    await machine.blobs.put(DATA, ONE)
    assert (await begin(machine, TWO)).missing() == []
    await machine.blobs.release(ONE)
    assert machine.blobs.has(DIGEST)


async def test_a_reader_is_told_when_the_last_owner_of_an_arrival_goes(machine):
    partial = await begin(machine)
    await partial.write_chunk(0, chunk(0))
    reader = asyncio.create_task(read(machine))
    await asyncio.sleep(0.01)
    await machine.blobs.release(ONE)
    with pytest.raises(LookupError):
        await reader
    with pytest.raises(LookupError):
        await partial.write_chunk(1, chunk(1))
    assert is_gone(machine)
    machine.restart()
    assert (await begin(machine)).missing() == list(range(len(CHUNKS)))


async def test_readers_get_chunks_while_they_arrive(machine):
    partial = await begin(machine)
    readers = [asyncio.create_task(read(machine)), asyncio.create_task(read(machine, 1500, 3000))]
    for index in range(len(CHUNKS)):
        await asyncio.sleep(0)
        assert not readers[0].done()
        await partial.write_chunk(index, chunk(index))
    assert await readers[0] == DATA
    assert await readers[1] == DATA[1500:4500]


async def test_a_reader_goes_on_when_the_blob_comes_another_way(machine):
    partial = await begin(machine)
    reader = asyncio.create_task(read(machine))
    await asyncio.sleep(0.01)
    await machine.blobs.put(DATA, TWO)
    assert await reader == DATA
    assert partial.missing() == []
    await machine.blobs.release(TWO)
    assert machine.blobs.has(DIGEST), "who opened the arrival needs it still"


async def test_chunks_that_do_not_make_the_blob_leave_nothing(machine):
    other = Digest(b"x" * 32)
    partial = await machine.blobs.open_partial(other, len(DATA), CHUNK_BYTES, CHUNKS, ONE)
    for index in range(len(CHUNKS) - 1):
        await partial.write_chunk(index, chunk(index))
    with pytest.raises(ValueError, match="do not make"):
        await partial.write_chunk(len(CHUNKS) - 1, chunk(len(CHUNKS) - 1))
    assert machine.blobs.size(other) is None


async def test_plans_that_contradict_each_other_are_refused(machine):
    await begin(machine)
    with pytest.raises(ValueError, match="other sizes"):
        await machine.blobs.open_partial(DIGEST, len(DATA), CHUNK_BYTES, CHUNKS[::-1], ONE)
    with pytest.raises(ValueError, match="add up"):
        await machine.blobs.open_partial(owner(b"?").subject, 5000, CHUNK_BYTES, CHUNKS[1:], ONE)
    small = await machine.blobs.put(b"small", ONE)
    with pytest.raises(ValueError, match="other sizes"):
        await machine.blobs.open_partial(small, 6, 6, [small], ONE)


async def test_ranges_outside_and_unknown_blobs_are_refused(machine):
    with pytest.raises(LookupError):
        await read(machine)
    await machine.blobs.put(DATA, ONE)
    for offset, length in ((-1, 2), (1, len(DATA))):
        with pytest.raises(ValueError, match="no range"):
            await read(machine, offset, length)


# Files


async def test_a_file_is_indexed_cut_and_assembled_again(machine):
    path, content = machine.files.weights(3), DATA * 3
    machine.write(path, content)
    assert machine.files.size(path) == len(content)
    index = await machine.files.index(path, 10_000, CHUNK_BYTES)
    assert [shard.length for shard in index.shards] == [10_000, 10_000, 10_000, 720]
    for number, shard in enumerate(index.shards):
        assert await machine.blobs.put_file(path, number * 10_000, shard.length, ONE) == (
            shard.digest
        )
        piece = content[number * 10_000 : number * 10_000 + shard.length]
        assert await machine.blobs.get(shard.digest) == piece
        assert shard.chunks == chunk_digests([piece], CHUNK_BYTES)
    again = machine.files.weights(4)
    await machine.files.assemble([shard.digest for shard in index.shards], again)
    assert machine.read(again) == content
    await machine.files.delete(again)
    await machine.files.delete(again)
    assert machine.files.size(again) is None


async def test_what_is_not_there_is_told(machine):
    path = machine.files.state(1)
    with pytest.raises(ValueError, match="missing"):
        await machine.files.index(path, 100, 10)
    with pytest.raises(ValueError, match=r"ends before|missing"):
        await machine.blobs.put_file(path, 0, 1, ONE)
    machine.write(path, b"")
    with pytest.raises(ValueError, match="empty"):
        await machine.files.index(path, 100, 10)
    machine.write(path, b"state")
    with pytest.raises(ValueError, match="ends before"):
        await machine.blobs.put_file(path, 1, 5, ONE)
    here = await machine.blobs.put(b"here", ONE)
    with pytest.raises(LookupError):
        await machine.files.assemble([here, DIGEST], machine.files.weights(1))
    assert machine.files.size(machine.files.weights(1)) is None


def test_files_of_versions_are_apart(machine):
    files = machine.files
    paths = [files.genesis, files.weights(1), files.weights(2), files.state(1), files.state(2)]
    assert len({*paths}) == 5
