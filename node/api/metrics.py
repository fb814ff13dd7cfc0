"""Prometheus metrics, computed from the node's status at each scrape.

This module only renames counters of ``NodeStatus``. Every node has its own registry, because tests
and simulations run many nodes in one process. Labels have few values: no peer ids, no commits, and
at most ``REASONS_MAX`` reasons, because reasons come from other nodes.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from itertools import accumulate
from statistics import fmean
from typing import get_args

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from node.api.contributors import OwnWork
from node.api.council import CouncilSummary
from node.api.downloads import HistogramStatus
from node.api.status import LOOP_DELAY_BOUNDS, NodeStatus, TrafficStatus
from node.api.v1.answers import PeerRow, RolloutCounts, State
from node.weights.download_progress import SECONDS_BOUNDS
from protocol.gossipsub.inspection import ScoreLevel
from roles.runtime.metrics import CHECK_BOUNDS, GENERATION_BOUNDS, SWAP_BOUNDS
from roles.runtime.training_steps import STATISTICS

PREFIX = "prime_node"

RENAMED = {
    f"{PREFIX}_{new}": f"{PREFIX}_{old}"
    for new, old in {
        "download_version": "arriving_version",
        "download_pieces": "arriving_pieces",
        "download_pieces_held": "arriving_pieces_here",
        "download_bytes_per_second": "arriving_bytes_per_second",
        "download_remaining_seconds": "arriving_to_go_seconds",
        "loop_cpu_delay_max_seconds": "loop_own_delay_max_seconds",
        "policy_swap_seconds": "policy_uptake_seconds",
        "version_download_seconds": "version_arrival_seconds",
        "weights_saved_bytes": "weights_spared_bytes",
    }.items()
}
"""Old names of metrics by their new names, exported for one release."""

REASONS_MAX = 24
"""Distinct reason labels; an honest swarm has about ten, and later ones count as ``other``."""


OUTCOMES, PARTS = ("certified", "rejected", "expired"), ("committed", "trained")


class MonotonicCounts:
    """Monotonic counters of rollouts, starting at 0; rejections by reason have the key ``:REASON``.

    A ledger's counts can fall: an expired commit is certified late, a branch of versions loses, or
    a restart drops old entries. Prometheus takes a fall for a reset to 0 and would count the whole
    value as an increase.
    """

    def __init__(self) -> None:
        self._last: Counter[str] | None = None
        self._risen = Counter[str]()

    def look(self, counts: RolloutCounts) -> Counter[str]:
        """Return the sums of all increases up to ``counts``, all 0 at the first call."""
        now = Counter({name: getattr(counts, name) for name in (*OUTCOMES, *PARTS)})
        now.update({f":{reason}": count for reason, count in counts.rejected_reasons.items()})
        last = now if self._last is None else self._last
        self._last = now
        for key in now:  # also those that have not risen: a series begins with 0
            self._risen[key] += max(0, now[key] - last[key])
        return self._risen


class NodeMetrics(Collector):
    """The metrics of one node."""

    def __init__(self, status: Callable[[], NodeStatus]) -> None:
        self._status = status
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        self._reasons: dict[str, None] = {}
        self._rollouts, self._own_rollouts = MonotonicCounts(), MonotonicCounts()

    def exposition(self) -> bytes:
        """Return all metrics in the Prometheus text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric from one snapshot, renamed ones also by their old name."""
        for family in self._families(self._status()):
            yield family
            if family.name in RENAMED:
                old = copy(family)
                old.name, old.documentation = RENAMED[family.name], f"Deprecated: {family.name}."
                old.samples = [
                    sample._replace(name=sample.name.replace(family.name, old.name, 1))
                    for sample in family.samples
                ]
                yield old

    def _families(self, status: NodeStatus) -> Iterator[Metric]:
        yield _info(status)
        for name, text, value in _gauges(status):
            yield GaugeMetricFamily(f"{PREFIX}_{name}", text, value)
        for name, text, count in _counters(status):
            yield CounterMetricFamily(f"{PREFIX}_{name}", text, count)
        yield from _optional_gauges(status)
        yield from _states(status)
        yield from self._outcomes(status)
        yield from _traffic(status.traffic)
        yield _levels(status.gossip_peers)
        yield from _tables(status.tables, status.table_limits)
        yield from _histograms(status)

    def _outcomes(self, status: NodeStatus) -> Iterator[Metric]:
        """Yield rollouts by outcome since the first scrape.

        Counting starts after the restore from disk, so that restored rollouts do not count.
        """
        rollouts = own = Counter[str]()
        if status.restored:
            rollouts = self._rollouts.look(status.rollouts)
            own = self._own_rollouts.look(_own_counts(status.yours))
        yield from _outcomes("rollouts", "Rollouts of the swarm, by outcome.", rollouts)
        yield from _outcomes("own_rollouts", "Rollouts of this node, by outcome.", own)
        yield self._rejections(rollouts)

    def _rejections(self, counts: Counter[str]) -> Metric:
        family = CounterMetricFamily(
            f"{PREFIX}_rollouts_rejected", "Rollouts of the swarm, by reason.", labels=["reason"]
        )
        other = 0
        reasons = {key[1:]: count for key, count in counts.items() if key.startswith(":")}
        for reason, count in sorted(reasons.items()):
            if len(self._reasons) < REASONS_MAX:
                self._reasons[reason] = None
            if reason in self._reasons:
                family.add_metric([reason], count)
            else:
                other += count
        family.add_metric(["other"], other)
        return family


def _info(status: NodeStatus) -> Metric:
    values = {
        "peer_id": status.peer_id,
        "run_id": status.run_id,
        "run": status.run_name,
        "roles": ",".join(status.roles),
        "version": status.machine.version,
    }
    return InfoMetricFamily(PREFIX, "Identity and version of this node.", values)


def _gauges(status: NodeStatus) -> Iterator[tuple[str, str, float]]:
    """Yield name, description and value of each gauge without labels."""
    judging, machine, circuits, loop = (
        status.judging,
        status.machine,
        status.circuits,
        status.loop,
    )
    overruled = judging.overruled.get(status.peer_id, 0)
    scores = [peer.score or 0.0 for peer in status.gossip_peers] or [0.0]
    yield from (
        ("started_seconds", "Unix time of the start.", status.started_at),
        ("epoch", "Epoch of the run.", status.epoch),
        ("peers", "Connected peers.", status.peers_connected),
        ("peers_banned", "Peers banned for invalid messages.", status.peers_banned),
        ("members", "Live members on the roster.", status.members_count),
        *_council(status.council),
        ("policy_version", "Policy version held.", status.policy_version),
        ("policy_version_newest", "Newest policy version known.", status.policy_version_newest),
        ("policy_lag_max", "Largest lag of a trained rollout, versions.", status.policy_lag_max),
        ("workers_judged", "Workers with two or more decided rollouts.", judging.workers),
        ("workers_off", "Workers off in the worst rule in doubt, else 0.", judging.workers_off),
        ("scores_overruled", "Scores of this node that a committee contradicted.", overruled),
        ("disk_free_bytes", "Free space of the data directory's disk.", machine.disk_free_bytes),
        ("disk_total_bytes", "Size of the data directory's disk.", machine.disk_total_bytes),
        ("p2pd_memory_bytes", "Resident memory of p2pd.", machine.p2pd_memory_bytes),
        ("gpus", "GPUs reported by the driver.", machine.gpus),
        ("gpu_memory_bytes", "Memory of all GPUs.", machine.gpu_memory_bytes),
        ("gpu_memory_free_bytes", "Free memory of all GPUs.", machine.gpu_memory_free_bytes),
        ("relays", "Relays that accept connections for this node.", circuits.relays),
        ("circuit_reservations", "Nodes reachable through this relay.", circuits.reservations),
        ("circuits", "Connections relayed by this node.", circuits.circuits),
        ("gossip_score_min", "Lowest peer score; 0 without peers.", min(scores)),
        ("gossip_score_mean", "Mean peer score; 0 without peers.", fmean(scores)),
        ("loop_delay_max_seconds", "Longest delay of the event loop.", loop.delay_seconds_max),
        (
            "loop_cpu_delay_max_seconds",
            "Longest delay of the event loop without its waits for a CPU core.",
            loop.own_delay_seconds_max,
        ),
    )
    for (name, text), value in zip(_DOWNLOAD, _download(status), strict=True):
        yield f"download_{name}", text, value


def _council(council: CouncilSummary) -> Iterator[tuple[str, str, float]]:
    """Yield name, description and value of each gauge of the council and its pages."""
    notarised, drawing = council.notarised_share or 0.0, council.drawing_share or 0.0
    yield "council_members", "Members of the council.", council.members_count
    yield "council_seats", "Seats of the council.", council.seats_total
    yield "council_seats_own", "Seats of this node.", council.seats_own
    yield "council_era", "Era for which it was drawn; 0: the genesis.", council.era
    yield "council_member", "1 if this node is a member.", council.is_member
    yield "council_members_absent", "Members that send no votes.", council.absent_count
    yield "council_votes_missing", "Votes that the newest page lacks.", council.votes_missing
    yield "page_final_epoch", "Epoch of the newest final page, or -1.", council.final_epoch
    yield "page_final_age_epochs", "Age of the newest final page.", council.final_age_epochs
    yield "page_final_age_seconds", "Age of the newest final page.", council.final_age_seconds
    yield "leader_term", "Term of the trainer that leads.", council.term
    yield "leader_live", "1 if the trainer that leads is live.", council.is_leader_live
    yield "version_final", "Newest final version, or -1.", council.final_version
    yield "pages_notarised_fraction", "Fraction of recent epochs with a notarised page.", notarised
    yield "pages_drawing_fraction", "Fraction of recent epochs that drew committees.", drawing


_DOWNLOAD = (
    ("version", "Newest version in download, -1 without one."),
    ("pieces", "Its pieces, 0 before its index is received."),
    ("pieces_held", "Its pieces on this node."),
    ("bytes_per_second", "Its download rate."),
    ("remaining_seconds", "Remaining time at that rate; infinite while no bytes arrive."),
)


def _download(status: NodeStatus) -> tuple[float, ...]:
    for one in status.arrivals:
        if one.arrived_at is None and one.version >= 0:
            seconds = math.inf if one.seconds_to_go is None else one.seconds_to_go
            return one.version, one.pieces, one.pieces_here, one.bytes_per_second, seconds
    return -1, 0, 0, 0, 0


def _counters(status: NodeStatus) -> Iterator[tuple[str, str, float]]:
    """Yield name, description and value of each counter without labels."""
    traffic = status.traffic
    yield "dial_failures", "Failed dials.", status.dial_failures
    yield "circuit_bytes", "Bytes relayed by this node.", status.circuits.carried_bytes
    yield "gossip_dropped", "Frames dropped for slow peers.", traffic.gossip_dropped
    text = "Download bytes saved by encodings of weights."
    yield "weights_saved_bytes", text, traffic.weights_saved
    yield "shadow_confirmed", "Versions equal to the step of this shadow.", status.shadow.confirmed
    yield "shadow_differing", "Versions that differ from it.", status.shadow.differing


EVALUATION = {
    "version": "Newest version evaluated on held-out problems.",
    "problems": "Held-out problems of that version.",
    "reward_mean": "Mean reward of that version on held-out problems.",
    "reward_low": "Lower bound of the 95 % interval of the mean reward.",
    "reward_high": "Upper bound of the 95 % interval of the mean reward.",
    "solved_fraction": "Fraction of answers to held-out problems with the task reward 1.",
    "solved_low": "Lower bound of the 95 % interval of that fraction.",
    "solved_high": "Upper bound of the 95 % interval of that fraction.",
}


def _optional_gauges(status: NodeStatus) -> Iterator[Metric]:
    """Yield gauges without a sample before the first batch, training step or evaluation."""
    newest = status.checkpoints[-1] if status.checkpoints else None
    point = status.evaluation[-1] if status.evaluation else None
    steps = {"version": "Version of the newest training step."} | STATISTICS
    for source, prefix, attribute_texts in (
        (newest, "", {"reward_mean": "Mean reward of the newest batch."}),
        (status.training, "training_", steps),
        (status.shadow, "shadow_", {"version": "Version whose state this shadow has."}),
        (point, "evaluation_", EVALUATION),
    ):
        for name, text in attribute_texts.items():
            family = GaugeMetricFamily(f"{PREFIX}_{prefix}{name}", text, labels=())
            value = getattr(source, name, None)
            if value is not None:
                family.add_metric((), value)
            yield family


def _states(status: NodeStatus) -> Iterator[Metric]:
    """Yield the current state, and the time in each state."""
    now = GaugeMetricFamily(f"{PREFIX}_state", "1 for the current state.", labels=["state"])
    spent = CounterMetricFamily(
        f"{PREFIX}_state_seconds", "Time in each state since the start.", labels=["state"]
    )
    for state in get_args(State):
        now.add_metric([state], float(state == status.state))
        spent.add_metric([state], status.machine.state_seconds.get(state, 0.0))
    yield now
    yield spent


def _own_counts(own: OwnWork) -> RolloutCounts:
    return RolloutCounts(own.committed, own.certified, own.rejected, own.expired, own.trained)


def _outcomes(name: str, text: str, counts: Counter[str]) -> Iterator[Metric]:
    """Yield counters of committed and trained rollouts, and of exclusive outcomes.

    Rejections of the swarm have another family with their reasons.
    """
    family = CounterMetricFamily(f"{PREFIX}_{name}", text, labels=["outcome"])
    for outcome in OUTCOMES:
        family.add_metric([outcome], counts[outcome])
    yield family
    for part in PARTS:
        told = f"{text.partition(',')[0]} that were {part}."
        yield CounterMetricFamily(f"{PREFIX}_{name}_{part}", told, counts[part])


def _traffic(traffic: TrafficStatus) -> Iterator[Metric]:
    """Yield bytes of gossip, and of blobs by kind, direction and transport."""
    gossip = CounterMetricFamily(f"{PREFIX}_gossip_bytes", "Bytes of gossip.", labels=["direction"])
    gossip.add_metric(["sent"], traffic.gossip_sent)
    gossip.add_metric(["received"], traffic.gossip_received)
    yield gossip
    family = CounterMetricFamily(
        f"{PREFIX}_blob_bytes",
        "Blob bytes by kind, direction and transport.",
        labels=["kind", "direction", "way"],
    )
    for direction, blobs, weights, http in (
        ("sent", traffic.blobs_sent, traffic.weights_sent, traffic.weights_sent_http),
        (
            "received",
            traffic.blobs_received,
            traffic.weights_received,
            traffic.weights_received_http,
        ),
    ):
        family.add_metric(["body", direction, "stream"], blobs - weights)
        family.add_metric(["weights", direction, "stream"], weights - http)
        family.add_metric(["weights", direction, "http"], http)
    yield family


def _levels(peers: Sequence[PeerRow]) -> Metric:
    family = GaugeMetricFamily(
        f"{PREFIX}_gossip_peers", "Gossip peers by score level.", labels=["level"]
    )
    for level in ScoreLevel:
        family.add_metric([level], sum(peer.level == level for peer in peers))
    return family


def _tables(sizes: Mapping[str, int], limits: Mapping[str, int]) -> Iterator[Metric]:
    """Yield the size and the limit of each table."""
    entries = GaugeMetricFamily(
        f"{PREFIX}_table_entries",
        "Entries, or bytes by name, of tables that untrusted peers can fill.",
        labels=["table"],
    )
    most = GaugeMetricFamily(
        f"{PREFIX}_table_entries_limit", "Limits of these tables.", labels=["table"]
    )
    for name in sorted(sizes):
        entries.add_metric([name], sizes[name])
        most.add_metric([name], limits[name])
    yield entries
    yield most


def _histograms(status: NodeStatus) -> Iterator[Metric]:
    downloads = HistogramMetricFamily(
        f"{PREFIX}_version_download_seconds",
        "Durations of version downloads by encoding.",
        labels=["form"],
    )
    for form, one in status.durations.items():
        downloads.add_metric([form], _buckets(SECONDS_BOUNDS, one.counts), one.seconds)
    yield downloads
    loop = HistogramStatus(status.loop.delays, status.loop.delay_seconds)
    for name, text, bounds, one in (
        (
            "policy_swap",
            "Policy swap latency: from a version's manifest to its first token here.",
            SWAP_BOUNDS,
            status.policy_swaps,
        ),
        (
            "generation",
            "Generation time of own rollouts, concurrent with others.",
            GENERATION_BOUNDS,
            status.generations,
        ),
        (
            "check",
            "Verification time of others' rollouts, after the body was received.",
            CHECK_BOUNDS,
            status.checks,
        ),
        ("loop_delay", "Delays of the event loop.", LOOP_DELAY_BOUNDS, loop),
    ):
        buckets = _buckets(bounds, one.counts)
        yield HistogramMetricFamily(f"{PREFIX}_{name}_seconds", text, buckets, one.seconds)


def _buckets(bounds: Sequence[float], counts: Sequence[int]) -> list[tuple[str, float]]:
    """Return cumulative Prometheus buckets; empty ``counts`` stand for zeros."""
    known = counts or (0,) * (len(bounds) + 1)
    return list(zip([*map(str, bounds), "+Inf"], accumulate(known), strict=True))
