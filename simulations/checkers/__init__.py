"""Invariants of a run, checked on the trace while the simulation runs.

Nothing here imports ``protocol``, ``roles`` or ``node``. Envelopes, digests, signatures, committees
and limits are implemented a second time, so that a mistake there cannot hide itself.

Reading order: wire (decoding of stored messages), swarm (identity and uptime of nodes), watch
(event dispatch), pages (councils and beacons), quorum (validity of certificates), work and accounts
(what final pages say of both), then one rule per module.
"""

from dataclasses import dataclass

from simulations.checkers.backoff import Backoff
from simulations.checkers.certificates import Certificates
from simulations.checkers.convergence import Convergence, Progress
from simulations.checkers.dissents import Dissents
from simulations.checkers.excluded import Excluded
from simulations.checkers.final_versions import FinalVersions
from simulations.checkers.finality import Finality
from simulations.checkers.history import Violation
from simulations.checkers.ledger import EqualAccounts, TracedLedger
from simulations.checkers.limits import TableLimits
from simulations.checkers.pages import Pages
from simulations.checkers.quorum import Quorum
from simulations.checkers.reexamination import Overturns
from simulations.checkers.rounds import TrainedRounds
from simulations.checkers.shadowed import ShadowedSteps
from simulations.checkers.slots import Slots
from simulations.checkers.storage import Durability, Storage
from simulations.checkers.verdicts import Verdicts
from simulations.checkers.versions import Versions
from simulations.checkers.watch import Watch
from simulations.checkers.weights import Weights

__all__ = ["Attached", "CheckerTolerances", "Violation", "Watch", "attach_checkers"]


@dataclass(frozen=True, slots=True)
class CheckerTolerances:
    """Epochs that the swarm has to recover after the last fault."""

    converge_epochs: int
    progress_epochs: int


@dataclass(frozen=True, slots=True)
class Attached:
    """The checkers that metrics read, too."""

    certificates: Certificates
    pages: Pages
    ledger: TracedLedger
    overturns: Overturns


def attach_checkers(watch: Watch, patience: CheckerTolerances) -> Attached:
    """Attach every checker to ``watch``."""
    pages = Pages(watch)
    quorum = Quorum(watch, pages)
    certificates = Certificates(watch, quorum)
    Verdicts(watch, quorum)
    Excluded(watch, pages, patience.converge_epochs)
    Dissents(watch, quorum)
    Finality(watch, pages)
    Slots(watch)
    Versions(watch)
    FinalVersions(watch, pages)
    ShadowedSteps(watch, pages)
    TrainedRounds(watch)
    overturns = Overturns(watch, pages)
    ledger = TracedLedger(watch, pages, quorum, overturns)
    EqualAccounts(watch, pages, ledger, patience.converge_epochs)
    Weights(watch)
    Durability(watch)
    Storage(watch)
    Convergence(watch, quorum, patience.converge_epochs)
    Progress(watch, pages, patience.progress_epochs)
    TableLimits(watch)
    Backoff(watch)
    return Attached(certificates, pages, ledger, overturns)
