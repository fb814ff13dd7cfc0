"""Files whose shards are blobs: a shard is a byte range of its file (no copy).

``whole/ab12…`` is a complete file, renamed to there after a sync. ``arriving/ab12…`` is written
chunk by chunk, at full length from the start, so that a full disk shows at once. A restart trusts
no journal, but hashes the chunks again. Both are named by the digest of their index, which is a
blob of its own.

This module keeps the books; the caller runs slow functions in a thread.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from node.storage import files
from node.storage.arrival import FilePlan, IncomingFile
from protocol.core.types import Digest
from protocol.shardcast.index import ChunkHasher, Shard, ShardIndex, shard_count, shard_length


@dataclass(eq=False, slots=True)
class ShardedFile:
    """Complete or arriving file; ``arrivals`` has one entry per shard, none when complete."""

    name: Digest
    path: Path
    index: ShardIndex
    arrivals: tuple[IncomingFile, ...]

    @property
    def whole(self) -> bool:
        """True if every shard is here."""
        return not self.arrivals

    def offset(self, shard: int) -> int:
        """Return the byte offset of a shard."""
        return shard * self.index.shard_bytes

    def complete(self, path: Path) -> None:
        """Mark the file as complete at ``path``."""
        arrivals, self.path, self.arrivals = self.arrivals, path, ()
        for arrival in arrivals:
            arrival.fill()


@dataclass(frozen=True, slots=True)
class Slice:
    """Position of a shard: number ``shard`` of a file."""

    file: ShardedFile
    shard: int

    @property
    def offset(self) -> int:
        """Byte offset in the file."""
        return self.file.offset(self.shard)

    @property
    def length(self) -> int:
        """Length in bytes."""
        return self.file.index.shards[self.shard].length

    @property
    def arrival(self) -> IncomingFile | None:
        """The arrival of the shard; None when it is complete."""
        if self.file.whole or self.file.arrivals[self.shard].complete:
            return None
        return self.file.arrivals[self.shard]


class ShardedFiles:
    """Index of all sharded files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._whole = directory / "whole"
        self._arriving = directory / "arriving"
        for part in (self._whole, self._arriving):
            files.make_directory(part)
        self._files: dict[Digest, ShardedFile] = {}
        self._slices: dict[Digest, dict[Slice, None]] = {}
        self._leftovers: dict[Digest, int] = {}

    def restore(self, index_of: Callable[[Digest], ShardIndex | None]) -> int:
        """Load the files of an earlier process; return their total bytes.

        Files without an index are deleted: their content is unknown and unused.
        """
        for name, path in files.named_by_digest(self._whole.iterdir()):
            index = index_of(name)
            if index is not None and index.total_bytes == path.stat().st_size:
                self.add(ShardedFile(name, path, index, ()))
            else:
                path.unlink()
        for name, path in files.named_by_digest(self._arriving.iterdir()):
            if index_of(name) is not None and name not in self._files:
                self._leftovers[name] = path.stat().st_size
            else:
                path.unlink()
        here = sum(file.index.total_bytes for file in self._files.values())
        return here + sum(self._leftovers.values())

    def get(self, name: Digest) -> ShardedFile | None:
        """Return a complete or arriving file, else None."""
        return self._files.get(name)

    def find(self, digest: Digest) -> Slice | None:
        """Return a complete copy of a shard, else an arriving one."""
        slices = self._slices.get(digest, {})
        return next((found for found in slices if found.arrival is None), None) or next(
            iter(slices), None
        )

    def holders(self, digest: Digest) -> Iterator[Digest]:
        """Yield the names of the files that contain a shard."""
        for found in self._slices.get(digest, ()):
            yield found.file.name

    def add(self, file: ShardedFile) -> None:
        """Add a file."""
        self._files[file.name] = file
        for shard, entry in enumerate(file.index.shards):
            self._slices.setdefault(entry.digest, {})[Slice(file, shard)] = None

    def remove(self, name: Digest) -> int:
        """Remove a file and return its bytes; its readers and writers fail."""
        file = self._files.pop(name, None)
        if file is None:
            return self.claim_leftover(name)
        for shard, entry in enumerate(file.index.shards):
            slices = self._slices[entry.digest]
            del slices[Slice(file, shard)]
            if not slices:
                del self._slices[entry.digest]
        for arrival in file.arrivals:
            arrival.abandon()
        return file.index.total_bytes

    def leftover_bytes(self, name: Digest) -> int:
        """Return the bytes of an interrupted arrival that was not resumed."""
        return self._leftovers.get(name, 0)

    def claim_leftover(self, name: Digest) -> int:
        """Remove and return ``leftover_bytes``."""
        return self._leftovers.pop(name, 0)

    def whole_path(self, name: Digest) -> Path:
        """Return the path of a complete file."""
        return self._whole / name.hex()

    def arriving_path(self, name: Digest) -> Path:
        """Return the path of an arriving file."""
        return self._arriving / name.hex()

    def unlink(self, name: Digest) -> None:
        """Delete a file from the disk; idempotent."""
        self.arriving_path(name).unlink(missing_ok=True)
        self.whole_path(name).unlink(missing_ok=True)


def prepare(path: Path, plans: Sequence[FilePlan]) -> list[bytearray]:
    """Create or reopen an arriving file; return a mask of verified chunks for each shard.

    A mask has one byte per chunk: 1 if its digest is right.
    """
    here = [bytearray(len(plan.chunks)) for plan in plans]
    total_bytes = sum(plan.length for plan in plans)
    left_bytes = path.stat().st_size if path.exists() else 0
    try:
        with path.open("r+b" if left_bytes else "w+b") as file:
            if left_bytes != total_bytes:  # it is new, or truncated by a crash
                os.posix_fallocate(file.fileno(), 0, total_bytes)
                file.truncate(total_bytes)
            for plan, chunks in zip(plans, here, strict=True) if left_bytes else ():
                for chunk in range(len(chunks)):
                    chunks[chunk] = plan.fits(chunk, file.read(plan.chunk_length(chunk)))
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return here


def index_of(path: Path, shard_bytes: int, chunk_bytes: int) -> ShardIndex:
    """Hash a file; return the index of its shards and chunks.

    Raises ``ValueError`` when it is empty or missing.
    """
    try:
        total_bytes = path.stat().st_size
    except FileNotFoundError:
        total_bytes = 0
    if not total_bytes:
        raise ValueError(f"{path} is empty or missing")
    shards = []
    for number in range(shard_count(total_bytes, shard_bytes)):
        length = shard_length(total_bytes, shard_bytes, number)
        whole, chunks = blake3(), ChunkHasher(chunk_bytes)
        for piece in files.slice_of(path, number * shard_bytes, length):
            whole.update(piece)
            chunks.update(piece)
        shards.append(Shard(Digest(whole.digest()), length, chunks.finish()))
    return ShardIndex(total_bytes, shard_bytes, chunk_bytes, tuple(shards))
