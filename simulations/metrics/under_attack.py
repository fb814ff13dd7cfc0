"""What honest nodes had to bear while adversaries acted that do not act all the time."""

from dataclasses import dataclass
from statistics import fmean

from typing_extensions import override

from simulations.checkers import Watch
from simulations.checkers.limits import LIMITS
from simulations.checkers.swarm import TracedNode
from simulations.metrics.spread import Spread
from simulations.runtime.trace import Event

CERTIFICATES = "certificates"


@dataclass(frozen=True, slots=True)
class AttackNumbers:
    """Of honest nodes, between two moments in seconds since the start."""

    from_s: float
    until_s: float
    coverage_p50_s: float
    coverage_p99_s: float
    """Infinite when more than one in a hundred never heard."""
    core_share_mean: float
    core_share_max: float
    """Of the time, in which the core that handles messages was busy; above 1: it fell behind."""
    peaks: dict[str, int]
    """The largest size of each table that has a limit."""


class HonestSpread(Spread):
    """What honest nodes tell each other in a part of the time.

    Not their certificates: a second one of a commit goes to its author's peers alone, which are not
    all in a swarm of so many that not everybody is connected to everybody.
    """

    def __init__(self, watch: Watch, seconds: tuple[float, float]) -> None:
        super().__init__(watch)
        self._seconds = seconds

    @override
    def counts(self, event: Event, author: TracedNode) -> bool:
        first, last = self._seconds
        if not first <= event.at - self.watch.started_at <= last:
            return False
        return author.honest and event.facts["topic"] != CERTIFICATES

    @override
    def listens(self, node: TracedNode) -> bool:
        return node.honest


class UnderAttack:
    """Reads samples and gossip while the trace goes by."""

    def __init__(self, watch: Watch, seconds: tuple[float, float]) -> None:
        self._watch = watch
        self._seconds = seconds
        self._spread = HonestSpread(watch, seconds)
        self._peaks = dict.fromkeys(LIMITS, 0)
        self._core: dict[str, tuple[float, float, float, float]] = {}
        """Node to the time and the busy seconds of its first and of its last sample."""
        watch.on("sample", self._on_sample)

    def _on_sample(self, event: Event) -> None:
        member = self._watch.swarm.members.get(event.node)
        first, last = self._seconds
        if member is None or not member.honest:
            return
        if not first <= event.at - self._watch.started_at <= last:
            return
        for name in LIMITS:
            value = event.facts.get(name)
            if isinstance(value, int) and value > self._peaks[name]:
                self._peaks[name] = value
        busy = event.facts.get("core_seconds")
        if isinstance(busy, float):
            began = self._core.get(event.node, (event.at, busy))[:2]
            self._core[event.node] = (*began, event.at, busy)

    def numbers(self) -> AttackNumbers:
        """Return what has been seen."""
        shares = [
            (after - before) / (until - since)
            for since, before, until, after in self._core.values()
            if until > since
        ]
        return AttackNumbers(
            *self._seconds,
            coverage_p50_s=self._spread.delays.quantile(0.5),
            coverage_p99_s=self._spread.delays.quantile(0.99),
            core_share_mean=fmean(shares) if shares else 0.0,
            core_share_max=max(shares, default=0.0),
            peaks=self._peaks,
        )
