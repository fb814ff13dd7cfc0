"""Results of a simulation as numbers, from the trace alone; ``docs/simulation.md`` defines them."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from simulations.checkers import Attached, Violation, Watch
from simulations.checkers.swarm import TracedNode
from simulations.checkers.wire import Opened
from simulations.metrics.makespan import Makespans, round_trips_least
from simulations.metrics.series import Series
from simulations.metrics.spread import SpreadTracker
from simulations.runtime.trace import Event

SETTLE_EPOCHS = 6
"""A node that started more recently may not be synchronised."""


@dataclass(frozen=True, slots=True)
class RolloutNumbers:
    """Rollouts by outcome."""

    committed: int
    certified: int
    rejected: int
    expired: int
    lost: int


@dataclass(frozen=True, slots=True)
class GossipNumbers:
    """Coverage and delay of gossip; None if too many nodes received nothing."""

    coverage_p50_s: float | None
    coverage_p99_s: float | None
    duplicates_per_message: float


@dataclass(frozen=True, slots=True)
class WeightsNumbers:
    """Spread of weights; None before the first version is everywhere."""

    versions: int
    makespan_ratio_p50: float | None
    makespan_ratio_p99: float | None
    makespan_seconds_p50: float | None
    round_trips_p50: float | None
    """Makespan beyond the bound, in mean round trips of the network."""
    round_trips_least: int | None
    """The minimum for any file, however small."""
    bytes_per_node: int


@dataclass(frozen=True, slots=True)
class LedgerNumbers:
    """Work that final pages decide, and how far nodes are behind with it."""

    rollouts: int
    tokens: int
    checks: int
    slashed: int
    behind_epochs_p99: float | None


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run; ``to_json`` is the output of ``simulate run --json``."""

    plan: Mapping[str, Any]
    """Scenario, seed and all other options by name; enough to repeat the run."""
    scenario: str
    seed: int
    nodes: int
    virtual_s: float
    wall_s: float
    events: int
    trace_digest: str
    rollouts: RolloutNumbers
    certified_false: int
    contradictory_certificates: int
    conflicting_final_pages: int
    final_gap_epochs_p50: float | None
    final_gap_epochs_p99: float | None
    ledger: LedgerNumbers
    committee_agreement: float | None
    gossip: GossipNumbers
    weights: WeightsNumbers
    trainer_idle_share: float | None
    versions_published: int
    peak_rss_mb: int
    violations: tuple[Violation, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)


class EpochGaps(Counter[int]):
    """Numbers of epochs, with the number of samples that had each."""

    def quantile(self, share: float) -> float:
        """Return the gap that covers ``share`` of all samples; NaN if there are none."""
        needed, below = math.ceil(share * self.total()), 0
        for gap in sorted(self):
            below += self[gap]
            if below >= needed:
                return gap
        return math.nan


class FinalGaps:
    """Counts epochs at every sample of a node that has run for ``SETTLE_EPOCHS``."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.final = EpochGaps()
        """From the newest final page to the present."""
        self.counted = EpochGaps()
        """From the newest page whose work the node has counted to its newest final page."""
        watch.on("sample", self._on_sample)

    def _on_sample(self, event: Event) -> None:
        member = self._watch.swarm.members.get(event.node)
        final_epoch, rules = event.facts.get("final_epoch"), self._watch.rules
        if member is None or not member.honest or not isinstance(final_epoch, int):
            return
        if member.steady_since(event.at - SETTLE_EPOCHS * rules.epoch_seconds, event.at):
            self.final[rules.epoch_at(event.at) - final_epoch] += 1
            counted_epoch = event.facts.get("counted_epoch")
            if isinstance(counted_epoch, int):
                self.counted[final_epoch - counted_epoch] += 1


class RunMeter:
    """Counts events of the trace."""

    def __init__(self, watch: Watch, attached: Attached, round_trip_seconds: float) -> None:
        self._round_trip_seconds = round_trip_seconds
        self._watch = watch
        self._certificates = certificates = attached.certificates
        self._pages = attached.pages
        self._ledger = attached.ledger
        self._gaps = FinalGaps(watch)
        self._spread = SpreadTracker(watch)
        self._makespans = Makespans(watch)
        self.series = Series(watch, certificates)
        self._commits: dict[bytes, tuple[int, bool]] = {}
        """Commit digest to its epoch, and whether its author is honest."""
        self._draws: dict[bytes, Counter[object]] = {}
        self._weights_bytes = 0
        self._weights_sampled: dict[str, int] = {}
        """Node to the bytes of its last sample in this session."""
        self._trained_seconds: dict[str, float] = {}
        """Node to the seconds of its newest step; those of shadows make no policy."""
        self._step_seconds = 0.0
        self._training_since: float | None = None
        self._training_until: float | None = None
        self._newest_version = 0
        watch.on_message("rollout-commit", self._on_commit)
        watch.on_message("checkpoint-manifest", self._on_manifest)
        watch.on("committee", self._on_committee)
        watch.on("node-up", self._on_up)
        watch.on("sample", self._on_sample)
        watch.on("trained", self._on_trained)
        watch.on("policy-made", self._on_made)

    # Events

    def _on_commit(self, _event: Event, _member: TracedNode, commit: Opened) -> None:
        if commit.digest not in self._commits:
            honest = self._watch.swarm.honest(commit.signer)
            self._commits[commit.digest] = (commit.fields["epoch"], honest)

    def _on_manifest(self, event: Event, member: TracedNode, manifest: Opened) -> None:
        if manifest.signer == member.peer:
            return  # it counts as published when another node has it
        version = manifest.fields["version"]
        if version > self._newest_version:
            self._newest_version = version
            if version >= self._watch.rules.steps:
                self._training_until = event.at

    def _on_committee(self, event: Event) -> None:
        commit = event.facts["commit"]
        if isinstance(commit, bytes):
            self._draws.setdefault(commit, Counter())[event.facts["members"]] += 1

    def _on_up(self, event: Event) -> None:
        self._weights_sampled[event.node] = 0

    def _on_sample(self, event: Event) -> None:
        received = event.facts.get("weights_received")
        if isinstance(received, int):
            self._weights_bytes += received - self._weights_sampled.get(event.node, 0)
            self._weights_sampled[event.node] = received

    def _on_trained(self, event: Event) -> None:
        self._trained_seconds[event.node] = float(event.facts.get("seconds") or 0.0)

    def _on_made(self, event: Event) -> None:
        seconds = self._trained_seconds.pop(event.node, None)
        if self._training_until is None and seconds is not None:
            self._step_seconds += seconds
            if self._training_since is None:
                self._training_since = event.at - seconds

    # Results

    def result(
        self,
        plan: Mapping[str, Any],
        *,
        nodes: int,
        wall_s: float,
        events: int,
        trace_digest: str,
        peak_rss_mb: int,
    ) -> RunResult:
        """Return the numbers of the run that ends now; ``plan`` has at least scenario and seed."""
        watch = self._watch
        violation = watch.violation
        return RunResult(
            plan=plan,
            scenario=plan["scenario"],
            seed=plan["seed"],
            nodes=nodes,
            virtual_s=round(watch.now - watch.started_at, 3),
            wall_s=round(wall_s, 3),
            events=events,
            trace_digest=trace_digest,
            rollouts=self._rollouts(),
            certified_false=self._certificates.certified_false,
            contradictory_certificates=self._certificates.contradictory,
            conflicting_final_pages=self._pages.conflicting,
            final_gap_epochs_p50=rounded(self._gaps.final.quantile(0.5)),
            final_gap_epochs_p99=rounded(self._gaps.final.quantile(0.99)),
            ledger=LedgerNumbers(
                **asdict(self._ledger.sums),
                behind_epochs_p99=rounded(self._gaps.counted.quantile(0.99)),
            ),
            committee_agreement=self._committee_agreement(),
            gossip=GossipNumbers(
                rounded(self._spread.delays.quantile(0.5)),
                rounded(self._spread.delays.quantile(0.99)),
                round(self._spread.duplicates_per_message, 3),
            ),
            weights=self._weights(),
            trainer_idle_share=self._trainer_idle_share(),
            versions_published=self._newest_version,
            peak_rss_mb=peak_rss_mb,
            violations=() if violation is None else (violation,),
        )

    def _rollouts(self) -> RolloutNumbers:
        rules, outcomes = self._watch.rules, self._certificates.outcomes
        oldest = rules.epoch_at(self._watch.now) - rules.expire_epochs
        certified = rejected = expired = lost = 0
        for digest, (epoch, honest) in self._commits.items():
            outcome = outcomes.get(digest)
            if outcome is None:
                expired += epoch < oldest
                lost += honest and epoch < oldest
            elif True in outcome:
                certified += 1
            else:
                rejected += 1
                lost += honest
        return RolloutNumbers(len(self._commits), certified, rejected, expired, lost)

    def _committee_agreement(self) -> float | None:
        compared = [draws for draws in self._draws.values() if draws.total() > 1]
        pairs = sum(draws.total() for draws in compared)
        agreeing = sum(max(draws.values()) for draws in compared)
        return round(agreeing / pairs, 6) if pairs else None

    def _weights(self) -> WeightsNumbers:
        self.series.makespans = self._makespans.finished()
        spreads = self.series.makespans
        ratios = sorted(spread.ratio for spread in spreads)
        round_trips = sorted(spread.round_trips(self._round_trip_seconds) for spread in spreads)
        least = [round_trips_least(it.nodes, self._watch.rules.fanout) for it in spreads]
        self.series.delays = self._spread.delays
        return WeightsNumbers(
            versions=len(ratios),
            makespan_ratio_p50=rounded(quantile(ratios, 0.5)),
            makespan_ratio_p99=rounded(quantile(ratios, 0.99)),
            makespan_seconds_p50=rounded(quantile(sorted(it.seconds for it in spreads), 0.5)),
            round_trips_p50=rounded(quantile(round_trips, 0.5)),
            round_trips_least=max(least, default=None),
            bytes_per_node=round(self._weights_bytes / max(1, len(self._watch.swarm.members))),
        )

    def _trainer_idle_share(self) -> float | None:
        if self._training_since is None:
            return None
        until = self._watch.now if self._training_until is None else self._training_until
        span = until - self._training_since
        return round(max(0.0, 1 - self._step_seconds / span), 4) if span > 0 else None


def quantile(ascending: list[float], share: float) -> float:
    """Return the smallest value that covers at least ``share`` of all; NaN if there are none."""
    if not ascending:
        return math.nan
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


def rounded(value: float) -> float | None:
    """Return a number for JSON, which has neither infinity nor NaN."""
    return round(value, 4) if math.isfinite(value) else None
