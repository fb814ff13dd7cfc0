"""Branches: versions that are not accepted yet.

A version is pending while its parent is missing, or the outcome of a commit in its batch, or the
page that lets its trainer lead. A node that joins late never learns the outcomes of old batches,
because every node has forgotten them: it adopts what a final page names as the newest version, with
all ancestors.
"""

from protocol.core.types import Digest
from protocol.ledger.chain import Chain
from protocol.messages import CheckpointManifest, Signed
from protocol.messages.pending import PendingPool
from protocol.run.recipe import VERSIONS_MAX

VERSIONS_WAITING_MAX = 2 * VERSIONS_MAX
"""Capacity: a node that joins late holds the whole chain here until it has the final page. A
flooding trainer displaces only its own entries, because it has the most. About 2 KB each, 25 KB
with the largest batches."""

Branch = list[Signed[CheckpointManifest]]


class Branches(PendingPool):
    """Pending versions, relative to the chain of accepted versions."""

    def __init__(self, chain: Chain) -> None:
        super().__init__(VERSIONS_WAITING_MAX, "versions_waiting")
        self._chain = chain

    def candidates(self) -> Branch:
        """Return the versions that the leader's word may add: the children of the newest one."""
        head = self._chain.head
        parent = b"" if head is None else head.digest
        return [item for item in self._manifests() if item.message.parent == parent]

    @property
    def forked(self) -> bool:
        """True if the parent of a pending version is neither accepted nor pending."""
        return any(
            not self._chain.is_taken(item.message.parent)
            and Digest(item.message.parent) not in self
            for item in self._manifests()
        )

    @property
    def behind(self) -> bool:
        """True if a pending version is newer than the newest accepted one, or lacks its parent."""
        newest = self._chain.version
        return any(item.message.version > newest for item in self._manifests()) or self.forked

    def has_rival(self, term: int, after: int) -> bool:
        """Return whether a pending version shows that the trainer of a term signed two branches.

        It has the number of an accepted version of the term that is newer than ``after``.
        """
        numbers = (one.message.version for one in self._manifests() if one.message.term == term)
        taken = (self._chain.get(number) for number in numbers if number > after)
        return any(one is not None and one.message.term == term for one in taken)

    def to(self, digest: Digest) -> Branch:
        """Return the pending versions from our chain to this one; empty if there is a gap."""
        branch: Branch = []
        while digest in self:
            manifest, _ = self.entries[digest]
            branch.append(manifest)
            digest = Digest(manifest.message.parent)
        return branch[::-1] if self._chain.is_taken(digest) else []

    def _manifests(self) -> Branch:
        return [manifest for manifest, _ in self.entries.values()]
