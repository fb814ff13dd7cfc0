"""Validators and beacon of an epoch, as committees are drawn from them.

Certified rosters would be added here. Until then two nodes may differ by a member that has just
joined or left, which ``committee.VIEW_SLACK`` absorbs.
"""

from protocol.consensus.equivocation import EquivocationTracker
from protocol.core.types import Digest, PeerId, Role
from protocol.membership.roster import Roster
from protocol.run.manifest import EPOCHS_KEPT, RunManifest, beacon


class LocalElectorate:
    """The electorate in this node's view."""

    def __init__(
        self, manifest: RunManifest, roster: Roster, equivocators: EquivocationTracker
    ) -> None:
        self._run_id = manifest.run_id
        self._roster = roster
        self._equivocators = equivocators
        self._revision = (-1, -1)
        self._validators: dict[int, tuple[PeerId, ...]] = {}
        """By epoch; valid for ``_revision`` of roster and equivocators."""

    def validators(self, epoch: int) -> tuple[PeerId, ...]:
        """Return the validators on the roster of ``epoch`` without equivocators, by peer id."""
        revision = (self._roster.revision(Role.VALIDATOR), self._equivocators.revision)
        if revision != self._revision or len(self._validators) >= EPOCHS_KEPT:
            self._revision = revision
            self._validators.clear()
        known = self._validators.get(epoch)
        if known is None:
            excluded = self._equivocators.excluded(epoch)
            members = self._roster.at_epoch(epoch, Role.VALIDATOR)
            known = self._validators[epoch] = tuple(
                member.peer for member in members if member.peer not in excluded
            )
        return known

    def excluded(self, epoch: int) -> tuple[PeerId, ...]:
        """Return the validators excluded for equivocation in ``epoch``."""
        return self._equivocators.excluded(epoch)

    def beacon(self, epoch: int) -> Digest:
        """Return ``H(run || epoch)``."""
        return beacon(self._run_id, epoch)
