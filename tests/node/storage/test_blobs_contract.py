"""Contract of ``Blobs`` and ``PolicyFiles``, for the live and the simulated implementation."""

import asyncio

import pytest

from protocol.core.crypto import digest
from protocol.core.types import Digest
from protocol.shardcast import index as shard_index
from protocol.shardcast.index import chunk_digests
from roles.ports.storage import Owner, Purpose
from tests.node.storage.blob_stores import MACHINES, index_of, name_of, one_shard, open_one, owner

DATA = bytes(range(256)) * 40
CHUNK_BYTES = 1000
CHUNKS = chunk_digests([DATA], CHUNK_BYTES)
DIGEST = digest(DATA)
INDEX = one_shard(DATA, CHUNK_BYTES)
ONE, TWO = owner(b"one"), owner(b"two", Purpose.WEIGHTS)
WEIGHTS, RUN_FILE = (Owner(one, name_of(INDEX)) for one in (Purpose.WEIGHTS, Purpose.RUN_FILE))


@pytest.fixture(params=MACHINES)
def machine(request, tmp_path):
    made = MACHINES[request.param](tmp_path)
    made.restart()
    return made


def chunk(index):
    return DATA[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]


def begin(machine, purpose=Purpose.WEIGHTS):
    return open_one(machine.blobs, INDEX, purpose)


async def fill(partial):
    for index in partial.missing():
        assert await partial.write_chunk(index, chunk(index))


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
    first, second = await begin(machine), await begin(machine, Purpose.RUN_FILE)
    await first.write_chunk(0, chunk(0))
    await machine.blobs.release(WEIGHTS)
    assert 0 not in second.missing()
    await fill(second)
    assert await machine.blobs.get(DIGEST) == DATA
    await machine.blobs.release(RUN_FILE)
    assert is_gone(machine)
    assert machine.blobs.size(name_of(INDEX)) is None


async def test_who_opens_a_file_that_is_here_owns_it_too(machine):
    await fill(await begin(machine))
    assert (await begin(machine, Purpose.RUN_FILE)).missing() == []
    await machine.blobs.release(WEIGHTS)
    assert machine.blobs.has(DIGEST)
    machine.restart()
    assert await machine.blobs.get(DIGEST) == DATA
    await machine.blobs.release(RUN_FILE)
    assert is_gone(machine)


async def test_who_stores_a_shard_for_something_else_takes_nothing_with_it(machine):
    """A commit to a body that equals a shard of the weights makes every node do this."""
    await fill(await begin(machine))
    await machine.blobs.put(DATA, ONE)
    await machine.blobs.release(ONE)
    assert await machine.blobs.get(DIGEST) == DATA
    await machine.blobs.put(DATA, ONE)
    await machine.blobs.release(WEIGHTS)
    assert await machine.blobs.get(DIGEST) == DATA
    assert not machine.blobs.has_file(name_of(INDEX))
    machine.restart()
    assert await read(machine, 100, 50) == DATA[100:150]
    await machine.blobs.release(ONE)
    assert is_gone(machine)


async def test_files_share_shards_and_each_keeps_its_own(machine):
    shared, files = DATA[:5000], machine.files
    indexes = []
    for version, rest in enumerate((b"one", b"two")):
        machine.write(files.weights(version), shared + rest)
        path = files.weights(version)
        indexes.append((await machine.blobs.put_file(path, 5000, 1000, Purpose.WEIGHTS)).index)
    assert indexes[0].shards[0] == indexes[1].shards[0]
    await machine.blobs.release(Owner(Purpose.WEIGHTS, name_of(indexes[0])))
    for _ in range(2):
        assert await machine.blobs.get(digest(shared)) == shared
        assert await machine.blobs.get(digest(b"two")) == b"two"
        assert not machine.blobs.has(digest(b"one"))
        machine.restart()
    await machine.blobs.release(Owner(Purpose.WEIGHTS, name_of(indexes[1])))
    assert not machine.blobs.has(digest(shared))


async def test_a_reader_is_told_when_the_last_owner_of_an_arrival_goes(machine):
    partial = await begin(machine)
    await partial.write_chunk(0, chunk(0))
    reader = asyncio.create_task(read(machine))
    await asyncio.sleep(0.01)
    await machine.blobs.release(WEIGHTS)
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


async def test_a_reader_goes_on_when_the_file_comes_another_way(machine):
    partial = await begin(machine)
    reader = asyncio.create_task(read(machine))
    await asyncio.sleep(0.01)
    path = machine.files.weights(1)
    machine.write(path, DATA)
    await machine.blobs.put_file(path, len(DATA), CHUNK_BYTES, Purpose.RUN_FILE)
    assert await reader == DATA
    assert partial.missing() == []
    await machine.blobs.release(RUN_FILE)
    assert machine.blobs.has(DIGEST), "who opened the arrival needs it still"


async def test_chunks_that_do_not_make_the_blob_leave_nothing(machine):
    other = Digest(b"x" * 32)
    partial = await open_one(machine.blobs, one_shard(DATA, CHUNK_BYTES, other))
    for index in range(len(CHUNKS) - 1):
        await partial.write_chunk(index, chunk(index))
    with pytest.raises(ValueError, match="do not make"):
        await partial.write_chunk(len(CHUNKS) - 1, chunk(len(CHUNKS) - 1))
    assert machine.blobs.size(other) is None


async def test_shards_that_arrive_are_blobs_one_by_one(machine):
    content = DATA[:2500]
    index = index_of(content, 1000, 500)
    name = name_of(index)
    shards = [content[start : start + 1000] for start in (0, 1000, 2000)]
    partials = await machine.blobs.open_file(index, Purpose.WEIGHTS)
    assert machine.blobs.has(name), "others can have the index"
    assert [partial.missing() for partial in partials] == [[0, 1], [0, 1], [0]]
    for number in (2, 0, 1):
        with pytest.raises(LookupError):
            await machine.files.link(name, machine.files.weights(1))
        assert not machine.blobs.has_file(name)
        for chunk_number in partials[number].missing():
            part = shards[number][chunk_number * 500 : (chunk_number + 1) * 500]
            assert await partials[number].write_chunk(chunk_number, part)
        assert await machine.blobs.get(digest(shards[number])) == shards[number]
    assert machine.blobs.has_file(name)
    machine.restart()
    assert machine.blobs.has_file(name)
    await machine.files.link(name, machine.files.weights(1))
    assert machine.read(machine.files.weights(1)) == content
    await machine.blobs.release(Owner(Purpose.WEIGHTS, name))
    assert machine.read(machine.files.weights(1)) == content, "the file is somebody else's, too"


async def test_ranges_outside_and_unknown_blobs_are_refused(machine):
    with pytest.raises(LookupError):
        await read(machine)
    await machine.blobs.put(DATA, ONE)
    for offset, length in ((-1, 2), (1, len(DATA))):
        with pytest.raises(ValueError, match="no range"):
            await read(machine, offset, length)


# Files


async def test_a_file_is_cut_and_linked_again(machine):
    path, content = machine.files.weights(3), DATA * 3
    machine.write(path, content)
    assert machine.files.size(path) == len(content)
    stored = await machine.blobs.put_file(path, 10_000, CHUNK_BYTES, Purpose.WEIGHTS)
    index = stored.index
    assert index == index_of(content, 10_000, CHUNK_BYTES)
    assert (stored.digest, stored.total_bytes) == (name_of(index), len(content))
    assert await machine.blobs.get(stored.digest) == shard_index.encode(index)
    assert stored.index_bytes == len(shard_index.encode(index))
    assert machine.blobs.owners(Purpose.WEIGHTS) == [Owner(Purpose.WEIGHTS, stored.digest)]
    await machine.files.delete(path)
    for number, shard in enumerate(index.shards):
        piece = content[number * 10_000 : number * 10_000 + shard.length]
        assert await machine.blobs.get(shard.digest) == piece
    again = machine.files.weights(4)
    await machine.files.link(stored.digest, again)
    assert machine.read(again) == content
    await machine.files.delete(again)
    await machine.files.delete(again)
    assert machine.files.size(again) is None


async def test_what_is_not_there_is_told(machine):
    path = machine.files.state(1)
    for content in (None, b""):
        if content is not None:
            machine.write(path, content)
        with pytest.raises(ValueError, match="empty or missing"):
            await machine.blobs.put_file(path, 100, 10, Purpose.WEIGHTS)
    machine.write(path, bytes(range(256)) * 600)
    with pytest.raises(ValueError, match="choose larger chunks"):
        await machine.blobs.put_file(path, 1, 1, Purpose.WEIGHTS)
    assert machine.blobs.owners(Purpose.WEIGHTS) == []
    here = await machine.blobs.put(b"here", ONE)
    for index in (DIGEST, here):
        with pytest.raises(LookupError):
            await machine.files.link(index, machine.files.weights(1))
    assert machine.files.size(machine.files.weights(1)) is None


def test_files_of_versions_are_apart(machine):
    files = machine.files
    differences = [files.difference(*one) for one in ((1, 1), (1, 12), (11, 1), (2, 1))]
    paths = [files.genesis, files.weights(1), files.weights(2), files.state(1), files.state(2)]
    assert len({*paths, *differences}) == 9


async def test_differences_are_listed_with_their_versions(machine):
    files = machine.files
    for path in (files.difference(3, 0), files.difference(12, 7), files.state(3), files.weights(3)):
        machine.write(path, DATA)
    assert files.differences() == {files.difference(3, 0): 3, files.difference(12, 7): 12}
    machine.restart()
    await machine.files.delete(files.difference(3, 0))
    assert machine.files.differences() == {files.difference(12, 7): 12}


async def test_a_stored_file_is_linked_over_itself(machine):
    path = machine.files.difference(3, 0)
    machine.write(path, DATA)
    stored = await machine.blobs.put_file(path, 10_000, CHUNK_BYTES, Purpose.DIFFERENCE)
    await machine.files.link(stored.digest, path)
    assert machine.read(path) == DATA
    assert machine.files.differences() == {path: 3}
    await machine.blobs.release(Owner(Purpose.DIFFERENCE, stored.digest))
    assert machine.read(path) == DATA
