"""Routers, identities and a lossy network of routers for the gossip tests."""

import heapq
from dataclasses import dataclass, field

from protocol.core.crypto import Identity, verify
from protocol.core.rng import Rng
from protocol.core.types import PeerId, ValidationResult
from protocol.gossipsub.events import (
    Deliver,
    Discard,
    Effect,
    Event,
    Flush,
    FlushLater,
    Heartbeat,
    PeerConnected,
    PeerFault,
    RpcReceived,
    Send,
    Subscribe,
    Validate,
    Validated,
)
from protocol.gossipsub.mesh import nobody
from protocol.gossipsub.message import encode_message, sign_message
from protocol.gossipsub.params import Params
from protocol.gossipsub.peer_score import no_opinions
from protocol.gossipsub.router import Router
from protocol.gossipsub.rpc import Rpc, Subscription, decode_rpc, encode_rpc

TOPIC = "run/commits"


def identity(number: int) -> Identity:
    return Identity(number.to_bytes(32, "big"))


PEERS = [identity(number) for number in range(1, 25)]
SELF = identity(1000)


def router(
    params: Params | None = None,
    opinions=no_opinions,
    seed: bytes = b"seed",
    chosen=nobody,
    trusted=nobody,
    is_trusted=frozenset(),
    verifier=verify,
) -> Router:
    """Return a router; authors and peers in ``is_trusted`` have reputation."""
    return Router(
        SELF,
        params or Params(),
        Rng(seed),
        verifier,
        opinions=opinions,
        chosen=chosen,
        trusted=trusted,
        is_trusted=is_trusted.__contains__,
    )


def rpc_of(effect: Effect) -> Rpc:
    assert isinstance(effect, Send)
    decoded = decode_rpc(effect.rpc)
    assert isinstance(decoded, Rpc)
    return decoded


def sends(effects: list[Effect]) -> list[tuple[PeerId, Rpc]]:
    return [(effect.peer, rpc_of(effect)) for effect in effects if isinstance(effect, Send)]


def blames(effects: list[Effect]) -> list[str]:
    return [effect.fault.code for effect in effects if isinstance(effect, PeerFault)]


def signed(author: Identity, data: bytes, seqno: int, topic: str = TOPIC) -> bytes:
    return encode_message(sign_message(author, topic, data, seqno))


def received(peer: PeerId, rpc: Rpc) -> RpcReceived:
    return RpcReceived(peer, encode_rpc(rpc))


ENTER = Rpc(subscriptions=(Subscription(True, TOPIC),))


def joined_router(
    count: int = 3,
    params: Params | None = None,
    opinions=no_opinions,
    *,
    may_wait: bool = False,
    chosen=nobody,
    trusted=nobody,
    is_trusted=frozenset(),
    verifier=verify,
) -> Router:
    """Return a router subscribed to TOPIC, with ``count`` subscribed peers in its mesh."""
    node = router(
        params,
        opinions,
        chosen=chosen,
        trusted=trusted,
        is_trusted=is_trusted,
        verifier=verifier,
    )
    for each in PEERS[:count]:
        node.handle(PeerConnected(each.peer_id), 0)
        node.handle(received(each.peer_id, ENTER), 0)
    node.handle(Subscribe(TOPIC, may_wait), 0)
    return node


@dataclass
class Network:
    """Routers joined by links with latency and loss, under a virtual clock."""

    rng: Rng
    loss: float = 0.0
    validate_seconds: float = 0.01
    now: float = 1_700_000_000.0
    routers: dict[PeerId, Router] = field(default_factory=dict)
    links: dict[tuple[PeerId, PeerId], None] = field(default_factory=dict)
    delivered: dict[PeerId, list[bytes]] = field(default_factory=dict)
    blamed: list[PeerFault] = field(default_factory=list)
    duplicates: int = 0
    _agenda: list[tuple[float, int, PeerId, Event]] = field(default_factory=list)
    _count: int = 0

    def add(self, who: Identity, params: Params) -> None:
        seed = self.rng.child(who.peer_id).bytes(32)
        self.routers[who.peer_id] = Router(who, params, Rng(seed))
        self.delivered[who.peer_id] = []
        self.at(self.rng.uniform(), who.peer_id, Heartbeat())

    def connect(self, one: PeerId, other: PeerId) -> None:
        self.links[one, other] = self.links[other, one] = None
        self.act(one, PeerConnected(other))
        self.act(other, PeerConnected(one))

    def at(self, delay: float, who: PeerId, event: Event) -> None:
        self._count += 1
        heapq.heappush(self._agenda, (self.now + delay, self._count, who, event))

    def act(self, who: PeerId, event: Event) -> None:
        for effect in self.routers[who].handle(event, self.now):
            match effect:
                case Send(peer, rpc, _):
                    carries_message = bool(rpc_of(effect).publish)
                    if (who, peer) in self.links and not (
                        carries_message and self.rng.uniform() < self.loss
                    ):
                        delay = 0.01 + 0.09 * self.rng.uniform()
                        self.at(delay, peer, RpcReceived(who, rpc))
                case Validate(message_id):
                    self.at(
                        self.validate_seconds, who, Validated(message_id, ValidationResult.ACCEPT)
                    )
                case Deliver():
                    self.delivered[who].append(effect.data)
                case Discard():
                    self.duplicates += 1
                case PeerFault():
                    self.blamed.append(effect)
                case FlushLater(seconds):
                    self.at(seconds, who, Flush())

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self._agenda and self._agenda[0][0] <= end:
            self.now, _, who, event = heapq.heappop(self._agenda)
            self.act(who, event)
            if isinstance(event, Heartbeat):
                self.at(1.0, who, Heartbeat())
        self.now = end
