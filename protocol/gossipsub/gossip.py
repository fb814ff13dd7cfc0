"""Lazy gossip within budgets: advertise (IHAVE), request (IWANT) and serve messages.

``Promises`` tracks requested messages; a peer that advertises and does not deliver is penalised. As
in go-libp2p-pubsub, one random id of each IWANT is tracked: it detects false IHAVEs on average, at
the cost of one entry per request.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from protocol.core.containers import BoundedDict
from protocol.core.rng import Rng
from protocol.core.types import PeerId
from protocol.gossipsub.mesh import PeerSet
from protocol.gossipsub.message import MESSAGE_ID_BYTES
from protocol.gossipsub.message_cache import MessageCache
from protocol.gossipsub.params import Params, ScoreParams
from protocol.gossipsub.peer_state import PeerState
from protocol.gossipsub.rpc import IHave


class _Shares:
    """Equal shares of a budget per heartbeat, among its users in this heartbeat or the last."""

    def __init__(self, together: int) -> None:
        self._together = together
        self._wanting: set[PeerId] = set()
        self._wanting_before = 0

    def heartbeat(self) -> None:
        self._wanting_before = len(self._wanting)
        self._wanting.clear()

    def part(self, peer: PeerId) -> int:
        """Return the share of one peer in this heartbeat."""
        self._wanting.add(peer)
        return self._together // max(len(self._wanting), self._wanting_before)


class LazyGossip:
    """Holds the servable messages, and the ids requested in this heartbeat.

    All untrusted peers (not ``trusted``) share one budget for served bytes and one for requests.
    """

    def __init__(self, params: Params, rng: Rng, trusted: PeerSet) -> None:
        self._params = params
        self._rng = rng
        self._trusted = trusted
        self._asked: dict[bytes, None] = {}
        self._ids_asked = _Shares(params.iwant_untrusted_ids_max)
        self._bytes_served = _Shares(params.iwant_untrusted_bytes_max)
        self.cache = MessageCache(
            params.history_windows, params.gossip_windows, params.cache_bytes_max
        )

    def heartbeat(self) -> None:
        """Begin the next interval; undelivered ids may be requested again."""
        self._asked = {}
        self._ids_asked.heartbeat()
        self._bytes_served.heartbeat()
        self.cache.shift()

    def ask(
        self,
        peer: PeerId,
        state: PeerState,
        entries: Iterable[IHave],
        wanted: Callable[[str, Sequence[bytes]], list[bytes]],
    ) -> tuple[bytes, ...]:
        """Return the ids to request from one RPC's IHAVEs; ``wanted(topic, ids)`` selects them."""
        state.ihave_messages += 1
        if state.ihave_messages > self._params.ihave_messages_max:
            return ()
        params = self._params
        ids_max = self._most(peer, params.ihave_ids_max, self._ids_asked)
        room = min(ids_max - state.ids_asked, params.asked_max - len(self._asked))
        asked: dict[bytes, None] = {}
        for entry in entries:
            for message_id in wanted(entry.topic, entry.message_ids):
                if len(asked) >= room:
                    break
                if len(message_id) == MESSAGE_ID_BYTES and message_id not in self._asked:
                    asked[message_id] = None
        self._asked.update(asked)
        state.ids_asked += len(asked)
        return tuple(asked)

    def serve(self, peer: PeerId, state: PeerState, message_ids: Sequence[bytes]) -> list[bytes]:
        """Return the encoded messages that a peer requested and may have."""
        served: list[bytes] = []
        most = self._params.iwant_reply_bytes_max
        bytes_max = self._most(peer, most, self._bytes_served) if message_ids else 0
        for message_id in message_ids:
            if state.bytes_served >= bytes_max:
                break
            encoded = self.cache.serve(message_id, peer, self._params.iwant_serves_max)
            if encoded is not None:
                state.bytes_served += len(encoded)
                served.append(encoded)
        return served

    def _most(self, peer: PeerId, each: int, untrusted: _Shares) -> int:
        """Return the budget of one peer in this heartbeat; an untrusted one has a share."""
        return each if peer in self._trusted() else min(each, untrusted.part(peer))

    def advertise(
        self, audience: Callable[[str], tuple[list[PeerId], list[PeerId]]]
    ) -> Mapping[PeerId, tuple[IHave, ...]]:
        """Return the IHAVEs by peer; ``audience(topic)``: peers outside and inside its mesh."""
        told: dict[PeerId, list[IHave]] = {}
        for topic, message_ids in self.cache.gossip_ids().items():
            outside, inside = audience(topic)
            share = int(self._params.gossip_factor * len(outside))
            chosen = self._choose(outside, max(self._params.lazy_peers, share), told)
            room = max(0, self._params.lazy_peers - len(chosen))
            everything = IHave(topic, tuple(message_ids))
            if room:
                chosen += self._choose(inside, room, told)
            for peer in chosen:
                self._tell(told.setdefault(peer, []), everything)
        return {peer: tuple(entries) for peer, entries in told.items() if entries}

    def offer(self, topics: Iterable[str]) -> tuple[IHave, ...]:
        """Return the IHAVEs of some topics for a peer that we have just grafted into their meshes.

        It may have been without a mesh for a while, and is rarely selected among many untrusted
        ones.
        """
        entries: list[IHave] = []
        recent = self.cache.gossip_ids()
        for topic in topics:
            self._tell(entries, IHave(topic, tuple(recent.get(topic, ()))))
        return tuple(entries)

    def _choose(
        self, peers: Sequence[PeerId], count: int, told: Mapping[PeerId, object]
    ) -> list[PeerId]:
        """Return random peers, first those that get an IHAVE of another topic: one RPC for both."""
        if not told:
            return self._rng.sample(peers, count)
        chosen = [peer for peer in peers if peer in told][:count]
        if len(chosen) == count:
            return chosen
        others = [peer for peer in peers if peer not in told]
        return chosen + self._rng.sample(others, count - len(chosen))

    def _tell(self, entries: list[IHave], offer: IHave) -> None:
        """Add an IHAVE, cut to a random part if it exceeds the ids that one peer accepts."""
        room = self._params.ihave_ids_max - sum(len(entry.message_ids) for entry in entries)
        if len(offer.message_ids) > room:
            offer = IHave(offer.topic, tuple(self._rng.sample(offer.message_ids, room)))
        if offer.message_ids:
            entries.append(offer)


class Promises:
    """Deadline of each requested message, by peer."""

    def __init__(self, params: ScoreParams, rng: Rng) -> None:
        self._params = params
        self._rng = rng
        self._due = BoundedDict[bytes, dict[PeerId, float]](params.promises_max, "promises")
        self.tables = (self._due,)

    def __len__(self) -> int:
        return len(self._due)

    def add(self, peer: PeerId, message_ids: Sequence[bytes], now: float) -> None:
        """Track one of the requested messages; an existing deadline is not extended."""
        message_id = message_ids[self._rng.below(len(message_ids))]
        self._due.setdefault(message_id, {}).setdefault(peer, now + self._params.promise_seconds)

    def fulfil(self, message_id: bytes) -> None:
        """Record that a message arrived, from any peer: all its promises are fulfilled."""
        self._due.pop(message_id, None)

    def take_broken(self, now: float) -> list[PeerId]:
        """Return the peers that broke a promise, once for each, and forget those promises."""
        broken: list[PeerId] = []
        for message_id, peers in list(self._due.items()):
            late = [peer for peer, due in peers.items() if now > due]
            broken += late
            for peer in late:
                del peers[peer]
            if not peers:
                del self._due[message_id]
        return broken
