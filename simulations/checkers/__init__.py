"""Invariants of a run, checked on the trace while the simulation runs.

Nothing here imports ``protocol``, ``roles`` or ``node``. Envelopes, digests, signatures, committees
and limits are implemented a second time, so that a mistake there cannot hide itself.

Reading order: wire (decoding of stored messages), swarm (identity and uptime of nodes), watch
(event dispatch), quorum (validity of certificates), then one rule per module.
"""

from dataclasses import dataclass

from simulations.checkers.backoff import Backoff
from simulations.checkers.certificates import Certificates
from simulations.checkers.convergence import Convergence, Progress
from simulations.checkers.excluded import Excluded
from simulations.checkers.history import Violation
from simulations.checkers.limits import TableLimits
from simulations.checkers.quorum import Quorum
from simulations.checkers.slots import Slots
from simulations.checkers.storage import Durability, Storage
from simulations.checkers.verdicts import Verdicts
from simulations.checkers.versions import Versions
from simulations.checkers.watch import Watch
from simulations.checkers.weights import Weights

__all__ = ["CheckerTolerances", "Violation", "Watch", "attach_checkers"]


@dataclass(frozen=True, slots=True)
class CheckerTolerances:
    """Epochs that the swarm has to recover after the last fault."""

    converge_epochs: int
    progress_epochs: int


def attach_checkers(watch: Watch, patience: CheckerTolerances) -> Certificates:
    """Attach every checker to ``watch``; return the one that metrics read, too."""
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
