"""Spread of gossip: the delay of every (message, node) pair, and duplicate copies."""

import math
from dataclasses import dataclass

from simulations.checkers import Watch
from simulations.checkers.swarm import TracedNode
from simulations.runtime.trace import Event

CLOSE_SECONDS = 30.0
"""A message that has not arrived by then comes by another path or never."""

SETTLE_SECONDS = 10.0
"""A younger node may not be in any mesh yet."""


class SpreadHistogram:
    """Histogram with buckets of two per cent: sums of millions of values in a few kilobytes."""

    GROWTH = 1.02
    SMALLEST = 1e-3

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self.count = 0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value; infinity is allowed."""
        self.count += times
        if math.isinf(value):
            return
        ratio = max(value, self.SMALLEST) / self.SMALLEST
        bucket = math.ceil(math.log(ratio) / math.log(self.GROWTH))
        self._buckets[bucket] = self._buckets.get(bucket, 0) + times

    def quantile(self, share: float) -> float:
        """Return the value that covers ``share`` of all, to two per cent; NaN if there are none."""
        if not self.count:
            return math.nan
        for value, cumulated in self.curve():
            if cumulated >= share:
                return value
        return math.inf

    def curve(self) -> list[tuple[float, float]]:
        """Return the share of all at or below each value, ascending."""
        points: list[tuple[float, float]] = []
        below = 0
        for bucket in sorted(self._buckets):
            below += self._buckets[bucket]
            points.append((self.SMALLEST * self.GROWTH**bucket, below / self.count))
        return points


@dataclass(slots=True)
class _Message:
    published_at: float
    holders: int
    delays: list[float]


class SpreadTracker:
    """Follows every gossiped message until it is old; nodes are bits of an integer.

    Nodes do not forward redundant messages, such as a second certificate of a commit. So a message
    counts only if at least half of the nodes received it; the other nodes count as infinitely late.
    """

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self._open: dict[object, _Message] = {}
        self._copies: dict[str, tuple[int, int]] = {}
        """Node to (messages, duplicates) at its last sample."""
        self._arrivals = 0
        self._duplicates = 0
        self.delays = SpreadHistogram()
        watch.on("gossip-published", self._on_published)
        watch.on("gossip-first", self._on_first)
        watch.on("node-up", self._on_up)
        watch.on("sample", self._on_sample)
        watch.on_tick(self._on_tick)

    @property
    def duplicates_per_message(self) -> float:
        """Duplicates received per message received."""
        return self._duplicates / self._arrivals if self._arrivals else 0.0

    def counts(self, event: Event, author: TracedNode) -> bool:
        """Return whether messages of ``author`` count."""
        del event, author
        return True

    def listens(self, node: TracedNode) -> bool:
        """Return whether deliveries to this node count."""
        del node
        return True

    def _on_published(self, event: Event) -> None:
        member = self.watch.swarm.members.get(event.node)
        if member is not None and self.counts(event, member):
            self._open[event.facts["id"]] = _Message(event.at, 1 << member.number, [])

    def _on_first(self, event: Event) -> None:
        member = self.watch.swarm.members.get(event.node)
        message = self._open.get(event.facts["id"])
        if member is not None and message is not None and self.listens(member):
            message.holders |= 1 << member.number
            if member.steady_since(message.published_at, event.at):  # else its downtime delayed it
                message.delays.append(event.at - message.published_at)

    def _on_up(self, event: Event) -> None:
        self._copies.pop(event.node, None)  # a new session counts from zero

    def _on_sample(self, event: Event) -> None:
        received = event.facts.get("gossip_received")
        duplicates = event.facts.get("gossip_duplicates")
        if isinstance(received, int) and isinstance(duplicates, int):
            before = self._copies.get(event.node, (0, 0))
            self._copies[event.node] = (received, duplicates)
            self._arrivals += received - before[0]
            self._duplicates += duplicates - before[1]

    def _on_tick(self, now: float) -> None:
        before = now - CLOSE_SECONDS
        settled = 0
        for member in self.watch.swarm.live():
            up_since = member.up_since
            if not self.listens(member):
                continue
            if up_since is not None and up_since <= before - SETTLE_SECONDS:
                settled |= 1 << member.number
        for message_id, message in list(self._open.items()):
            if message.published_at > before:
                break  # messages are in order of publication
            del self._open[message_id]
            self._count(message, settled)

    def _count(self, message: _Message, settled: int) -> None:
        missing = (settled & ~message.holders).bit_count()
        if missing > (settled & message.holders).bit_count():
            return
        for delay in message.delays:
            self.delays.add(delay)
        if missing:
            self.delays.add(math.inf, missing)
