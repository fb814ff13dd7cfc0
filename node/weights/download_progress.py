"""What is seen of downloads: which pieces are here, who is asked, and what came from whom.

A download notes these while it runs, at the cost of microseconds a chunk; they decide nothing. A
piece is a chunk. ``now`` is of a monotonic clock, in seconds.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from node.network.blobs.traffic_stats import TrafficStats
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from protocol.core.types import PeerId
from protocol.shardcast.events import Ask
from protocol.shardcast.index import ShardIndex
from roles.runtime.metrics import Histogram

ARRIVED_KEPT = 8
"""Arrivals that are remembered; a guess: who looks once a second misses none of a fast run."""

SECONDS_BOUNDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""By which durations are told apart; a guess, from a testnet's to 62 GB at 300 Mbit/s."""


class Form(StrEnum):
    """How a file travels: as it is, as byte planes, or as a patch of another version."""

    FILE = "file"
    PLANES = "planes"
    PATCH = "patch"


@dataclass(frozen=True, slots=True)
class Label:
    """What a download brings, as people call it; ``version`` -1 for what is not a policy.

    ``spared_bytes``: how much longer the file is than what travels.
    """

    name: str = "file"
    version: int = -1
    form: Form = Form.FILE
    spared_bytes: int = 0


class DownloadProgress:
    """One download from its beginning on; ``root`` is who feeds the forest."""

    def __init__(self, label: Label, root: PeerId, stripes: int, now: float) -> None:
        self.label = label
        self.root = root
        self.began_at = now
        self.arrived_at: float | None = None
        self.parents = [PeerId("")] * stripes
        """Of each stripe, who was asked last as the one that feeds us; empty before."""
        self.sources = TrafficStats()
        self.from_root_bytes = 0
        self.total_bytes = 0
        """0 until the index is here, as long as there are no ``pieces``."""
        self.bytes_missing = 0
        self.pieces: tuple[int, ...] = ()
        """Of each shard."""
        self.here: list[int] = []
        """Of each shard; bit i: piece i is here."""
        self._lengths: tuple[int, ...] = ()
        self._chunk_bytes = 0

    def start(self, index: ShardIndex, missing: Sequence[Sequence[int]]) -> None:
        """Note what there is to come: ``missing`` has, per shard, the numbers of its chunks."""
        self._lengths = tuple(shard.length for shard in index.shards)
        self._chunk_bytes = index.chunk_bytes
        self.total_bytes = self.bytes_missing = index.total_bytes
        self.pieces = tuple(len(shard.chunks) for shard in index.shards)
        self.here = [0] * len(self.pieces)
        for shard, count in enumerate(self.pieces):
            for chunk in sorted(set(range(count)).difference(missing[shard])):
                self.have(shard, chunk)

    def asked(self, ask: Ask) -> None:
        """Note who is asked; who may make us wait is a parent, others help out."""
        if ask.wait:
            self.parents[ask.stripe] = ask.peer

    def received(self, peer: PeerId, way: BlobTransport, count: int, now: float) -> None:
        """Note bytes that a source sent, good or not."""
        self.sources.note(peer, BlobKind.WEIGHTS, way, count, now)
        if peer == self.root:
            self.from_root_bytes += count

    def have(self, shard: int, chunk: int) -> None:
        """Note a piece that is here, checked and stored."""
        bit = 1 << chunk
        if not self.here[shard] & bit:
            self.here[shard] |= bit
            rest_bytes = self._lengths[shard] - chunk * self._chunk_bytes
            self.bytes_missing -= min(self._chunk_bytes, rest_bytes)

    def stripe(self, number: int) -> list[tuple[int, int]]:
        """Return, of each shard of a stripe, how many pieces it has and which are here."""
        return list(zip(self.pieces, self.here, strict=True))[number :: len(self.parents)]

    def seconds_to_go(self, now: float) -> float | None:
        """Return how long the rest takes at the rate of now; None while nothing comes."""
        rate = self.sources.rate.at(now)
        return self.bytes_missing / rate if rate and self.pieces else None


class DownloadLog:
    """Those of one node: on their way, and the last that came."""

    def __init__(self) -> None:
        self.under_way: list[DownloadProgress] = []
        self.arrived: deque[DownloadProgress] = deque(maxlen=ARRIVED_KEPT)
        """Of versions alone, the last one last."""
        self.durations = {form: Histogram(SECONDS_BOUNDS) for form in Form}
        """Of versions alone."""

    def begin(self, label: Label, root: PeerId, stripes: int, now: float) -> DownloadProgress:
        """Return the record of a download that begins now."""
        arrival = DownloadProgress(label, root, stripes, now)
        self.under_way.append(arrival)
        return arrival

    def complete(self, arrival: DownloadProgress, now: float) -> None:
        """Note that a file is here, whole."""
        arrival.arrived_at = now
        if arrival.label.version < 0:
            return
        self.arrived.append(arrival)
        self.durations[arrival.label.form].add(now - arrival.began_at)

    def end(self, arrival: DownloadProgress) -> None:
        """Note that a download is over, for whatever reason."""
        self.under_way.remove(arrival)
