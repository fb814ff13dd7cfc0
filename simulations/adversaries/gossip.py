"""Transport that changes the messages that its own node gossips."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from typing_extensions import override

from node.network.streams.protocols import GOSSIP
from protocol.core.crypto import digest
from protocol.core.faults import Fault
from protocol.core.types import PeerId
from protocol.gossipsub.message import decode_message, encode_message, sign_message
from protocol.gossipsub.rpc import Deframer, decode_rpc, encode_rpc, frame
from protocol.messages import Message, Signed, open_envelope
from protocol.replica.replica import Replica
from roles.ports.transport import Stream
from simulations.adversaries.passthrough import PassingTransport, RewritingStream


class GossipRewritingTransport(PassingTransport):
    """Sends other messages of one kind than its node gossips, to all of its peers or to half."""

    kind: type[Message]
    """Kind of the messages that it replaces."""
    to_half = False

    @abstractmethod
    def other(self, own: Signed[Any], replica: Replica) -> Signed[Any] | None:
        """Return the message to send instead of an own one: this, another, or None for nothing."""

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        stream = await super().open_stream(peer, protocol)
        is_target = not self.to_half or digest(peer.encode())[0] % 2
        changes = protocol == GOSSIP.name and is_target
        return RewritingStream(stream, self._rewritten_frames) if changes else stream

    def _rewritten_frames(self, data: bytes) -> bytes:
        rpcs, replica = Deframer().feed(data), self.parts.replica()
        if isinstance(rpcs, Fault) or replica is None:
            return data
        change: Callable[[bytes], bytes | None] = partial(self._rewritten, replica)
        return b"".join(frame(_changed(rpc, change)) for rpc in rpcs)

    def _rewritten(self, replica: Replica, encoded: bytes) -> bytes | None:
        message, signer = decode_message(encoded), self.parts.signer
        if isinstance(message, Fault) or message.author != signer.peer_id:
            return encoded
        own = open_envelope(message.data, self.kind, replica.run_id, trusting)
        if isinstance(own, Fault):
            return encoded
        other = self.other(own, replica)
        if other is None or other is own:
            return None if other is None else encoded
        seqno = int.from_bytes(message.seqno, "big") + 1
        return encode_message(sign_message(signer, message.topic, other.envelope, seqno))


def _changed(data: bytes, change: Callable[[bytes], bytes | None]) -> bytes:
    rpc = decode_rpc(data)
    if isinstance(rpc, Fault) or not rpc.publish:
        return data
    published = (change(message) for message in rpc.publish)
    return encode_rpc(replace(rpc, publish=tuple(one for one in published if one is not None)))


def trusting(_signer: PeerId, _message: bytes, _signature: bytes) -> bool:
    """Accept every signature: a node knows its own messages."""
    return True
