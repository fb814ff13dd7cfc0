"""Gossip streams: one send queue and two streams per connected peer; every wait has a deadline.

Each side of a pair writes on its own ``/meshsub/1.1.0`` stream and reads from the other's. A slow
or dead peer fills only its own bounded queue: its writer task blocks, and the router and other
peers continue. A full queue drops by ``Priority`` and counts the drops.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter

from node.context import PeerView
from node.network.gossip.config import (
    READ_BYTE_SECONDS,
    READ_RATES,
    WAKE_BYTES,
    GossipLimits,
)
from node.network.gossip.tasks import Tasks
from node.network.resources.rate_limiter import RateLimiter
from node.network.streams.deadline import loop_time, within
from node.network.streams.protocols import GOSSIP
from protocol.core.containers import SizeGauge, Table
from protocol.core.faults import Fault
from protocol.core.types import PeerId
from protocol.gossipsub.events import (
    Event,
    PeerConnected,
    PeerDisconnected,
    PeerLocated,
    RpcReceived,
    Send,
)
from protocol.gossipsub.rpc import Deframer, frame
from protocol.gossipsub.send_queue import SendQueue
from roles.ports.transport import Stream, TransportError, Trust

_READ_BYTES = 64 * 1024
_WRITE_BYTES = 64 * 1024
"""Bytes per write, unless one frame is larger; the stall deadline applies to one write."""


IGNORED_SECONDS = 5.0
"""Interval at which a graylisted peer's score is checked before its stream is read again."""

STALL_LOOKS = 4
"""Checks for stalled writes per ``stall_seconds``."""


@dataclass(slots=True)
class PeerStreamCounters:
    """Stream counters since the start."""

    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    frames_dropped: int = 0
    """By a full send queue."""
    peers_cut: int = 0
    """Disconnected because they stalled."""
    reads_delayed: int = 0
    """Reads delayed because a peer exceeded its rate."""


@dataclass(slots=True)
class _PeerStream:
    """One connected peer: its send queue and writer, and its inbound stream."""

    peer: PeerId
    outbox: SendQueue
    filled: asyncio.Event = field(default_factory=asyncio.Event)
    retry: asyncio.Event = field(default_factory=asyncio.Event)
    inbound: Stream | None = None
    inbound_seen: bool = False
    greeted: bool = False
    """True if the router has sent hello on the present streams."""
    task: asyncio.Task[None] | None = None
    writer: asyncio.Task[None] | None = None
    writing_since: float | None = None
    """Loop time at which the pending write began."""
    stalled: bool = False
    idle: Stream | None = None
    """The outbound stream, while the writer task is idle."""
    delay: asyncio.Event | None = None
    """Set to wake a delayed reader when its stream will bring no more bytes."""


class PeerStreams:
    """Streams and send queues of all connected peers.

    ``apply`` receives the events of the streams; ``blame`` receives framing faults. A few KB at
    most are read from ``ignored`` (graylisted) peers. ``meshed`` returns whether a peer is in one
    of our meshes. ``core_seconds`` is a CPU clock.
    """

    def __init__(
        self,
        peers: PeerView,
        trust: Trust,
        limits: GossipLimits,
        peers_max: int,
        apply: Callable[[Event], None],
        blame: Callable[[PeerId, Fault], None],
        *,
        ignored: Callable[[PeerId], bool],
        meshed: Callable[[PeerId], bool],
        core_seconds: Callable[[], float],
    ) -> None:
        self._peers = peers
        self._meshed = meshed
        self._reads = {
            in_mesh: RateLimiter("read_accounts", READ_RATES, trust.trusted)
            for in_mesh in (False, True)
        }
        """Limiters of peers outside and inside our meshes. A costly message is no fault, so a peer
        over its rate is delayed: its bytes fill its own stream's flow control window."""
        self._limits = limits
        self._peers_max = peers_max
        self._apply = apply
        self._blame = blame
        self._ignored = ignored
        self._core_seconds = core_seconds
        self._links: dict[PeerId, _PeerStream] = {}
        self._tasks = Tasks()
        self._drained = asyncio.Event()
        self._turn = asyncio.Lock()
        self._running = False
        self._framed = (b"", b"")
        self._followed: Sequence[PeerId] = []
        self._placed = peers.places
        self._stalls_looked_for_at = 0.0
        self.counters = PeerStreamCounters()
        size_bytes = attrgetter("size_bytes")
        self.tables: tuple[Table, ...] = (
            *self._reads[False].tables,
            *self._reads[True].tables,
            SizeGauge("outbox_bytes", limits.outbox_bytes_max, lambda: self._fullest(size_bytes)),
            SizeGauge("outbox_frames", limits.outbox_frames_max, lambda: self._fullest(len)),
        )

    async def start(self) -> None:
        """Serve the protocol and follow the connected peers; raises ``TransportError``."""
        self._running = True
        await within(self._limits.call_seconds, self._peers.handle(GOSSIP.name, self._serve))
        self._peers.follow(self._follow)

    async def stop(self) -> None:
        """End every task and stream; idempotent."""
        self._running = False
        await self._tasks.cancel()
        for link in self._links.values():
            if link.inbound is not None:
                await link.inbound.close()
        self._links.clear()

    def send(self, effect: Send) -> None:
        """Send or queue an RPC without waiting; a full queue drops its least important frames."""
        link = self._links.get(effect.peer)
        if link is None or self._send_at_once(link, effect.rpc):
            return
        self.counters.frames_dropped += link.outbox.push(effect.rpc, effect.priority)
        link.filled.set()

    def _send_at_once(self, link: _PeerStream, rpc: bytes) -> bool:
        """Write an RPC directly when the queue is empty, bypassing queue and writer task."""
        idle = link.idle
        if idle is None or link.outbox:
            return False
        if rpc is not self._framed[0]:
            self._framed = (rpc, frame(rpc))  # the next peers mostly receive the same RPC
        data = self._framed[1]
        if not idle.offer(data):
            return False
        counters = self.counters
        counters.frames_out += 1
        counters.bytes_out += len(data)
        return True

    def _fullest(self, size: Callable[[SendQueue], int]) -> int:
        return max((size(link.outbox) for link in self._links.values()), default=0)

    async def wait_for_room(self) -> None:
        """Wait up to ``publish_wait_seconds`` while most queues are congested.

        A single stalled peer causes no wait. FIFO: a busy publisher cannot starve the others.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.publish_wait_seconds), self._turn:
                while self._crowded():
                    self._drained.clear()
                    await self._drained.wait()

    def _crowded(self) -> bool:
        crowded = [link.outbox.crowded for link in self._links.values() if link.greeted]
        return 2 * sum(crowded) > len(crowded)

    def interrupt_stalled(self) -> None:
        """Cancel writes past their deadline; one timer per write would cost more than the write."""
        now = loop_time()
        if now < self._stalls_looked_for_at + self._limits.stall_seconds / STALL_LOOKS:
            return
        self._stalls_looked_for_at = now
        begun_before = now - self._limits.stall_seconds
        for link in self._links.values():
            since = link.writing_since
            if link.writer is not None and since is not None and since <= begun_before:
                link.stalled = True
                link.writer.cancel()

    def _follow(self, peers: Sequence[PeerId]) -> None:
        if self._peers.places is not self._placed:
            before, self._placed = self._placed, self._peers.places
            for peer in self._links:
                if before.get(peer) != self._placed.get(peer):
                    self._locate(peer)
        if not self._running or (peers == self._followed and len(self._links) == len(peers)):
            return
        self._followed = peers
        connected = dict.fromkeys(peers)
        for peer, link in list(self._links.items()):
            # A delayed stream is not read, so its end goes unnoticed; others end at once.
            if peer not in connected and (link.inbound is None or link.delay is not None):
                self._unlink(link)
        own = self._peers.peer_id
        for peer in connected:
            if peer not in self._links and peer != own:
                self._link(peer)

    def _link(self, peer: PeerId) -> _PeerStream | None:
        link = self._links.get(peer)
        if link is None and len(self._links) < self._peers_max:
            outbox = SendQueue(self._limits.outbox_frames_max, self._limits.outbox_bytes_max)
            link = self._links[peer] = _PeerStream(peer, outbox)
            link.task = self._tasks.spawn(self._write_for_ever(link))
        return link

    def _unlink(self, link: _PeerStream) -> None:
        del self._links[link.peer]
        if link.task is not None:
            link.task.cancel()
        if link.delay is not None:
            link.delay.set()
        self._apply(PeerDisconnected(link.peer))

    def _greet(self, link: _PeerStream) -> None:
        """Have the router send hello, once per new pair of streams."""
        if not link.greeted:
            link.greeted = True
            self._apply(PeerConnected(link.peer))
            self._locate(link.peer)

    def _locate(self, peer: PeerId) -> None:
        """Pass a peer's address blocks to the router, which uses them after hello."""
        if peer in self._placed:
            self._apply(PeerLocated(peer, self._placed[peer]))

    async def _write_for_ever(self, link: _PeerStream) -> None:
        wait_seconds = self._limits.retry_seconds
        while True:
            link.retry.clear()
            try:
                opening = self._peers.open_stream(link.peer, GOSSIP.name)
                stream = await within(self._limits.call_seconds, opening)
            except TransportError:
                if link.inbound is None:
                    link.greeted = False
                    self._apply(PeerDisconnected(link.peer))
                await self._wait_to_retry(link, wait_seconds)
                wait_seconds = min(2 * wait_seconds, self._limits.retry_seconds_max)
                continue
            self._greet(link)
            opened_at = loop_time()
            await self._use(link, stream)
            link.greeted = False  # the next stream starts with a new hello
            if loop_time() - opened_at >= self._limits.retry_seconds_max:
                wait_seconds = self._limits.retry_seconds
            await self._wait_to_retry(link, wait_seconds)
            # A full peer closes each stream at once.
            wait_seconds = min(2 * wait_seconds, self._limits.retry_seconds_max)

    async def _wait_to_retry(self, link: _PeerStream, seconds: float) -> None:
        """Wait up to ``seconds``, or until the peer opens a stream to us."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await link.retry.wait()

    async def _use(self, link: _PeerStream, stream: Stream) -> None:
        """Write the queue to ``stream`` until it breaks or stalls.

        Uses two tasks instead of a ``TaskGroup``. A group that fails while its parent is cancelled
        raises only the failure (CPython before 3.13), so an unlinked peer's task would survive.
        """
        loop = asyncio.get_running_loop()
        link.stalled, link.writing_since = False, None
        link.writer = loop.create_task(self._write(link, stream))
        tasks = [loop.create_task(self._watch(stream)), link.writer]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            try:  # a second cancellation (unlink, then stop) arrives here
                ends = await asyncio.gather(*tasks, return_exceptions=True)
            finally:
                await stream.close()
        if link.stalled:
            self.counters.peers_cut += 1
            await self._peers.disconnect(link.peer)
        for end in ends:
            if isinstance(end, Exception) and not isinstance(end, TransportError):
                raise end

    async def _watch(self, stream: Stream) -> None:
        """Detect the end of a write-only stream; silence is its normal state."""
        await stream.read(1)
        raise TransportError("the peer closed the outbound stream, or wrote on it")

    async def _write(self, link: _PeerStream, stream: Stream) -> None:
        while True:
            rpcs = link.outbox.take(_WRITE_BYTES)
            if not rpcs:
                link.filled.clear()
                link.idle = stream
                try:
                    await link.filled.wait()
                finally:
                    link.idle = None
                continue
            self._drained.set()
            data = b"".join(map(frame, rpcs))
            link.writing_since = loop_time()
            await stream.write(data)
            link.writing_since = None
            self.counters.frames_out += len(rpcs)
            self.counters.bytes_out += len(data)

    async def _serve(self, stream: Stream) -> None:
        """Read a peer's inbound stream; a newer stream of the same peer replaces it."""
        link = self._link(stream.peer) if self._running else None
        if link is None:
            return
        previous, link.inbound = link.inbound, stream
        if link.delay is not None:
            link.delay.set()
        if link.inbound_seen:
            link.greeted = False  # the peer may have lost its state
        link.inbound_seen = True
        self._greet(link)
        link.retry.set()
        if previous is not None:
            await previous.close()
        with suppress(TransportError, TimeoutError):
            await self._read(stream)
        if link.inbound is stream:
            link.inbound = None

    async def _wait_while_ignored(self, stream: Stream) -> None:
        """Delay a graylisted peer's bytes, so that they use no share of the read budget."""
        while self._ignored(stream.peer):
            await self._delay(stream, IGNORED_SECONDS)

    async def _delay(self, stream: Stream, seconds: float) -> None:
        """Delay reading of a stream; raises ``TransportError`` when it will bring no more bytes."""
        link = self._links.get(stream.peer)
        if link is not None and link.inbound is stream:
            link.delay = ended = asyncio.Event()
            try:
                async with asyncio.timeout(seconds):
                    await ended.wait()
            except TimeoutError:
                return
            finally:
                if link.delay is ended:  # otherwise a newer stream is delayed
                    link.delay = None
        raise TransportError("the peer disconnected or replaced its stream")

    async def _read(self, stream: Stream) -> None:
        deframer, peer, read, counters = Deframer(), stream.peer, stream.read, self.counters
        while True:
            # Between frames a peer may be silent indefinitely.
            if deframer.unfinished:
                async with asyncio.timeout(self._limits.stall_seconds):
                    data = await read(_READ_BYTES)
            else:
                data = await read(_READ_BYTES)
            size = len(data)
            if not size:
                return
            counters.bytes_in += size
            reads = self._reads[self._meshed(peer)]
            if reads.charge(peer, size + WAKE_BYTES, loop_time()):
                await self._wait_while_ignored(stream)
                if seconds := reads.wait_seconds(peer, loop_time()):
                    counters.reads_delayed += 1
                    await self._delay(stream, seconds)
            frames = deframer.feed(data)
            if isinstance(frames, Fault):
                self._blame(peer, frames)
                return
            counters.frames_in += len(frames)
            began = self._core_seconds()
            for rpc in frames:
                self._apply(RpcReceived(peer, rpc))
            extra_bytes = (self._core_seconds() - began) / READ_BYTE_SECONDS - size
            if extra_bytes > 0:
                reads.adjust(peer, extra_bytes)
            if size == _READ_BYTES:
                await asyncio.sleep(0)  # more is pending: yield to other tasks
