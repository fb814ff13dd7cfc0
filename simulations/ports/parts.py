"""The parts of a simulated daemon, some of them replaced in a dishonest one."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from node.context import Ports
from protocol.core.crypto import Signer
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.replica.replica import Replica
from roles.ports.engines import Engines
from simulations.ports.storage import Disk, Session


@dataclass(frozen=True, slots=True)
class Parts:
    """One daemon from its start to its end; its machine may have run others before."""

    signer: Signer
    ports: Ports
    engines: Engines
    disk: Disk
    session: Session
    replica: Callable[[], Replica | None]
    """The daemon's replica; None before its creation and after its end."""
    acting: Callable[[], bool] = lambda: True
    """True while its behaviour is due; before and after the node is honest."""
    accomplices: dict[PeerId, Signer] = field(default_factory=dict)
    """Signers shared by the nodes of one behaviour: collusion outside of the protocol."""
    times: int = 1
    """Multiple of the behaviour's default rate."""

    def with_ports(self, **ports: Any) -> "Parts":
        """Return the same daemon with other ports, by their names in ``Ports``."""
        return replace(self, ports=replace(self.ports, **ports))


Behaviour = Callable[[Parts, Rng], Parts]
"""Replaces parts of a starting daemon; the ``Rng`` belongs to its machine alone."""
