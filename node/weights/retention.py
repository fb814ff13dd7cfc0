"""Releases the blobs of versions that nobody needs any more."""

from collections.abc import Iterable

from node.weights.states import published_states
from protocol.messages import CheckpointManifest
from protocol.replica import Replica
from protocol.types import Digest
from roles.ports.storage import Blobs, Owner, Purpose

STATES_KEPT = 2
"""The newest optimiser state, and the one before it, which becomes the newest when a later term
supersedes; each takes several times what a policy takes."""


class WeightsRetention:
    """Compares what is stored for versions with the versions that are needed."""

    def __init__(self, replica: Replica, blobs: Blobs) -> None:
        self._replica = replica
        self._blobs = blobs
        self._unnamed_since: dict[Owner, int] = {}
        """The newest version when we first saw an owner that no version needs; -1 for one that a
        version has needed."""

    async def sweep(self, weights_kept: Iterable[int]) -> None:
        """Release old states, and the weights of all versions but ``weights_kept``.

        Also what a later term has replaced. What no version has named yet is being published, or
        its manifest comes again after a restart: it goes when the next version comes without it.
        """
        await self._release_all_but(Purpose.WEIGHTS, self._indexes(weights_kept))
        states = published_states(self._replica, self._replica.ledger.version, STATES_KEPT)
        needed = [Digest(checkpoint.message.state) for checkpoint in states]
        await self._release_all_but(Purpose.OPTIMISER_STATE, needed)

    async def drop(self, checkpoint: CheckpointManifest, others: Iterable[int]) -> None:
        """Release the weights of a version, but for what one of the ``others`` has too."""
        needed = self._indexes(others)
        for index in indexes_of(checkpoint):
            if index not in needed:
                await self._blobs.release(Owner(Purpose.WEIGHTS, index))

    async def _release_all_but(self, purpose: Purpose, indexes: Iterable[Digest]) -> None:
        newest, here = self._replica.ledger.version, self._blobs.owners(purpose)
        needed = {Owner(purpose, index): -1 for index in indexes}
        since = {owner: self._unnamed_since.get(owner, newest) for owner in here} | needed
        for owner in here:
            if owner not in needed and since[owner] < newest:
                await self._blobs.release(owner)
                del since[owner]
        others = {key: at for key, at in self._unnamed_since.items() if key.purpose is not purpose}
        self._unnamed_since = others | since

    def _indexes(self, versions: Iterable[int]) -> dict[Digest, None]:
        checkpoints = map(self._replica.ledger.checkpoint, versions)
        return {
            index: None
            for item in checkpoints
            if item is not None
            for index in indexes_of(item.message)
        }


def indexes_of(checkpoint: CheckpointManifest) -> list[Digest]:
    """Return what the blobs of a version are stored for: its file, and each of its encodings."""
    return [Digest(checkpoint.index), *(Digest(form.index) for form in checkpoint.encodings)]
