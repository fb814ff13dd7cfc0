"""Transport that changes the messages that its own node gossips."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from typing_extensions import override

from node.network.streams.protocols import GOSSIP
from protocol.core.faults import Fault
from protocol.core.types import PeerId, RunId
from protocol.gossipsub.rpc import Deframer, decode_rpc, encode_rpc, frame
from roles.ports.transport import Stream
from simulations.adversaries.passthrough import PassingTransport, RewritingStream


class GossipRewritingTransport(PassingTransport):
    """Rewrites or drops gossiped messages, for some of its peers."""

    def rewrites(self, peer: PeerId) -> bool:
        """Return whether messages to a peer are rewritten."""
        del peer
        return True

    def rewritten(self, encoded: bytes, run_id: RunId) -> bytes | None:
        """Return the message to send instead of an encoded one, None for nothing."""
        raise NotImplementedError

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        stream = await super().open_stream(peer, protocol)
        changes = protocol == GOSSIP.name and self.rewrites(peer)
        return RewritingStream(stream, self._rewritten_frames) if changes else stream

    def _rewritten_frames(self, data: bytes) -> bytes:
        rpcs, replica = Deframer().feed(data), self.parts.replica()
        if isinstance(rpcs, Fault) or replica is None:
            return data
        change: Callable[[bytes], bytes | None] = partial(self.rewritten, run_id=replica.run_id)
        return b"".join(frame(_changed(rpc, change)) for rpc in rpcs)


def _changed(data: bytes, change: Callable[[bytes], bytes | None]) -> bytes:
    rpc = decode_rpc(data)
    if isinstance(rpc, Fault) or not rpc.publish:
        return data
    published = (change(message) for message in rpc.publish)
    return encode_rpc(replace(rpc, publish=tuple(one for one in published if one is not None)))


def trusting(_signer: PeerId, _message: bytes, _signature: bytes) -> bool:
    """Accept every signature: a node knows its own messages."""
    return True
