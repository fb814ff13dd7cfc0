"""Slow disk operations run in threads: the event loop does not wait."""

import os
import threading

import pytest

from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from protocol.core.crypto import digest
from roles.ports.storage import Owner, Purpose
from tests.node.storage.blob_stores import name_of, one_shard, open_one

SLOW = ("fsync", "link", "posix_fallocate", "rename", "replace", "unlink")
"""Milliseconds on an idle disk, else seconds; 0.4 s to unlink 2 GB (measured)."""

DATA = bytes(range(256)) * 16
CHUNK_BYTES = 1024
INDEX = one_shard(DATA, CHUNK_BYTES)
OWNER = Owner(Purpose.WEIGHTS, name_of(INDEX))


@pytest.fixture
def disk(tmp_path):
    blobs = FileBlobs(tmp_path / "blobs")
    task = tmp_path / "task"
    return blobs, PolicyDirectory(tmp_path / "weights", tmp_path / "genesis", task, blobs)


@pytest.fixture
def calls(disk, monkeypatch):
    """Yield the calls so far, with a flag for those on the loop."""
    made = {True: set(), False: set()}
    loop_thread = threading.get_ident()

    def noted(name):
        original = getattr(os, name)

        def call(*arguments, **options):
            made[threading.get_ident() == loop_thread].add(name)
            return original(*arguments, **options)

        return call

    for name in SLOW:
        monkeypatch.setattr(os, name, noted(name))
    return made


async def fill(partial):
    for index in partial.missing():
        await partial.write_chunk(index, DATA[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES])


async def test_a_version_comes_and_goes_in_threads(disk, calls):
    blobs, files = disk
    await fill(await open_one(blobs, INDEX))
    path = files.weights(1)
    await files.link(name_of(INDEX), path)
    assert path.read_bytes() == DATA
    await files.delete(path)
    assert files.size(path) is None
    await blobs.release(OWNER)
    assert calls == {True: set(), False: {*SLOW} - {"rename"}}


async def test_so_does_one_that_arrives_and_is_stored_at_once(disk, calls, tmp_path):
    blobs, _ = disk
    source = tmp_path / "file"
    source.write_bytes(DATA)
    partial = await open_one(blobs, INDEX)
    await blobs.put_file(source, len(DATA), CHUNK_BYTES, Purpose.WEIGHTS)
    assert partial.missing() == []
    assert not list((tmp_path / "blobs" / "files" / "arriving").iterdir())
    assert calls[True] == set()


async def test_and_one_whose_chunks_make_something_else(disk, calls, tmp_path):
    blobs, _ = disk
    with pytest.raises(ValueError, match="do not make the blob"):
        await fill(await open_one(blobs, one_shard(DATA, CHUNK_BYTES, digest(DATA[::-1]))))
    assert not list((tmp_path / "blobs" / "files" / "arriving").iterdir())
    assert calls[True] == set()
