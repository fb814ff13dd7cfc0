"""Status of a node and its view of the swarm, the data model of all views.

The control API serves it as JSON; ``prime-node status`` and the testnet draw it.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from node.api.arrivals import DownloadStatus, HistogramStatus, PeerTrafficStatus
from protocol.gossipsub.inspection import ScoreLevel
from protocol.rollout.evaluation import EvaluationPoint
from roles.runtime.metrics import SWAP_BOUNDS
from roles.runtime.training_steps import TrainingStep

EVALUATIONS_MAX = 200
"""Evaluated versions in a status (a guess)."""

State = Literal["starting", "joining", "syncing", "ready", "paused", "draining"]


@dataclass(frozen=True, slots=True)
class Stage:
    """State of a node, the condition it waits for, and the progress of that."""

    state: State
    reason: str = ""
    share: float | None = None
    """Progress from 0 to 1; None if unknown."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """A live record of the roster."""

    peer_id: str
    roles: tuple[str, ...]
    policy_version: int
    age_seconds: float
    software: str
    reputation: Literal["good", "slashed"]
    scoring: str = ""
    """Digest of its scoring runtime, hexadecimal; empty if it does not score."""


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """Commits by outcome, and rejections by reason."""

    committed: int = 0
    certified: int = 0
    rejected: int = 0
    expired: int = 0
    trained: int = 0
    rejected_reasons: dict[str, int] = field(default_factory=dict)


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
class CheckpointStatus:
    """A published version, a point of the reward curve."""

    version: int
    reward_mean: float
    created_at: float
    commits: int
    trained_without_certificate: int


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
class GossipPeerStatus:
    """A gossip peer: its score and the parts of the score.

    ``mesh`` lists the topics of its meshes, ``backoff_seconds`` the remaining backoff by topic.
    Counters decay to 1 % in ten minutes. ``faults`` counts faults found by all services,
    ``neighbours`` other peers at the same address.
    """

    peer_id: str
    score: float
    level: str
    """One of ``GOSSIP_LEVELS``: the restriction that its score implies."""
    chosen: bool
    """True for an outbound peer."""
    mesh: tuple[str, ...] = ()
    backoff_seconds: dict[str, float] = field(default_factory=dict)
    first_deliveries: float = 0.0
    invalid: float = 0.0
    breaches: float = 0.0
    faults: int = 0
    neighbours: int = 0


GOSSIP_LEVELS = tuple(map(str, ScoreLevel))


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
class PolicySwapStatus:
    """Policy swap latency of an inference node, in seconds from receipt of a version's manifest.

    The stages of the newest ``version`` (-1 before the first) are weights downloaded, policy
    swapped, first token. The median is over recent versions. ``counts`` is the histogram of times
    to the first token with ``SWAP_BOUNDS``, ``seconds`` their sum.
    """

    version: int = -1
    weights_seconds: float | None = None
    swapped_seconds: float | None = None
    first_token_seconds: float | None = None
    first_token_seconds_median: float | None = None
    counts: tuple[int, ...] = (0,) * (len(SWAP_BOUNDS) + 1)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BusyTimeStatus:
    """Total seconds of training steps since the start; the first began at ``began_at``."""

    began_at: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """Training steps of this node."""

    newest: TrainingStep | None = None
    """None before the first one."""
    warning: str = ""
    """Reason and remedy if the newest step did not change the policy; else empty."""


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


LISTED_MAX = 256
"""Members and workers listed in a status; ``members_count`` and the like count all of them."""

CHECKPOINTS_MAX = 512
"""Newest versions listed in a status."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The counters of a ``NodeStatus`` that are cheap enough for frequent polling."""

    state: State
    connected: int
    members: int
    """Live records including this node's own; counted once per epoch."""
    policy_version: int
    version: int
    backlog: int
    committed: int
    certified: int
    rejected: int
    expired: int
    gossip_received: int
    """New messages."""
    gossip_duplicates: int
    gossip_dropped: int
    weights_received: int
    """Bytes since the start."""
    sizes: dict[str, int]
    """Sizes of bounded queues and tables, of several with one name the fullest."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's snapshot; ``rollouts`` counts those of the swarm, ``own_rollouts`` its own."""

    peer_id: str
    run_id: str
    run_name: str
    roles: tuple[str, ...]
    state: State
    reason: str
    started_at: float
    epoch: int = 0
    addresses: tuple[str, ...] = ()
    peers_connected: int = 0
    peers_banned: int = 0
    """Peers banned for invalid messages."""
    policy_version: int = -1
    policy_version_newest: int = -1
    policy_lag_max: int = 0
    first_certificate_at: float | None = None
    members: tuple[MemberStatus, ...] = ()
    """Up to ``LISTED_MAX``: this node and genesis keys first, then by peer id."""
    members_count: int = 0
    members_by_role: dict[str, int] = field(default_factory=dict)
    rollouts: RolloutCounts = RolloutCounts()
    own_rollouts: RolloutCounts = RolloutCounts()
    judging: JudgingStatus = JudgingStatus()
    workers: dict[str, RolloutCounts] = field(default_factory=dict)
    """Up to ``LISTED_MAX``: this node, and the workers with most commits."""
    checkpoints: tuple[CheckpointStatus, ...] = ()
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
    policy_swap: PolicySwapStatus = PolicySwapStatus()
    generations: HistogramStatus = field(default_factory=HistogramStatus)
    """Own rollouts since the start, with ``roles.runtime.metrics.GENERATION_BOUNDS``."""
    checks: HistogramStatus = field(default_factory=HistogramStatus)
    """Verified rollouts since the start, with ``roles.runtime.metrics.CHECK_BOUNDS``."""
    steps: BusyTimeStatus = BusyTimeStatus()
    training: TrainingStatus = TrainingStatus()
    evaluation: tuple[EvaluationPoint, ...] = ()
    """Newest ``EVALUATIONS_MAX`` versions evaluated on held-out problems, ascending."""
    circuits: CircuitsStatus = CircuitsStatus()
    gossip_peers: tuple[GossipPeerStatus, ...] = ()
    """Highest score first."""
    forks: tuple[str, ...] = ()
    """Keys that signed two conflicting messages, and the consequence, a line each."""
    share: float | None = None
    """Progress of the awaited condition from 0 to 1; None if unknown."""
    clock: str = ""
    """Clock error of this machine, measured against several peers; empty without one."""
    restored: bool = False
    """True once the counts include the stored state."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def peers_json(self) -> dict[str, Any]:
        """Return the fields about peers."""
        values = self.to_json()
        return {key: values[key] for key in ("peers_connected", "members", "gossip_peers")}
