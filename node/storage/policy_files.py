"""Weights, optimiser states and differences as files: the ``PolicyFiles`` port on a directory."""

from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from typing_extensions import override

from node.storage import encodings, files
from node.storage.blobs import FileBlobs
from protocol.core.types import Digest
from protocol.shardcast.encodings.tensor_file import EncodingError
from protocol.shardcast.movement_bound import ExcessiveMovementError, MovementBound
from roles.ports.engines import Policy
from roles.ports.storage import ENCODING, PolicyFiles

_PARTIAL = ".partial"


class PolicyDirectory(PolicyFiles):
    """Files in ``directory`` and ``task``, which it creates; files of ``blobs`` are linked."""

    def __init__(self, directory: Path, genesis: Path, task: Path, blobs: FileBlobs) -> None:
        super().__init__(directory, genesis, task)
        self._blobs = blobs
        files.make_directory(directory)
        for suffix in (_PARTIAL, ENCODING):  # left by an earlier process
            for path in directory.glob(f"*{suffix}"):
                path.unlink()
        files.make_directory(task)

    @override
    def size(self, path: Path) -> int | None:
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None

    @override
    def _existing(self) -> Iterable[Path]:
        return self._directory.iterdir()

    @override
    async def delete(self, path: Path) -> None:
        await files.in_thread(path.unlink, True)  # 0.4 s for 2 GB in the page cache (measured)

    @override
    async def encode(self, path: Path, base: Policy | None, target: Path) -> Digest | None:
        return await files.uninterrupted(files.in_thread(encodings.encode, path, base, target))

    @override
    async def decode(
        self,
        encoding: AsyncIterator[bytes],
        base: Policy | None,
        target: Path,
        policy: Digest,
        file_bytes_max: int,
        bound: MovementBound | None = None,
    ) -> Digest:
        partial = _partial(target)
        decoding = encodings.DecodingFile(base, partial, file_bytes_max, bound)
        try:
            async for data in encoding:
                await files.uninterrupted(files.in_thread(decoding.feed, data))
            if await files.uninterrupted(files.in_thread(decoding.finish)) != policy:
                raise EncodingError("the encoding makes another policy than it was signed for")
            if base is not None and decoding.excess is not None:
                await files.in_thread(encodings.check_base, base)
                raise ExcessiveMovementError(decoding.excess)
            await files.uninterrupted(files.in_thread(files.promote, partial, target))
            return decoding.encoding
        finally:
            decoding.close()
            partial.unlink(missing_ok=True)

    @override
    async def check_movement(self, path: Path, base: Policy, bound: MovementBound) -> None:
        excess = await files.in_thread(encodings.excess_of, path, base, bound)
        if excess is not None:
            raise ExcessiveMovementError(excess)

    @override
    async def link(self, index: Digest, path: Path) -> None:
        source = self._blobs.path_of(index)
        try:
            await files.uninterrupted(files.in_thread(_link, source, path))
        except FileNotFoundError as error:  # released meanwhile
            raise LookupError("not every shard is here") from error


def _partial(target: Path) -> Path:
    return target.with_name(target.name + _PARTIAL)


def _link(source: Path, target: Path) -> None:
    partial = _partial(target)
    try:
        partial.unlink(missing_ok=True)
        files.link_synced(source, partial)
        files.promote(partial, target)
    finally:
        partial.unlink(missing_ok=True)
