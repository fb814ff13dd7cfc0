"""Versions that this node cannot take by itself: what waits, and what the validators vouch for.

A version waits here while its parent or the outcome of a commit that it learned from has not come
(to a newcomer those of old batches never do: everyone has forgotten them), or while it would
replace versions that its trainer's word alone does not replace. Each validator's record names the
newest version that it has taken itself. A version that more than half of the live ones have taken,
and at least as many of them as a committee needs, is taken with all that comes before it.

So are two parts of a healed swarm united, each of which had gone on alone. Where neither has more
than half of the validators, what counts after some patience is which of the two more have taken,
and then which one's first own version has the later term. What replaces nothing of ours is taken
after the same patience when fewer contradict it than have taken it: or validators that come back
together would wait for each other for ever.

A record that is older than our own branch says nothing: its author may not have heard of ours.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from protocol.core.types import Digest
from protocol.ledger.chain import Chain
from protocol.messages import CheckpointManifest, NodeRecord, Signed
from protocol.messages.pending import PendingPool
from protocol.run.recipe import VERSIONS_MAX

VERSIONS_WAITING_MAX = 2 * VERSIONS_MAX
"""A newcomer holds the whole chain here until it is vouched for; whoever floods the table has more
in it than an honest trainer, and displaces itself. About 2 KB each, 25 with the largest batches."""

Branch = list[Signed[CheckpointManifest]]


class ForkChoice(PendingPool):
    """The versions that wait, seen from a chain of those that were taken."""

    def __init__(self, chain: Chain) -> None:
        super().__init__(VERSIONS_WAITING_MAX, "versions_waiting")
        self._chain = chain

    def candidates(self) -> Branch:
        """Return what may be taken by its trainer's word: children of the head, or beside it."""
        head = self._chain.head
        parents = (b"",) if head is None else (head.digest, head.message.parent)
        return [item for item in self._manifests() if item.message.parent in parents]

    @property
    def forked(self) -> bool:
        """Whether a version waits whose parent is neither here nor taken."""
        return any(
            self._chain.place(item.message.parent) is None
            and Digest(item.message.parent) not in self
            for item in self._manifests()
        )

    @property
    def behind(self) -> bool:
        """Whether something waits that would lead further than the newest version taken."""
        newest = self._chain.version
        return any(item.message.version > newest for item in self._manifests()) or self.forked

    def vouched(
        self, records: Sequence[Signed[NodeRecord]], names_min: int, waiting_since: float
    ) -> Branch:
        """Return the branch to take as a whole, empty when there is none.

        ``records`` are those of all live validators, of which at least ``names_min`` must name it;
        a branch that has waited since ``waiting_since`` needs fewer.
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
        """Count for each version that waits who names it or one that comes after it."""
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
        """Return whether fewer validators name our own branch, or what nobody has shown us yet."""
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
        """Return the waiting versions from our chain to this one; empty when there is a gap."""
        branch: Branch = []
        while digest in self:
            manifest, _ = self.entries[digest]
            branch.append(manifest)
            digest = Digest(manifest.message.parent)
        return branch[::-1] if self._chain.place(digest) is not None else []

    def _is_newer(self, record: Signed[NodeRecord], first: Signed[CheckpointManifest]) -> bool:
        """Return whether a record was made when our own version in place of ``first`` was known."""
        rivals = self._chain.checkpoints[first.message.version :]
        return not rivals or record.message.issued_at >= rivals[0].taken_at
