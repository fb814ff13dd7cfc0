"""An in-process network that implements the ``Transport`` port, and a loop with virtual time.

``Hub`` joins ``MemoryTransport`` ends by bounded pipes, so a reader that does not read makes the
writer wait as TCP would. Faults: ``partition`` (connections break and dials fail), ``stall`` (bytes
towards a peer stay in the pipe), ``break_streams`` (streams reset, connections stay).
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from protocol.types import PeerId
from roles.ports.transport import StreamHandler, TransportError

WINDOW_BYTES = 64 * 1024
"""What a pipe holds before its writer waits; yamux's 256 KiB would find stalls later."""

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Never waits: what the loop would wait for passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_700_000_000.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("deadlock: no task is ready and no timer is set")
            self.now += max(timeout, 1e-6)  # a float of this size has steps of 0.24 us
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer whenever nothing is ready."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


class LoopClock:
    """The ``Clock`` port on the running loop, so virtual time is wall time too."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()


def run_virtual(scenario: Coroutine[Any, Any, T]) -> T:
    """Run ``scenario`` to its end in virtual time: a sleep costs nothing."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(scenario)


async def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait in (virtual) time until ``condition`` holds; raises ``TimeoutError``."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is any state, not an event
            await asyncio.sleep(0.01)


class _Pipe:
    """One direction of a stream."""

    def __init__(self, hub: "Hub", reader: PeerId) -> None:
        self._hub = hub
        self._reader = reader
        self._buffer = bytearray()
        self.ended = False
        self.broken = False
        self._changed = asyncio.Event()

    def wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self, *, broken: bool) -> None:
        self.ended = True
        self.broken = self.broken or broken
        self.wake()

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            if self.ended:
                raise TransportError("the stream is closed")
            room = WINDOW_BYTES - len(self._buffer)
            if room > 0:
                self._buffer += view[:room]
                view = view[room:]
                self.wake()
            else:
                await self._changed.wait()

    def offer(self, data: bytes) -> bool:
        if self.ended or len(self._buffer) + len(data) > WINDOW_BYTES:
            return False
        self._buffer += data
        self.wake()
        return True

    async def read(self, bytes_max: int) -> bytes:
        while True:
            if self.broken:
                raise TransportError("the stream was reset")
            if self._buffer and self._reader not in self._hub.stalled:
                data = bytes(self._buffer[:bytes_max])
                del self._buffer[:bytes_max]
                self.wake()
                return data
            if self.ended and not self._buffer:
                return b""
            await self._changed.wait()


class MemoryStream:
    """One end of a pair of pipes."""

    def __init__(self, peer: PeerId, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._peer = peer
        self.incoming = incoming
        self.outgoing = outgoing

    @property
    def peer(self) -> PeerId:
        return self._peer

    async def read(self, bytes_max: int) -> bytes:
        return await self.incoming.read(bytes_max)

    async def read_exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = await self.incoming.read(count - len(data))
            if not chunk:
                raise TransportError("the stream ended early")
            data += chunk
        return data

    async def write(self, data: bytes) -> None:
        await self.outgoing.write(data)

    def offer(self, data: bytes) -> bool:
        return self.outgoing.offer(data)

    async def close(self) -> None:
        self.incoming.end(broken=False)
        self.outgoing.end(broken=False)


class Hub:
    """The network: who exists, who is connected, and what is broken."""

    def __init__(self) -> None:
        self.transports: dict[PeerId, MemoryTransport] = {}
        self.stalled: dict[PeerId, None] = {}
        self._connections: dict[frozenset[PeerId], list[_Pipe]] = {}
        self._island: dict[PeerId, int] = {}

    def transport(self, peer_id: PeerId) -> "MemoryTransport":
        """Add a node and return its ``Transport``."""
        self.transports[peer_id] = MemoryTransport(self, peer_id)
        return self.transports[peer_id]

    def connect(self, one: PeerId, other: PeerId) -> None:
        """Connect two nodes; raises ``TransportError`` across a partition or to a stranger."""
        reachable = self._island.get(one, 0) == self._island.get(other, 0)
        here = one in self.transports and other in self.transports
        if one == other or not here or not reachable:
            raise TransportError(f"cannot reach {other}")
        self._connections.setdefault(frozenset((one, other)), [])

    def disconnect(self, one: PeerId, other: PeerId) -> None:
        """Drop the connection and reset its streams; idempotent."""
        self.break_streams(one, other)
        self._connections.pop(frozenset((one, other)), None)

    def connected(self, one: PeerId, other: PeerId) -> bool:
        """Tell whether two nodes have a connection."""
        return frozenset((one, other)) in self._connections

    def break_streams(self, one: PeerId, other: PeerId) -> None:
        """Reset every stream between two nodes; the connection stays."""
        pipes = self._connections.get(frozenset((one, other)), [])
        for pipe in pipes:
            pipe.end(broken=True)
        pipes.clear()

    def partition(self, *islands: Iterable[PeerId]) -> None:
        """Cut the network into ``islands`` (nodes not named stay together) until ``heal``."""
        self._island = {peer: number for number, island in enumerate(islands, 1) for peer in island}
        for pair in list(self._connections):
            one, other = sorted(pair)
            if self._island.get(one, 0) != self._island.get(other, 0):
                self.disconnect(one, other)

    def heal(self) -> None:
        """End the partition; nodes must dial again."""
        self._island = {}

    def stall(self, peer: PeerId) -> None:
        """Keep all bytes towards ``peer`` in the pipes until ``resume``."""
        self.stalled[peer] = None

    def resume(self, peer: PeerId) -> None:
        """Let bytes towards ``peer`` flow again."""
        self.stalled.pop(peer, None)
        for pipes in self._connections.values():
            for pipe in pipes:
                pipe.wake()

    def remove(self, peer: PeerId) -> None:
        """Kill a node: its connections break and nobody can dial it."""
        for other in list(self.transports):
            self.disconnect(peer, other)
        self.transports.pop(peer, None)

    def open(self, opener: PeerId, acceptor: PeerId) -> tuple[MemoryStream, MemoryStream]:
        """Return both ends of a new stream, the opener's first."""
        there, back = _Pipe(self, acceptor), _Pipe(self, opener)
        pipes = self._connections[frozenset((opener, acceptor))]
        pipes[:] = [pipe for pipe in pipes if not pipe.ended] + [there, back]
        return MemoryStream(acceptor, back, there), MemoryStream(opener, there, back)


class MemoryTransport:
    """One node's end of a ``Hub``; addresses are ``/memory/<peer id>/p2p/<peer id>``."""

    def __init__(self, hub: Hub, peer_id: PeerId) -> None:
        self._hub = hub
        self._peer_id = peer_id
        self._handlers: dict[str, StreamHandler] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    async def addresses(self) -> list[str]:
        return [f"/memory/{self._peer_id}/p2p/{self._peer_id}"]

    async def connect(self, address: str) -> PeerId:
        await asyncio.sleep(0)
        _, _, peer = address.rpartition("/p2p/")
        self._hub.connect(self._peer_id, PeerId(peer))
        return PeerId(peer)

    async def disconnect(self, peer: PeerId) -> None:
        self._hub.disconnect(self._peer_id, peer)

    async def peers(self) -> list[PeerId]:
        await asyncio.sleep(0)
        return [peer for peer in self._hub.transports if self._hub.connected(self._peer_id, peer)]

    async def open_stream(self, peer: PeerId, protocol: str) -> MemoryStream:
        await asyncio.sleep(0)
        if not self._hub.connected(self._peer_id, peer):
            raise TransportError(f"not connected to {peer}")
        remote = self._hub.transports[peer]
        handler = remote._handlers.get(protocol)
        if handler is None:
            raise TransportError("protocols not supported")
        ours, theirs = self._hub.open(self._peer_id, peer)
        task = asyncio.get_running_loop().create_task(remote._serve(handler, theirs))
        remote._tasks[task] = None
        task.add_done_callback(lambda done: remote._tasks.pop(done, None))
        return ours

    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler

    async def _serve(self, handler: StreamHandler, stream: MemoryStream) -> None:
        try:
            await handler(stream)
        except TransportError:  # as the live one: a stream that breaks ends its handler
            pass
        finally:
            await stream.close()
