"""Conversion of download and upload records into their part of a ``NodeStatus``.

``now`` is the records' monotonic time; ``wall_now`` is unix time at the same moment.
"""

from node.api.arrivals import DownloadStatus, HistogramStatus, PeerTrafficStatus, StripeStatus
from node.network.blobs.traffic_stats import TrafficStats
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from node.weights.download_progress import DownloadLog, DownloadProgress
from roles.runtime.metrics import Histogram


def download_statuses(
    arrivals: DownloadLog, now: float, wall_now: float
) -> tuple[DownloadStatus, ...]:
    """Return downloads in progress, newest version first, then complete ones, latest first."""
    coming = sorted(arrivals.under_way, key=lambda arrival: -arrival.label.version)
    return tuple(
        _status(arrival, now, wall_now) for arrival in (*coming, *reversed(arrivals.arrived))
    )


def durations_statuses(arrivals: DownloadLog) -> dict[str, HistogramStatus]:
    """Return the durations of version downloads by encoding."""
    return {
        str(form): durations_status(durations) for form, durations in arrivals.durations.items()
    }


def durations_status(durations: Histogram) -> HistogramStatus:
    """Return the status of a histogram."""
    return HistogramStatus(tuple(durations.counts), durations.seconds)


def party_statuses(tally: TrafficStats, now: float) -> tuple[PeerTrafficStatus, ...]:
    """Return the traffic of each peer, highest rate first."""
    parties = [
        PeerTrafficStatus(
            name,
            party.ways[BlobTransport.HTTP],
            party.ways[BlobTransport.STREAM],
            round(party.rate.at(now)),
        )
        for name, party in tally.parties.items()
    ]
    return tuple(sorted(parties, key=lambda party: -party.bytes_per_second))


def receiver_statuses(tally: TrafficStats, now: float) -> tuple[PeerTrafficStatus, ...]:
    """Return the current receivers of uploads, highest rate first."""
    return tuple(party for party in party_statuses(tally, now) if party.bytes_per_second)


def _status(arrival: DownloadProgress, now: float, wall_now: float) -> DownloadStatus:
    label, sources = arrival.label, arrival.sources
    if arrival.arrived_at is None:
        arrived_at = None
    else:
        arrived_at, now = round(wall_now - (now - arrival.arrived_at), 3), arrival.arrived_at
    return DownloadStatus(
        name=label.name,
        version=label.version,
        form=str(label.form),
        bytes_here=arrival.total_bytes - arrival.bytes_missing,
        total_bytes=arrival.total_bytes,
        saved_bytes=label.saved_bytes,
        seconds=round(now - arrival.began_at, 3),
        bytes_per_second=round(sources.rate.at(now)),
        seconds_to_go=_rounded(arrival.seconds_to_go(now)),
        arrived_at=arrived_at,
        root=arrival.root,
        root_bytes=arrival.from_root_bytes,
        http_bytes=sources.by(BlobKind.WEIGHTS, BlobTransport.HTTP),
        stream_bytes=sources.by(BlobKind.WEIGHTS, BlobTransport.STREAM),
        stripes=_stripes(arrival) if arrived_at is None else (),
        sources=party_statuses(sources, now),
    )


def _stripes(arrival: DownloadProgress) -> tuple[StripeStatus, ...]:
    """Return the stripes with pieces; a short file has none in some."""
    statuses = []
    for number, parent in enumerate(arrival.parents):
        shards = arrival.stripe(number)
        pieces = sum(count for count, _ in shards)
        if pieces:
            here = sum(mask.bit_count() for _, mask in shards)
            statuses.append(StripeStatus(number, parent, pieces, here, piece_map(shards)))
    return tuple(statuses)


def piece_map(shards: list[tuple[int, int]]) -> str:
    """Return the hexadecimal piece map of shards, given as (count, mask) with bit i for piece i."""
    bits = "".join(f"{mask:0{count}b}"[::-1] for count, mask in shards)
    digits = -(-len(bits) // 4)
    return f"{int(bits.ljust(4 * digits, '0'), 2):0{digits}x}"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)
