"""Who may be drawn in an epoch, and the randomness that draws them.

This is the seam for certified rosters and the verifiable beacon. ``ViewElectorate`` is the first
form: the validators that the genesis names and that this node sees alive. Two nodes may differ by a
member that has just come or gone, which ``committee.VIEW_SLACK`` absorbs. Its beacon is a hash of
run and epoch: agreed by everyone without a message, but predictable by everyone too.
"""

from typing import Protocol

from protocol.crypto import digest
from protocol.manifest import RunManifest
from protocol.membership import Roster
from protocol.types import Digest, PeerId, Role


class Electorate(Protocol):
    """What a committee is drawn from."""

    def validators(self, epoch: int) -> list[PeerId]:
        """Return the validators that may be drawn in ``epoch``, by peer id."""

    def beacon(self, epoch: int) -> Digest:
        """Return the randomness of ``epoch``."""


class ViewElectorate:
    """The electorate as this node sees it."""

    def __init__(self, manifest: RunManifest, roster: Roster) -> None:
        self._run_id = manifest.run_id
        self._roster = roster

    def validators(self, epoch: int) -> list[PeerId]:
        """Return the genesis validators that are on the roster of ``epoch``, by peer id."""
        return [member.peer for member in self._roster.at_epoch(epoch, Role.VALIDATOR)]

    def beacon(self, epoch: int) -> Digest:
        """Return ``H(run || epoch)``."""
        return digest(b"prime-node/beacon" + self._run_id + epoch.to_bytes(8, "big"))
