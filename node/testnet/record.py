"""What was seen of a swarm: the last good status of each node, and what must outlive a node.

Nodes are killed and restarted while a testnet runs, so counters that restart with a process are
carried over, and a point of the reward curve stays known when the node that told it is gone.
"""

from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from node.api.arrivals import DownloadStatus
from node.api.status import (
    BusyTimeStatus,
    CheckpointStatus,
    MemberStatus,
    NodeStatus,
    RolloutCounts,
)
from node.testnet.idle import idle_share
from node.testnet.plan import NodePlan
from node.testnet.poll import StatusSample
from protocol.core.types import Role
from protocol.rollout.evaluation import EvaluationPoint

Condition = Literal["waiting", "starting", "running", "silent", "dead"]
"""``silent``: the process exists and does not answer; ``dead``: it was there and is gone."""


@dataclass(slots=True)
class Observation:
    """One node of the testnet as it was seen."""

    plan: NodePlan
    condition: Condition = "waiting"
    pid: int | None = None
    status: NodeStatus | None = None
    """The last good one, also of a node that is dead now."""
    peak_rss_bytes: int = 0
    p2pd_peak_rss_bytes: int = 0
    seen_at: float = 0.0
    """When it answered last, in unix seconds."""
    _weights_sent_before: int = 0
    _steps_before: tuple[BusyTimeStatus, ...] = ()

    @property
    def weights_sent(self) -> int:
        """Bytes of weights uploaded, over all processes that this node was."""
        current = self.status.traffic.weights_sent if self.status is not None else 0
        return self._weights_sent_before + current

    @property
    def steps(self) -> tuple[BusyTimeStatus, ...]:
        """What its steps took, of each process that this node was."""
        current = (self.status.steps,) if self.status is not None else ()
        return self._steps_before + current

    def observe(self, sample: StatusSample) -> None:
        """Take in one look at the node."""
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
    """Everything seen of a testnet; times are unix seconds."""

    started_at: float
    nodes: dict[str, Observation] = field(default_factory=dict)
    other_peak_rss_bytes: dict[str, int] = field(default_factory=dict)
    """Peak memory of processes that are no nodes, by what they are."""
    arrived: dict[int, dict[str, DownloadStatus]] = field(default_factory=dict)
    """How each version came, by version and node."""
    _checkpoints: dict[int, CheckpointStatus] = field(default_factory=dict)
    _uncertified: dict[int, int] = field(default_factory=dict)

    def add(self, plan: NodePlan) -> None:
        """Expect a node."""
        self.nodes[plan.name] = Observation(plan)

    def observe(self, name: str, sample: StatusSample) -> None:
        """Take in one look at a node."""
        node = self.nodes[name]
        node.observe(sample)
        if sample.status is not None:
            self._learn(sample.status, is_trainer=node.plan.role is Role.TRAINER)
            for arrival in sample.status.arrivals:
                if arrival.arrived_at is not None:
                    self.arrived.setdefault(arrival.version, {}).setdefault(name, arrival)

    def note_memory(self, what: str, peak_rss_bytes: int) -> None:
        """Take in the memory of a process that is not a node."""
        self.other_peak_rss_bytes[what] = max(
            self.other_peak_rss_bytes.get(what, 0), peak_rss_bytes
        )

    def _learn(self, status: NodeStatus, *, is_trainer: bool) -> None:
        for checkpoint in status.checkpoints:
            version, uncertified = checkpoint.version, checkpoint.trained_without_certificate
            self._checkpoints[version] = checkpoint
            if not is_trainer:
                # A certificate proves itself, so one node that holds it is enough; it may reach
                # the others later.
                known = self._uncertified.get(version, uncertified)
                self._uncertified[version] = min(known, uncertified)

    @property
    def statuses(self) -> list[NodeStatus]:
        """The last good status of every node that ever answered."""
        return [node.status for node in self.nodes.values() if node.status is not None]

    @property
    def checkpoints(self) -> list[CheckpointStatus]:
        """All published versions, ascending."""
        return [self._checkpoints[version] for version in sorted(self._checkpoints)]

    @property
    def rewards(self) -> list[tuple[int, float]]:
        """(version, mean reward of its batch); version 0 has no batch."""
        return [(point.version, point.reward_mean) for point in self.checkpoints if point.version]

    @property
    def evaluation(self) -> tuple[EvaluationPoint, ...]:
        """Versions on held-out problems, as the node knows them that has read the most answers."""
        curves = [status.evaluation for status in self.statuses]
        return max(curves, key=lambda curve: sum(one.answers for one in curve), default=())

    @property
    def newest_version(self) -> int:
        """The newest published version; -1 before the genesis policy is."""
        return max(self._checkpoints, default=-1)

    @property
    def trained_without_certificate(self) -> int:
        """Rollouts that were learned from although no node holds their certificate.

        A trainer's word on its own batches counts only where nobody else has seen them.
        """
        return sum(
            self._uncertified.get(version, checkpoint.trained_without_certificate)
            for version, checkpoint in self._checkpoints.items()
        )

    @property
    def swarm_view(self) -> NodeStatus | None:
        """The status that knows of the most rollouts; nodes that joined late know fewer."""
        return max(self.statuses, key=lambda status: status.rollouts.committed, default=None)

    @property
    def rollouts(self) -> RolloutCounts:
        """Commits of the whole swarm by what became of them."""
        view = self.swarm_view
        return view.rollouts if view is not None else RolloutCounts()

    def worker_counts(self, peer_id: str) -> RolloutCounts:
        """Return what became of one worker's commits, from the node that saw the most certified.

        For a dishonest worker that is the least flattering view.
        """
        counts = (status.workers.get(peer_id, RolloutCounts()) for status in self.statuses)
        return max(
            counts,
            key=lambda count: (count.certified, count.committed),
            default=RolloutCounts(),
        )

    def is_slashed(self, peer_id: str) -> bool:
        """Return whether a node that answered has found a worker's standing to have ended."""
        return any(
            member.peer_id == peer_id and member.standing == "slashed"
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
    def uptake_seconds(self) -> float | None:
        """From a version's manifest to its first token: the median of the workers' medians."""
        medians = [status.uptake.first_token_seconds_median for status in self.statuses]
        known = [seconds for seconds in medians if seconds is not None]
        return median(known) if known else None

    @property
    def policy_lag_max(self) -> int:
        """The largest lag that any node reports."""
        return max((status.policy_lag_max for status in self.statuses), default=0)

    def trainer_idle_share(self, versions: int) -> float | None:
        """Return of which share of the time since the first step no trainer was in one.

        The time ends with the last of the run's ``versions``, or when a trainer answered last.
        """
        trainers = [node for node in self.nodes.values() if node.plan.role is Role.TRAINER]
        last = self._checkpoints.get(versions)
        seen_at = max((node.seen_at for node in trainers), default=0.0)
        until = seen_at if last is None else last.created_at
        return idle_share([one for node in trainers for one in node.steps], until)

    @property
    def weights_sent(self) -> int:
        """Bytes of weights uploaded by all nodes of the testnet together."""
        return sum(node.weights_sent for node in self.nodes.values())

    @property
    def epoch(self) -> int:
        """The newest epoch that a node is in."""
        return max((status.epoch for status in self.statuses), default=0)

    @property
    def running(self) -> list[Observation]:
        """The nodes that answered when last asked."""
        return [node for node in self.nodes.values() if node.condition == "running"]

    @property
    def training_warning(self) -> str:
        """Why a trainer's newest step did not change the policy; empty if it did."""
        statuses = (node.status for node in self.running)
        told = (status.training.warning for status in statuses if status is not None)
        return next(filter(None, told), "")

    @property
    def outsiders(self) -> list[MemberStatus]:
        """Members of the roster that this testnet did not start, by the nodes that answer."""
        ours = {node.plan.peer_id for node in self.nodes.values()}
        found: dict[str, MemberStatus] = {}
        for node in self.running:
            for member in node.status.members if node.status is not None else ():
                known = found.get(member.peer_id)
                if member.peer_id not in ours and (
                    known is None or member.age_seconds < known.age_seconds
                ):
                    found[member.peer_id] = member
        return [found[peer_id] for peer_id in sorted(found)]
