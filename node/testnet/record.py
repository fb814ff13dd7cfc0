"""Observations of a swarm: the last good status of each node, and data that outlives nodes.

Nodes are killed and restarted while a testnet runs. Counters of earlier processes are carried over,
and points of the reward curve are kept when the node that reported them exits.
"""

from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from node.api.council import CouncilSummary
from node.api.downloads import DownloadStatus
from node.api.status import BusyTimeStatus, NodeStatus
from node.api.v1.answers import PeerRow, RolloutCounts, VersionDetail
from node.testnet.idle import idle_share
from node.testnet.plan import NodePlan
from node.testnet.poll import StatusSample
from protocol.core.types import Role
from protocol.rollout.evaluation import EvaluationPoint

Condition = Literal["waiting", "starting", "running", "silent", "dead"]
"""``silent``: the process exists but does not respond; ``dead``: the process has exited."""


@dataclass(slots=True)
class Observation:
    """Observations of one node."""

    plan: NodePlan
    condition: Condition = "waiting"
    pid: int | None = None
    status: NodeStatus | None = None
    """Last good status, also of a dead node."""
    peak_rss_bytes: int = 0
    p2pd_peak_rss_bytes: int = 0
    seen_at: float = 0.0
    """Unix time of the last response."""
    _weights_sent_before: int = 0
    _steps_before: tuple[BusyTimeStatus, ...] = ()

    @property
    def weights_sent(self) -> int:
        """Bytes of weights uploaded by all processes of this node."""
        current = self.status.traffic.weights_sent if self.status is not None else 0
        return self._weights_sent_before + current

    @property
    def steps(self) -> tuple[BusyTimeStatus, ...]:
        """Step times of each process of this node."""
        current = (self.status.steps,) if self.status is not None else ()
        return self._steps_before + current

    def observe(self, sample: StatusSample) -> None:
        """Add the result of one poll."""
        self.peak_rss_bytes = max(self.peak_rss_bytes, sample.peak_rss_bytes)
        self.p2pd_peak_rss_bytes = max(self.p2pd_peak_rss_bytes, sample.p2pd_peak_rss_bytes)
        if sample.pid is not None and sample.pid != self.pid:
            self._weights_sent_before, self._steps_before = self.weights_sent, self.steps
            self.status = None
            self.pid = sample.pid
        if sample.status is not None:
            self.status, self.seen_at = sample.status, sample.at
            self.condition = "running"
        elif sample.running:
            self.condition = "silent" if self.status is not None else "starting"
        elif self.pid is not None:
            self.condition = "dead"


@dataclass(slots=True)
class SwarmRecord:
    """Observations of a testnet; times are unix seconds."""

    started_at: float
    nodes: dict[str, Observation] = field(default_factory=dict)
    other_peak_rss_bytes: dict[str, int] = field(default_factory=dict)
    """Peak memory of processes other than nodes, by kind."""
    arrived: dict[int, dict[str, DownloadStatus]] = field(default_factory=dict)
    """Complete downloads by version and node."""
    _checkpoints: dict[int, VersionDetail] = field(default_factory=dict)
    _uncertified: dict[int, int] = field(default_factory=dict)

    def add(self, plan: NodePlan) -> None:
        """Add a node."""
        self.nodes[plan.name] = Observation(plan)

    def observe(self, name: str, sample: StatusSample) -> None:
        """Add the result of one poll of a node."""
        node = self.nodes[name]
        node.observe(sample)
        if sample.status is not None:
            self._learn(sample.status, is_trainer=node.plan.role is Role.TRAINER)
            for arrival in sample.status.arrivals:
                if arrival.arrived_at is not None:
                    self.arrived.setdefault(arrival.version, {}).setdefault(name, arrival)

    def note_memory(self, what: str, peak_rss_bytes: int) -> None:
        """Record the peak memory of a process other than a node."""
        self.other_peak_rss_bytes[what] = max(
            self.other_peak_rss_bytes.get(what, 0), peak_rss_bytes
        )

    def _learn(self, status: NodeStatus, *, is_trainer: bool) -> None:
        for checkpoint in status.checkpoints:
            version, uncertified = checkpoint.version, checkpoint.trained_without_certificate
            self._checkpoints[version] = checkpoint
            if not is_trainer:
                # A certificate proves itself, so one holder is enough; others may get it later.
                known = self._uncertified.get(version, uncertified)
                self._uncertified[version] = min(known, uncertified)

    @property
    def statuses(self) -> list[NodeStatus]:
        """Last good status of every node that ever responded."""
        return [node.status for node in self.nodes.values() if node.status is not None]

    @property
    def checkpoints(self) -> list[VersionDetail]:
        """All published versions, ascending."""
        return [self._checkpoints[version] for version in sorted(self._checkpoints)]

    @property
    def rewards(self) -> list[tuple[int, float]]:
        """(version, mean reward of its batch); version 0 has no batch."""
        return [(point.version, point.reward_mean) for point in self.checkpoints if point.version]

    @property
    def evaluation(self) -> tuple[EvaluationPoint, ...]:
        """Versions evaluated on held-out problems, by the node that has read the most answers."""
        curves = [status.evaluation for status in self.statuses]
        return max(curves, key=lambda curve: sum(one.answers for one in curve), default=())

    @property
    def newest_version(self) -> int:
        """Newest published version; -1 before the genesis policy."""
        return max(self._checkpoints, default=-1)

    @property
    def trained_without_certificate(self) -> int:
        """Rollouts trained on although no node holds their certificate.

        A trainer's own report counts only for batches that no other node knows.
        """
        return sum(
            self._uncertified.get(version, checkpoint.trained_without_certificate)
            for version, checkpoint in self._checkpoints.items()
        )

    @property
    def swarm_view(self) -> NodeStatus | None:
        """Status with the most rollouts; nodes that joined late know fewer."""
        return max(self.statuses, key=lambda status: status.rollouts.committed, default=None)

    @property
    def rollouts(self) -> RolloutCounts:
        """Commits of the whole swarm by outcome."""
        view = self.swarm_view
        return view.rollouts if view is not None else RolloutCounts()

    def lost_seat(self, plan: NodePlan) -> bool:
        """Return whether a validator of the genesis has lost its seat, by its own view."""
        status = self.nodes[plan.name].status
        council = None if status is None else status.council
        return council is not None and council.number > 0 and not council.is_member

    def worker_counts(self, peer_id: str) -> RolloutCounts:
        """Return a worker's commits by outcome, from the node with the most certified ones.

        For a dishonest worker that is the worst case.
        """
        counts = (status.workers.get(peer_id, RolloutCounts()) for status in self.statuses)
        return max(
            counts,
            key=lambda count: (count.certified, count.committed),
            default=RolloutCounts(),
        )

    def is_slashed(self, peer_id: str) -> bool:
        """Return whether a node that responded reports a worker as slashed."""
        return any(
            member.peer_id == peer_id and member.reputation == "slashed"
            for status in self.statuses
            for member in status.members
        )

    @property
    def first_certificate_seconds(self) -> float | None:
        """Seconds from the start of the testnet's process to the first certificate."""
        times = [
            status.first_certificate_at
            for status in self.statuses
            if status.first_certificate_at is not None
        ]
        return min(times) - self.started_at if times else None

    @property
    def policy_swap_seconds(self) -> float | None:
        """Policy swap latency, from a version's manifest to its first token: median of medians."""
        medians = [status.policy_swap_seconds_median for status in self.statuses]
        known = [seconds for seconds in medians if seconds is not None]
        return median(known) if known else None

    @property
    def policy_lag_max(self) -> int:
        """Largest policy lag that a node reports."""
        return max((status.policy_lag_max for status in self.statuses), default=0)

    def trainer_idle_share(self, versions: int) -> float | None:
        """Return the share of the time since the first step without a running step.

        The time ends with the last of the run's ``versions``, or a trainer's last response.
        """
        trainers = [node for node in self.nodes.values() if node.plan.role is Role.TRAINER]
        last = self._checkpoints.get(versions)
        seen_at = max((node.seen_at for node in trainers), default=0.0)
        until = seen_at if last is None else last.created_at
        return idle_share([one for node in trainers for one in node.steps], until)

    @property
    def council_text(self) -> str:
        """Line about the council, from the running node with the newest final page."""
        return "" if self._council is None else self._council.text

    @property
    def trusted_page(self) -> str:
        """Page that seated the present council, ``EPOCH:DIGEST``; empty for the genesis."""
        council = self._council
        return f"{council.since_epoch}:{council.seat}" if council and council.seat else ""

    @property
    def _council(self) -> CouncilSummary | None:
        views = [node.status.council for node in self.running if node.status is not None]
        return max(views, key=lambda view: view.final_epoch, default=None)

    @property
    def weights_sent(self) -> int:
        """Bytes of weights uploaded by all nodes."""
        return sum(node.weights_sent for node in self.nodes.values())

    @property
    def running(self) -> list[Observation]:
        """Nodes that responded to the last poll."""
        return [node for node in self.nodes.values() if node.condition == "running"]

    @property
    def training_warning(self) -> str:
        """Reason if a trainer's newest step did not change the policy; else empty."""
        statuses = (node.status for node in self.running)
        told = (status.training_warning for status in statuses if status is not None)
        return next(filter(None, told), "")

    @property
    def outsiders(self) -> list[PeerRow]:
        """Roster members that this testnet did not start, reported by responding nodes."""
        ours = {node.plan.peer_id for node in self.nodes.values()}
        found: dict[str, PeerRow] = {}
        for node in self.running:
            for member in node.status.members if node.status is not None else ():
                known = found.get(member.peer_id)
                if member.peer_id not in ours and (
                    known is None or (member.age_seconds or 0.0) < (known.age_seconds or 0.0)
                ):
                    found[member.peer_id] = member
        return [found[peer_id] for peer_id in sorted(found)]
