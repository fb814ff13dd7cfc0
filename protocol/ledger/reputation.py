"""Worker reputation, and the shared limit for untrusted workers.

Reputation follows from data that all nodes hold alike, never from a key's claims: keys are free.
"""

from protocol.core.containers import SizeGauge
from protocol.core.types import PeerId
from protocol.ledger.ledger import Ledger
from protocol.run.manifest import RunManifest

UNTRUSTED_COMMITS_MAX = 4096
"""Pending commits of all untrusted workers together: 9 MB. In the first minutes of a large run
every worker is untrusted and has one or two pending."""


WORTH_MIN = 0.5
"""Certified rollouts: one gives reputation for a day of one-minute epochs, a hundred for a week."""


def has_reputation(peer: PeerId, manifest: RunManifest, ledger: Ledger) -> bool:
    """Return whether a key has reputation.

    The genesis names it, or its recent certified rollouts outweigh its wasted ones and it is not
    slashed.
    """
    if manifest.is_of_genesis(peer):
        return True
    counts = ledger.workers.counts.get(peer)
    worth = 0.0 if counts is None else counts.worth(ledger.epoch)
    return worth >= WORTH_MIN and not ledger.workers.is_slashed(peer)


class UntrustedCommits:
    """Number of pending commits of all untrusted workers together."""

    def __init__(self, manifest: RunManifest, ledger: Ledger) -> None:
        self._manifest = manifest
        self._ledger = ledger
        self._state: tuple[int, ...] = ()
        self._count = 0
        """Cached count; valid while ``_state`` is unchanged."""
        self.tables = (SizeGauge("untrusted_commits", UNTRUSTED_COMMITS_MAX, self.__len__),)

    def has_room_for(self, worker: PeerId) -> bool:
        """Return whether one more commit of a worker may be pending."""
        # Counted only near the limit: most workers of a large run have reputation.
        if sum(self._ledger.commits.unsettled.values()) < UNTRUSTED_COMMITS_MAX:
            return True
        trusted = has_reputation(worker, self._manifest, self._ledger)
        return trusted or len(self) < UNTRUSTED_COMMITS_MAX

    def __len__(self) -> int:
        """Return the number of these commits."""
        ledger, totals = self._ledger, self._ledger.workers.totals
        outcomes = totals.certified, totals.rejected, totals.expired
        state = (totals.committed, *outcomes, ledger.epoch, len(ledger.workers.forks))
        if state != self._state:
            waiting = ledger.commits.unsettled.items()
            strange = (n for one, n in waiting if not has_reputation(one, self._manifest, ledger))
            self._state, self._count = state, sum(strange)
        return self._count
