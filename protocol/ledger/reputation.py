"""Which keys have shown that they are worth something, and what all others may take together.

From what all nodes hold alike, never from what a key says of itself: keys are free.
"""

from protocol.core.containers import SizeGauge
from protocol.core.types import PeerId
from protocol.ledger.ledger import Ledger
from protocol.run.manifest import RunManifest

STRANGER_COMMITS_MAX = 4096
"""Commits without an outcome of all workers without standing: 9 MB. In the first minutes of a large
run everybody is one of them, and has one or two under way."""


WORTH_MIN = 0.5
"""Certified rollouts: one gives standing for a day of epochs of a minute, a hundred for a week."""


def has_reputation(peer: PeerId, manifest: RunManifest, ledger: Ledger) -> bool:
    """Return whether a key has shown that it is worth something.

    The genesis names it, or what it has had certified of late outweighs what it has wasted, and it
    is not slashed.
    """
    if manifest.is_of_genesis(peer):
        return True
    counts = ledger.workers.get(peer)
    worth = 0.0 if counts is None else counts.worth(ledger.epoch)
    return worth >= WORTH_MIN and not ledger.slashed(peer)


class UntrustedCommits:
    """The commits of workers without standing that have no outcome yet, all together."""

    def __init__(self, manifest: RunManifest, ledger: Ledger) -> None:
        self._manifest = manifest
        self._ledger = ledger
        self._state: tuple[int, ...] = ()
        self._count = 0
        """As it was in ``_state``: a flood that is refused changes nothing."""
        self.tables = (SizeGauge("stranger_commits", STRANGER_COMMITS_MAX, self.__len__),)

    def has_room_for(self, worker: PeerId) -> bool:
        """Return whether one more commit of a worker may wait for an outcome."""
        # Counted only where it could be too many: most of a large run's workers have standing.
        if sum(self._ledger.unsettled.values()) < STRANGER_COMMITS_MAX:
            return True
        trusted = has_reputation(worker, self._manifest, self._ledger)
        return trusted or len(self) < STRANGER_COMMITS_MAX

    def __len__(self) -> int:
        """Return how many there are."""
        ledger, totals = self._ledger, self._ledger.totals
        outcomes = totals.certified, totals.rejected, totals.expired
        state = (totals.committed, *outcomes, ledger.epoch, len(ledger.forks))
        if state != self._state:
            waiting = ledger.unsettled.items()
            strange = (n for one, n in waiting if not has_reputation(one, self._manifest, ledger))
            self._state, self._count = state, sum(strange)
        return self._count
