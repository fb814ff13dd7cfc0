"""Factory of downloads over the current roster's forest."""

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
"""Least interval between two readings of a changed roster."""

SECONDS_PER_MEMBER = 0.005
"""The same per member: 800 members change the roster many times a second, and a reading takes 4 us
per member. Readings thus take at most 0.1 % of a core, and follow within an epoch."""


@dataclass(slots=True)
class TransferProgress:
    """Bytes that a download has stored, and the time of the last ones."""

    brought_at: float
    here_bytes: int = -1

    def note(self, here_bytes: int, now: float) -> None:
        """Record the stored bytes."""
        if here_bytes != self.here_bytes:
            self.here_bytes, self.brought_at = here_bytes, now


class Downloads:
    """Factory of the downloads of one node, which share its source history."""

    def __init__(self, ports: Ports, replica: Replica, exchange: BlobExchange) -> None:
        self._ports = ports
        self._replica = replica
        self._exchange = exchange
        self._source_history = SourceReputation()
        self.arrivals = DownloadLog()
        """Progress of the downloads."""
        self._members = ForestMembers(())
        self._state: tuple[int, ...] | None = None
        """State from which ``_members`` was built, without the roster."""
        self._roster_changes = -1
        self._roster_seen_at = 0.0

    def members(self) -> ForestMembers:
        """Return the members of the forest: live records, as corrected by others' observations.

        Returns the same object, whose forests are cached, until a rollout is settled, an epoch
        passes, or the roster changes. Roster changes are read at intervals.
        """
        replica, now = self._replica, self._ports.clock.now()
        manifest, ledger, roster = replica.manifest, replica.ledger, replica.roster
        totals = ledger.workers.totals
        epoch = manifest.epoch_at(now)
        state = (totals.certified, totals.rejected, ledger.chain.version, epoch)
        is_new = roster.changes != self._roster_changes
        pause = max(MEMBERS_SECONDS, SECONDS_PER_MEMBER * len(roster))
        if state != self._state or (is_new and now >= self._roster_seen_at + pause):
            trusted = partial(has_reputation, manifest=manifest, ledger=ledger)
            counts = partial(replica.counts, version=ledger.chain.version, epoch=epoch)
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
        """Return a download that has not started."""
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
