"""Distribution of a version to the nodes of a testnet: times, and bytes by source and transport."""

from collections import Counter
from dataclasses import dataclass

from node.api.downloads import DownloadStatus
from node.testnet.record import SwarmRecord


@dataclass(frozen=True, slots=True)
class WeightsSpread:
    """Distribution of one version; ``arrivals`` are the complete downloads by name of the node.

    ``receivers`` are the nodes that should download it: those that respond or have it, without its
    publisher.
    """

    version: int
    published_at: float
    receivers: tuple[str, ...]
    arrivals: dict[str, DownloadStatus]

    def seconds_to(self, count: int) -> float | None:
        """Return the seconds until ``count`` nodes had it; None if fewer have it."""
        times = sorted(one.arrived_at or 0.0 for one in self.arrivals.values())
        return times[count - 1] - self.published_at if 0 < count <= len(times) else None

    @property
    def seconds_to_half(self) -> float | None:
        """Seconds until half of the receivers, rounded up, had it."""
        return self.seconds_to(-(-len(self.receivers) // 2))

    @property
    def seconds_to_all(self) -> float | None:
        """Seconds until all receivers had it."""
        return self.seconds_to(len(self.receivers))

    @property
    def root_bytes(self) -> int:
        """Bytes sent by the root of the forest, mostly the publisher."""
        return sum(one.root_bytes for one in self.arrivals.values())

    @property
    def http_bytes(self) -> int:
        """Bytes sent over HTTP."""
        return sum(one.http_bytes for one in self.arrivals.values())

    @property
    def stream_bytes(self) -> int:
        """Bytes sent over libp2p streams."""
        return sum(one.stream_bytes for one in self.arrivals.values())

    @property
    def peer_bytes(self) -> int:
        """Bytes sent by all nodes but the root."""
        return self.http_bytes + self.stream_bytes - self.root_bytes

    @property
    def forms(self) -> Counter[str]:
        """Number of downloads by encoding."""
        return Counter(one.form for one in self.arrivals.values())


def spread(record: SwarmRecord, version: int) -> WeightsSpread | None:
    """Return the distribution of a version; None if it is unknown or no node has it yet."""
    arrivals = record.arrived.get(version, {})
    published = [point for point in record.checkpoints if point.version == version]
    if not (arrivals and published):
        return None
    roots = [one.root for one in arrivals.values()]
    receivers = tuple(
        name
        for name, node in record.nodes.items()
        if name in arrivals or (node.condition == "running" and node.plan.peer_id not in roots)
    )
    return WeightsSpread(version, published[0].created_at, receivers, arrivals)
