"""Blobs and owners under random operations, restarts, and crashes in the middle of a change.

A stored blob is here until its owner is released. A blob without an owner is gone, after a restart
at the latest. An interrupted change has happened or has not.
"""

import asyncio
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from node.storage import files
from protocol.core.crypto import digest
from roles.ports.storage import Owner, Purpose
from tests.node.storage.blob_stores import FileMachine, SimMachine, index_of, name_of, owner

CHUNK_BYTES, SHARD_BYTES = 4, 8
CONTENTS = {digest(data): data for data in (b"one", b"two twos", b"three and three")}
FILES = [b"two twos", b"two twos two more", b"another"]
"""Files whose shards equal another blob, or a shard of another file."""

INDEXES = [index_of(data, SHARD_BYTES, CHUNK_BYTES) for data in FILES]
CONTENTS |= {
    shard.digest: data[number * SHARD_BYTES :][:SHARD_BYTES]
    for data, index in zip(FILES, INDEXES, strict=True)
    for number, shard in enumerate(index.shards)
}
FILE_PURPOSES = [Purpose.WEIGHTS, Purpose.OPTIMISER_STATE, Purpose.DIFFERENCE]
FILE_OWNERS = [Owner(one, name_of(index)) for one in FILE_PURPOSES for index in INDEXES]
OWNERS = [owner(b"commit"), owner(b"version", Purpose.WEIGHTS), *FILE_OWNERS]

blobs = st.sampled_from(list(CONTENTS))
owners = st.sampled_from(OWNERS)
file_numbers = st.integers(0, len(FILES) - 1)
file_purposes = st.sampled_from(FILE_PURPOSES)


class CrashingFiles(FileMachine):
    """Directory whose machine stops at a chosen disk access; the disk's content stays."""

    def __init__(self, directory: Path) -> None:
        self._lives, self._parent = 0, directory
        super().__init__(directory / "0")

    async def crash_in(self, operation, accesses: int) -> None:
        """Start ``operation``, stop after so many ``accesses``, and restart."""
        self._lives += 1
        kept, in_thread, done = self._parent / str(self._lives), files.in_thread, 0

        async def counted(function, *arguments):
            nonlocal done
            result = await in_thread(function, *arguments)
            done += 1
            if done == accesses:
                shutil.copytree(self._directory, kept)
            return result

        files.in_thread = counted
        try:
            await operation
        finally:
            files.in_thread = in_thread
        if not kept.exists():
            shutil.copytree(self._directory, kept)
        shutil.rmtree(self._directory)
        self._directory = kept
        self.restart()


class CrashingSim(SimMachine):
    async def crash_in(self, operation, accesses: int) -> None:
        running = asyncio.create_task(operation)
        for _ in range(accesses):
            await asyncio.sleep(0)
        self.restart()
        await running


class OwnersMachine(RuleBasedStateMachine):
    """The model is a table of owners and their stored blobs."""

    machine_class: type

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.runner = asyncio.Runner()
        self.machine = self.machine_class(self.directory)
        self.machine.restart()
        self.needed = {one: {} for one in OWNERS}
        self.arriving = {one: {} for one in OWNERS}

    @rule(whose=owners, blob=blobs)
    def put(self, whose, blob):
        assert self.runner.run(self.machine.blobs.put(CONTENTS[blob], whose)) == blob
        self.needed[whose][blob] = None

    @rule(number=file_numbers, purpose=file_purposes)
    def put_file(self, number, purpose):
        path = self.machine.files.weights(1)
        self.runner.run(self.machine.files.delete(path))
        self.machine.write(path, FILES[number])
        put = self.machine.blobs.put_file(path, SHARD_BYTES, CHUNK_BYTES, purpose)
        assert self.runner.run(put).index == INDEXES[number]
        for shard in INDEXES[number].shards:
            self.needed[Owner(purpose, name_of(INDEXES[number]))][shard.digest] = None

    @rule(number=file_numbers, purpose=file_purposes, chunks=st.integers(0, 5))
    def arrive(self, number, purpose, chunks):
        data, index, left = FILES[number], INDEXES[number], chunks
        whose = Owner(purpose, name_of(index))

        async def arrive():
            nonlocal left
            partials = await self.machine.blobs.open_file(index, purpose)
            for shard, partial in enumerate(partials):
                for chunk in partial.missing()[:left]:
                    start = shard * SHARD_BYTES + chunk * CHUNK_BYTES
                    end = min(start + CHUNK_BYTES, (shard + 1) * SHARD_BYTES)
                    assert await partial.write_chunk(chunk, data[start:end])
                    left -= 1
            return [not partial.missing() for partial in partials]

        for shard, whole in zip(index.shards, self.runner.run(arrive()), strict=True):
            self.arriving[whose][shard.digest] = None
            if whole:
                self.needed[whose][shard.digest] = None

    @rule(whose=owners)
    def release(self, whose):
        self.runner.run(self.machine.blobs.release(whose))
        self.needed[whose], self.arriving[whose] = {}, {}

    @rule()
    def restart(self):
        self.machine.restart()
        self._interrupt()

    def _interrupt(self):
        """Shards of an incomplete file are here again once it is resumed."""
        for whose, stored in self.needed.items():
            if whose in FILE_OWNERS and not self.machine.blobs.has_file(whose.subject):
                self.arriving[whose] |= stored
                stored.clear()

    @rule(whose=owners, blob=blobs, accesses=st.integers(1, 5))
    def crash_in_put(self, whose, blob, accesses):
        put = self.machine.blobs.put(CONTENTS[blob], whose)
        self.runner.run(self.machine.crash_in(put, accesses))
        self.arriving[whose][blob] = None  # it may be here
        self._interrupt()

    @rule(whose=owners, accesses=st.integers(1, 3))
    def crash_in_release(self, whose, accesses):
        release = self.machine.blobs.release(whose)
        self.runner.run(self.machine.crash_in(release, accesses))
        if whose not in self.machine.blobs.owners(whose.purpose):
            self.needed[whose], self.arriving[whose] = {}, {}
        self._interrupt()

    @invariant()
    def nothing_owned_is_missing(self):
        for whose, stored in self.needed.items():
            for blob in stored:
                assert whose in self.machine.blobs.owners(whose.purpose)
                assert self.runner.run(self.machine.blobs.get(blob)) == CONTENTS[blob]

    @invariant()
    def nothing_unowned_is_here(self):
        for blob in CONTENTS:
            owned = any(
                blob in table[one] for table in (self.needed, self.arriving) for one in OWNERS
            )
            assert owned or self.machine.blobs.size(blob) is None

    def teardown(self):
        self.runner.close()
        shutil.rmtree(self.directory)


@pytest.mark.parametrize("machine", [CrashingFiles, CrashingSim])
def test_nothing_owned_is_missing_and_nothing_unowned_stays(machine):
    made = type("Machine", (OwnersMachine,), {"machine_class": machine})
    run_state_machine_as_test(
        made, settings=settings(max_examples=20, stateful_step_count=25, deadline=None)
    )
