"""Time series for the plots of a report."""

from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from simulations.checkers import Watch
from simulations.checkers.certificates import Certificates
from simulations.checkers.swarm import TracedNode
from simulations.checkers.wire import Opened, shown
from simulations.metrics.makespan import VersionSpread
from simulations.metrics.spread import SpreadHistogram
from simulations.runtime.trace import Event

POINTS_MAX = 4000
"""Plots are a thousand pixels wide; longer runs drop every second point, repeatedly."""

MARKS_MAX = 200


@dataclass(frozen=True, slots=True)
class Moment:
    """The swarm at one time: seconds since the start, counts, and sizes of the nodes' views."""

    at: float
    committed: int
    certified: int
    live: int
    view_min: float
    view_median: float
    view_max: float


@dataclass(frozen=True, slots=True)
class Learned:
    """One published version: time, mean reward, and age of its rollouts' policies."""

    version: int
    at: float
    reward: float
    lag_mean: float
    lag_max: int


class Series:
    """Records one ``Moment`` per epoch and one ``Learned`` per version."""

    def __init__(self, watch: Watch, certificates: Certificates) -> None:
        self._watch = watch
        self._certificates = certificates
        self._committed = 0
        self._views: dict[str, float] = {}
        self._ticks = 0
        self._every = 1
        self.moments: list[Moment] = []
        self.versions: dict[int, Learned] = {}
        self.marks: list[tuple[float, str]] = []
        """Seconds since the start, and the fault or event at that time."""
        self.makespans: list[VersionSpread] = []
        self.delays = SpreadHistogram()
        watch.on_message("rollout-commit", self._on_commit)
        watch.on_message("checkpoint-manifest", self._on_manifest)
        watch.on("sample", self._on_sample)
        watch.on("fault", self._on_mark)
        watch.on("calm", self._on_mark)
        watch.on_tick(self._on_tick)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        started_at = self._watch.started_at
        return {
            "moments": [asdict(moment) for moment in self.moments],
            "versions": [asdict(version) for version in self.versions.values()],
            "makespans": [
                {
                    "version": spread.version,
                    "at": round(spread.published_at - started_at, 3),
                    "seconds": None if spread.seconds == float("inf") else spread.seconds,
                    "working_seconds": (
                        None if spread.working_seconds == float("inf") else spread.working_seconds
                    ),
                    "ideal_seconds": spread.ideal_seconds,
                    "nodes": spread.nodes,
                }
                for spread in self.makespans
            ],
            "gossip_delay_s": [
                [round(at, 5), round(share, 6)] for at, share in self.delays.curve()
            ],
            "marks": [[round(at, 3), what] for at, what in self.marks],
        }

    def _on_commit(self, _event: Event, _member: TracedNode, commit: Opened) -> None:
        self._committed += commit.stores == 1

    def _on_manifest(self, event: Event, member: TracedNode, manifest: Opened) -> None:
        fields = manifest.fields
        version = fields["version"]
        if version == 0 or manifest.signer == member.peer or version in self.versions:
            return
        commits = [self._watch.wire.message(commit) for commit in fields["batch"]]
        lags = [version - 1 - commit.fields["version"] for commit in commits if commit is not None]
        self.versions[version] = Learned(
            version,
            round(event.at - self._watch.started_at, 3),
            fields["reward_mean"] / 1e6,
            round(fmean(lags), 3) if lags else 0.0,
            max(lags, default=0),
        )

    def _on_sample(self, event: Event) -> None:
        members = event.facts.get("members")
        if isinstance(members, int):
            self._views[event.node] = members

    def _on_mark(self, event: Event) -> None:
        if len(self.marks) < MARKS_MAX:
            what = "calm" if event.kind == "calm" else shown(event.facts.get("what", "fault"))
            self.marks.append((event.at - self._watch.started_at, what))

    def _on_tick(self, now: float) -> None:
        self._ticks += 1
        if self._ticks % self._every:
            return
        live = self._watch.swarm.live()
        views = [self._views[member.name] for member in live if member.name in self._views]
        self.moments.append(
            Moment(
                round(now - self._watch.started_at, 3),
                self._committed,
                self._certificates.certified,
                len(live),
                min(views, default=0),
                median(views) if views else 0,
                max(views, default=0),
            )
        )
        if len(self.moments) >= POINTS_MAX:
            self.moments = self.moments[::2]
            self._every *= 2
