"""Broadcast of one version to a swarm: the project's state machines over a model of links.

A node is its machine (``Transfer``, or another method's) and the exchange of blobs around it. It
omits tasks, frames and digests, which take most of a simulation's time. The model is that of
``simulations.network``: an access line each way, shared by streams with ``WINDOW_CHUNKS`` in flight
each. Opening a stream takes one round trip, the request half of one, a first connection four more.
Left out: index, gossip, and the last write to disk. ``parts`` uses the daemon's own parts, and a
test compares the two.

Only chunk sizes are simulated, not content. A node dies as in a power failure, without notice.
"""

import heapq
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from node.network.blobs.config import ExchangeLimits
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.shardcast.events import (
    Ask,
    CancelRequest,
    ChunkVerified,
    Effect,
    Event,
    Refusal,
    RequestFailed,
    Tick,
    TransferDone,
)
from protocol.shardcast.index import ShardIndex
from simulations.network.connections import KEEPALIVE_SECONDS
from simulations.network.links import Line
from simulations.network.network import DIAL_ROUND_TRIPS, PATH_SPREAD
from simulations.scenario.scenario import NetworkSection

PROGRESS_SECONDS = 10.0
"""Simulated seconds between progress lines on standard error."""

WINDOW_CHUNKS = 2
"""Chunks of a stream sent and not yet read: a yamux window grows to 16 MiB."""

STRONG_BYTES_PER_SECOND = 59e6
"""Of 590 Mbit/s; four fifths go to others."""

DEADLINE_RATIO = 300.0
"""Multiple of the bound after which a run has failed."""


class Machine(Protocol):
    """State machine of a node: chooses chunks and sources."""

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle an event and return effects."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes in bytes and rates in bytes a second; ``dying`` is a share of the nodes.

    The root and the first ``strong`` nodes have ``STRONG_BYTES_PER_SECOND`` both ways. If there are
    any, every second one of the others is behind NAT.
    """

    nodes: int
    total_bytes: int
    shard_bytes: int
    chunk_bytes: int
    upload_bytes_per_second: float
    download_bytes_per_second: float
    dying: float
    seed: int
    tick_seconds: float
    limits: ExchangeLimits = field(default_factory=ExchangeLimits)
    strong: int = 0

    def is_strong(self, number: int) -> bool:
        """Return whether a node (0 is the root) has a strong line."""
        return bool(self.strong) and number <= self.strong

    def feeds(self, number: int) -> bool:
        """Return whether others can connect to a node."""
        return not self.strong or self.is_strong(number) or number % 2 == 1

    def upload(self, number: int) -> float:
        """Return a node's upload rate."""
        return STRONG_BYTES_PER_SECOND if self.is_strong(number) else self.upload_bytes_per_second

    @property
    def bound_seconds(self) -> float:
        """The time of the file on the slower line, or of all copies at the total upload rate."""
        able = sum(self.upload(number) for number in range(1, self.nodes + 1) if self.feeds(number))
        return self.total_bytes / min(self.download_bytes_per_second, able / self.nodes)


MakeMachine = Callable[[PeerId, Sequence[PeerId]], Machine]
"""``(node, all nodes) -> machine``; the first of all nodes is the root."""


@dataclass(slots=True, eq=False)
class _Stream:
    """A request on the server's side."""

    ask: Ask
    asker: "_Node"
    server: "_Node"
    latency: float
    next_chunk: int
    on_the_way: int = 0
    served: bool = False
    open: bool = True


@dataclass(slots=True, eq=False)
class _Node:
    peer: PeerId
    region: str
    up: Line
    down: Line
    machine: Machine
    held: list[int]  # per shard: bit i is chunk i
    waiting: dict[tuple[int, int], list[_Stream]] = field(default_factory=dict)
    serving: dict[PeerId, int] = field(default_factory=dict)
    streams: dict[int, _Stream] = field(default_factory=dict)  # its own requests
    latencies: dict[PeerId, float] = field(default_factory=dict)  # of connected peers
    received_bytes: int = 0
    sent_bytes: int = 0
    finished_at: float | None = None
    dead: bool = False


class Broadcast:
    """Simulation of one version; call ``run`` once."""

    def __init__(self, plan: Plan, index: ShardIndex, make: MakeMachine, name: str) -> None:
        self._plan = plan
        self._index = index
        self._name = name
        self._now = 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._scheduled = 0
        self._distances = NetworkSection()
        rng = Rng(plan.seed.to_bytes(8, "big"))
        self._paths = rng.child("paths")
        peers = [PeerId(f"n{number}") for number in range(plan.nodes + 1)]
        self._nodes = {
            peer: self._node(number, peer, make(peer, peers), rng)
            for number, peer in enumerate(peers)
        }
        self._root, *self._others = self._nodes.values()
        self._root.held = [(1 << len(shard.chunks)) - 1 for shard in index.shards]
        self._running = len(self._others)
        for node in self._others:
            self._at(rng.child(f"tick/{node.peer}").uniform() * plan.tick_seconds, self._tick, node)
        for node in rng.child("dying").sample(self._others, round(plan.dying * plan.nodes)):
            at = rng.child(f"dies/{node.peer}").uniform() * plan.bound_seconds
            self._at(at, self._die, node)

    def _node(self, number: int, peer: PeerId, machine: Machine, rng: Rng) -> _Node:
        drawn = rng.child(f"region/{peer}").uniform()
        region = next(iter(self._distances.regions))
        for name, share in self._distances.regions.items():
            if drawn >= 0:
                region = name
            drawn -= share
        up = Line(self._plan.upload(number))
        strong = self._plan.is_strong(number)
        down = Line(up.bytes_per_second if strong else self._plan.download_bytes_per_second)
        return _Node(peer, region, up, down, machine, [0] * len(self._index.shards))

    def run(self) -> dict[str, float]:
        """Return the makespan, its ratio to the bound, and the simulation's cost."""
        began = said_at = time.monotonic()
        for node in self._others:
            self._handle(node, Tick())
        deadline = DEADLINE_RATIO * self._plan.bound_seconds
        while self._running and self._now < deadline:
            at, number, action = heapq.heappop(self._events)
            self._now = at
            action()
            if not number % 1024 and time.monotonic() - said_at > PROGRESS_SECONDS:
                said_at = time.monotonic()
                self._say()
        return {**self._result(), "wall_seconds": round(time.monotonic() - began, 1)}

    # Node and machine

    def _at(self, when: float, action: Callable[..., object], *arguments: Any) -> None:
        self._scheduled += 1
        heapq.heappush(self._events, (when, self._scheduled, partial(action, *arguments)))

    def _tick(self, node: _Node) -> None:
        if node.dead or node.finished_at is not None:
            return
        self._handle(node, Tick())
        self._at(self._now + self._plan.tick_seconds, self._tick, node)

    def _die(self, node: _Node) -> None:
        if node.finished_at is not None:
            return
        node.dead = True
        self._running -= 1
        for other in self._others:
            for stream in other.streams.values():
                if stream.server is node:
                    after = self._now + KEEPALIVE_SECONDS
                    self._at(after, self._failed, stream, Refusal.BROKEN)

    def _handle(self, node: _Node, event: Event) -> None:
        if node.dead:
            return
        for effect in node.machine.handle(event, self._now):
            if isinstance(effect, Ask):
                self._ask(node, effect)
            elif isinstance(effect, CancelRequest):
                self._close(node, effect.request)
            elif isinstance(effect, TransferDone):
                node.finished_at = self._now
                self._running -= 1

    def _ask(self, node: _Node, ask: Ask) -> None:
        server = self._nodes[ask.peer]
        round_trips = 1.5
        latency = node.latencies.get(ask.peer)
        if latency is None:
            latency = node.latencies[ask.peer] = self._latency(node, server)
            round_trips += DIAL_ROUND_TRIPS
        stream = _Stream(ask, node, server, latency, ask.first)
        node.streams[ask.request] = stream
        self._at(self._now + 2 * latency * round_trips, self._requested, stream)

    def _latency(self, one: _Node, other: _Node) -> float:
        path = "/".join(sorted((one.peer, other.peer)))
        spread = 1 + PATH_SPREAD * (self._paths.child(path).uniform() - 0.5)
        return self._distances.round_trip_seconds(one.region, other.region) / 2 * spread

    def _close(self, node: _Node, request: int) -> None:
        stream = node.streams.pop(request, None)
        if stream is not None:
            self._at(self._now + stream.latency, self._end, stream)

    # Server

    def _requested(self, stream: _Stream) -> None:
        server, ask, limits = stream.server, stream.ask, self._plan.limits
        if server.dead:
            self._at(self._now + limits.open_seconds, self._failed, stream, Refusal.BROKEN)
            return
        if not stream.open:
            return
        serving = server.serving.get(stream.asker.peer, 0)
        wanted = ((1 << ask.count) - 1) << ask.first
        if (
            serving >= limits.streams_per_peer
            or sum(server.serving.values()) >= limits.streams_total
        ):
            self._refuse(stream, Refusal.BUSY)
        elif not ask.wait and wanted & ~server.held[ask.shard]:
            self._refuse(stream, Refusal.UNAVAILABLE)
        else:
            server.serving[stream.asker.peer] = serving + 1
            stream.served = True
            self._pump(stream)

    def _refuse(self, stream: _Stream, refusal: Refusal) -> None:
        stream.open = False
        self._at(self._now + stream.latency, self._failed, stream, refusal)

    def _failed(self, stream: _Stream, refusal: Refusal) -> None:
        if stream.asker.streams.pop(stream.ask.request, None) is not None:
            held = 0 if stream.server.dead else stream.server.held[stream.ask.shard]
            self._handle(stream.asker, RequestFailed(stream.ask.request, refusal, held))

    def _end(self, stream: _Stream) -> None:
        stream.open = False
        if stream.served:
            stream.served = False
            server = stream.server
            server.serving[stream.asker.peer] -= 1
            if not server.serving[stream.asker.peer]:
                del server.serving[stream.asker.peer]

    def _pump(self, stream: _Stream) -> None:
        """Send held chunks as far as the window allows."""
        ask, server = stream.ask, stream.server
        if server.dead:
            return
        end = ask.first + ask.count
        while stream.open and stream.next_chunk < end and stream.on_the_way < WINDOW_CHUNKS:
            chunk = stream.next_chunk
            if not server.held[ask.shard] >> chunk & 1:
                server.waiting.setdefault((ask.shard, chunk), []).append(stream)
                return
            stream.next_chunk += 1
            stream.on_the_way += 1
            size = self._index.chunk_length(ask.shard, chunk)
            server.sent_bytes += size
            begins = max(self._now, server.up.free_at)
            passed = server.up.pass_bulk(self._now, self._now, size) + stream.latency
            self._at(passed, self._come_in, stream, chunk, size, begins + stream.latency)
        if stream.next_chunk == end:
            self._end(stream)

    def _come_in(self, stream: _Stream, chunk: int, size: int, begins: float) -> None:
        passed = stream.asker.down.pass_bulk(begins, self._now, size)
        if passed <= self._now:
            self._deliver(stream, chunk, size)
        else:
            self._at(passed, self._deliver, stream, chunk, size)

    def _deliver(self, stream: _Stream, chunk: int, size: int) -> None:
        node, ask = stream.asker, stream.ask
        if node.dead or stream.server.dead:
            return
        node.received_bytes += size
        self._at(self._now + stream.latency, self._acknowledged, stream)
        if ask.request not in node.streams:
            return
        if chunk == ask.first + ask.count - 1:
            del node.streams[ask.request]
        node.held[ask.shard] |= 1 << chunk
        for waiting in node.waiting.pop((ask.shard, chunk), ()):
            self._pump(waiting)
        self._handle(node, ChunkVerified(ask.request, ask.shard, chunk))

    def _acknowledged(self, stream: _Stream) -> None:
        stream.on_the_way -= 1
        if stream.open:
            self._pump(stream)

    # Results

    def _say(self) -> None:
        ratio = self._now / self._plan.bound_seconds
        received = sum(node.received_bytes for node in self._others)
        share = received / (self._plan.nodes * self._plan.total_bytes)
        print(
            f"{self._name}: at {ratio:.2f} of the bound {share:.1%} of all bytes are there, "
            f"{self._running} nodes are not done",
            file=sys.stderr,
        )

    def _result(self) -> dict[str, float]:
        if self._running:
            raise RuntimeError(f"{self._running} nodes never have the version")
        plan, live = self._plan, [node for node in self._others if not node.dead]
        times = sorted(node.finished_at or 0.0 for node in live)
        received = sum(node.received_bytes for node in live)
        return {
            "makespan_ratio": round(times[-1] / plan.bound_seconds, 3),
            "median_ratio": round(times[len(times) // 2] / plan.bound_seconds, 3),
            "makespan_seconds": round(times[-1], 2),
            "died": plan.nodes - len(live),
            "received_ratio": round(received / len(live) / plan.total_bytes, 3),
            "root_sent_ratio": round(self._root.sent_bytes / plan.total_bytes, 3),
            "root_sent_in_bound": round(self._root.up.free_at / plan.bound_seconds, 3),
            "events": self._scheduled,
        }
