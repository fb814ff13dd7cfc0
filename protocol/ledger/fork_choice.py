"""Fork choice: pending versions, and the branch that the validators support.

A version is pending while its parent is missing, or the outcome of a commit in its batch. A node
that joins late never learns the outcomes of old batches, because every node has forgotten them. A
version is also pending if it would replace versions that its trainer alone cannot replace.

Each validator's record names the newest version that it has accepted itself. A node adopts a
version with all its ancestors if more than half of the live validators, and at least a committee's
minimum, have accepted it. Two partitions that went on alone are reunited this way.

If no branch has more than half of the validators, a node waits for some time. Then the branch with
more validators wins, and at equality the one with the later term in its first version. A branch
that replaces nothing of ours needs only more validators for it than against it after that wait.
Otherwise restarted validators would wait for each other forever.

A record older than our own branch is ignored: its author may not have received our branch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from protocol.core.types import Digest
from protocol.ledger.chain import Chain
from protocol.messages import CheckpointManifest, NodeRecord, Signed
from protocol.messages.pending import PendingPool
from protocol.run.recipe import VERSIONS_MAX

VERSIONS_WAITING_MAX = 2 * VERSIONS_MAX
"""Capacity: a node that joins late holds the whole chain here until validators support it. A
flooding trainer displaces only its own entries, because it has the most. About 2 KB each, 25 KB
with the largest batches."""

Branch = list[Signed[CheckpointManifest]]


class ForkChoice(PendingPool):
    """Pending versions, relative to the chain of accepted versions."""

    def __init__(self, chain: Chain) -> None:
        super().__init__(VERSIONS_WAITING_MAX, "versions_waiting")
        self._chain = chain

    def candidates(self) -> Branch:
        """Return the versions that a trainer alone may add: children and siblings of the head."""
        head = self._chain.head
        parents = (b"",) if head is None else (head.digest, head.message.parent)
        return [item for item in self._manifests() if item.message.parent in parents]

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

    def vouched(
        self, records: Sequence[Signed[NodeRecord]], names_min: int, waiting_since: float
    ) -> Branch:
        """Return the branch to adopt, or an empty one.

        ``records`` are those of all live validators. A majority has at least ``names_min`` of them;
        a branch pending since ``waiting_since`` may have less support.
        """
        support = self._support(records)
        majority = max(names_min, len(records) // 2 + 1)
        by_most = [digest for digest, names in support.items() if names >= majority]
        if by_most:
            return self._branch(max(by_most, key=self._version))
        newest = max(support, key=lambda item: (support[item], self._version(item)), default=None)
        branch = [] if newest is None else self._branch(newest)
        waited = bool(branch) and self.entries[branch[0].digest][1] <= waiting_since
        return branch if waited and self._prevails(branch, support, records, names_min) else []

    def _support(self, records: Sequence[Signed[NodeRecord]]) -> Counter[Digest]:
        """Count, for each pending version, the validators that name it or a descendant."""
        named = dict.fromkeys(Digest(record.message.checkpoint) for record in records)
        branches = {digest: self._branch(digest) for digest in named}
        names = Counter(
            Digest(record.message.checkpoint)
            for record in records
            if (branch := branches[Digest(record.message.checkpoint)])
            and self._is_newer(record, branch[0])
        )
        support: Counter[Digest] = Counter()
        for digest, count in names.items():
            support.update({manifest.digest: count for manifest in branches[digest]})
        return support

    def _prevails(
        self,
        branch: Branch,
        support: Mapping[Digest, int],
        records: Sequence[Signed[NodeRecord]],
        names_min: int,
    ) -> bool:
        """Return whether more validators support this branch than our own or an unknown one."""
        first, names = branch[0], support[branch[-1].digest]
        against = sum(self._is_against(record, first.message.version) for record in records)
        rival = self._chain.get(first.message.version)
        if rival is None:
            return names > against
        ours = (against, rival.message.term, rival.digest)
        return names >= names_min and (names, first.message.term, first.digest) > ours

    def _is_against(self, record: Signed[NodeRecord], version: int) -> bool:
        named = Digest(record.message.checkpoint)
        place = self._chain.place(named)
        return place >= version if place is not None else named not in self

    def _version(self, digest: Digest) -> int:
        version: int = self.entries[digest][0].message.version
        return version

    def _manifests(self) -> Branch:
        return [manifest for manifest, _ in self.entries.values()]

    def _branch(self, digest: Digest) -> Branch:
        """Return the pending versions from our chain to this one; empty if there is a gap."""
        branch: Branch = []
        while digest in self:
            manifest, _ = self.entries[digest]
            branch.append(manifest)
            digest = Digest(manifest.message.parent)
        return branch[::-1] if self._chain.is_taken(digest) else []

    def _is_newer(self, record: Signed[NodeRecord], first: Signed[CheckpointManifest]) -> bool:
        """Return whether a record is newer than our own version in the place of ``first``."""
        rivals = self._chain.checkpoints[first.message.version :]
        return not rivals or record.message.issued_at >= rivals[0].taken_at
