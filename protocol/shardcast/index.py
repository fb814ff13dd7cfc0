"""Shard index of a published file, with the digest of every chunk.

The signed checkpoint manifest contains the index's own digest. A node with the manifest can accept
the index, and then every chunk, from any peer. Lengths are not stored but follow from the three
sizes: an index cannot contradict itself. 62 GB in 50 MB shards with 1 MiB chunks makes 2.0 MB.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from blake3 import blake3

from protocol.core import codec
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import DIGEST_BYTES, Digest

INDEX_BYTES_MAX = 4 << 20
"""Twice the index of a 62 GB file; it also bounds the digests in it to 131072."""

TOTAL_BYTES_MAX = 1 << 48
"""A guess: 256 TiB is more than any policy; sums stay far below 64 bits."""

SHARD_BYTES_MAX = 1 << 30
"""A guess: a shard is opened, resumed and verified as a whole."""

CHUNK_BYTES_MAX = 4 << 20
"""A guess: chunks are in memory until their digest is known, several at a time."""

_KEYS = ("chunk_bytes", "shard_bytes", "shards", "total_bytes")


@dataclass(frozen=True, slots=True)
class Shard:
    """A byte range of the file: its digest, its length in bytes, and the digest of each chunk."""

    digest: Digest
    length: int
    chunks: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class ShardIndex:
    """A file of ``total_bytes``, cut every ``shard_bytes``, each shard cut every ``chunk_bytes``.

    The last shard, and the last chunk of each shard, may be shorter.
    """

    total_bytes: int
    shard_bytes: int
    chunk_bytes: int
    shards: tuple[Shard, ...]

    def chunk_length(self, shard: int, chunk: int) -> int:
        """Return the length in bytes of one chunk."""
        return min(self.chunk_bytes, self.shards[shard].length - chunk * self.chunk_bytes)


class ChunkHasher:
    """Digests of consecutive chunks of ``chunk_bytes``, from pieces of any length."""

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._digests: list[Digest] = []
        self._hasher = blake3()
        self._filled_bytes = 0

    def update(self, data: bytes) -> None:
        """Add the next piece."""
        view = memoryview(data)
        while view:
            part = view[: self._chunk_bytes - self._filled_bytes]
            self._hasher.update(part)
            self._filled_bytes += len(part)
            view = view[len(part) :]
            if self._filled_bytes == self._chunk_bytes:
                self._cut()

    def finish(self) -> tuple[Digest, ...]:
        """Return the digests of all chunks; the rest is the last, shorter one."""
        if self._filled_bytes:
            self._cut()
        return tuple(self._digests)

    def _cut(self) -> None:
        self._digests.append(Digest(self._hasher.digest()))
        self._hasher = blake3()
        self._filled_bytes = 0


def chunk_digests(pieces: Iterable[bytes], chunk_bytes: int) -> tuple[Digest, ...]:
    """Return the digests of the chunks of the concatenated ``pieces``."""
    hasher = ChunkHasher(chunk_bytes)
    for piece in pieces:
        hasher.update(piece)
    return hasher.finish()


def shard_count(total_bytes: int, shard_bytes: int) -> int:
    """Return the number of shards (or chunks) in ``total_bytes``."""
    return -(-total_bytes // shard_bytes)


def shard_length(total_bytes: int, shard_bytes: int, shard: int) -> int:
    """Return the length in bytes of shard number ``shard``."""
    return min(shard_bytes, total_bytes - shard * shard_bytes)


def encode(index: ShardIndex) -> bytes:
    """Return the canonical bytes of an index, at most ``INDEX_BYTES_MAX``; else ``ValueError``."""
    data = codec.encode(
        {
            "total_bytes": index.total_bytes,
            "shard_bytes": index.shard_bytes,
            "chunk_bytes": index.chunk_bytes,
            "shards": [[shard.digest, b"".join(shard.chunks)] for shard in index.shards],
        }
    )
    if len(data) > INDEX_BYTES_MAX:
        raise ValueError(f"index of {len(data)} bytes: choose larger chunks")
    return data


def decode(data: bytes) -> ShardIndex | Fault:
    """Decode an index from outside; every flaw is a ``Fault``."""
    value = codec.decode(data, bytes_max=INDEX_BYTES_MAX)
    if isinstance(value, Fault):
        return value
    if not isinstance(value, dict) or tuple(value) != _KEYS:
        return Fault(FaultCode.INDEX_FIELDS)
    total_bytes, shard_bytes = value["total_bytes"], value["shard_bytes"]
    chunk_bytes, entries = value["chunk_bytes"], value["shards"]
    if not (
        _within(total_bytes, TOTAL_BYTES_MAX)
        and _within(shard_bytes, SHARD_BYTES_MAX)
        and _within(chunk_bytes, min(CHUNK_BYTES_MAX, shard_bytes))
    ):
        return Fault(FaultCode.INDEX_SIZES)
    if type(entries) is not tuple or len(entries) != shard_count(total_bytes, shard_bytes):
        return Fault(FaultCode.INDEX_SHARDS)
    shards: list[Shard] = []
    named: dict[Digest, Shard] = {}
    for number, entry in enumerate(entries):
        shard = _shard(entry, shard_length(total_bytes, shard_bytes, number), chunk_bytes)
        if shard is None:
            return Fault(FaultCode.INDEX_SHARD, str(number))
        if named.setdefault(shard.digest, shard) != shard:
            return Fault(FaultCode.INDEX_INCONSISTENT, str(number))
        shards.append(shard)
    return ShardIndex(total_bytes, shard_bytes, chunk_bytes, tuple(shards))


def _within(value: Any, maximum: int) -> bool:
    return type(value) is int and 1 <= value <= maximum


def _shard(entry: Any, length: int, chunk_bytes: int) -> Shard | None:
    if type(entry) is not tuple or len(entry) != 2:
        return None
    digest, joined = entry
    if type(digest) is not bytes or type(joined) is not bytes:
        return None
    count = shard_count(length, chunk_bytes)
    if len(digest) != DIGEST_BYTES or len(joined) != count * DIGEST_BYTES:
        return None
    chunks = tuple(
        Digest(joined[start : start + DIGEST_BYTES])
        for start in range(0, len(joined), DIGEST_BYTES)
    )
    if count == 1 and chunks[0] != digest:  # a single chunk is the whole shard
        return None
    return Shard(Digest(digest), length, chunks)
