"""Differences of the weights that trainers make in rounds: publication, download and retention."""

from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from node.context import Ports
from node.weights.download import RemoteWeights
from node.weights.download_progress import Label
from node.weights.trainer_files import TrainerFiles
from protocol.core.types import Digest
from protocol.messages import RoundResult, Signed
from protocol.replica.replica import Replica
from roles.ports.engines import Policy
from roles.ports.storage import Purpose, StoredFile

log = structlog.get_logger()

DIFFERENCE_PER_WEIGHTS = {"fp32": 2, "bf16": 3}
"""Largest ratio of a difference to a policy, by the precision of the policy.

A difference has at most four bytes a weight, once or twice as many as the policy. It names a tensor
twice, as codes and as scales: one more length of the policy is room for that, even in a tiny model.
"""


class Differences:
    """Differences of this node and of the other trainers of its rounds.

    ``newest`` returns the newest policy whose file is here.
    """

    def __init__(
        self,
        ports: Ports,
        replica: Replica,
        files: TrainerFiles,
        newest: Callable[[], Policy | None],
    ) -> None:
        self._ports = ports
        self._replica = replica
        self._files = files
        self._newest = newest

    async def publish(self, path: Path) -> StoredFile:
        """Store the file of this node's difference for others; raises ``StorageFullError``."""
        rules = self._replica.manifest.shardcast
        sizes = rules.shard_bytes, rules.chunk_bytes
        return await self._ports.blobs.put_file(path, *sizes, Purpose.DIFFERENCE)

    async def fetch(self, result: Signed[RoundResult], path: Path) -> bool:
        """Fetch a trainer's difference to ``path``; False if it is unavailable or too large.

        Files of several trainers are fetched at the same time. Raises ``StorageFullError``.
        """
        message = result.message
        bytes_max = self._bytes_max()
        if message.total_bytes > bytes_max:
            facts = {"trainer": result.signer, "bytes": message.total_bytes, "bytes_max": bytes_max}
            log.warning("difference refused: larger than the weights allow", **facts)
            return False
        is_own = result.signer == self._ports.transport.peer_id
        if is_own and await self._is_here(message, path):
            return True
        place = self._replica.manifest.genesis.trainers.index(result.signer)
        file = RemoteWeights(
            result.digest,
            Digest(message.index),
            message.index_bytes,
            message.total_bytes,
            result.signer,
            Purpose.DIFFERENCE,
            Label(f"difference of trainer {place}"),
        )
        return await self._files.fetch(file, path) is not None

    async def retain(self, version: int, indexes: Collection[Digest]) -> None:
        """Release the blobs of all differences but ``indexes``, complete or in download.

        Delete the files of differences for versions before ``version``.
        """
        blobs, files = self._ports.blobs, self._ports.files
        for owner in blobs.owners(Purpose.DIFFERENCE):
            if owner.subject not in indexes:
                await blobs.release(owner)
        for path, made_for in files.differences().items():
            if made_for < version:
                await files.delete(path)

    async def _is_here(self, message: RoundResult, path: Path) -> bool:
        """Return whether this node's own file is at ``path``, where its blobs put it back."""
        try:
            await self._ports.files.link(Digest(message.index), path)
        except LookupError:
            return self._ports.files.size(path) == message.total_bytes
        return True

    def _bytes_max(self) -> int:
        """Return the largest length of a difference; 0 before any version is known."""
        manifest, newest = self._replica.manifest, self._newest()
        policy_bytes = None if newest is None else self._ports.files.size(newest.path)
        if policy_bytes is None:  # all versions have this length
            head = self._replica.ledger.chain.head
            policy_bytes = 0 if head is None else head.message.total_bytes
        return DIFFERENCE_PER_WEIGHTS[manifest.model.dtype] * policy_bytes
