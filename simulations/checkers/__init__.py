"""What must hold, judged from the trace alone while a simulation runs.

Nothing here imports ``protocol``, ``roles`` or ``node``: envelopes, digests, signatures, committees
and limits are read and computed a second time, so a mistake there does not hide itself.

Read in the order wire (what nodes stored), swarm (who they are), watch (who is told what), quorum
(what makes a certificate valid), then one rule per module.
"""

from dataclasses import dataclass

from simulations.checkers.backoff import Backoff
from simulations.checkers.certificates import Certificates
from simulations.checkers.convergence import Convergence, Progress
from simulations.checkers.durability import Durability
from simulations.checkers.excluded import Excluded
from simulations.checkers.history import Violation
from simulations.checkers.limits import TableLimits
from simulations.checkers.quorum import Quorum
from simulations.checkers.slots import Slots
from simulations.checkers.storage import Storage
from simulations.checkers.verdicts import Verdicts
from simulations.checkers.versions import Versions
from simulations.checkers.watch import Watch
from simulations.checkers.weights import Weights

__all__ = ["CheckerTolerances", "Violation", "Watch", "attach_checkers"]


@dataclass(frozen=True, slots=True)
class CheckerTolerances:
    """How many epochs after the end of all faults the swarm may take to be well again."""

    converge_epochs: int
    progress_epochs: int


def attach_checkers(watch: Watch, patience: CheckerTolerances) -> Certificates:
    """Attach every checker to ``watch``; return the one whose findings are also numbers."""
    quorum = Quorum(watch)
    certificates = Certificates(watch, quorum)
    Verdicts(watch, quorum)
    Excluded(watch, quorum, patience.converge_epochs)
    Slots(watch)
    Versions(watch)
    Weights(watch)
    Durability(watch)
    Storage(watch)
    Convergence(watch, patience.converge_epochs)
    Progress(watch, patience.progress_epochs)
    TableLimits(watch)
    Backoff(watch)
    return certificates
