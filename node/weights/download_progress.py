"""Progress of downloads for display: pieces stored, peers asked, and bytes per source.

A download updates it in microseconds per chunk; no decision depends on it. A piece is a chunk.
``now`` is in seconds of a monotonic clock.
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
"""Finished downloads kept: a guess; a reader that polls once a second misses none of a fast run."""

SECONDS_BOUNDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
"""Histogram buckets: a guess, from a testnet's durations to 62 GB at 300 Mbit/s."""


class Form(StrEnum):
    """Form of a transferred file: unchanged, byte planes, or a patch of another version."""

    FILE = "file"
    PLANES = "planes"
    PATCH = "patch"


@dataclass(frozen=True, slots=True)
class Label:
    """Display name of a download; ``version`` is -1 if it is not a policy.

    ``saved_bytes`` is the length of the file minus the length of the transfer.
    """

    name: str = "file"
    version: int = -1
    form: Form = Form.FILE
    saved_bytes: int = 0


class DownloadProgress:
    """Progress of one download; ``root`` is the root of its forest."""

    def __init__(self, label: Label, root: PeerId, stripes: int, now: float) -> None:
        self.label = label
        self.root = root
        self.began_at = now
        self.arrived_at: float | None = None
        self.parents = [PeerId("")] * stripes
        """The parent asked last, per stripe; empty before the first request."""
        self.sources = TrafficStats()
        self.from_root_bytes = 0
        self.total_bytes = 0
        """0 until the index has arrived; ``pieces`` is empty until then."""
        self.bytes_missing = 0
        self.pieces: tuple[int, ...] = ()
        """Number of pieces of each shard."""
        self.here: list[int] = []
        """Bit mask of stored pieces of each shard."""
        self._lengths: tuple[int, ...] = ()
        self._chunk_bytes = 0

    def start(self, index: ShardIndex, missing: Sequence[Sequence[int]]) -> None:
        """Record the missing chunks of each shard."""
        self._lengths = tuple(shard.length for shard in index.shards)
        self._chunk_bytes = index.chunk_bytes
        self.total_bytes = self.bytes_missing = index.total_bytes
        self.pieces = tuple(len(shard.chunks) for shard in index.shards)
        self.here = [0] * len(self.pieces)
        for shard, count in enumerate(self.pieces):
            for chunk in sorted(set(range(count)).difference(missing[shard])):
                self.have(shard, chunk)

    def asked(self, ask: Ask) -> None:
        """Record a request; a peer that may delay the answer is a parent, others are helpers."""
        if ask.wait:
            self.parents[ask.stripe] = ask.peer

    def received(self, peer: PeerId, way: BlobTransport, count: int, now: float) -> None:
        """Count bytes from a source, valid or not."""
        self.sources.note(peer, BlobKind.WEIGHTS, way, count, now)
        if peer == self.root:
            self.from_root_bytes += count

    def have(self, shard: int, chunk: int) -> None:
        """Mark a piece as verified and stored."""
        bit = 1 << chunk
        if not self.here[shard] & bit:
            self.here[shard] |= bit
            rest_bytes = self._lengths[shard] - chunk * self._chunk_bytes
            self.bytes_missing -= min(self._chunk_bytes, rest_bytes)

    def stripe(self, number: int) -> list[tuple[int, int]]:
        """Return piece count and mask of stored pieces for each shard of a stripe."""
        return list(zip(self.pieces, self.here, strict=True))[number :: len(self.parents)]

    def seconds_to_go(self, now: float) -> float | None:
        """Return the remaining time at the current rate; None while no bytes arrive."""
        rate = self.sources.rate.at(now)
        return self.bytes_missing / rate if rate and self.pieces else None


class DownloadLog:
    """Downloads of one node: those in progress and the last finished ones."""

    def __init__(self) -> None:
        self.under_way: list[DownloadProgress] = []
        self.arrived: deque[DownloadProgress] = deque(maxlen=ARRIVED_KEPT)
        """Versions only, oldest first."""
        self.durations = {form: Histogram(SECONDS_BOUNDS) for form in Form}
        """Versions only."""

    def begin(self, label: Label, root: PeerId, stripes: int, now: float) -> DownloadProgress:
        """Return the progress of a download that starts now."""
        arrival = DownloadProgress(label, root, stripes, now)
        self.under_way.append(arrival)
        return arrival

    def complete(self, arrival: DownloadProgress, now: float) -> None:
        """Record that a file is complete."""
        arrival.arrived_at = now
        if arrival.label.version < 0:
            return
        self.arrived.append(arrival)
        self.durations[arrival.label.form].add(now - arrival.began_at)

    def end(self, arrival: DownloadProgress) -> None:
        """Remove a download that succeeded, failed or was cancelled."""
        self.under_way.remove(arrival)
