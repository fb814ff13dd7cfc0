"""Fetch of the index of a published file: its shards, and the digests of their chunks."""

import asyncio
from collections.abc import Callable, Sequence

from node.network.blobs.exchange import BlobExchange
from node.network.blobs.wire import BlobKind
from node.network.streams.deadline import loop_time
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.shardcast import index as shard_index
from protocol.shardcast.index import ShardIndex

INDEX_SECONDS_MIN = 2.0
INDEX_SECONDS_MAX = 60.0
INDEX_BYTES_PER_SECOND_MIN = 100_000
INDEX_PAUSE_SECONDS_MIN = 0.1
INDEX_PAUSE_SECONDS_MAX = 5.0
"""Guesses. A holder of the index sends it at once, but 2 MB take a while on a slow link; a parent
receives it only a moment before this node."""


class IndexFetch:
    """Fetch of one index; ``on_late`` receives each source that used up its patience."""

    def __init__(
        self,
        exchange: BlobExchange,
        digest: Digest,
        index_bytes: int,
        on_late: Callable[[PeerId], None],
    ) -> None:
        self._exchange = exchange
        self._digest = digest
        self._index_bytes = index_bytes
        self._on_late = on_late
        self._slow: dict[PeerId, None] = {}

    async def run(self, candidates: Callable[[], Sequence[PeerId]]) -> ShardIndex | Fault:
        """Fetch from the first candidate, then from one more candidate per round."""
        if not 0 < self._index_bytes <= shard_index.INDEX_BYTES_MAX:
            return Fault(FaultCode.INDEX_OVERSIZE, f"{self._index_bytes} bytes")
        pause, sources_max = INDEX_PAUSE_SECONDS_MIN, 1
        patience = INDEX_SECONDS_MIN + self._index_bytes / INDEX_BYTES_PER_SECOND_MIN
        while True:
            sources = candidates()[:sources_max]
            if all(peer in self._slow for peer in sources):
                self._slow.clear()
                patience = min(patience * 2, INDEX_SECONDS_MAX)
            fast = [peer for peer in sources if peer not in self._slow]
            if (data := await self._fetch(fast, patience)) is not None:
                return shard_index.decode(data)
            await asyncio.sleep(pause)
            pause = min(pause * 2, INDEX_PAUSE_SECONDS_MAX)
            sources_max += 1

    async def _fetch(self, sources: Sequence[PeerId], patience_seconds: float) -> bytes | None:
        """Request the index from the sources in turn."""
        for peer in sources:
            asked_at = loop_time()
            data = await self._exchange.fetch(
                self._digest, self._index_bytes, [peer], patience_seconds, kind=BlobKind.WEIGHTS
            )
            if data is not None:
                return data
            if loop_time() - asked_at >= patience_seconds:
                self._slow[peer] = None
                self._on_late(peer)
        return None
