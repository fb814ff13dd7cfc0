"""Distribution methods for a version: the forest, a single tree, and a few fixed relays."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from broadcast import Machine, MakeMachine, Plan

from protocol.core import crypto
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.shardcast import forest
from protocol.shardcast.events import (
    Ask,
    ChunkVerified,
    Effect,
    Event,
    RequestFailed,
    TransferDone,
    TransferLimits,
)
from protocol.shardcast.forest import ForestMember, ForestMembers
from protocol.shardcast.index import ShardIndex
from protocol.shardcast.transfer import Transfer

REQUESTS = 8
"""Concurrent requests of a node: the streams that fill a wide-area link."""

NEVER = math.inf
PATIENT = TransferLimits(
    late_seconds_initial=NEVER,
    late_seconds_min=NEVER,
    late_seconds_max=NEVER,
    ahead_seconds=NEVER,
)
"""For a single tree: a node keeps a live parent. A quarter of its line is no defect there. If all
nodes look for faster parents, the last one has the file twice as late."""

RELAYS = 10
POOL = 10
GAIN, HEALING = 0.3, 0.01
"""SHARDCAST 0.3.2: concurrent shards of a client, learning rate of a relay's success and speed, and
the trust that each relay regains per shard."""


def by_forest(
    plan: Plan, index: ShardIndex, stripes: int, fanout: int, limits: TransferLimits | None = None
) -> MakeMachine:
    """Return a factory of the project's own machine."""
    version = crypto.digest(plan.seed.to_bytes(8, "big"))
    limits = replace(limits or TransferLimits(), requests_per_stripe=max(2, REQUESTS // stripes))
    missing = [range(len(shard.chunks)) for shard in index.shards]
    members: list[ForestMembers] = []

    def make(peer: PeerId, everyone: Sequence[PeerId]) -> Machine:
        if not members:
            known = (
                ForestMember(other, int(plan.upload(number)), reachable=plan.feeds(number))
                for number, other in enumerate(everyone)
            )
            members.append(ForestMembers(known))
        orders = []
        for stripe in range(stripes):
            tree = members[0], everyone[0], version, stripe, peer, stripes, fanout
            orders.append(
                forest.with_failover(forest.candidates(*tree), forest.failover_parent(*tree))
            )
        helpers = forest.extra_sources(members[0], everyone[0], version, peer, stripes)
        return Transfer(index, orders, missing, limits, root=everyone[0], helpers=helpers)

    return make


def by_relays(plan: Plan, index: ShardIndex) -> MakeMachine:
    """Return a factory of SHARDCAST's nodes: ten relays copy the root and serve the others."""
    rng = Rng(plan.seed.to_bytes(8, "big")).child("relays")

    def make(peer: PeerId, everyone: Sequence[PeerId]) -> Machine:
        relays = everyone[1 : RELAYS + 1]
        sources = everyone[:1] if peer in relays else relays
        return RelayClient(index, sources, rng.child(peer))

    return make


@dataclass(slots=True)
class _Relay:
    success: float = 1.0
    speed: float = 1.0


@dataclass(slots=True)
class _Fetch:
    ask: Ask
    asked_at: float
    left: int


class RelayClient:
    """Fetches each shard from a relay drawn by success times speed.

    More favourable than the original: it waits for shards that a relay does not have yet, without
    polling, and a broken shard does not restart the file. The original gives up a relay after 30 s
    of silence, when a dead relay is detected here too (``KEEPALIVE_SECONDS``). A live relay is
    never silent, however many share its line; a model's chunks would make it seem so.
    """

    def __init__(self, index: ShardIndex, sources: Sequence[PeerId], rng: Rng) -> None:
        self._index = index
        self._rng = rng
        self._relays = {source: _Relay() for source in sources}
        self._todo = list(range(len(index.shards)))
        self._fetches: dict[int, _Fetch] = {}
        self._asked = 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle an event and return effects."""
        effects: list[Effect] = []
        if isinstance(event, ChunkVerified):
            self._chunk_good(event, now)
        elif isinstance(event, RequestFailed) and event.request in self._fetches:
            self._fail(event.request)
        while self._todo and len(self._fetches) < POOL:
            effects.append(self._ask(self._todo.pop(0), now))
        return effects if self._fetches else [*effects, TransferDone()]

    def _ask(self, shard: int, now: float) -> Ask:
        drawn = self._rng.uniform() * sum(it.success * it.speed for it in self._relays.values())
        chosen = next(iter(self._relays))
        for name, relay in self._relays.items():
            if drawn >= 0:
                chosen = name
            drawn -= relay.success * relay.speed
        count = len(self._index.shards[shard].chunks)
        ask = Ask(self._asked, 0, chosen, shard, 0, count, wait=True)
        self._fetches[self._asked] = _Fetch(ask, now, count)
        self._asked += 1
        return ask

    def _chunk_good(self, event: ChunkVerified, now: float) -> None:
        fetch = self._fetches[event.request]
        fetch.left -= 1
        if fetch.left:
            return
        del self._fetches[event.request]
        relay = self._relays[fetch.ask.peer]
        megabytes = self._index.shards[fetch.ask.shard].length / 1e6
        relay.speed += GAIN * (megabytes / max(1e-3, now - fetch.asked_at) - relay.speed)
        relay.success += GAIN * (1.0 - relay.success)
        for other in self._relays.values():
            other.success = min(1.0, other.success + HEALING)

    def _fail(self, number: int) -> None:
        fetch = self._fetches.pop(number)
        self._relays[fetch.ask.peer].success *= 1 - GAIN
        self._todo.insert(0, fetch.ask.shard)
