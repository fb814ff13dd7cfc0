"""How a version came to the nodes of a testnet: when, and how many bytes from whom by which way."""

from collections import Counter
from dataclasses import dataclass

from node.api.arrivals import DownloadStatus
from node.testnet.record import SwarmRecord


@dataclass(frozen=True, slots=True)
class WeightsSpread:
    """One version; ``arrivals`` are those that were seen to end, by name of the node.

    ``receivers`` are the nodes that it should come to: those that answer or had it, without who
    published it.
    """

    version: int
    published_at: float
    receivers: tuple[str, ...]
    arrivals: dict[str, DownloadStatus]

    def seconds_to(self, count: int) -> float | None:
        """Return after how many seconds so many nodes had it; None if fewer did."""
        times = sorted(one.arrived_at or 0.0 for one in self.arrivals.values())
        return times[count - 1] - self.published_at if 0 < count <= len(times) else None

    @property
    def seconds_to_half(self) -> float | None:
        """Until half of the receivers, rounded up, had it."""
        return self.seconds_to(-(-len(self.receivers) // 2))

    @property
    def seconds_to_all(self) -> float | None:
        """Until all receivers had it."""
        return self.seconds_to(len(self.receivers))

    @property
    def root_bytes(self) -> int:
        """Sent by who published it, or fed the forest in its place."""
        return sum(one.root_bytes for one in self.arrivals.values())

    @property
    def http_bytes(self) -> int:
        """Sent by HTTP."""
        return sum(one.http_bytes for one in self.arrivals.values())

    @property
    def stream_bytes(self) -> int:
        """Sent by streams."""
        return sum(one.stream_bytes for one in self.arrivals.values())

    @property
    def peer_bytes(self) -> int:
        """Sent by the others to each other."""
        return self.http_bytes + self.stream_bytes - self.root_bytes

    @property
    def forms(self) -> Counter[str]:
        """To how many nodes it came in which form."""
        return Counter(one.form for one in self.arrivals.values())


def spread(record: SwarmRecord, version: int) -> WeightsSpread | None:
    """Return how a version came to the nodes; None when it is not known or came to nobody yet."""
    arrivals = record.arrived.get(version, {})
    published = [point for point in record.checkpoints if point.version == version]
    if not (arrivals and published):
        return None
    roots = [one.root for one in arrivals.values()]
    receivers = receivers_of(record, roots, arrivals)
    return WeightsSpread(version, published[0].created_at, receivers, arrivals)


def receivers_of(
    record: SwarmRecord, roots: list[str], arrivals: dict[str, DownloadStatus]
) -> tuple[str, ...]:
    """Return the nodes that a version should come to, in the order of the testnet."""
    return tuple(
        name
        for name, node in record.nodes.items()
        if name in arrivals or (node.condition == "running" and node.plan.peer_id not in roots)
    )
