"""A simulated machine: state that outlives its daemon, and the daemon's present session."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from node.daemon import Daemon
from protocol.consensus.trusted_page import TrustedPage
from protocol.core.crypto import Signer
from protocol.replica.replica import Replica
from simulations.network.connections import Host
from simulations.ports.storage import Disk, Session
from simulations.scenario.plans import RoleName
from simulations.scenario.scenario import Compute


@dataclass(slots=True)
class SimMachine:
    """A node, with or without a running daemon."""

    name: str
    role: RoleName
    host: Host
    signer: Signer
    compute: Compute
    validates: bool
    """True if it takes the role validator, alone or beside its own."""
    bootstrap: tuple[str, ...]
    """Addresses of its initial peers."""
    behaviour: str = ""
    """Name of its dishonest behaviour; empty for an honest node."""
    acts_from: float = 0.0
    acts_until: float = float("inf")
    """Seconds since the start between which it is dishonest."""
    untrusted_peer: bool = False
    """True for an additional, untrusted machine; no node receives its address."""
    joins_at: float = 0.0
    """Earliest start, in seconds since the start of the run."""
    disk: Disk = field(default_factory=Disk)
    session: Session = field(default_factory=lambda: Session(alive=False))
    trusted_page: TrustedPage | None = None
    """Page of a join command, which its daemons are started with."""
    starts: int = 0
    daemon: Daemon | None = None
    task: "asyncio.Task[None] | None" = None

    @property
    def roles(self) -> tuple[RoleName, ...]:
        """Roles of its daemon."""
        also = self.validates and self.role != "validator"
        return (self.role, "validator") if also else (self.role,)

    @property
    def running(self) -> bool:
        """True while its daemon runs."""
        return self.session.alive

    def replica(self) -> Replica | None:
        """Return the replica of its daemon; None if there is none."""
        return None if self.daemon is None else self.daemon.replica

    @property
    def weights(self) -> Path:
        """The folder of its policies."""
        return Path("/") / self.name / "weights"

    @property
    def run_files(self) -> Path:
        """The folder of the run's files."""
        return Path("/") / self.name / "task"

    @property
    def genesis(self) -> Path:
        """The folder in which the run's creator puts the first policy."""
        return Path("/") / self.name / "genesis.safetensors"
