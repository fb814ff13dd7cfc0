"""Versions of a run, their downloads and uploads, and their distribution forest.

In the functions on downloads ``now`` is the log's monotonic time, ``wall_now`` unix time.
"""

from collections import Counter
from dataclasses import dataclass

from node.api.downloads import DownloadStatus, HistogramStatus, PeerTrafficStatus, StripeStatus
from node.api.observer import Observer
from node.api.v1.answers import EncodingDetail, Forest, VersionDetail, WeightsPage
from node.api.v1.queries import WeightsQuery
from node.network.blobs.traffic_stats import TrafficStats
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from node.weights.download_progress import SECONDS_BOUNDS, DownloadLog, DownloadProgress
from protocol.messages import CheckpointManifest, Signed
from protocol.shardcast.forest import ForestMembers, tree

VERSIONS_SHOWN = 60
FOREST_MEMBERS_MAX = 2_000
"""Limit of drawn forests; a larger response would be too large for a page."""


@dataclass(frozen=True, slots=True)
class WeightsReader:
    """Reads the weights of one node."""

    observer: Observer

    def page(self, query: WeightsQuery) -> WeightsPage:
        """Return the newest versions, and the forest of the requested one."""
        ledger = self.observer.context.replica.ledger
        version = ledger.chain.version if query.version < 0 else query.version
        manifest, members = ledger.chain.get(version), self.observer.forest()
        forest, note = None, ""
        if manifest is None:
            note = f"Version {version} is not known to this node." if version >= 0 else ""
        elif len(members) > FOREST_MEMBERS_MAX:
            note = f"The forest has {len(members)} members and is not drawn."
        else:
            forest = self._forest(manifest, members)
        return WeightsPage(
            self.versions(VERSIONS_SHOWN)[::-1],
            self.downloads(),
            self.receivers(),
            self.durations(),
            SECONDS_BOUNDS,
            forest,
            note,
        )

    def versions(self, most: int) -> tuple[VersionDetail, ...]:
        """Return up to ``most`` versions, the newest ones, ascending."""
        ledger = self.observer.context.replica.ledger
        # This node verified no version that contains a commit without an outcome here.
        rejected = Counter(entry.trained_in for entry in ledger.commits.trained_on_rejected)
        newest = ledger.chain.checkpoints[-most:]
        return tuple(self._version(entry.manifest, rejected) for entry in newest)

    def downloads(self) -> tuple[DownloadStatus, ...]:
        """Return downloads in progress, newest version first, then complete ones, latest first."""
        wall_now = self.observer.context.ports.clock.now()
        return download_statuses(self.observer.downloads, self.observer.monotonic(), wall_now)

    def durations(self) -> dict[str, HistogramStatus]:
        """Return the durations of version downloads by encoding."""
        durations = self.observer.downloads.durations
        return {str(form): HistogramStatus.of(one) for form, one in durations.items()}

    def receivers(self) -> tuple[PeerTrafficStatus, ...]:
        """Return the current receivers of uploads, highest rate first."""
        return receiver_statuses(self.observer.exchange.sent, self.observer.monotonic())

    def _version(
        self, manifest: Signed[CheckpointManifest], rejected: Counter[int | None]
    ) -> VersionDetail:
        message = manifest.message
        forms = [EncodingDetail("file", -1, message.total_bytes)]
        for encoding in message.encodings:
            form = "patch" if encoding.base else "planes"
            forms.append(EncodingDetail(form, encoding.base_version, encoding.total_bytes))
        return VersionDetail(
            version=message.version,
            created_at=message.created_at / 1000,
            publisher=manifest.signer,
            term=message.term,
            digest=manifest.digest.hex(),
            policy=message.policy.hex(),
            reward_mean=message.reward_mean / 1e6,
            commits=len(message.batch),
            forms=tuple(forms),
            here=self.observer.policies.get(message.version) is not None,
            trained_without_certificate=rejected[message.version],
            trainers=tuple(self.observer.context.replica.rounds.contributors(message)),
        )

    def _forest(self, manifest: Signed[CheckpointManifest], members: ForestMembers) -> Forest:
        """Return the current trees of a version with its publisher as root."""
        rules, root = self.observer.context.replica.manifest.shardcast, manifest.signer
        names = [member.peer for member in members]
        if root not in names:
            names.append(root)
        places = {peer: place for place, peer in enumerate(names)}
        rates = {member.peer: member.upload_bytes_per_second for member in members}
        parents = []
        for stripe in range(rules.stripes):
            line = tree(members, root, manifest.digest, stripe, rules.stripes, rules.fanout)
            above = [line.parents.get(peer) for peer in names]
            parents.append(
                tuple(-2 if one is None else -1 if one == root else places[one] for one in above)
            )
        return Forest(
            manifest.message.version,
            root,
            rules.fanout,
            tuple(names),
            tuple(rates.get(peer, 0) for peer in names),
            tuple(parents),
        )


def download_statuses(
    downloads: DownloadLog, now: float, wall_now: float
) -> tuple[DownloadStatus, ...]:
    """Return downloads in progress, newest version first, then complete ones, latest first."""
    coming = sorted(downloads.under_way, key=lambda one: -one.label.version)
    return tuple(_download(one, now, wall_now) for one in (*coming, *reversed(downloads.arrived)))


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


def _download(download: DownloadProgress, now: float, wall_now: float) -> DownloadStatus:
    label, sources = download.label, download.sources
    if download.arrived_at is None:
        arrived_at = None
    else:
        arrived_at, now = round(wall_now - (now - download.arrived_at), 3), download.arrived_at
    return DownloadStatus(
        name=label.name,
        version=label.version,
        form=str(label.form),
        bytes_here=download.total_bytes - download.bytes_missing,
        total_bytes=download.total_bytes,
        saved_bytes=label.saved_bytes,
        seconds=round(now - download.began_at, 3),
        bytes_per_second=round(sources.rate.at(now)),
        seconds_to_go=_rounded(download.seconds_to_go(now)),
        arrived_at=arrived_at,
        root=download.root,
        root_bytes=download.from_root_bytes,
        http_bytes=sources.by(BlobKind.WEIGHTS, BlobTransport.HTTP),
        stream_bytes=sources.by(BlobKind.WEIGHTS, BlobTransport.STREAM),
        stripes=_stripes(download) if arrived_at is None else (),
        sources=party_statuses(sources, now),
    )


def _stripes(download: DownloadProgress) -> tuple[StripeStatus, ...]:
    """Return the stripes with pieces; a short file has none in some."""
    statuses = []
    for number, parent in enumerate(download.parents):
        shards = download.stripe(number)
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
