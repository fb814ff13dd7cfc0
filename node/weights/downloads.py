"""Downloads over the forest that the roster gives now."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from node.context import Ports
from node.network.blobs.exchange import BlobExchange
from node.weights.download import RemoteWeights, WeightsDownload
from node.weights.download_progress import DownloadLog
from protocol.ledger.reputation import has_reputation
from protocol.membership.measured_capacity import forest_members
from protocol.replica.replica import Replica
from protocol.shardcast.forest import ForestMember, ForestMembers
from protocol.shardcast.source_history import SourceReputation

MEMBERS_SECONDS = 1.0
"""Until a roster that has changed is looked at again, at least."""

SECONDS_PER_MEMBER = 0.005
"""The same for each of its members: one of 800 changes many times a second, and a look takes some
4 us for each. So looks take no more than a thousandth of a core, and come with the next epoch."""


@dataclass(slots=True)
class TransferProgress:
    """What a download has brought, and when it last brought anything."""

    brought_at: float
    here_bytes: int = -1

    def note(self, here_bytes: int, now: float) -> None:
        """Note what is here."""
        if here_bytes != self.here_bytes:
            self.here_bytes, self.brought_at = here_bytes, now


class Downloads:
    """Makes the downloads of one node, which share what it has learned of its sources."""

    def __init__(self, ports: Ports, replica: Replica, exchange: BlobExchange) -> None:
        self._ports = ports
        self._replica = replica
        self._exchange = exchange
        self._source_history = SourceReputation()
        self.arrivals = DownloadLog()
        """What is seen of the downloads."""
        self._members = ForestMembers(())
        self._state: tuple[int, ...] | None = None
        """What ``_members`` was made of, but for the roster."""
        self._roster_changes = -1
        self._roster_seen_at = 0.0

    def members(self) -> ForestMembers:
        """Return who feeds whom now: everybody with a live record, as others have found them.

        The same object again while no rollout got an outcome, no epoch has passed and no record has
        come, or one came soon after the last look: then the forests of versions that were asked for
        before are known.
        """
        replica, now = self._replica, self._ports.clock.now()
        manifest, ledger, roster = replica.manifest, replica.ledger, replica.roster
        totals = ledger.totals
        epoch = manifest.epoch_at(now)
        state = (totals.certified, totals.rejected, ledger.version, epoch)
        is_new = roster.changes != self._roster_changes
        pause = max(MEMBERS_SECONDS, SECONDS_PER_MEMBER * len(roster))
        if state != self._state or (is_new and now >= self._roster_seen_at + pause):
            trusted = partial(has_reputation, manifest=manifest, ledger=ledger)
            counts = partial(replica.counts, version=ledger.version, epoch=epoch)
            members = forest_members(roster.live(now), manifest, trusted, counts)
            self._state = state
            self._roster_changes, self._roster_seen_at = roster.changes, now
            self._members = self._members if members == self._members else members
        return self._members

    def make(
        self,
        weights: RemoteWeights,
        members: Sequence[ForestMember],
        on_progress: Callable[[int, int], None] = lambda _here, _total: None,
    ) -> WeightsDownload:
        """Return a download that has not begun."""
        rules = self._replica.manifest.shardcast
        return WeightsDownload(
            self._exchange,
            self._ports.blobs,
            self._ports.files,
            weights,
            members,
            stripes=rules.stripes,
            fanout=rules.fanout,
            source_history=self._source_history,
            on_blame=self._exchange.on_fault,
            on_progress=on_progress,
            arrivals=self.arrivals,
        )
