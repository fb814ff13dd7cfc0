"""Ports and shared state of the services of one node.

``Ports`` are the dependencies that a live process or a simulation provides; ``NodeContext`` is
passed to every service. ``run_service`` stops the node when a service returns. ``TableRegistry``
registers every table that remote peers can fill.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

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
from roles.ports.storage import BatchRows, Blobs, PolicyFiles, Store
from roles.ports.transport import Directory, HttpRanges, Streams, Transport, Trust
from roles.runtime.context import ChangeSignal, Conditions
from roles.runtime.metrics import PolicySwapLatency, RolloutHistograms
from roles.runtime.shadow_progress import ShadowProgress
from roles.runtime.training_steps import TrainingSteps

T = TypeVar("T")


async def run_service(name: str, service: Coroutine[Any, Any, None]) -> None:
    """Run a service that must not return; raises ``RuntimeError`` when it does.

    A ``TaskGroup`` ignores a task that returns or is cancelled from inside, so the node would
    continue without that service.
    """
    try:
        await service
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
    raise RuntimeError(f"the service {name} has ended by itself")


@asynccontextmanager
async def background_task(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run ``work`` as a task during the block; at its end, cancel the task and wait for it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class TableRegistry:
    """Sizes and limits of all registered tables, by name."""

    def __init__(self) -> None:
        self._tables: list[Table] = []

    def register(self, *tables: Table) -> None:
        """Add tables to the report."""
        self._tables += tables

    def sizes(self) -> dict[str, int]:
        """Return the size of the fullest table of each name."""
        return table_sizes(self._tables)

    def limits(self) -> dict[str, int]:
        """Return the limit of the tables of each name."""
        return {table.name: table.limit for table in self._tables}


@dataclass(frozen=True, slots=True)
class Ports:
    """Dependencies of a node: clock, randomness, transport, storage."""

    clock: Clock
    rng: Rng
    transport: Transport
    directory: Directory
    blobs: Blobs
    store: Store
    files: PolicyFiles
    background: Background
    http: HttpRanges | None = None
    """None where no blob is fetched over HTTP."""
    rows: BatchRows = field(default_factory=BatchRows)


class PeerView(Streams, Protocol):
    """Connected peers; ``open_stream`` dials a member that is not connected."""

    @property
    def connected(self) -> list[PeerId]:
        """The connected peers as of the last poll."""

    @property
    def in_local_swarm(self) -> bool:
        """True if members of this swarm can dial addresses of a local network."""

    def follow(self, follower: Callable[[Sequence[PeerId]], None]) -> None:
        """Call ``follower`` with the connected peers after each poll, every 2 s."""

    def blame(self, peer: PeerId, fault: Fault) -> None:
        """Count a fault proven by a peer's bytes; several faults ban the peer for some time.

        The node refuses streams of a banned peer, does not dial it, and closes its connections.
        """

    def faults(self) -> Mapping[PeerId, int]:
        """Return the current fault count of each peer that has any.

        A ban resets the count.
        """

    @property
    def chosen(self) -> AbstractSet[PeerId]:
        """Outbound peers: dialled to fill the connection target, not for data that they offer.

        An untrusted peer can cause dials by offering data, but cannot influence this choice.
        """

    @property
    def trusted(self) -> AbstractSet[PeerId]:
        """The connected trusted peers; up to some seconds old."""

    @property
    def places(self) -> Mapping[PeerId, tuple[str, ...]]:
        """Address blocks of connected peers, to detect peers in the same network.

        A new mapping object after each change.
        """

    async def disconnect(self, peer: PeerId) -> None:
        """Close the connections to a peer; never raises."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """State shared by the services of one node; other dependencies are passed explicitly."""

    signer: Signer
    replica: Replica
    ports: Ports
    peers: PeerView
    changes: ChangeSignal
    """Wakes the roles when the state of the run changes."""
    conditions: Conditions
    """Reasons for which the node is not working at the moment."""
    trust: Trust = field(default_factory=Trust)
    """Reputation, address blocks and membership of peers."""
    tables: TableRegistry = field(default_factory=TableRegistry)
    policy_swaps: PolicySwapLatency = field(default_factory=PolicySwapLatency)
    """Policy swap latency of this node."""
    durations: RolloutHistograms = field(default_factory=RolloutHistograms)
    """Durations of generation and verification on this node."""
    training: TrainingSteps = field(default_factory=TrainingSteps)
    """Statistics of the training steps of this node."""
    shadow: ShadowProgress = field(default_factory=ShadowProgress)
    """Steps of the leader that this node has repeated."""
    evaluation: EvaluationCurve = field(default_factory=EvaluationCurve)
    """Rewards of policy versions on held-out problems."""

    def evaluated(self) -> tuple[EvaluationPoint, ...]:
        """Return the evaluated versions in ascending order."""
        replica = self.replica
        return self.evaluation.points(replica.manifest.sampling, replica.ledger.chain.checkpoints)

    def http_port(self, peer: PeerId) -> int:
        """Return the port of a peer's HTTP service; 0 without one or while its host is unknown."""
        http, member = self.ports.http, self.replica.roster.get(peer)
        if http is None or member is None or not http.reaches(peer):
            return 0
        return member.record.message.http_port
