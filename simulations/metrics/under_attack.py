"""Load and service of honest nodes while timed adversaries act."""

from collections import Counter
from dataclasses import dataclass
from statistics import fmean

from typing_extensions import override

from simulations.checkers import Watch
from simulations.checkers.limits import LIMITS
from simulations.checkers.swarm import TracedNode
from simulations.checkers.wire import Opened
from simulations.metrics.spread import SpreadTracker
from simulations.runtime.trace import Event

NEWS = {"rollout-commit": "commits", "checkpoint-manifest": "checkpoints"}
"""Kinds of messages with one author each, and their topics."""


@dataclass(frozen=True, slots=True)
class AttackNumbers:
    """Numbers of honest nodes between two times, in seconds since the start."""

    from_s: float
    until_s: float
    coverage_p50_s: float
    coverage_p99_s: float
    """Infinite if more than 1 % never received the message."""
    core_share_mean: float
    core_share_max: float
    """Highest share of time in which a node's message core was busy; above 1 it fell behind."""
    peaks: dict[str, int]
    """The largest size of each table that has a limit."""
    fed_share: float
    """Share of honest nodes' positions in the weights forests that are below a dishonest node."""
    misdials_per_minute: int
    """Maximum of dials per minute, over all honest nodes, to one honest machine for keys that it
    does not hold."""


class HonestSpread(SpreadTracker):
    """Spread of new messages between honest nodes, in a part of the run.

    A repeated commit goes only to peers of its author that hold it already, and in a sparse swarm
    these are not all nodes. A second certificate of a commit is redundant too; here no certificate
    counts.
    """

    def __init__(self, watch: Watch, seconds: tuple[float, float]) -> None:
        super().__init__(watch)
        self._seconds = seconds
        self._new: Counter[tuple[str, str]] = Counter()
        """(node, topic) to its own messages that it stored and has not yet published."""
        for kind in NEWS:
            watch.on_message(kind, self._on_stored)

    def _on_stored(self, _event: Event, member: TracedNode, message: Opened) -> None:
        if message.signer == member.peer and not message.stored_by_author:
            self._new[member.name, NEWS[message.kind]] += 1

    @override
    def counts(self, event: Event, author: TracedNode) -> bool:
        key = author.name, str(event.facts["topic"])
        if not self._new[key]:
            return False
        self._new[key] -= 1
        first, last = self._seconds
        return author.honest and first <= event.at - self.watch.started_at <= last

    @override
    def listens(self, node: TracedNode) -> bool:
        return node.honest


class UnderAttack:
    """Reads samples and gossip of the trace."""

    def __init__(self, watch: Watch, seconds: tuple[float, float]) -> None:
        self._watch = watch
        self._seconds = seconds
        self._spread = HonestSpread(watch, seconds)
        self._peaks = dict.fromkeys(LIMITS, 0)
        self._core: dict[str, tuple[float, float, float, float]] = {}
        """Node to (time, busy seconds) of its first and of its last sample."""
        self._fed: Counter[str] = Counter()
        self._misdials: Counter[tuple[str, int]] = Counter()
        """Keyed by machine and minute."""
        watch.on("sample", self._on_sample)
        watch.on("forest", self._on_forest)
        watch.on("misdial", self._on_misdial)

    def _is_honest_and_meanwhile(self, event: Event) -> bool:
        first, last = self._seconds
        member = self._watch.swarm.members.get(event.node)
        meanwhile = first <= event.at - self._watch.started_at <= last
        return member is not None and member.honest and meanwhile

    def _on_sample(self, event: Event) -> None:
        if not self._is_honest_and_meanwhile(event):
            return
        for name in LIMITS:
            value = event.facts.get(name)
            if isinstance(value, int) and value > self._peaks[name]:
                self._peaks[name] = value
        busy = event.facts.get("core_seconds")
        if isinstance(busy, float):
            began = self._core.get(event.node, (event.at, busy))[:2]
            self._core[event.node] = (*began, event.at, busy)

    def _on_forest(self, event: Event) -> None:
        if self._is_honest_and_meanwhile(event):
            for name in ("children", "fed_badly"):
                self._fed[name] += int(str(event.facts[name]))

    def _on_misdial(self, event: Event) -> None:
        where = str(event.facts["door"])
        owner = self._watch.swarm.members.get(where)
        if self._is_honest_and_meanwhile(event) and (owner is None or owner.honest):
            self._misdials[where, int((event.at - self._watch.started_at) // 60)] += 1

    def numbers(self) -> AttackNumbers:
        """Return the numbers so far."""
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
            fed_share=self._fed["fed_badly"] / max(1, self._fed["children"]),
            misdials_per_minute=max(self._misdials.values(), default=0),
        )
