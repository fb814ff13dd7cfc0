"""Versions that this node cannot take by itself: what waits, and what the validators vouch for.

A version waits here while its parent or the outcome of a commit that it learned from has not come,
or while it would replace versions that its trainer's word alone does not replace. Whoever has just
come, or was cut off for long, never gets the outcomes of old batches: everyone has forgotten them.
Such a node leans on the validators: each one's record names the newest version that it has taken
itself. A version that more than half of the live ones have taken, and at least as many of them as a
committee needs, is taken with all that comes before it. So are two parts of a healed swarm united,
each of which had gone on alone: the part with more validators wins, and of two halves the one whose
first own version has the later term.

A validator's record says nothing between two branches when it is older than our own one, since its
author may not have heard of ours then.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from protocol.ledger.chain import Chain
from protocol.manifest import VERSIONS_MAX
from protocol.messages import CheckpointManifest, NodeRecord, Signed
from protocol.types import Digest
from protocol.waiting import Waiting

VERSIONS_WAITING_MAX = 2 * VERSIONS_MAX
"""A newcomer holds the whole chain here until it is vouched for; whoever floods the table has more
in it than an honest trainer, and displaces itself. About 2 KB each, 25 with the largest batches."""

Branch = list[Signed[CheckpointManifest]]


class Branches:
    """The versions that wait, seen from a chain of those that were taken."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._waiting = Waiting(VERSIONS_WAITING_MAX)

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, digest: object) -> bool:
        return digest in self._waiting

    def add(self, manifest: Signed[CheckpointManifest], now: float) -> None:
        """Let a version wait whose form is right."""
        self._waiting.add(manifest, now)

    def remove(self, digest: Digest) -> None:
        """Let a version wait no more."""
        self._waiting.remove(digest)

    def expire(self, oldest: float) -> None:
        """Drop what arrived before ``oldest``."""
        self._waiting.expire(oldest)

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
            and Digest(item.message.parent) not in self._waiting
            for item in self._manifests()
        )

    @property
    def behind(self) -> bool:
        """Whether something waits that would lead further than the newest version taken."""
        newest = self._chain.version
        return any(item.message.version > newest for item in self._manifests()) or self.forked

    def vouched(self, records: Sequence[Signed[NodeRecord]], names_min: int) -> Branch:
        """Return the branch to take as a whole, empty when there is none.

        ``records`` are those of all live validators, of which at least ``names_min`` must name it.
        """
        support = self._support(records)
        enough = {digest: names for digest, names in support.items() if names >= names_min}
        for decided in (self._by_majority, self._by_halves):
            digests = decided(enough, records)
            if digests:
                return self._branch(max(digests, key=self._version))
        return []

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

    def _by_majority(
        self, support: Mapping[Digest, int], records: Sequence[Signed[NodeRecord]]
    ) -> list[Digest]:
        return [digest for digest, names in support.items() if 2 * names > len(records)]

    def _by_halves(
        self, support: Mapping[Digest, int], records: Sequence[Signed[NodeRecord]]
    ) -> list[Digest]:
        """Return what half of the validators name while the other half names our own branch."""
        half = [digest for digest, names in support.items() if 2 * names == len(records)]
        first = self._branch(min(half, key=self._version))[0] if half else None
        rival = None if first is None else self._chain.get(first.message.version)
        if first is None or rival is None:
            return []
        places = [self._chain.place(record.message.checkpoint) for record in records]
        ours = sum(place is not None and place >= first.message.version for place in places)
        later = (first.message.term, first.digest) > (rival.message.term, rival.digest)
        return half if later and 2 * ours == len(records) else []

    def _version(self, digest: Digest) -> int:
        version: int = self._waiting.entries[digest][0].message.version
        return version

    def _manifests(self) -> Branch:
        return [manifest for manifest, _ in self._waiting.entries.values()]

    def _branch(self, digest: Digest) -> Branch:
        """Return the waiting versions from our chain to this one; empty when there is a gap."""
        branch: Branch = []
        while digest in self._waiting:
            manifest, _ = self._waiting.entries[digest]
            branch.append(manifest)
            digest = Digest(manifest.message.parent)
        return branch[::-1] if self._chain.place(digest) is not None else []

    def _is_newer(self, record: Signed[NodeRecord], first: Signed[CheckpointManifest]) -> bool:
        """Tell whether a record was made when our own version in place of ``first`` was known."""
        rivals = self._chain.checkpoints[first.message.version :]
        return not rivals or record.message.issued_at >= rivals[0].taken_at
