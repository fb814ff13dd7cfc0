"""Owners of blobs: one small file of digests per owner, ``<purpose>/<subject>``.

An owner's file is written before its blobs, and deleted before them. A crash therefore leaves at
worst a blob without an owner, never an owned blob without its entry.
"""

import os
from pathlib import Path

from node.local.datadir import sync_directory
from node.storage import files
from protocol.core.types import DIGEST_BYTES, Digest
from roles.ports.storage import Owner, Purpose


class Owners:
    """Owners of all blobs; methods with ``file`` in their name run in threads."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._digests: dict[Owner, dict[Digest, None]] = {}
        self._owners: dict[Digest, dict[Owner, None]] = {}
        for purpose in Purpose:
            files.make_directory(directory / purpose)
            for subject, path in files.named_by_digest(sorted((directory / purpose).iterdir())):
                for digest in _read(path):
                    self.add(Owner(purpose, subject), digest)

    def of(self, purpose: Purpose) -> list[Owner]:
        """Return the owners with this purpose."""
        return [owner for owner in self._digests if owner.purpose is purpose]

    def needs(self, owner: Owner, digest: Digest) -> bool:
        """Return whether a blob is stored for ``owner``."""
        return digest in self._digests.get(owner, {})

    def owned(self, digest: Digest) -> bool:
        """Return whether a blob has an owner."""
        return digest in self._owners

    def purposes(self, digest: Digest) -> set[Purpose]:
        """Return the purposes of a blob's owners."""
        return {owner.purpose for owner in self._owners.get(digest, ())}

    def add(self, owner: Owner, digest: Digest) -> None:
        """Record ``owner`` as an owner of a blob."""
        self._digests.setdefault(owner, {})[digest] = None
        self._owners.setdefault(digest, {})[owner] = None

    def remove(self, owner: Owner) -> list[Digest]:
        """Remove an owner; return the blobs left without an owner."""
        unowned = []
        for digest in self._digests.pop(owner, {}):
            others = self._owners[digest]
            del others[owner]
            if not others:
                del self._owners[digest]
                unowned.append(digest)
        return unowned

    def write_file(self, owner: Owner, digest: Digest) -> None:
        """Write durably that a blob is about to be stored for ``owner``."""
        path = self._path(owner)
        place = DIGEST_BYTES * len(self._digests.get(owner, {}))
        new = not path.exists()
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.pwrite(descriptor, digest, place)  # over the rest of an unfinished write
            os.ftruncate(descriptor, place + DIGEST_BYTES)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            sync_directory(path.parent)

    def delete_file(self, owner: Owner) -> None:
        """Delete the file of an owner; idempotent."""
        self._path(owner).unlink(missing_ok=True)

    def _path(self, owner: Owner) -> Path:
        return self._directory / owner.purpose / owner.subject.hex()


def _read(path: Path) -> list[Digest]:
    data = path.read_bytes()
    whole = len(data) - len(data) % DIGEST_BYTES
    return [Digest(data[start : start + DIGEST_BYTES]) for start in range(0, whole, DIGEST_BYTES)]
