"""Retention of the blobs of versions: weights, their encodings, and optimiser states."""

from collections.abc import Iterable

from node.weights.optimizer_states import published_states
from protocol.core.types import Digest
from protocol.messages import CheckpointManifest
from protocol.replica.replica import Replica
from protocol.run.recipe import STATES_KEPT
from roles.ports.storage import Blobs, Owner, Purpose


class WeightsRetention:
    """Retention of the blobs of versions, by the versions that are needed."""

    def __init__(self, replica: Replica, blobs: Blobs) -> None:
        self._replica = replica
        self._blobs = blobs
        self._unnamed_since: dict[Owner, int] = {}
        """Newest version when an owner without a version was first seen; -1 after a version needed
        it."""

    async def sweep(self, weights_kept: Iterable[int], newest: int) -> None:
        """Release old states, and the weights of all versions but ``weights_kept``.

        Two states up to version ``newest`` stay, and the one from which a trainer would resume at
        the final version. The release includes weights that a later term replaced. An owner without
        a version is being published, or its manifest is not yet back after a restart. It is kept
        until a new version comes without it.
        """
        await self._release_all_but(Purpose.WEIGHTS, self._indexes(weights_kept))
        states = published_states(self._replica, newest, STATES_KEPT)
        states += published_states(self._replica, self._replica.ledger.chain.final, 1)
        needed = [Digest(checkpoint.message.state) for checkpoint in states]
        await self._release_all_but(Purpose.OPTIMISER_STATE, needed)

    async def drop(self, checkpoint: CheckpointManifest, others: Iterable[int]) -> None:
        """Release the weights of a version, except those that one of ``others`` shares."""
        needed = self._indexes(others)
        for index in indexes_of(checkpoint):
            if index not in needed:
                await self._blobs.release(Owner(Purpose.WEIGHTS, index))

    async def _release_all_but(self, purpose: Purpose, indexes: Iterable[Digest]) -> None:
        newest, here = self._replica.ledger.chain.version, self._blobs.owners(purpose)
        needed = {Owner(purpose, index): -1 for index in indexes}
        since = {owner: self._unnamed_since.get(owner, newest) for owner in here} | needed
        for owner in here:
            if owner not in needed and since[owner] < newest:
                await self._blobs.release(owner)
                del since[owner]
        others = {key: at for key, at in self._unnamed_since.items() if key.purpose is not purpose}
        self._unnamed_since = others | since

    def _indexes(self, versions: Iterable[int]) -> dict[Digest, None]:
        checkpoints = map(self._replica.ledger.chain.get, versions)
        return {
            index: None
            for item in checkpoints
            if item is not None
            for index in indexes_of(item.message)
        }


def indexes_of(checkpoint: CheckpointManifest) -> list[Digest]:
    """Return the indexes under which a version is stored: its file and each encoding."""
    return [Digest(checkpoint.index), *(Digest(form.index) for form in checkpoint.encodings)]
