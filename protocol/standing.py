"""Which keys have shown that they are worth something, and what all others may take together.

From what all nodes hold alike, never from what a key says of itself: keys are free.
"""

from protocol.ledger.ledger import Ledger
from protocol.manifest import RunManifest
from protocol.types import PeerId

STRANGER_COMMITS_MAX = 4096
"""Commits without an outcome of all workers without standing: 9 MB. In the first minutes of a large
run everybody is one of them, and has one or two under way."""


WORTH_MIN = 0.5
"""Certified rollouts: one gives standing for a day of epochs of a minute, a hundred for a week."""


def has_standing(peer: PeerId, manifest: RunManifest, ledger: Ledger) -> bool:
    """Tell whether a key has shown that it is worth something.

    The genesis names it, or what it has had certified of late outweighs what it has wasted, and it
    is not slashed.
    """
    if manifest.is_of_genesis(peer):
        return True
    counts = ledger.workers.get(peer)
    worth = 0.0 if counts is None else counts.worth(ledger.epoch)
    return worth >= WORTH_MIN and not ledger.slashed(peer)


def has_room_for(worker: PeerId, manifest: RunManifest, ledger: Ledger) -> bool:
    """Tell whether one more commit of a worker may wait for an outcome."""
    unsettled = ledger.unsettled
    # Counted only where it could be too many: most of a large run's workers have standing.
    if sum(unsettled.values()) < STRANGER_COMMITS_MAX or has_standing(worker, manifest, ledger):
        return True
    return stranger_commits(manifest, ledger) < STRANGER_COMMITS_MAX


def stranger_commits(manifest: RunManifest, ledger: Ledger) -> int:
    """Return how many commits of workers without standing have no outcome yet."""
    unsettled = ledger.unsettled.items()
    return sum(count for one, count in unsettled if not has_standing(one, manifest, ledger))
