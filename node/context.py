"""What a daemon is made of: the outside of a node behind ports, and what its services share.

What keeps half a node from going on as if it were a whole one.

Registry of the tables of one node that remote peers can fill.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Protocol

from node.storage.evaluation_curve import EvaluationCurve
from protocol.core.containers import Table, table_sizes
from protocol.core.crypto import Signer
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.replica.replica import Replica
from protocol.rollout.evaluation import EvaluationPoint
from roles.ports.background import Background
from roles.ports.clock import Clock
from roles.ports.storage import Blobs, PolicyFiles, Store
from roles.ports.transport import Directory, HttpRanges, Streams, Transport, Trust
from roles.runtime.context import ChangeSignal, Conditions
from roles.runtime.metrics import PolicySwapLatency, RolloutHistograms
from roles.runtime.training_steps import TrainingSteps


async def run_service(name: str, service: Coroutine[Any, Any, None]) -> None:
    """Run a service that must not end by itself, nor by a cancellation that was not meant for it.

    A group takes either in silence, and the node would go on as half a node.
    """
    try:
        await service
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
    raise RuntimeError(f"the service {name} has ended by itself")


class TableRegistry:
    """Sizes and limits of all registered tables, by name."""

    def __init__(self) -> None:
        self._tables: list[Table] = []

    def register(self, *tables: Table) -> None:
        """Report these tables from now on."""
        self._tables += tables

    def sizes(self) -> dict[str, int]:
        """Return the size of the fullest table of each name."""
        return table_sizes(self._tables)

    def limits(self) -> dict[str, int]:
        """Return the limit of the tables of each name."""
        return {table.name: table.limit for table in self._tables}


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside of a node."""

    clock: Clock
    rng: Rng
    transport: Transport
    directory: Directory
    blobs: Blobs
    store: Store
    files: PolicyFiles
    background: Background
    http: HttpRanges | None = None
    """None where nothing is fetched by HTTP."""


class PeerView(Streams, Protocol):
    """The connected peers as services see them; ``open_stream`` dials a member first if need be."""

    @property
    def connected(self) -> list[PeerId]:
        """The peers that were connected at the last look."""

    @property
    def in_local_swarm(self) -> bool:
        """Whether addresses of a local network mean something to the members of this swarm."""

    def follow(self, follower: Callable[[Sequence[PeerId]], None]) -> None:
        """Have ``follower`` told who is connected after each look, every two seconds."""

    def blame(self, peer: PeerId, fault: Fault) -> None:
        """Count a fault that a peer's bytes show; after a few it is kept away for a while.

        Its streams are refused then, it is not dialled, and its connections are closed.
        """

    def faults(self) -> Mapping[PeerId, int]:
        """Return how many faults count at the moment, of the peers that have any.

        Who is kept away has none again.
        """

    @property
    def chosen(self) -> AbstractSet[PeerId]:
        """The connected peers that were dialled for want of peers, and not for what they offer.

        By offering something a stranger has us dial it; it has no say in whom we choose by chance.
        """

    @property
    def trusted(self) -> AbstractSet[PeerId]:
        """The connected peers with standing, as of some seconds ago."""

    @property
    def places(self) -> Mapping[PeerId, tuple[str, ...]]:
        """Where connected peers are, as far as others can be at the same place.

        Another object after each change.
        """

    async def disconnect(self, peer: PeerId) -> None:
        """Close the connections to a peer; never raises."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """What the services of one node share; beside it each takes the services that it needs."""

    signer: Signer
    replica: Replica
    ports: Ports
    peers: PeerView
    changes: ChangeSignal
    """Something about the run has changed: roles look again."""
    conditions: Conditions
    """Why the node is not doing its work at the moment."""
    trust: Trust = field(default_factory=Trust)
    """Who has standing, and who is probably one with others."""
    tables: TableRegistry = field(default_factory=TableRegistry)
    """Registry of the tables that remote peers can fill."""
    uptakes: PolicySwapLatency = field(default_factory=PolicySwapLatency)
    """How soon new versions are in use here."""
    durations: RolloutHistograms = field(default_factory=RolloutHistograms)
    """How long generation and checks of rollouts take here."""
    training: TrainingSteps = field(default_factory=TrainingSteps)
    """Statistics of the steps that this node's trainer made."""
    evaluation: EvaluationCurve = field(default_factory=EvaluationCurve)
    """Rewards of versions on held-out problems."""

    def evaluated(self) -> tuple[EvaluationPoint, ...]:
        """Return the evaluated versions, ascending."""
        replica = self.replica
        return self.evaluation.points(replica.manifest.sampling, replica.ledger.checkpoints)

    def http_port(self, peer: PeerId) -> int:
        """Return the port of a peer's HTTP face; 0 without one, and before we know its host."""
        http, member = self.ports.http, self.replica.roster.get(peer)
        if http is None or member is None or not http.reaches(peer):
            return 0
        return member.record.message.http_port
