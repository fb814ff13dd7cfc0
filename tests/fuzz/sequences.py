"""Long sequences of messages to a replica and RPCs to a router: their state stays bounded."""

from collections import deque
from random import Random
from typing import Any

from protocol.consensus.seals import seal_of
from protocol.core.crypto import Identity, verify
from protocol.core.rng import Rng
from protocol.core.types import PeerId, Topic, ValidationResult
from protocol.gossipsub.events import (
    Deliver,
    Effect,
    Flush,
    Heartbeat,
    PeerConnected,
    PeerDisconnected,
    PeerLocated,
    Publish,
    RpcReceived,
    Subscribe,
    Unsubscribe,
    Validate,
    Validated,
)
from protocol.gossipsub.message import encode_message, sign_message
from protocol.gossipsub.params import Params
from protocol.gossipsub.router import Router
from protocol.gossipsub.rpc import IHave, Prune, Rpc, Subscription, encode_rpc
from protocol.membership.admission import KEYS_MAX, REFUSED_MAX
from protocol.messages import (
    Signed,
)
from protocol.replica.replica import UNKNOWN_KEYS_MAX, Replica
from tests.fuzz.documents import fields, rpcs
from tests.fuzz.mutation import mutated_bytes
from tests.fuzz.signed import UNTRUSTED, Correspondence
from tests.fuzz.target import BrokenBoundError, Target
from tests.worlds.messages import fingerprint, verdict_of

_TOPICS = tuple(Topic)
FRESH_MAX = 100
"""New messages of new keys that may be mutated and sent again."""


class ReplicaSession:
    """One replica. An input's first byte advances the clock, the second selects the origin."""

    def __init__(self, **sections: Any) -> None:
        self._post = Correspondence(**sections)
        self._world = self._post.world
        self.replica = Replica(self._world.manifest, verify)
        self._now = self._world.at(0)
        self._said = 0
        self._fresh: list[Signed[Any]] = []
        self._made: deque[PeerId] = deque()

    def draw(self, rng: Random) -> bytes:
        """Return the next message in order, an earlier message of another peer, or a mutation."""
        step = bytes((rng.choice((0,) * 200 + (1, 1, 5, 30)), rng.randrange(len(_TOPICS) + 3)))
        choice, messages = rng.random(), self._post.messages
        if choice < 0.15 and self._said < 4 * len(messages):
            self._said += 1
            return step + messages[self._said % len(messages)].envelope
        if choice < 0.25:
            return step + rng.choice(messages).envelope
        if choice < 0.50:
            return step + self._new(rng).envelope
        one = rng.choice(self._fresh[-50:] if self._fresh and rng.random() < 0.3 else messages)
        envelope = self._post.remade(one, rng)
        if rng.random() < 0.1:
            envelope = mutated_bytes(envelope, rng, [one.envelope], 16 * 1024)
        return step + envelope

    def _new(self, rng: Random) -> Signed[Any]:
        """Return a valid new message, which fills tables."""
        world, choice = self._world, rng.random()
        signer = Identity(rng.randbytes(32))
        now = self._now * 1000
        if choice < 0.3:
            fields = {"sequence": round(now) + rng.randrange(-1000, 1000), "joined_at": 0}
            signed: Signed[Any] = world.record(signer, ("inference",), **fields)
        elif choice < 0.6:
            epoch = world.manifest.epoch_at(self._now)
            worker = rng.choice((*world.workers, signer))
            body = rng.randbytes(32)
            signed = world.commit(worker, 0, epoch=epoch, body=body)
        else:
            validator = rng.choice(world.validators)
            reason = rng.choice(("accepted", "reward"))
            verdict = verdict_of(rng.randbytes(32), rng.randbytes(32), reason)
            seal = seal_of(verdict, validator.peer_id)
            signed = self._post.sealed(rng.choice((verdict, seal)), validator)
        self._post.by_peer[signer.peer_id] = signer
        self._made.append(signer.peer_id)
        if len(self._made) > 2 * FRESH_MAX:  # fresh messages are newer
            del self._post.by_peer[self._made.popleft()]
        self._fresh = [*self._fresh[1 - FRESH_MAX :], signed]
        return signed

    def take(self, data: bytes) -> bool:
        """Process a message; one rejected for its sender's fault leaves the state unchanged."""
        if len(data) < 2:
            return False
        if data[0]:
            self._now += data[0]
            self.replica.advance(self._now)
            self.check()
        way, envelope = data[1] % (len(_TOPICS) + 3), data[2:]
        watched = (
            data[1] & 0xE0 == 0 and len(self.replica.ledger.commits.entries) < 64 and data[0] == 5
        )
        before = fingerprint(self.replica) if watched else None
        if way < len(_TOPICS):
            received = self.replica.receive(envelope, self._now, topic=_TOPICS[way])
        else:
            missed = way == len(_TOPICS)
            received = self.replica.receive(envelope, self._now, anti_entropy=missed)
        if received.result is ValidationResult.REJECT:
            if before is not None and fingerprint(self.replica) != before:
                raise BrokenBoundError("a rejected message has left something")
            if received.fault is None:
                raise BrokenBoundError("rejected for nothing")
        self.replica.verdicts.evidence_due()
        return received.result is ValidationResult.ACCEPT

    def check(self) -> None:
        replica, admitted = self.replica, self.replica.roster.admitted
        workers = set(replica.ledger.commits.unsettled)
        unknown = [worker for worker in workers if not admitted.knows(worker)]
        tables = (
            *((table.name, len(table), table.limit) for table in replica.tables),
            ("unknown", len(unknown), UNKNOWN_KEYS_MAX),
            ("admitted", len(admitted._known), KEYS_MAX),
            ("refused", len(admitted._refused), REFUSED_MAX),
            ("tallies", len(replica.verdicts.pools), len(replica.ledger.commits.entries) + 1),
        )
        for name, size, limit in tables:
            if size > limit:
                raise BrokenBoundError(f"{name}: {size}, limit {limit}")

    def close(self) -> None:
        """Do nothing."""


class RouterSession:
    """One router and forty peers. The first byte of an input is the peer, the second the event."""

    PEERS = UNTRUSTED[:40]
    OWN = ("commits", "certificates", "roster")

    def __init__(self) -> None:
        self._params = Params(
            seen_max=2048, cache_bytes_max=1 << 20, backoffs_max=256, pending_max=64
        )
        self.router = Router(Identity(bytes(32)), self._params, Rng(b"router"))
        self._now = 0.0
        self._connected: set[str] = set()
        self._seqno = 0
        for topic in self.OWN:
            self.router.handle(Subscribe(topic, topic == "roster"), 0.0)

    def draw(self, rng: Random) -> bytes:
        """Return an RPC of a peer, or another event about it."""
        head = bytes((rng.randrange(len(self.PEERS)), min(int(rng.expovariate(0.3)), 255)))
        choice = rng.random()
        if choice < 0.3:
            return head + fields(rng)
        if choice < 0.5:
            return head + mutated_bytes(rng.choice(rpcs()), rng, rpcs(), 8192)
        return head + encode_rpc(self._rpc(rng))

    def _rpc(self, rng: Random) -> Rpc:
        topics = (*self.OWN, "other", "x" * 128, f"t{rng.randrange(600)}")
        topic = rng.choice(topics)
        ids = tuple(rng.randbytes(46) for _ in range(int(rng.random() ** 4 * 400)))
        self._seqno += 1
        author = rng.choice(self.PEERS)
        message = encode_message(sign_message(author, topic, rng.randbytes(40), self._seqno))
        if rng.random() < 0.2:
            message = mutated_bytes(message, rng, [message], 1024)
        known = tuple(author.peer_id.encode()[:46] for _ in range(3))
        return rng.choice(
            (
                Rpc(subscriptions=tuple(Subscription(rng.random() < 0.8, one) for one in topics)),
                Rpc(publish=(message,)),
                Rpc(publish=(message, message)),
                Rpc(ihave=(IHave(topic, ids),)),
                Rpc(iwant=ids + known),
                Rpc(graft=(topic, topic)),
                Rpc(prune=(Prune(topic, rng.choice((0, 1, 60, 2**32, 2**64 - 1))),)),
            )
        )

    def take(self, data: bytes) -> bool:
        """Pass an event to the router and answer its validation requests."""
        if len(data) < 2:
            return False
        peer = self.PEERS[data[0] % len(self.PEERS)].peer_id
        kind = data[1]
        self._now += kind / 100
        if peer not in self._connected:
            self._connected.add(peer)
            self._handle(PeerConnected(peer))
        if kind == 20:
            self._handle(PeerDisconnected(peer))
            self._connected.discard(peer)
        elif kind == 19:
            self._handle(PeerLocated(peer, ("192.0.2.1",)))
        elif kind == 18:
            topic = self.OWN[data[0] % 3]
            self._handle(Unsubscribe(topic))
            self._handle(Subscribe(topic, False))
        elif kind == 17:
            self._handle(Publish(self.OWN[0], data[2:1000]))
        elif kind in (7, 8, 9):
            self._handle(Heartbeat())
            self.check()
        effects = self._handle(RpcReceived(peer, data[2:]))
        return any(isinstance(effect, Validate | Deliver) for effect in effects)

    def _handle(self, event: Any) -> list[Effect]:
        effects = self.router.handle(event, self._now)
        for effect in effects:
            if isinstance(effect, Validate):
                verdicts = tuple(ValidationResult)
                verdict = verdicts[effect.message_id[-1] % 5 % 3]
                if effect.message_id[-1] % 11:  # else the validation never ends
                    self._handle(Validated(effect.message_id, verdict))
        if effects and isinstance(event, RpcReceived) and self._now % 1 < 0.1:
            self.router.handle(Flush(), self._now)
        return effects

    def check(self) -> None:
        for table in self.router.tables:
            if len(table) > table.limit:
                raise BrokenBoundError(f"{table.name}: {len(table)}, limit {table.limit}")
        for report in self.router.report(self._now):
            if report.score != report.score:
                raise BrokenBoundError(f"a score that is no number: {report}")

    def close(self) -> None:
        """Do nothing."""


_INVITED = {"admission": {"rule": "invite", "probation_epochs": 2, "settled_epochs": 5}}
_WORKED = {
    "admission": {"rule": "open", "work_bits": 1, "work_kib": 8, "probation_epochs": 0},
}

TARGETS = (
    Target("replica", ReplicaSession, lasting=20_000),
    Target("replica-invited", lambda: ReplicaSession(**_INVITED), lasting=20_000),
    Target("replica-worked", lambda: ReplicaSession(**_WORKED), lasting=20_000),
    Target("router", RouterSession, lasting=20_000),
)
