"""Policy files of one machine on its simulated disk (``PolicyFiles``)."""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import aclosing
from pathlib import Path

from typing_extensions import override

from protocol.core.types import Digest
from protocol.shardcast.movement_bound import (
    ExcessiveMovement,
    ExcessiveMovementError,
    MovementBound,
)
from roles.ports.engines import Policy
from roles.ports.storage import PolicyFiles
from simulations.ports.storage import COMMIT_SECONDS, Disk, Session
from simulations.runtime.content import (
    Extent,
    digest_of,
    is_poisoned,
    joined,
    patch_of,
    patched,
    policy_digest,
)
from simulations.scenario.scenario import Compute


class SimPolicyFiles(PolicyFiles):
    """Policy files on the simulated disk of one machine."""

    def __init__(
        self,
        disk: Disk,
        session: Session,
        directory: Path,
        genesis: Path,
        task: Path,
        *,
        patch_share: float = 0.0,
        compute: Compute | None = None,
    ) -> None:
        super().__init__(directory, genesis, task)
        self._disk = disk
        self._session = session
        self._patch_share = patch_share
        self._compute = compute or Compute()

    @override
    def size(self, path: Path) -> int | None:
        content = self._disk.files.get(path)
        return None if content is None else len(content)

    @override
    def _existing(self) -> Iterable[Path]:
        return [path for path in self._disk.files if path.parent == self._directory]

    @override
    async def delete(self, path: Path) -> None:
        if self._session.alive:
            self._disk.files.pop(path, None)

    @override
    async def encode(self, path: Path, base: Policy | None, target: Path) -> Digest | None:
        content = self._disk.files.get(path, b"")
        if base is None or not self._patch_share or not isinstance(content, Extent):
            return None
        patch = patch_of(content, base.digest, self._patch_share)
        seconds = COMMIT_SECONDS + self._compute.weights_seconds(len(content))
        async with self._session.writing(seconds):
            self._disk.require_room()
            if self._session.alive:
                self._disk.files[target] = patch
        return digest_of(patch)

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
        async with aclosing(self._decoded(encoding)) as decoded:
            patch = joined([piece async for piece in decoded])
        content = None if base is None else patched(patch, base.digest, file_bytes_max)
        if base is None or policy_digest(self._disk.files.get(base.path, b"")) != base.digest:
            raise ValueError("the base is not here")
        if content is None or policy_digest(content) != policy:
            raise ValueError("the encoding makes another policy than it was signed for")
        if bound is not None:
            self._check(content)
        async with self._session.writing():
            self._disk.require_room()
            if self._session.alive:
                self._disk.files[target] = content
        return digest_of(patch)

    async def _decoded(self, encoding: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a patch, each once its part of the file is decoded."""
        async for piece in encoding:
            made_bytes = len(piece) / self._patch_share if self._patch_share else 0.0
            if seconds := self._compute.weights_seconds(made_bytes):
                await asyncio.sleep(seconds)
            yield piece

    @override
    async def check_movement(self, path: Path, base: Policy, bound: MovementBound) -> None:
        """Model the comparison: weights have no values, but their maker may have poisoned them."""
        self._check(self._disk.files.get(path, b""))

    def _check(self, content: bytes) -> None:
        if is_poisoned(content):
            raise ExcessiveMovementError(ExcessiveMovement("weights", math.inf))

    @override
    async def link(self, index: Digest, path: Path) -> None:
        async with self._session.writing():
            content = self._disk.file_of(index)
            if content is None:
                raise LookupError("not every shard is here")
            self._disk.require_room()
            if self._session.alive:
                self._disk.files[path] = content
