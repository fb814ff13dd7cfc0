"""Downloads over the forest that the roster gives now."""

from collections.abc import Callable, Sequence
from functools import lru_cache

from node.blobs.exchange import BlobExchange
from node.context import Ports
from node.weights.download import Weights, WeightsDownload
from protocol.replica import Replica
from protocol.shardcast.forest import ForestMember
from protocol.shardcast.source_history import SourceHistory
from protocol.types import MEMBERS_MAX, PeerId


class Downloads:
    """Makes the downloads of one node, which share what it has learned of its sources."""

    def __init__(self, ports: Ports, replica: Replica, exchange: BlobExchange) -> None:
        self._ports = ports
        self._replica = replica
        self._exchange = exchange
        self._source_history = SourceHistory()

    def members(self) -> list[ForestMember]:
        """Return who feeds whom now: everybody with a live record."""
        return [
            _forest_member(
                member.peer,
                member.record.message.upload_bytes_per_second,
                member.record.message.reachable,
            )
            for member in self._replica.roster.live(self._ports.clock.now())
        ]

    def make(
        self,
        weights: Weights,
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
        )


@lru_cache(maxsize=MEMBERS_MAX)  # one object per member makes two rosters quick to compare
def _forest_member(peer: PeerId, upload_bytes_per_second: int, reachable: bool) -> ForestMember:
    return ForestMember(peer, upload_bytes_per_second, reachable)
