"""Makespan of each version, against the bound of the access lines."""

import math
from dataclasses import dataclass, replace

from simulations.checkers import Watch
from simulations.checkers.swarm import TracedNode
from simulations.checkers.wire import Opened
from simulations.runtime.trace import Event

FIRST_CHUNK_ROUND_TRIPS = 8
"""Four for a connection (``simulations.network``), two for the index, two for the first chunk."""

STUCK_SECONDS = 60.0
"""A version that is incomplete after this time counts as never arriving."""


@dataclass(frozen=True, slots=True)
class VersionSpread:
    """One version: publication (unix seconds), time to the last node, the fluid bound."""

    version: int
    published_at: float
    seconds: float
    working_seconds: float
    """Time to the last trainer, validator or worker. Relays are left out: they have no reputation
    and share the slots of untrusted peers."""
    ideal_seconds: float
    nodes: int

    @property
    def ratio(self) -> float:
        """Makespan over the bound; 1 is perfect."""
        return self.seconds / self.ideal_seconds if self.ideal_seconds > 0 else math.nan

    def round_trips(self, round_trip_seconds: float) -> float:
        """Return the time beyond the bound, in round trips: they dominate for small files."""
        return max(0.0, self.seconds - self.ideal_seconds) / round_trip_seconds


@dataclass(slots=True)
class _OpenTransfer:
    spread: VersionSpread
    waiting: int
    """Bit set of the nodes without the version, by number."""
    relays: int
    """Bit set of the relays in the audience."""
    last_at: float


class Makespans:
    """Follows every version until the last node that ran throughout has it."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._open: dict[int, _OpenTransfer] = {}
        self._finished: dict[int, VersionSpread] = {}
        watch.on_message("checkpoint-manifest", self._on_manifest)
        watch.on("weights", self._on_weights)
        watch.on("node-down", self._on_down)

    def finished(self) -> list[VersionSpread]:
        """Return the versions that every node has, and those that exceeded ``STUCK_SECONDS``."""
        long_ago = self._watch.now - STUCK_SECONDS
        stuck = [
            item.spread
            for item in self._open.values()
            if item.waiting and item.spread.published_at < long_ago
        ]
        both = [*self._finished.values(), *stuck]
        return sorted(both, key=lambda spread: spread.version)

    def _on_manifest(self, event: Event, member: TracedNode, manifest: Opened) -> None:
        version = manifest.fields["version"]
        if manifest.signer != member.peer or version == 0:
            return  # the first version meets nodes that are still starting
        audience = [
            other
            for other in self._watch.swarm.live()
            if other.honest and other.number != member.number
        ]
        ideal = ideal_seconds(manifest.fields["total_bytes"], member, audience)
        waiting = sum(1 << other.number for other in audience)
        relays = sum(1 << other.number for other in audience if other.role == "relay")
        self._finished.pop(version, None)  # superseded by a later term
        spread = VersionSpread(version, event.at, math.inf, math.inf, ideal, len(audience))
        self._open[version] = _OpenTransfer(spread, waiting, relays, event.at)

    def _on_weights(self, event: Event) -> None:
        member, newest = self._watch.swarm.members.get(event.node), event.facts["version"]
        if member is None or not isinstance(newest, int):
            return
        for version, item in list(self._open.items()):
            if version <= newest and item.waiting >> member.number & 1:
                item.last_at = event.at
                self._leave(version, item, member)

    def _on_down(self, event: Event) -> None:
        member = self._watch.swarm.members.get(event.node)
        if member is not None:
            for version, item in list(self._open.items()):
                self._leave(version, item, member)

    def _leave(self, version: int, item: _OpenTransfer, member: TracedNode) -> None:
        item.waiting &= ~(1 << member.number)
        seconds = item.last_at - item.spread.published_at
        if not item.waiting & ~item.relays and math.isinf(item.spread.working_seconds):
            item.spread = replace(item.spread, working_seconds=seconds)
        if item.waiting:
            return
        del self._open[version]
        if seconds > 0:  # else all nodes left before one had it
            self._finished[version] = replace(item.spread, seconds=seconds)


def round_trips_least(nodes: int, fanout: int) -> int:
    """Return the minimum of round trips for the smallest file: one more per tree level.

    In each tree the root feeds one node and every inner one ``fanout`` others.
    """
    levels, width, reached = 1, 1, 1
    while reached < nodes:
        levels, width = levels + 1, width * fanout
        reached += width
    return FIRST_CHUNK_ROUND_TRIPS + levels


def ideal_seconds(total_bytes: int, root: TracedNode, audience: list[TracedNode]) -> float:
    """Return the lower bound of the makespan from ``root``, treating bits as a fluid.

    The root must send the file once, the slowest receiver must receive it, and all uploads together
    must carry it to every node. Source: Kumar and Ross, "Peer-assisted file distribution: the
    minimum distribution time", 2006. 0 if the links have no limit.
    """
    if not audience:
        return 0.0
    uploads = [root.upload, *(member.upload for member in audience)]
    downloads = [member.download for member in audience if member.download > 0]
    bounds = [total_bytes / min(downloads)] if downloads else []
    if root.upload > 0:
        bounds.append(total_bytes / root.upload)
    if all(upload > 0 for upload in uploads):
        bounds.append(len(audience) * total_bytes / sum(uploads))
    return max(bounds, default=0.0)
