"""What a simulated daemon is made of, and where a dishonest one differs."""

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
    """One daemon from its start to its end, on a machine that may have had others before."""

    signer: Signer
    ports: Ports
    engines: Engines
    disk: Disk
    session: Session
    replica: Callable[[], Replica | None]
    """What the daemon has concluded; None before it is made and after its end."""
    acting: Callable[[], bool] = lambda: True
    """Whether it is time for its behaviour; before and after the node is honest."""
    accomplices: dict[PeerId, Signer] = field(default_factory=dict)
    """Shared by the nodes of one behaviour: what they tell each other outside of the protocol."""
    times: int = 1
    """How many times as often it acts as a behaviour does by itself."""

    def with_ports(self, **ports: Any) -> "Parts":
        """Return the same daemon on other ports, by their names in ``Ports``."""
        return replace(self, ports=replace(self.ports, **ports))


Behaviour = Callable[[Parts, Rng], Parts]
"""Replaces parts of a daemon that starts; the ``Rng`` is of its machine alone."""
