"""Validators and beacon of an epoch, as committees are drawn from them.

Certified rosters would be added here. Until then two nodes may differ by a member that has just
joined or left, which ``committee.VIEW_SLACK`` absorbs.
"""

from dataclasses import dataclass

from protocol.consensus.equivocation import EquivocationTracker
from protocol.core.types import Digest, PeerId, Role
from protocol.membership.roster import Roster
from protocol.run.manifest import EPOCHS_KEPT, RunManifest, beacon


@dataclass(frozen=True, slots=True)
class Electorate:
    """Validators and beacon of one epoch."""

    validators: tuple[PeerId, ...]
    """Validators on the roster without equivocators, by peer id."""
    excluded: tuple[PeerId, ...]
    """Validators excluded for equivocation."""
    beacon: Digest
    """``H(run || epoch)``."""


class LocalElectorate:
    """The electorate of each epoch in this node's view."""

    def __init__(
        self, manifest: RunManifest, roster: Roster, equivocators: EquivocationTracker
    ) -> None:
        self._run_id = manifest.run_id
        self._roster = roster
        self._equivocators = equivocators
        self._revision = (-1, -1)
        self._epochs: dict[int, Electorate] = {}
        """By epoch; valid for ``_revision`` of roster and equivocators."""

    def at_epoch(self, epoch: int) -> Electorate:
        """Return the electorate of ``epoch``."""
        revision = (self._roster.revisions[Role.VALIDATOR], self._equivocators.revision)
        if revision != self._revision or len(self._epochs) >= EPOCHS_KEPT:
            self._revision = revision
            self._epochs.clear()
        known = self._epochs.get(epoch)
        if known is None:
            excluded = self._equivocators.excluded(epoch)
            peers = self._roster.peers_at_epoch(epoch, Role.VALIDATOR)
            validators = tuple(peer for peer in peers if peer not in excluded)
            known = Electorate(validators, excluded, beacon(self._run_id, epoch))
            self._epochs[epoch] = known
        return known
