"""Batches by lot: the final rollouts from which the next version must learn.

A version names the newest final page that its trainer had when it drew the batch. The rollouts that
final pages up to that one accept form a lot, which the beacon of the page ranks. Nobody knew the
beacon when the rollouts were committed, and no trainer can change it. A batch takes the lot in its
order; rollouts that are not final yet come only after all of the lot. A trainer names the rollouts
of the lot that it leaves out, and may name few.

The answer about a version follows from it, its ancestors and the pages up to the one that it names:
it is the same on every node that holds them. Only the test that the page is not too old compares
with what this node knew when it accepted the version before.
"""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import NamedTuple

from protocol.consensus.final_commits import accepted_before, is_final
from protocol.consensus.pages import PageTree
from protocol.core.containers import LruCache
from protocol.core.crypto import digest
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest
from protocol.ledger.ledger import Ledger
from protocol.messages import OMITTED_MAX, CheckpointManifest, Signed
from protocol.run.manifest import RunManifest

WINDOW_LIFETIMES = 2
"""The lot holds what final pages of the last so many lifetimes of a commit accept. So every node
still has the commits, and rollouts that nobody can use stop a trainer no longer than that."""

OMITTED_MIN, OMITTED_SHARE = 2, 4
"""A version names at most two rollouts, or a quarter of its batch, as left out. An honest trainer
leaves out the few whose bodies, scores or weights it lacks. A trainer can leave out a worker with a
smaller share than that, and the ledger shows how often."""

BASIS_EPOCHS_MAX = 8
"""Epochs by which the page of a batch may be older than the newest final one when its node accepts
the version before: two views differ by an epoch or two, and a page that two others do not follow at
once is final later."""

PUBLISH_SECONDS, PUBLISH_BYTES_PER_SECOND = 30, 20_000_000
"""Time between the draw of a batch and the announcement of the version before, in addition: the
trainer writes, hashes and encodes that version meanwhile (ADR 31). A guess: a slow disk."""

WINDOWS_MAX = 4
"""Pages whose lots are cached: a few versions are not final at a time."""

NAMED_MAX = 3
"""Workers that a fault names."""


class Draft(NamedTuple):
    """Statements of a version about its batch."""

    version: int
    term: int
    page: bytes
    batch: Sequence[bytes]
    omitted: Sequence[bytes]
    steps: int
    """Steps that share the batch: all of all trainers of its round."""


class RefusedBatch(NamedTuple):
    """A version that this node does not make final."""

    manifest: Signed[CheckpointManifest]
    fault: Fault


class BatchRule:
    """Judges the batches of the versions in one node's chain, and draws those of the next one."""

    def __init__(self, manifest: RunManifest, ledger: Ledger, pages: PageTree) -> None:
        self._manifest, self._ledger, self._pages = manifest, ledger, pages
        self._windows = LruCache[bytes, tuple[Digest, ...]](WINDOWS_MAX)
        self._known: dict[Digest, Fault | None] = {}
        """Judged versions that are not final; None for one that conforms."""

    # The lot

    def lot(self, page: bytes, version: int, used: Collection[bytes] = ()) -> list[Digest] | None:
        """Return the lot of a version whose batch is drawn at a final page, in its order.

        Without the commits that earlier versions learned from, and ``used`` ones; with those that
        this version may not learn from. None while pages that it needs are not here.
        """
        ranked = self._windows.get_or_compute(page, self._ranked)
        if isinstance(ranked, Fault):
            return None
        learned = self._ledger.chain.learned
        return [one for one in ranked if learned.get(one, version) >= version and one not in used]

    def _ranked(self, page: bytes) -> tuple[Digest, ...] | Fault:
        if not page:
            return ()
        epochs = WINDOW_LIFETIMES * self._manifest.committee.expire_after_epochs
        node = self._pages.page(page)
        accepted = None if node is None else accepted_before(node, self._pages.page, epochs)
        if node is None or accepted is None:
            return Fault(FaultCode.BATCH_PAGE, "unknown here")
        beacon = node.beacon
        return tuple(sorted(map(Digest, accepted), key=lambda one: digest(beacon + one)))

    def omitted(self, version: int, lot: Sequence[Digest], batch: Sequence[bytes]) -> list[Digest]:
        """Return the commits of a lot that a version with a batch must name as left out."""
        due = _due(lot, batch)
        return [one for one in due if self._is_usable(one, version) is not False]

    def _is_usable(self, commit: Digest, version: int) -> bool | None:
        """Return whether a version may learn from an accepted commit; None if it is not here."""
        entry, chain = self._ledger.commits.known(commit), self._ledger.chain
        if entry is None:
            return None
        made = chain.get(entry.version)
        oldest = version - 1 - self._manifest.grpo.async_level
        is_recent = oldest <= entry.version and not entry.is_evaluation
        return is_recent and made is not None and made.digest == entry.checkpoint

    # Versions

    def conforming(self, final: int) -> int:
        """Return the newest version up to which all after a final version conform."""
        number = final
        while self.judged(number + 1) is True:
            number += 1
        return number

    def refusal(self, final: int) -> RefusedBatch | None:
        """Return the first version after a final one that does not conform, if any."""
        following = self.conforming(final) + 1
        manifest = self._ledger.chain.get(following)
        fault = self.judged(following) if manifest is not None else False
        if manifest is None or not isinstance(fault, Fault):
            return None
        return RefusedBatch(manifest, fault)

    def judged(self, number: int) -> Fault | bool:
        """Return whether an accepted version conforms; False while this node cannot tell."""
        chain = self._ledger.chain
        manifest, parent = chain.get(number), chain.get(number - 1)
        if manifest is None or parent is None:
            return manifest is not None
        if manifest.digest not in self._known:
            draft, oldest_epoch = self._draft(manifest.message), self.oldest_epoch(number - 1)
            found = self.fault(draft, parent.message.page, oldest_epoch)
            if found is False:
                return False
            self._note(manifest.digest, found if isinstance(found, Fault) else None)
        return self._known[manifest.digest] or True

    def _draft(self, message: CheckpointManifest) -> Draft:
        """Return the statements of a version; it has no round if the run has none."""
        trainers = 1 if message.round is None else len(message.round.trainers)
        steps = self._manifest.grpo.batch_steps(trainers)
        stated = message.version, message.term, message.page, message.batch, message.omitted
        return Draft(*stated, steps)

    def _note(self, version: Digest, fault: Fault | None) -> None:
        """Note the judgement of a version, and forget those of versions that are final or gone."""
        open_versions = self._ledger.chain.checkpoints[self._ledger.chain.final + 1 :]
        kept = {entry.manifest.digest for entry in open_versions}
        self._known = {one: known for one, known in self._known.items() if one in kept}
        self._known[version] = fault

    def oldest_epoch(self, number: int) -> int:
        """Return the epoch of the oldest page for the version after ``number``; -1 for any page."""
        if number > self._ledger.chain.version:
            return -1
        entry = self._ledger.chain.checkpoints[number]
        seconds = PUBLISH_SECONDS + entry.manifest.message.total_bytes / PUBLISH_BYTES_PER_SECOND
        epochs = BASIS_EPOCHS_MAX + math.ceil(seconds / self._manifest.epochs.seconds)
        return max(-1, entry.final_epoch - epochs)

    def fault(
        self, draft: Draft, before: bytes, oldest_epoch: int, used: Collection[bytes] = ()
    ) -> Fault | bool:
        """Check a batch; False while this node lacks a page or a commit that decides.

        ``before``: page of the version before. ``oldest_epoch``: that of the oldest page allowed.
        ``used``: commits of versions that are not accepted yet.
        """
        fault = self._size_fault(draft) or self._page_fault(draft, before, oldest_epoch)
        if fault is not None:
            return fault
        lot = self.lot(draft.page, draft.version, used)
        if lot is None:
            return False
        due = _due(lot, draft.batch)
        if [one for one in due if one in draft.omitted] != list(draft.omitted):
            return Fault(FaultCode.BATCH_OMITTED, "it names rollouts that the lot did not draw")
        hidden = [one for one in due if one not in draft.omitted]
        usable = {one: self._is_usable(one, draft.version) for one in hidden}
        left_out = [one for one, is_usable in usable.items() if is_usable]
        if left_out:
            return Fault(FaultCode.BATCH_OMITTED, f"it hides {self._named(left_out)}")
        return None not in usable.values()

    def _size_fault(self, draft: Draft) -> Fault | None:
        grpo, size = self._manifest.grpo, len(draft.batch)
        least, most = draft.steps * grpo.rollouts_per_step, draft.steps * grpo.batch_max
        if draft.version and not least <= size <= most:
            return Fault(FaultCode.BATCH_SIZE, f"{size} rollouts instead of {least} to {most}")
        if len(draft.omitted) > omitted_max(size):
            left_out = self._named([Digest(one) for one in draft.omitted])
            limit = f"at most {omitted_max(size)}"
            return Fault(FaultCode.BATCH_OMITTED, f"it leaves out {left_out}; {limit} are allowed")
        return None

    def _page_fault(self, draft: Draft, before: bytes, oldest_epoch: int) -> Fault | bool | None:
        """Check the page of a batch; False while this node cannot tell, None if it is good."""
        node, parent = self._pages.page(draft.page), self._pages.page(before)
        if node is None and draft.page:
            return False
        epoch, term = (-1, 0) if node is None else (node.epoch, node.term)
        if term != draft.term:
            return Fault(FaultCode.BATCH_PAGE, f"of term {term} instead of {draft.term}")
        if epoch < max(oldest_epoch, -1 if parent is None else parent.epoch):
            return Fault(FaultCode.BATCH_PAGE, f"of epoch {epoch}, which is too old")
        if node is None:
            return None
        final = is_final(node, self._pages.root, self._pages.page)
        if final is False:
            return Fault(FaultCode.BATCH_PAGE, f"the page of epoch {epoch} is not final")
        return None if final else False

    def _named(self, commits: Sequence[Digest]) -> str:
        """Return a text that counts commits and names their workers."""
        entries = filter(None, map(self._ledger.commits.known, commits))
        workers = Counter(entry.commit.signer for entry in entries)
        most = sorted(workers, key=lambda one: (-workers[one], one))[:NAMED_MAX]
        named = ", ".join(f"{workers[one]} of …{one[-6:]}" for one in most)
        dots = ", …" if len(workers) > NAMED_MAX else ""
        count = f"{len(commits)} final rollout{'s' * (len(commits) != 1)}"
        return f"{count} ({named}{dots})" if named else count


def omitted_max(size: int) -> int:
    """Return the maximum commits that a version with a batch of a size may leave out."""
    return min(OMITTED_MAX, max(OMITTED_MIN, size // OMITTED_SHARE))


def _due(lot: Sequence[Digest], batch: Sequence[bytes]) -> list[Digest]:
    """Return the commits outside a batch that come before its last one in the lot.

    All of the lot comes before a commit that is not in it.
    """
    places = {commit: place for place, commit in enumerate(lot)}
    last = max((places.get(Digest(one), len(lot)) for one in batch), default=0)
    learned = set(batch)
    return [one for one in lot[:last] if one not in learned]
