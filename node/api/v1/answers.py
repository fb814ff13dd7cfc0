"""The shapes of ``/api/v1``: plain values, of which ``schema`` makes the JSON schemas.

Times are unix seconds and digests hexadecimal. Numbers that are no numbers (an infinite error)
are null.
"""

from dataclasses import dataclass, field
from typing import Literal

from node.api.arrivals import DownloadStatus, HistogramStatus, PeerTrafficStatus
from node.api.status import RolloutCounts, State
from protocol.rollout.evaluation import EvaluationPoint
from roles.runtime.training_steps import TrainingStep

RolloutState = Literal["committed", "certified", "rejected", "expired"]
Standing = Literal["genesis", "proven", "newcomer", "slashed"]
EventKind = Literal[
    "slashed", "fork", "excluded", "leader", "escalated", "rejected-trained", "paused", "state"
]


@dataclass(frozen=True, slots=True)
class NodeLink:
    """A node that the same address can answer for, by ``?node=NAME``; ``note`` is for people."""

    name: str
    role: str
    condition: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Meta:
    """Who answers; ``boot`` is another one after each start."""

    mode: Literal["live", "recorded"]
    boot: str
    title: str
    nodes: tuple[NodeLink, ...] = ()


@dataclass(frozen=True, slots=True)
class RewardPoint:
    """Mean reward of a version's batch, or of several versions' where there are very many."""

    version: int
    reward: float
    at: float


@dataclass(frozen=True, slots=True)
class RunEvent:
    """Something that people want to know of; ``key`` is the same after a restart.

    ``evidence`` are digests of signed messages, ``rollout`` is the commit that it is about.
    """

    key: str
    at: float
    kind: EventKind
    subject: str
    text: str
    evidence: tuple[str, ...] = ()
    rollout: str = ""


@dataclass(frozen=True, slots=True)
class Overview:
    """The run as this node sees it, on one page."""

    peer_id: str
    roles: tuple[str, ...]
    run_id: str
    run_name: str
    state: State
    reason: str
    started_at: float
    now: float
    epoch: int = 0
    epoch_seconds: float = 0.0
    steps: int = 0
    version: int = -1
    """The newest one known; ``policy_version`` is the newest one here."""
    policy_version: int = -1
    policy_lag_max: int = 0
    """Of the rollouts that a version has learned from, in versions."""
    seconds_to_go: float | None = None
    """To the last version, at the pace of the last ten."""
    certified_per_minute: float | None = None
    trainer_idle_share: float | None = None
    """Of the looks since this node began at which too few certified rollouts waited for a step."""
    leader: str = ""
    members: dict[str, int] = field(default_factory=dict)
    """By role; who has two counts twice."""
    members_total: int = 0
    peers_connected: int = 0
    backlog: int = 0
    slashed: int = 0
    rollouts: RolloutCounts = field(default_factory=RolloutCounts)
    own_rollouts: RolloutCounts = field(default_factory=RolloutCounts)
    rewards: tuple[RewardPoint, ...] = ()
    training_warning: str = ""
    """Why this trainer's newest step did not change the policy; empty if it did."""
    evaluation: tuple[EvaluationPoint, ...] = ()
    """Versions on held-out problems, ascending; empty in a run that evaluates none."""
    happened: tuple[RunEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class SampleHistory:
    """Counters at even intervals, one list each, all as long as ``at``."""

    interval_seconds: float = 1.0
    at: tuple[float, ...] = ()
    columns: dict[str, tuple[float, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RolloutRow:
    """A commit in one line; ``at`` is the beginning of its epoch."""

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
    """Mean of its sequences; None where its body is not here."""


@dataclass(frozen=True, slots=True)
class RolloutPage:
    """Rows, the newest first; ``older`` is what to ask for after them, empty at the end."""

    rows: tuple[RolloutRow, ...] = ()
    total: int = 0
    """That are wanted, of those that the node still holds."""
    older: str = ""
    reasons: tuple[str, ...] = ()
    """For which rollouts were rejected, to choose from."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A measured value, and the most that an honest worker comes to."""

    name: str
    value: float | None
    allowed: float


@dataclass(frozen=True, slots=True)
class VerdictDetail:
    """One signed verdict; ``place`` is its validator's in the draw, from 0 on."""

    validator: str
    place: int | None
    accept: bool
    reason: str
    detail: str
    evidence: str
    measured: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class SequenceDetail:
    """One sequence as people read it; ``cut`` tells that a text is longer."""

    group: int
    tokens: int
    length_target: int | None
    reward: float
    prompt: str
    completion: str
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Drawn:
    """The committee of a commit, by rank, as this node draws it in ``epoch``."""

    epoch: int
    first: tuple[str, ...] = ()
    escalated: tuple[str, ...] = ()
    quorum: int = 0


@dataclass(frozen=True, slots=True)
class RolloutDetail:
    """A rollout with all that the node knows of it."""

    row: RolloutRow
    checkpoint: str
    previous: str
    body: str
    body_bytes: int
    committee: Drawn
    verdicts: tuple[VerdictDetail, ...] = ()
    certificate: str = ""
    certified_by: str = ""
    sequences: tuple[SequenceDetail, ...] = ()
    sequences_total: int = 0
    note: str = ""
    """Why there is no text, or less than all of it."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """A member of the roster, or a peer that is connected and no member."""

    peer_id: str
    me: bool
    roles: tuple[str, ...] = ()
    policy_version: int = -1
    age_seconds: float | None = None
    software: str = ""
    standing: Standing = "newcomer"
    connected: bool = False
    round_trip_seconds: float | None = None
    reachable: bool | None = None
    """As those with standing have found it; None where too few have looked."""
    upload_bytes_per_second: int = 0
    """As they have measured it."""
    addresses: tuple[str, ...] = ()
    """Its own word."""
    remote: tuple[str, ...] = ()
    """Where its connections are."""
    machine: str = ""
    score: float | None = None
    level: str = ""
    faults: int = 0
    certified: int = 0
    rejected: int = 0


@dataclass(frozen=True, slots=True)
class PeerPage:
    """Rows and how many there are of each role."""

    rows: tuple[PeerRow, ...] = ()
    total: int = 0
    members: int = 0
    connected: int = 0
    banned: int = 0
    roles: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EncodingDetail:
    """One way in which a version travels; ``base_version`` -1 for none."""

    form: str
    base_version: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class VersionDetail:
    """A published version."""

    version: int
    at: float
    publisher: str
    term: int
    digest: str
    policy: str
    reward: float
    commits: int
    forms: tuple[EncodingDetail, ...]
    here: bool


@dataclass(frozen=True, slots=True)
class Forest:
    """Who feeds whom: ``parents[stripe][member]`` is a place in ``members``.

    -1 is the root, -2 nobody: the root itself.
    """

    version: int
    root: str
    fanout: int
    members: tuple[str, ...]
    upload_bytes_per_second: tuple[int, ...]
    parents: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class WeightsPage:
    """Versions, the newest first, and how they get here."""

    versions: tuple[VersionDetail, ...] = ()
    arrivals: tuple[DownloadStatus, ...] = ()
    receivers: tuple[PeerTrafficStatus, ...] = ()
    durations: dict[str, HistogramStatus] = field(default_factory=dict)
    duration_bounds: tuple[float, ...] = ()
    forest: Forest | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class TrainingPage:
    """Statistics by version, one list each, all as long as ``versions``; null where unknown.

    Of many versions a few share a point, which is their mean.
    """

    versions: tuple[int, ...] = ()
    columns: dict[str, tuple[float | None, ...]] = field(default_factory=dict)
    newest: TrainingStep | None = None
    """The newest step of this node's trainer; null on a node that never led."""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """A part of a disk, a memory or a queue; ``most`` is its bound, None without one."""

    name: str
    value: float
    most: float | None = None
    unit: Literal["bytes", "count"] = "bytes"


@dataclass(frozen=True, slots=True)
class MachineGpu:
    """A card as its driver shows it."""

    name: str
    used_bytes: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class MachinePage:
    """This node's process and the machine that it is on."""

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
    """The run in words: pairs of what is told and what it is."""

    run_id: str = ""
    name: str = ""
    creator: str = ""
    created_at: float = 0.0
    words: tuple[tuple[str, str], ...] = ()
    join_command: str = ""
    invited: bool = False
    """Whether who joins needs an invite."""
    signed: str = ""
    """The creator's signature."""


@dataclass(frozen=True, slots=True)
class EventsPage:
    """What happened, the newest first."""

    rows: tuple[RunEvent, ...] = ()
    kinds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StreamTick:
    """What a page that watches is told each second."""

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
    "weights": WeightsPage,
    "training": TrainingPage,
    "node": MachinePage,
    "run": RunPage,
    "events": EventsPage,
    "look": StreamTick,
    "happened": RunEvent,
}
"""By what they are called in the schema."""
