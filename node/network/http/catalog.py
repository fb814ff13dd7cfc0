"""Catalogue of the weights server: shards, indexes, and whole versions in shardcast's layout.

It serves only blobs stored as weights or as the run's files. Rollout bodies are for their
committee, optimiser states and differences for trainers; all of them use streams.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from node.network.http.range_response import Resource
from node.storage import files
from node.storage.blobs import FileBlobs
from protocol.core.types import Digest, Version
from protocol.shardcast.index import shard_count, shard_length
from roles.ports.engines import Policy
from roles.ports.storage import Purpose

SERVED = frozenset((Purpose.WEIGHTS, Purpose.RUN_FILE))

SHARD_BYTES = 50_000_000
"""Shard size of shardcast 0.3.2 (``SHARDCAST_SHARD_SIZE``), independent of the run's own."""

PROBE_BYTES = 1_000_000
"""Size of ``data1.bin``, chosen by the operator in shardcast; a guess: large enough to measure,
small enough to give away."""

HASHING_SECONDS = 20.0
"""Maximum wait of a list request for the digest of a new version. Clients time out after 30 s
(``SHARDCAST_HTTP_TIMEOUT``) and retry."""

_IMMUTABLE = b"public, max-age=31536000, immutable"
_TEXT = b"text/plain; charset=utf-8"
_BLOB = re.compile(rb"/blobs/([0-9a-f]{64})")
_SHARD = re.compile(rb"/v(0|[1-9][0-9]{0,6})/shard_([0-9]{5})\.bin")
_PROBE = bytes(PROBE_BYTES)


@dataclass(frozen=True, slots=True)
class _File:
    """A version's file; a repeated download counts as another file."""

    path: Path
    length: int
    inode: int
    changed_at: int


class Catalogue:
    """Maps paths to resources; ``policies`` returns the stored versions."""

    def __init__(self, blobs: FileBlobs, policies: Callable[[], dict[Version, Policy]]) -> None:
        self._blobs = blobs
        self._policies = policies
        self._digests: dict[_File, asyncio.Task[Digest | None]] = {}
        self._hashing = asyncio.Lock()

    async def find(self, path: bytes, *, wait: bool) -> Resource | None:
        """Return the resource of a path; ``wait`` includes blobs still being downloaded."""
        if match := _BLOB.fullmatch(path):
            return self._blob(Digest(bytes.fromhex(match[1].decode())), wait=wait)
        if match := _SHARD.fullmatch(path):
            return self._shard(Version(int(match[1])), int(match[2]))
        if path == b"/distribution.txt":
            return _in_memory(await self._distribution(), _TEXT)
        if path == b"/data1.bin":
            return _in_memory(_PROBE, b"application/octet-stream")
        return None

    def _blob(self, digest: Digest, *, wait: bool) -> Resource | None:
        length = self._blobs.size(digest)
        if length is None or not (wait or self._blobs.has(digest)):
            return None
        if SERVED.isdisjoint(self._blobs.purposes(digest)):
            return None
        return Resource(
            length,
            lambda offset, count: self._blobs.parts(digest, offset, count),
            etag=b'"%s"' % digest.hex().encode(),
            caching=_IMMUTABLE,
        )

    # Whole versions, for shardcast's clients

    def _shard(self, version: Version, number: int) -> Resource | None:
        policy = self._policies().get(version)
        file = None if policy is None else _file_at(policy.path)
        if file is None or not 1 <= number <= shard_count(file.length, SHARD_BYTES):
            return None
        start, digest = (number - 1) * SHARD_BYTES, self._known_digest(file)
        return Resource(
            shard_length(file.length, SHARD_BYTES, number - 1),
            lambda offset, count: files.stream_slice(file.path, start + offset, count),
            etag=None if digest is None else b'"%s-%d"' % (digest.hex().encode(), number),
        )

    async def _distribution(self) -> bytes:
        """List the versions with a known digest, after a wait of up to ``HASHING_SECONDS``."""
        found = {version: _file_at(policy.path) for version, policy in self._policies().items()}
        here = {version: file for version, file in sorted(found.items()) if file is not None}
        self._digests = {file: self._digest(file) for file in here.values()}
        if self._digests:
            await asyncio.wait(self._digests.values(), timeout=HASHING_SECONDS)
        lines = []
        for version, file in here.items():
            digest = self._known_digest(file)
            if digest is not None:
                count = shard_count(file.length, SHARD_BYTES)
                lines.append(f"v{version}: {digest.hex()}|{count}\n")
        return "".join(lines).encode()

    def _known_digest(self, file: _File) -> Digest | None:
        task = self._digests.get(file)
        return task.result() if task is not None and task.done() else None

    def _digest(self, file: _File) -> asyncio.Task[Digest | None]:
        """Return the task that hashes a file: one per file, restarted only if it failed."""
        known = self._digests.get(file)
        if known is None or (known.done() and known.result() is None):
            return asyncio.create_task(self._hash(file.path))
        return known

    async def _hash(self, path: Path) -> Digest | None:
        async with self._hashing:  # one version at a time: engines need the cores
            try:
                return await files.in_thread(_digest_of, path)
            except (OSError, ValueError):  # deleted in the meantime
                return None


def _digest_of(path: Path) -> Digest:
    hasher = blake3()
    for piece in files.slice_of(path, 0, path.stat().st_size):
        hasher.update(piece)
    return Digest(hasher.digest())


def _file_at(path: Path) -> _File | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return _File(path, status.st_size, status.st_ino, status.st_mtime_ns)


def _in_memory(data: bytes, content_type: bytes) -> Resource:
    async def read(offset: int, count: int) -> AsyncGenerator[bytes, None]:
        yield data[offset : offset + count]

    return Resource(len(data), read, content_type=content_type)
