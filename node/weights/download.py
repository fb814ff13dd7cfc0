"""Download of one file over the forest, shard by shard.

The driver of the pure state machines in ``protocol.shardcast``: it moves bytes between the blob
exchange and the blob store. All shards are opened at the start: child peers can wait for their
chunks, and a full disk fails before the transfer.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from node.context import background_task
from node.network.blobs.exchange import BlobExchange
from node.network.blobs.wire import BlobKind, BlobRefusedError, BlobStatus
from node.network.streams.deadline import loop_time
from node.weights.download_progress import DownloadLog, Label
from node.weights.index_fetch import IndexFetch
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.shardcast import forest
from protocol.shardcast.events import (
    Ask,
    BadSource,
    CancelRequest,
    CandidatesChanged,
    ChunkCorrupt,
    ChunkVerified,
    Effect,
    Event,
    Refusal,
    RequestFailed,
    SourceLate,
    Tick,
    TransferDone,
    TransferLimits,
)
from protocol.shardcast.forest import ForestMember
from protocol.shardcast.index import ShardIndex
from protocol.shardcast.source_history import SourceReputation
from protocol.shardcast.transfer import Transfer
from roles.ports.storage import Blobs, PartialBlob, PolicyFiles, Purpose
from roles.ports.transport import TransportError

TICK_SECONDS = 0.1
"""Resolution of deadlines; the shortest one, of repeated requests, is as long."""


Decode = Callable[[AsyncIterator[bytes], Path], Coroutine[Any, Any, None]]
"""Decoder of an arriving encoding into the file at a path."""


class _InconsistentIndexError(Exception):
    """Raised when verified chunks do not form the shards of their index."""


@dataclass(frozen=True, slots=True)
class RemoteWeights:
    """Reference to a published file, from a checkpoint manifest or the run manifest.

    ``version_digest`` names the version and salts the forest; ``root`` is the publisher; ``label``
    is for display.
    """

    version_digest: Digest
    index_digest: Digest
    index_bytes: int
    total_bytes: int
    root: PeerId
    purpose: Purpose = Purpose.WEIGHTS
    label: Label = field(default_factory=Label)


class WeightsDownload:
    """Download of one version; ``run`` may be cancelled and run again, also after a restart.

    ``source_history`` is this node's record of its sources, shared by all downloads. ``on_blame``
    receives each sender of bad bytes, ``on_progress`` the bytes stored and the total bytes.
    """

    def __init__(
        self,
        exchange: BlobExchange,
        blobs: Blobs,
        files: PolicyFiles,
        weights: RemoteWeights,
        members: Sequence[ForestMember],
        *,
        stripes: int,
        fanout: int,
        limits: TransferLimits | None = None,
        source_history: SourceReputation | None = None,
        on_blame: Callable[[PeerId, Fault], None] = lambda _peer, _fault: None,
        on_progress: Callable[[int, int], None] = lambda _here, _total: None,
        arrivals: DownloadLog | None = None,
    ) -> None:
        self._exchange = exchange
        self._blobs = blobs
        self._files = files
        self._weights = weights
        self._stripes = stripes
        self._fanout = fanout
        self._limits = limits or TransferLimits()
        self._source_history = source_history or SourceReputation()
        self._on_blame = on_blame
        self._on_progress = on_progress
        self._arrivals = arrivals or DownloadLog()
        self._late: dict[PeerId, None] = {}
        self._bad: dict[PeerId, None] = {}
        self._delivered: dict[PeerId, None] = {}
        self._follow(members)
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue()
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._tick_at = 0.0

    def change_members(self, members: Sequence[ForestMember]) -> None:
        """Replace the members of the forest; running requests continue."""
        self._follow(members)
        changed = CandidatesChanged(self._candidates, self._helpers, self._untrusted)
        self._events.put_nowait(changed)

    async def run(self, path: Path, decode: Decode | None = None) -> Path | Fault:
        """Download to ``path``, where the complete file appears by rename, and return it.

        With ``decode`` another form of the file is transferred, and decoded as it arrives. Silent
        sources are tried again until the caller cancels.

        Returns a ``Fault`` when the signed manifest is inconsistent, so that no source can help.
        Raises ``StorageFullError``; stored chunks stay for the next ``run``.
        """
        weights = self._weights
        self._arrival = self._arrivals.begin(
            weights.label, weights.root, self._stripes, loop_time()
        )
        try:
            with self._exchange.expecting(self._weights.index_digest):
                index = await self._index()
                if isinstance(index, Fault):
                    return index
                partials = await self._open_partials(index)
            if decode is None:
                await self._transfer(index, partials)
                await self._files.link(self._weights.index_digest, path)
            else:
                async with aclosing(self._bytes_of(index)) as pieces:
                    await self._transfer_decoding(index, partials, decode(pieces, path))
        except _InconsistentIndexError as error:
            return Fault(FaultCode.INDEX_INCONSISTENT, str(error))
        else:
            self._arrivals.complete(self._arrival, loop_time())
        finally:
            self._arrivals.end(self._arrival)
            self._learn()
        return path

    async def _transfer_decoding(
        self,
        index: ShardIndex,
        partials: Sequence[PartialBlob],
        decoding: Coroutine[Any, Any, None],
    ) -> None:
        """Transfer and decode concurrently; a decoding error is raised at the end."""
        async with background_task(decoding) as decoded:
            await self._transfer(index, partials)
            await decoded

    async def _bytes_of(self, index: ShardIndex) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of all shards in order, as they arrive."""
        for shard in index.shards:
            async with aclosing(self._blobs.stream(shard.digest, 0, shard.length)) as pieces:
                async for piece in pieces:
                    yield piece

    def _follow(self, members: Sequence[ForestMember]) -> None:
        self._members = len(members)
        self._untrusted = frozenset(member.peer for member in members if not member.trusted)
        self._candidates, self._helpers = self._plan(members)

    def _plan(
        self, members: Sequence[ForestMember]
    ) -> tuple[tuple[tuple[PeerId, ...], ...], tuple[PeerId, ...]]:
        """Return the candidates of each stripe, and the helpers for late chunks."""
        weights = self._weights
        place = self._exchange.peer_id, self._stripes, self._fanout
        orders = []
        for stripe in range(self._stripes):
            tree = members, weights.root, weights.version_digest, stripe, *place
            order = forest.candidates(*tree)
            order = forest.with_failover(order, forest.failover_parent(*tree))
            orders.append(self._source_history.ordered(order))
        helpers = forest.extra_sources(
            members, weights.root, weights.version_digest, self._exchange.peer_id, self._stripes
        )
        return tuple(orders), self._source_history.ordered(helpers)

    async def _index(self) -> ShardIndex | Fault:
        """Fetch the index; it is small, so trusted peers are asked before untrusted ones.

        Helpers are asked last: the root may lack the file while its publisher is gone.
        """
        weights = self._weights
        fetch = IndexFetch(
            self._exchange, weights.index_digest, weights.index_bytes, self._late.setdefault
        )
        is_untrusted = self._untrusted.__contains__
        index = await fetch.run(
            lambda: [
                *sorted(self._candidates[0], key=is_untrusted),
                *sorted(self._helpers, key=is_untrusted),
            ]
        )
        if not isinstance(index, Fault) and index.total_bytes != weights.total_bytes:
            reason = f"a file of {index.total_bytes} bytes, {weights.total_bytes} were signed"
            return Fault(FaultCode.INDEX_INCONSISTENT, reason)
        return index

    def _learn(self) -> None:
        self._source_history.ended(
            late=[peer for peer in self._late if peer not in self._delivered],
            bad=self._bad,
            delivered=[peer for peer in self._delivered if peer not in self._bad],
            root=self._weights.root,
            members=self._members,
        )
        for noted in (self._late, self._bad, self._delivered):
            noted.clear()

    async def _transfer(self, index: ShardIndex, partials: Sequence[PartialBlob]) -> None:
        # Deadlines use the loop's monotonic clock: a wall clock may be set.
        missing = [partial.missing() for partial in partials]
        self._arrival.start(index, missing)
        root = self._weights.root
        history, initial = self._source_history, self._limits.late_seconds_initial
        limits = replace(
            self._limits,
            late_seconds_initial=history.begin_seconds(initial),
            late_seconds_untrusted=history.untrusted_begin_seconds(initial),
        )
        transfer = Transfer(
            index,
            self._candidates,
            missing,
            limits,
            root=root,
            helpers=self._helpers,
            untrusted=self._untrusted,
        )
        event: Event = Tick()
        try:
            while not self._apply(transfer.handle(event, loop_time()), index, partials):
                self._on_progress(index.total_bytes - transfer.bytes_missing, index.total_bytes)
                event = await self._next_event()
        finally:
            await self._cancel_all()
        self._on_progress(index.total_bytes, index.total_bytes)

    async def _open_partials(self, index: ShardIndex) -> Sequence[PartialBlob]:
        try:
            return await self._blobs.open_file(index, self._weights.purpose)
        except ValueError as error:
            raise _InconsistentIndexError(str(error)) from error

    async def _next_event(self) -> Event:
        """Return the next event; ticks come on time even under a constant stream of events."""
        now = loop_time()
        if now >= self._tick_at:
            self._tick_at = now + TICK_SECONDS
            return Tick()
        try:
            async with asyncio.timeout_at(self._tick_at):
                event = await self._events.get()
        except TimeoutError:
            return Tick()
        if isinstance(event, Exception):
            raise event
        return event

    def _apply(
        self, effects: Sequence[Effect], index: ShardIndex, partials: Sequence[PartialBlob]
    ) -> bool:
        """Carry out the effects of the state machine; True when the transfer is complete."""
        done = False
        for effect in effects:
            match effect:
                case Ask(request=request):
                    self._arrival.asked(effect)
                    fetching = self._fetch(effect, index, partials[effect.shard])
                    self._tasks[request] = asyncio.create_task(fetching)
                case CancelRequest(request=request):
                    if request in self._tasks:  # else it has just ended
                        self._tasks[request].cancel()
                case BadSource(peer=peer, fault=fault):
                    self._bad[peer] = None
                    self._on_blame(peer, fault)
                case SourceLate(peer=peer):
                    self._late[peer] = None
                case TransferDone():
                    done = True
        return done

    async def _fetch(self, ask: Ask, index: ShardIndex, partial: PartialBlob) -> None:
        """Carry out one request; its result or failure becomes an event."""
        try:
            await self._fetch_chunks(ask, index, partial)
        except BlobRefusedError as refused:
            unknown = refused.status is BlobStatus.UNKNOWN
            self._failed(ask, Refusal.UNAVAILABLE if unknown else Refusal.BUSY, refused.held)
        except TransportError:
            self._failed(ask, Refusal.BROKEN)
        except ValueError as error:
            self._events.put_nowait(_InconsistentIndexError(str(error)))
        except Exception as error:  # noqa: BLE001 - the download raises it, not a forgotten task
            self._events.put_nowait(error)
        finally:
            self._tasks.pop(ask.request, None)

    async def _fetch_chunks(self, ask: Ask, index: ShardIndex, partial: PartialBlob) -> None:
        shard = index.shards[ask.shard]
        chunks = range(ask.first, ask.first + ask.count)
        pieces = self._exchange.fetch_range(
            ask.peer,
            shard.digest,
            ask.first * index.chunk_bytes,
            sum(index.chunk_length(ask.shard, chunk) for chunk in chunks),
            piece_bytes=index.chunk_bytes,
            wait=ask.wait,
            kind=BlobKind.WEIGHTS,
            on_piece=lambda way, count: self._arrival.received(ask.peer, way, count, loop_time()),
        )
        asked_at = loop_time()
        async with aclosing(pieces):
            for chunk in chunks:
                if not await partial.write_chunk(chunk, await anext(pieces)):
                    self._events.put_nowait(ChunkCorrupt(ask.request, chunk))
                    return
                if chunk == ask.first and ask.wait:
                    self._source_history.begun(loop_time() - asked_at)
                self._delivered[ask.peer] = None
                self._arrival.have(ask.shard, chunk)
                self._events.put_nowait(ChunkVerified(ask.request, ask.shard, chunk))

    def _failed(self, ask: Ask, refusal: Refusal, held: int = 0) -> None:
        self._events.put_nowait(RequestFailed(ask.request, refusal, held))

    async def _cancel_all(self) -> None:
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()
        self._events = asyncio.Queue()
