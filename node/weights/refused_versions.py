"""Versions that this node refuses, although they are what their trainer signed.

A weight of such a version moves farther than the run's training can move it. The refusal survives
a restart, so the version is downloaded once. Versions that follow a refused one are refused with
it, as long as the chain holds it: the council ends the term of a trainer whose version its members
do not hold, and the next trainer continues from the final version.

A version that the shadows dispute is not used either, as long as they do (``replica.shadows``).
"""

import math

import structlog

from protocol.core.types import Digest
from protocol.messages import CheckpointManifest, Signed
from protocol.replica.replica import Replica
from protocol.replica.shadows import Comparison
from protocol.shardcast.movement_bound import ExcessiveMovement
from roles.ports.storage import Delete, Put, StorageFullError, Store

log = structlog.get_logger()

REFUSED_MAX = 64
"""Refused versions that are remembered, the newest ones. Each costs its trainer the lead."""

_TABLE = "refused_versions"
_VERSION_BYTES = 8
_REASON_CHARACTERS_MAX = 600
"""A tensor's name has at most 512."""


class RefusedVersions:
    """Refused versions by the digest of their manifest."""

    def __init__(self, store: Store, replica: Replica) -> None:
        self._store = store
        self._chain, self._shadows = replica.ledger.chain, replica.shadows
        self._reasons: dict[Digest, str] = {}

    def restore(self) -> None:
        """Load the refusals from before a restart."""
        for key, reason in self._store.scan(_TABLE):
            self._reasons[Digest(key[_VERSION_BYTES:])] = reason.decode()

    async def add(self, checkpoint: Signed[CheckpointManifest], excess: ExcessiveMovement) -> None:
        """Refuse a version from now on, and store that."""
        version = checkpoint.message.version
        reason = f"version {version} is refused: {excess}"[:_REASON_CHARACTERS_MAX]
        self._reasons[checkpoint.digest] = reason
        log.error(
            "version_refused",
            version=version,
            trainer=checkpoint.signer,
            tensor=excess.tensor,
            ratio=excess.ratio,
        )
        key = version.to_bytes(_VERSION_BYTES, "big") + checkpoint.digest
        stored = [other for other, _ in self._store.scan(_TABLE)]
        oldest = stored[: max(0, len(stored) + 1 - REFUSED_MAX)]
        for other in oldest:
            self._reasons.pop(Digest(other[_VERSION_BYTES:]), None)
        gone = [Delete(_TABLE, other) for other in oldest]
        try:
            await self._store.commit([*gone, Put(_TABLE, key, reason.encode())])
        except StorageFullError as error:  # a restart downloads the version again
            log.warning("refusal not stored", version=version, error=str(error))

    def first(self) -> int | None:
        """Return the first refused or disputed version of the chain; those after it count too."""
        dispute = self._dispute()
        disputed = [] if dispute is None else [dispute.manifest.message.version]
        return min((*self._places(), *disputed), default=None)

    def _places(self) -> list[int]:
        places = map(self._chain.place, self._reasons)
        return [place for place in places if place is not None]

    def _dispute(self) -> Comparison | None:
        return self._shadows.dispute(self._chain.final)

    def has(self, version: int) -> bool:
        """Return whether a version or one before it is refused or disputed."""
        return version >= (math.inf if (first := self.first()) is None else first)

    def newest_usable(self) -> int:
        """Return the newest version of the chain that may be used, -1 before the first."""
        first = self.first()
        return self._chain.version if first is None else first - 1

    @property
    def checkpoint(self) -> Signed[CheckpointManifest] | None:
        """Manifest of the first refused version of the chain, if any."""
        first = min(self._places(), default=None)
        return None if first is None else self._chain.get(first)

    @property
    def reason(self) -> str:
        """Reason of the first refusal or dispute of the chain; empty without one."""
        checkpoint, dispute = self.checkpoint, self._dispute()
        if checkpoint is not None:
            return self._reasons[checkpoint.digest]
        return "" if dispute is None else str(dispute)
