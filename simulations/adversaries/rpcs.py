"""Floods of gossip RPCs, one kind each, so that each measures one limit.

A flooding peer writes to some others twice a second. The RPCs are well formed where the kind
permits it. Then only a budget or a score can tell the peer from an honest, busy one.
"""

from abc import abstractmethod
from collections import deque

from typing_extensions import override

from node.network.streams.protocols import GOSSIP, topic_name
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import Topic
from protocol.gossipsub.message import MESSAGE_ID_BYTES, decode_message
from protocol.gossipsub.rpc import Deframer, IHave, Rpc, Subscription, decode_rpc, encode_rpc, frame
from protocol.replica.replica import Replica
from roles.ports.transport import Stream, StreamHandler
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.junk import Junk
from simulations.adversaries.passthrough import OverheardStream
from simulations.ports.parts import Behaviour, Parts

VICTIMS = 4
"""Peers that get a burst after each pause, drawn anew each time."""

GRAFTS_PER_BURST = 8
IHAVES_PER_BURST = 4
IDS = 250
"""Ids per IHAVE. Each is requested once a heartbeat; more make a simulation very slow."""

WANTED_MAX = 1000
"""Newest observed message ids, all of which are requested repeatedly."""

FORGERIES_PER_BURST = 32
NOISES_PER_BURST = 4
EMPTY_FIELDS = 1000
"""Fields with an unassigned number. An RPC may have twenty times as many; that is slow to
simulate."""


class RpcFlood(GossipingTransport):
    """Writes bursts of RPCs to its victims."""

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts)
        self.rng = rng

    @abstractmethod
    def burst(self, replica: Replica) -> bytes:
        """Return frames."""

    @override
    async def act(self, replica: Replica) -> None:
        frames = self.burst(replica)
        for peer in self.rng.sample(await self.victims(), VICTIMS):
            self.tasks.spawn(self.write(peer, frames))


class GraftFlood(RpcFlood):
    """Grafts itself into every mesh, regardless of backoffs."""

    @override
    def burst(self, replica: Replica) -> bytes:
        topics = tuple(topic_name(topic, replica.run_id) for topic in Topic)
        hello = Rpc(subscriptions=tuple(Subscription(True, topic) for topic in topics))
        return frame(encode_rpc(hello)) + GRAFTS_PER_BURST * frame(encode_rpc(Rpc(graft=topics)))


class IHaveFlood(RpcFlood):
    """Offers messages that do not exist."""

    @override
    def burst(self, replica: Replica) -> bytes:
        topic = topic_name(Topic.COMMITS, replica.run_id)
        return b"".join(self._offer(topic) for _ in range(IHAVES_PER_BURST))

    def _offer(self, topic: str) -> bytes:
        ids = self.rng.bytes(IDS * MESSAGE_ID_BYTES)
        cuts = range(0, len(ids), MESSAGE_ID_BYTES)
        offered = tuple(ids[at : at + MESSAGE_ID_BYTES] for at in cuts)
        return frame(encode_rpc(Rpc(ihave=(IHave(topic, offered),))))


class IWantFlood(RpcFlood):
    """Requests every message id that it has observed."""

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts, rng)
        self._wanted: deque[bytes] = deque(maxlen=WANTED_MAX)

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        async def overhear(stream: Stream) -> None:
            frames = Deframer()
            await handler(OverheardStream(stream, lambda data: self._hear(frames, data)))

        await super().handle(protocol, overhear if protocol == GOSSIP.name else handler)

    def _hear(self, deframer: Deframer, data: bytes) -> None:
        frames = deframer.feed(data)
        for each in [] if isinstance(frames, Fault) else frames:
            rpc = decode_rpc(each)
            if not isinstance(rpc, Fault):
                self._wanted += (item for offer in rpc.ihave for item in offer.message_ids)
                messages = map(decode_message, rpc.publish)
                self._wanted += (it.message_id for it in messages if not isinstance(it, Fault))

    @override
    def burst(self, replica: Replica) -> bytes:
        return frame(encode_rpc(Rpc(iwant=tuple(dict.fromkeys(self._wanted)))))


class JunkFlood(RpcFlood):
    """Sends protocol violations until its peers disconnect."""

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts, rng)
        self._junk: Junk | None = None

    def junk(self, replica: Replica) -> Junk:
        """Return the maker of junk frames."""
        self._junk = self._junk or Junk(replica, self.parts.signer, self.rng.child("junk"))
        return self._junk


class InvalidSignatures(JunkFlood):
    """Sends messages with invalid signatures."""

    @override
    def burst(self, replica: Replica) -> bytes:
        junk = self.junk(replica)
        return b"".join(junk.badly_signed() for _ in range(FORGERIES_PER_BURST))


class MalformedRpcs(JunkFlood):
    """Sends frames that hold no RPC."""

    @override
    def burst(self, replica: Replica) -> bytes:
        junk = self.junk(replica)
        return b"".join(junk.noise() for _ in range(NOISES_PER_BURST))


class SlowRpcs(RpcFlood):
    """Sends well-formed RPCs that are empty and slow to decode for their size."""

    @override
    def burst(self, replica: Replica) -> bytes:
        return frame(bytes((15 << 3, 0)) * EMPTY_FIELDS)


def flooding(kind: type[RpcFlood]) -> Behaviour:
    """Return the behaviour of a kind of flood."""

    def flood(parts: Parts, rng: Rng) -> Parts:
        return parts.with_ports(transport=kind(parts, rng.child("rpcs")))

    return flood


RPC_FLOODS: dict[str, Behaviour] = {
    "graft-flood": flooding(GraftFlood),
    "ihave-flood": flooding(IHaveFlood),
    "iwant-flood": flooding(IWantFlood),
    "invalid-signatures": flooding(InvalidSignatures),
    "malformed-rpc": flooding(MalformedRpcs),
    "slow-rpc": flooding(SlowRpcs),
}
