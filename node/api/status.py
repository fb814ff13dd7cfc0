"""Status of a node and its view of the swarm, the data model of all views.

The control API serves it as JSON; ``prime-node status`` and the testnet draw it.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

from node.api.downloads import DownloadStatus, HistogramStatus, PeerTrafficStatus
from node.api.v1.answers import NodeSummary, PeerRow, RolloutCounts, State, VersionDetail
from roles.runtime.metrics import PolicySwap
from roles.runtime.shadow_progress import ShadowProgress
from roles.runtime.training_steps import TrainingStep

LISTED_MAX = 256
"""Members, workers and versions listed in a status; ``members_count`` and the like count all."""


@dataclass(frozen=True, slots=True)
class Stage:
    """State of a node, the condition it waits for, and the progress of that."""

    state: State
    reason: str = ""
    share: float | None = None
    """Progress from 0 to 1; None if unknown."""


@dataclass(frozen=True, slots=True)
class JudgingStatus:
    """Thresholds in doubt, and validators whose scores differ, from rollouts still held."""

    doubts: tuple[str, ...] = ()
    """Deviations shared by workers, a line each; a threshold in doubt slashes no worker."""
    workers: int = 0
    """Workers with at least two decided rollouts."""
    workers_off: int = 0
    """Largest number of workers with the same deviation of a threshold in doubt."""
    rewards_differed: dict[str, int] = field(default_factory=dict)
    """Rollouts of each worker rejected for a different reward."""
    overruled: dict[str, int] = field(default_factory=dict)
    """Known verdicts of each validator about a reward that the outcome contradicts."""


@dataclass(frozen=True, slots=True)
class TrafficStatus:
    """Bytes sent and received; ``weights_*`` are part of ``blobs_*``."""

    blobs_sent: int = 0
    blobs_received: int = 0
    weights_sent: int = 0
    weights_received: int = 0
    weights_sent_http: int = 0
    weights_received_http: int = 0
    """Part of the two before sent over HTTP; all else uses libp2p streams."""
    weights_saved: int = 0
    """Download bytes saved by encodings."""
    gossip_sent: int = 0
    gossip_received: int = 0
    gossip_dropped: int = 0


@dataclass(frozen=True, slots=True)
class CircuitsStatus:
    """Connections through relays: ``relays`` accept some for this node; the rest it relays itself.

    ``carried_bytes`` counts both directions since the start.
    """

    relays: int = 0
    reservations: int = 0
    circuits: int = 0
    carried_bytes: int = 0


@dataclass(frozen=True, slots=True)
class BusyTimeStatus:
    """Total seconds of training steps since the start; the first began at ``began_at``."""

    began_at: float | None = None
    seconds: float = 0.0


LOOP_DELAY_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Histogram bounds of event loop delays, in seconds."""


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """Delays of the event loop, sampled many times a second.

    ``delays`` is a histogram with ``LOOP_DELAY_BOUNDS``, ``delay_seconds`` the sum.
    """

    delays: tuple[int, ...] = (0,) * (len(LOOP_DELAY_BOUNDS) + 1)
    delay_seconds: float = 0.0
    delay_seconds_max: float = 0.0
    own_delay_seconds_max: float = 0.0
    """Longest delay without the loop thread's waits for a CPU core."""


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """Resources of the node's machine; 0 if unknown."""

    version: str = ""
    """Version of prime-node."""
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    """Size of the file system of the data directory."""
    p2pd_memory_bytes: int = 0
    gpus: int = 0
    gpu_memory_bytes: int = 0
    gpu_memory_free_bytes: int = 0
    """Sum over all GPUs."""
    state_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds in each state since the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """The counters of a node that its history keeps; totals since the start, and sizes now."""

    committed: int
    certified: int
    rejected: int
    expired: int
    version: int
    backlog: int
    connected: int
    members: int
    """Live records including this node's own; counted once per epoch."""
    weights_received: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot(Counters):
    """The numbers of a ``NodeStatus`` that are cheap enough for frequent polling."""

    state: State
    policy_version: int
    gossip_received: int
    """New messages."""
    gossip_duplicates: int
    gossip_dropped: int
    sizes: dict[str, int]
    """Sizes of bounded queues and tables, of several with one name the fullest."""


@dataclass(frozen=True, slots=True)
class NodeStatus(NodeSummary):
    """A node's status: the summary, and the details that the pages of ``/api/v1`` spread out."""

    addresses: tuple[str, ...] = ()
    peers_banned: int = 0
    """Peers banned for invalid messages."""
    first_certificate_at: float | None = None
    members: tuple[PeerRow, ...] = ()
    """Up to ``LISTED_MAX`` of ``members_count``: this node and genesis keys first."""
    gossip_peers: tuple[PeerRow, ...] = ()
    """Highest score first."""
    workers: dict[str, RolloutCounts] = field(default_factory=dict)
    """Up to ``LISTED_MAX``: this node, and the workers with most commits."""
    judging: JudgingStatus = JudgingStatus()
    checkpoints: tuple[VersionDetail, ...] = ()
    """Up to ``LISTED_MAX`` versions, the newest ones, ascending."""
    traffic: TrafficStatus = TrafficStatus()
    p2pd_pid: int | None = None
    dial_failures: int = 0
    """Failed dials since the start."""
    tables: dict[str, int] = field(default_factory=dict)
    """Sizes of the tables that remote peers can fill, of several with one name the fullest."""
    table_limits: dict[str, int] = field(default_factory=dict)
    """Limits of these tables."""
    machine: MachineStatus = MachineStatus()
    loop: LoopStatus = LoopStatus()
    arrivals: tuple[DownloadStatus, ...] = ()
    """Downloads in progress, newest version first; then recent complete ones, latest first."""
    durations: dict[str, HistogramStatus] = field(default_factory=dict)
    """Durations of version downloads since the start, by encoding."""
    receivers: tuple[PeerTrafficStatus, ...] = ()
    """Receivers of blobs in the last seconds, highest rate first."""
    policy_swap: PolicySwap | None = None
    """Stages of the newest swap of an inference node; None before the first."""
    policy_swaps: HistogramStatus = field(default_factory=HistogramStatus)
    """Swap latencies since the start, to the first token, with ``SWAP_BOUNDS``."""
    policy_swap_seconds_median: float | None = None
    """Median over recent versions."""
    generations: HistogramStatus = field(default_factory=HistogramStatus)
    """Own rollouts since the start, with ``roles.runtime.metrics.GENERATION_BOUNDS``."""
    checks: HistogramStatus = field(default_factory=HistogramStatus)
    """Verified rollouts since the start, with ``roles.runtime.metrics.CHECK_BOUNDS``."""
    steps: BusyTimeStatus = BusyTimeStatus()
    training: TrainingStep | None = None
    """Newest training step of this node; None before the first one."""
    shadow: ShadowProgress = field(default_factory=ShadowProgress)
    """Steps of other trainers that this one has repeated since its start."""
    circuits: CircuitsStatus = CircuitsStatus()
    forks: tuple[str, ...] = ()
    """Keys that signed two conflicting messages, and the consequence, a line each."""
    clock: str = ""
    """Clock error of this machine, measured against several peers; empty without one."""
    restored: bool = False
    """True once the counts include the stored state."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def peers_json(self) -> dict[str, Any]:
        """Return the fields about peers."""
        return {
            "peers_connected": self.peers_connected,
            "members": [asdict(one) for one in self.members],
            "gossip_peers": [asdict(one) for one in self.gossip_peers],
        }
