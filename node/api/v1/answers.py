"""Response types of ``/api/v1``, the source of its JSON schemas.

Times are unix seconds, digests hexadecimal. NaN and infinite numbers are null.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self

from node.api.contributors import ContributorsPage, OwnWork
from node.api.council import CouncilPage, CouncilSummary
from node.api.downloads import DownloadStatus, HistogramStatus, PeerTrafficStatus
from protocol.rollout.evaluation import EvaluationPoint
from roles.runtime.training_steps import TrainingStep

State = Literal["starting", "joining", "syncing", "ready", "paused", "draining"]
RolloutState = Literal["committed", "certified", "rejected", "expired"]
ReputationName = Literal["genesis", "trusted", "untrusted", "slashed"]
EventKind = Literal[
    "slashed", "fork", "excluded", "leader", "escalated", "rejected-trained", "paused", "state"
]


@dataclass(frozen=True, slots=True)
class NodeLink:
    """A node that ``?node=NAME`` selects; ``note`` is a label."""

    name: str
    role: str
    condition: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Meta:
    """Identity of the source; ``boot`` changes at each start."""

    mode: Literal["live", "recorded"]
    boot: str
    title: str
    nodes: tuple[NodeLink, ...] = ()


@dataclass(frozen=True, slots=True)
class RewardPoint:
    """Mean reward of a version's batch; of many versions, the mean over several."""

    version: int
    reward: float
    at: float


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of the run; ``key`` is stable across restarts.

    ``evidence`` lists digests of signed messages, ``rollout`` is the commit concerned.
    """

    key: str
    at: float
    kind: EventKind
    subject: str
    text: str
    evidence: tuple[str, ...] = ()
    rollout: str = ""
    name: str = ""
    """Name of the subject when the event was added."""


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
class NodeSummary:
    """This node and its view of the run: the common part of ``Overview`` and ``NodeStatus``.

    ``rollouts`` counts those of the swarm that this node knows.
    """

    peer_id: str
    run_id: str
    run_name: str
    roles: tuple[str, ...]
    state: State
    reason: str
    started_at: float
    now: float = 0.0
    name: str = ""
    """Name of this node in its record."""
    share: float | None = None
    """Progress of the awaited condition from 0 to 1; None if unknown."""
    epoch: int = 0
    epoch_seconds: float = 0.0
    succeeds: str = ""
    """Run that this one succeeds, its page and version; empty if it succeeds none."""
    steps_total: int = 0
    """Training steps of the whole run."""
    policy_version: int = -1
    """Newest version on this node."""
    policy_version_newest: int = -1
    """Newest known version."""
    policy_lag_max: int = 0
    """Largest policy lag of a trained rollout, in versions."""
    seconds_to_go: float | None = None
    """Remaining time to the last version, at the pace of the last ten."""
    certified_per_minute: float | None = None
    trainer_idle_share: float | None = None
    """Fraction of samples since the start with too few certified rollouts for a step."""
    leader: str = ""
    council: CouncilSummary = field(default_factory=CouncilSummary)
    members_by_role: dict[str, int] = field(default_factory=dict)
    """A node with two roles counts twice."""
    members_count: int = 0
    peers_connected: int = 0
    backlog: int = 0
    slashed: int = 0
    rollouts: RolloutCounts = field(default_factory=RolloutCounts)
    yours: OwnWork = field(default_factory=OwnWork)
    """Work of this node."""
    rewards: tuple[RewardPoint, ...] = ()
    training_warning: str = ""
    """Reason and remedy if this trainer's newest step did not change the policy; else empty."""
    evaluation: tuple[EvaluationPoint, ...] = ()
    """Newest versions evaluated on held-out problems, ascending."""

    @classmethod
    def of(cls, summary: "NodeSummary", **details: Any) -> Self:
        """Return a summary with the fields that a subclass adds."""
        known = {one.name: getattr(summary, one.name) for one in fields(NodeSummary)}
        return cls(**known, **details)


@dataclass(frozen=True, slots=True)
class Overview(NodeSummary):
    """The overview page: the summary with the latest events, newest first."""

    happened: tuple[RunEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class SampleHistory:
    """Counters at even intervals, one list per counter, each as long as ``at``."""

    interval_seconds: float = 1.0
    at: tuple[float, ...] = ()
    columns: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """Summary of a commit; ``at`` is the start of its epoch."""

    commit: str
    worker: str
    version: int
    slot: int
    epoch: int
    at: float
    sequences: int
    tokens: int
    state: RolloutState
    reason: str = ""
    escalated: bool = False
    accepts: int = 0
    rejects: int = 0
    trained_in: int | None = None
    reward: float | None = None
    """Mean of its sequences; None without its body."""
    name: str = ""
    """Name of the worker."""


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """Rows, newest first; ``older`` is the next page's ``after``, empty at the end."""

    rows: tuple[RolloutRow, ...] = ()
    total: int = 0
    """Number of matching rollouts that the node still holds."""
    older: str = ""
    reasons: tuple[str, ...] = ()
    """Rejection reasons to filter by."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A measured value, and its limit for honest workers; None for an infinite value."""

    name: str
    value: float | None
    allowed: float

    @property
    def share(self) -> float:
        """The value as a fraction of its limit."""
        value = math.inf if self.value is None else self.value
        return value / self.allowed if self.allowed else float(value > 0)


@dataclass(frozen=True, slots=True)
class VerdictDetail:
    """A signed verdict; ``place`` is its validator's committee rank, from 0."""

    validator: str
    place: int | None
    accept: bool
    reason: str
    detail: str
    evidence: str
    measured: tuple[Limit, ...] = ()
    name: str = ""
    """Name of the validator."""


@dataclass(frozen=True, slots=True)
class SequenceDetail:
    """One sequence as text; ``cut`` marks truncated text."""

    group: int
    tokens: int
    length_target: int | None
    reward: float
    prompt: str
    completion: str
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """The committee of a commit by rank, drawn by the page of ``epoch``; -1 before it is drawn."""

    epoch: int = -1
    first: tuple[str, ...] = ()
    escalated: tuple[str, ...] = ()
    quorum: int = 0


@dataclass(frozen=True, slots=True)
class RolloutDetail:
    """A rollout in full."""

    row: RolloutRow
    checkpoint: str
    body: str
    body_bytes: int
    committee: Drawn
    verdicts: tuple[VerdictDetail, ...] = ()
    certificate: str = ""
    certified_by: str = ""
    sequences: tuple[SequenceDetail, ...] = ()
    sequences_total: int = 0
    note: str = ""
    """Reason for missing or truncated text."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A member of the roster, or a connected peer that is no member."""

    peer_id: str
    me: bool
    name: str = ""
    """Name in its record, neither unique nor verified."""
    roles: tuple[str, ...] = ()
    policy_version: int = -1
    age_seconds: float | None = None
    software: str = ""
    reputation: ReputationName = "untrusted"
    connected: bool = False
    round_trip_seconds: float | None = None
    reachable: bool | None = None
    """Observed by peers with reputation; None with too few observations."""
    upload_bytes_per_second: int = 0
    """Measured by the same peers."""
    addresses: tuple[str, ...] = ()
    """Addresses in its own record."""
    remote: tuple[str, ...] = ()
    """Remote addresses of its connections."""
    machine: str = ""
    scoring: str = ""
    """Digest of its scoring runtime, hexadecimal; empty if it does not score."""
    score: float | None = None
    """Gossip score; None, and the fields of gossip below empty, without a gossip stream."""
    level: str = ""
    """One of ``ScoreLevel``: the restriction that its score implies."""
    outbound: bool = False
    mesh: tuple[str, ...] = ()
    """Topics of its meshes."""
    backoff_seconds: dict[str, float] = field(default_factory=dict)
    """Remaining mesh backoff by topic."""
    first_deliveries: float = 0.0
    invalid: float = 0.0
    breaches: float = 0.0
    """Counters of the score; they decay to 1 % in ten minutes."""
    neighbours: int = 0
    """Other peers at the same address."""
    faults: int = 0
    """Faults found by all services."""
    certified: int = 0
    """Certified rollouts by final pages."""
    rejected: int = 0
    """Rejected ones, as in ``OwnWork``."""


@dataclass(frozen=True, slots=True)
class PeerPage:
    """Rows, and counts by role."""

    rows: tuple[PeerRow, ...] = ()
    total: int = 0
    members: int = 0
    connected: int = 0
    banned: int = 0
    roles: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EncodingDetail:
    """An encoding of a version; ``base_version`` is -1 without a base."""

    form: str
    base_version: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class VersionDetail:
    """A published version, trained on ``commits``."""

    version: int
    created_at: float
    publisher: str
    term: int
    digest: str
    policy: str
    reward_mean: float
    commits: int
    forms: tuple[EncodingDetail, ...]
    here: bool
    trained_without_certificate: int = 0
    """Commits of its batch that were rejected."""
    trainers: tuple[str, ...] = ()
    """Trainers whose differences it takes, in a run whose trainers train at the same time."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Distribution trees: ``parents[stripe][member]`` is an index of ``members``.

    -1 stands for the root, -2 for no parent (the root itself).
    """

    version: int
    root: str
    fanout: int
    members: tuple[str, ...]
    upload_bytes_per_second: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class WeightsPage:
    """Versions, newest first, downloads, uploads and a forest."""

    versions: tuple[VersionDetail, ...] = ()
    arrivals: tuple[DownloadStatus, ...] = ()
    receivers: tuple[PeerTrafficStatus, ...] = ()
    durations: dict[str, HistogramStatus] = field(default_factory=dict)
    duration_bounds: tuple[float, ...] = ()
    forest: Forest | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class TrainingPage:
    """Statistics by version, one list each, as long as ``versions``; null if unknown.

    With many versions a point is the mean of several.
    """

    versions: tuple[int, ...] = ()
    columns: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    newest: TrainingStep | None = None
    """Newest training step of this node; null on a node that never trained."""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Usage of a disk, a memory or a queue; ``most`` is its limit, None without one."""

    name: str
    value: float
    most: float | None = None
    unit: Literal["bytes", "count"] = "bytes"


@dataclass(frozen=True, slots=True)
class MachineGpu:
    """A GPU as reported by its driver."""

    name: str
    used_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class MachinePage:
    """This node's process and machine."""

    pid: int = 0
    software: str = ""
    started_at: float = 0.0
    now: float = 0.0
    memory: tuple[Usage, ...] = ()
    disk: tuple[Usage, ...] = ()
    data_dir: str = ""
    gpus: tuple[MachineGpu, ...] = ()
    cores: int = 0
    load: tuple[float, ...] = ()
    queues: tuple[Usage, ...] = ()
    loop_delays: tuple[int, ...] = ()
    loop_bounds: tuple[float, ...] = ()
    loop_delay_seconds_max: float = 0.0
    traffic: dict[str, int] = field(default_factory=dict)
    log: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunPage:
    """Rules of the run as (label, text) pairs."""

    run_id: str = ""
    name: str = ""
    creator: str = ""
    created_at: float = 0.0
    words: tuple[tuple[str, str], ...] = ()
    join_command: str = ""
    invited: bool = False
    """True if joining needs an invite."""
    signed: str = ""
    """The creator's signature."""


@dataclass(frozen=True, slots=True)
class EventsPage:
    """Events, newest first."""

    rows: tuple[RunEvent, ...] = ()
    kinds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamTick:
    """Summary pushed to open pages each second."""

    state: State
    reason: str
    epoch: int
    version: int
    certified: int
    rejected: int
    connected: int


ANSWERS: dict[str, type] = {
    "meta": Meta,
    "overview": Overview,
    "history": SampleHistory,
    "rollouts": RolloutPage,
    "rollout": RolloutDetail,
    "peers": PeerPage,
    "council": CouncilPage,
    "contributors": ContributorsPage,
    "weights": WeightsPage,
    "training": TrainingPage,
    "node": MachinePage,
    "run": RunPage,
    "events": EventsPage,
    "look": StreamTick,
    "happened": RunEvent,
}
"""Response types by their names in the schema."""
