"""What a node says of itself and of the swarm as it sees it: the one shape behind every view.

The control API serves it as JSON, ``prime-node status`` and the testnet draw it, tests read it.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from node.api.arrivals import DownloadStatus, HistogramStatus, PeerTrafficStatus
from protocol.gossipsub.inspection import ScoreLevel
from protocol.rollout.evaluation import EvaluationPoint
from roles.runtime.metrics import UPTAKE_BOUNDS
from roles.runtime.training_steps import TrainingStep

EVALUATIONS_MAX = 200
"""Evaluated versions that a status lists; a guess."""

State = Literal["starting", "joining", "syncing", "ready", "paused", "draining"]


@dataclass(frozen=True, slots=True)
class Stage:
    """What a node is at: its state, what it waits for, and how much of that is done."""

    state: State
    reason: str = ""
    share: float | None = None
    """From 0 to 1; None where nobody can know."""


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """One row of the roster: a live record that this node holds."""

    peer_id: str
    roles: tuple[str, ...]
    policy_version: int
    age_seconds: float
    software: str
    standing: Literal["good", "slashed"]
    scoring: str = ""
    """Digest of its scoring runtime, in hexadecimal; empty where it does not score."""


@dataclass(frozen=True, slots=True)
class RolloutCounts:
    """Commits by what became of them, and rejections by reason."""

    committed: int = 0
    certified: int = 0
    rejected: int = 0
    expired: int = 0
    trained: int = 0
    rejected_reasons: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JudgingStatus:
    """Fit of the run's rules: thresholds in doubt, and validators whose scores differ.

    Workers and validators that are named have rollouts among those that are not forgotten.
    """

    doubts: tuple[str, ...] = ()
    """Deviations that workers share, a line each; meanwhile they slash nobody."""
    workers: int = 0
    """Workers with rollouts enough to tell."""
    workers_off: int = 0
    """The most of them that are off in one direction in doubt."""
    rewards_differed: dict[str, int] = field(default_factory=dict)
    """Rollouts of each worker that were rejected for a reward that differs."""
    overruled: dict[str, int] = field(default_factory=dict)
    """Rollouts about whose rewards each validator signed another verdict than the outcome, as far
    as its verdicts are here."""


@dataclass(frozen=True, slots=True)
class CheckpointStatus:
    """One published version: a point of the reward curve."""

    version: int
    reward_mean: float
    created_at: float
    commits: int
    trained_without_certificate: int


@dataclass(frozen=True, slots=True)
class TrafficStatus:
    """Bytes moved by the blob exchange (``weights_*`` are part of ``blobs_*``)."""

    blobs_sent: int = 0
    blobs_received: int = 0
    weights_sent: int = 0
    weights_received: int = 0
    weights_sent_http: int = 0
    weights_received_http: int = 0
    """Of the two before, by HTTP; all else goes by streams."""
    weights_spared: int = 0
    """What encodings were shorter than the files that they made."""
    gossip_sent: int = 0
    gossip_received: int = 0
    gossip_dropped: int = 0


@dataclass(frozen=True, slots=True)
class GossipPeerStatus:
    """A peer that gossips with this node: its score, and what that is made of.

    ``mesh`` are the topics in whose meshes it is, ``backoff_seconds`` for how long it must not come
    back to one. The counts decay to a hundredth in ten minutes; ``faults`` are what every service
    found, and ``neighbours`` other peers at the same address.
    """

    peer_id: str
    score: float
    level: str
    """Of ``GOSSIP_LEVELS``: what its score denies it."""
    chosen: bool
    """Whether this node dialled it by its own choice."""
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
    """Connections through relays: ``relays`` take some for this node, the rest is what it relays.

    ``carried_bytes`` counts both directions, since the start.
    """

    relays: int = 0
    reservations: int = 0
    circuits: int = 0
    carried_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PolicySwapStatus:
    """How soon an inference node uses new versions: seconds since it knew of a manifest.

    Of the newest ``version`` (-1 before the first): weights here, swapped in, first token; of the
    last ones the median until the first token. ``counts`` are first tokens up to each of
    ``UPTAKE_BOUNDS`` (and above the one before), and the later ones last; ``seconds`` their sum.
    """

    version: int = -1
    weights_seconds: float | None = None
    swapped_seconds: float | None = None
    first_token_seconds: float | None = None
    first_token_seconds_median: float | None = None
    counts: tuple[int, ...] = (0,) * (len(UPTAKE_BOUNDS) + 1)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class BusyTimeStatus:
    """What the steps of a trainer took since its start, in seconds.

    The first one began at ``began_at``; None: there was none yet.
    """

    began_at: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingStatus:
    """Steps of this node's trainer."""

    newest: TrainingStep | None = None
    """None before the first one."""
    warning: str = ""
    """Why the newest step did not change the policy, and what to do; empty if it did."""


LOOP_DELAY_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds by which delays of the event loop are told apart."""


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """How late the event loop came to what was due, looked at many times a second.

    ``delays`` counts those up to each of ``LOOP_DELAY_BOUNDS`` (and above the one before), and the
    longer ones last; ``delay_seconds`` is their sum.
    """

    delays: tuple[int, ...] = (0,) * (len(LOOP_DELAY_BOUNDS) + 1)
    delay_seconds: float = 0.0
    delay_seconds_max: float = 0.0
    own_delay_seconds_max: float = 0.0
    """The longest without the time for which the machine gave the loop's thread no core."""


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """What the node takes and has on its machine; 0 where that is not known."""

    version: str = ""
    """Of prime-node."""
    disk_free_bytes: int = 0
    disk_total_bytes: int = 0
    """Of the file system of the data directory."""
    p2pd_memory_bytes: int = 0
    gpus: int = 0
    gpu_memory_bytes: int = 0
    gpu_memory_free_bytes: int = 0
    """Of all GPUs together."""
    state_seconds: dict[str, float] = field(default_factory=dict)
    """For how long the node was in each state since its start."""


LISTED_MAX = 256
"""Members, and workers, that a status lists; ``members_count`` and the like count all of them."""

CHECKPOINTS_MAX = 512
"""Versions that it lists, the newest."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The numbers of a ``NodeStatus`` that cost nothing to take, for who looks often."""

    state: State
    connected: int
    members: int
    """Live records, this node's own among them; counted once per epoch."""
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
    """How full the bounded queues and tables are, the fullest of a kind."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node's snapshot; counts of ``rollouts`` are swarm-wide, of ``own_rollouts`` ours."""

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
    """Kept away for a while because of what they sent."""
    policy_version: int = -1
    policy_version_newest: int = -1
    policy_lag_max: int = 0
    first_certificate_at: float | None = None
    members: tuple[MemberStatus, ...] = ()
    """Up to ``LISTED_MAX``: this node and keys of the genesis first, then by peer id."""
    members_count: int = 0
    members_by_role: dict[str, int] = field(default_factory=dict)
    rollouts: RolloutCounts = RolloutCounts()
    own_rollouts: RolloutCounts = RolloutCounts()
    judging: JudgingStatus = JudgingStatus()
    workers: dict[str, RolloutCounts] = field(default_factory=dict)
    """Up to ``LISTED_MAX``: those that committed most, and this node."""
    checkpoints: tuple[CheckpointStatus, ...] = ()
    traffic: TrafficStatus = TrafficStatus()
    p2pd_pid: int | None = None
    dial_failures: int = 0
    """Since the start."""
    tables: dict[str, int] = field(default_factory=dict)
    """Sizes of the tables that remote peers can fill, the fullest of each name."""
    table_limits: dict[str, int] = field(default_factory=dict)
    """Limits of these tables."""
    machine: MachineStatus = MachineStatus()
    loop: LoopStatus = LoopStatus()
    arrivals: tuple[DownloadStatus, ...] = ()
    """On their way, the newest version first; then the last that came, the last one first."""
    durations: dict[str, HistogramStatus] = field(default_factory=dict)
    """Of the versions that came since the start, by their form."""
    receivers: tuple[PeerTrafficStatus, ...] = ()
    """Who was sent blobs in the last seconds, the one that is sent most first."""
    uptake: PolicySwapStatus = PolicySwapStatus()
    generations: HistogramStatus = field(default_factory=HistogramStatus)
    """Of own rollouts, since the start, up to each of
    ``roles.runtime.metrics.GENERATION_BOUNDS``."""
    checks: HistogramStatus = field(default_factory=HistogramStatus)
    """Of others' rollouts, since the start, up to each of
    ``roles.runtime.metrics.CHECK_BOUNDS``."""
    steps: BusyTimeStatus = BusyTimeStatus()
    training: TrainingStatus = TrainingStatus()
    evaluation: tuple[EvaluationPoint, ...] = ()
    """Versions on held-out problems, the newest ``EVALUATIONS_MAX``, ascending."""
    circuits: CircuitsStatus = CircuitsStatus()
    gossip_peers: tuple[GossipPeerStatus, ...] = ()
    """The best score first."""
    forks: tuple[str, ...] = ()
    """Keys that signed two things of which one may be said, and what follows, a line each."""
    share: float | None = None
    """How much of what the state waits for is done, from 0 to 1; None where nobody can know."""
    clock: str = ""
    """Error of this machine's clock, by the clocks of several peers; empty if there is none."""
    restored: bool = False
    """Whether what the disk holds of the run is in the counts."""

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    def peers_json(self) -> dict[str, Any]:
        """Return the part about peers."""
        values = self.to_json()
        return {key: values[key] for key in ("peers_connected", "members", "gossip_peers")}
