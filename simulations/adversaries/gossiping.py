"""A transport that says more by gossip than its daemon does: the base of what acts by itself."""

import asyncio
from abc import abstractmethod
from contextlib import suppress

from typing_extensions import override

from node.gossip.links import Tasks
from node.streams.deadline import within
from node.streams.protocols import GOSSIP, topic_name
from protocol.crypto import Signer
from protocol.gossip.frames import frame
from protocol.gossip.message import encode_message, sign_message
from protocol.gossip.rpc import Rpc, encode_rpc
from protocol.messages import Message, seal
from protocol.replica import Replica
from protocol.types import Digest, PeerId, Topic
from roles.ports.transport import Stream, StreamHandler, TransportError
from simulations.adversaries.passthrough import PassingTransport
from simulations.ports.parts import Parts

WRITE_SECONDS = 5.0


class GossipingTransport(PassingTransport):
    """Calls ``act`` again and again while its daemon runs, and writes to its gossip streams."""

    pause_seconds = 0.5
    """Between two calls."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self.tasks = Tasks()
        self._streams: dict[PeerId, Stream] = {}
        self._seqno = 0

    @abstractmethod
    async def act(self, replica: Replica) -> None:
        """Do what is dishonest, given what the daemon has concluded."""

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        await super().handle(protocol, handler)
        if protocol == GOSSIP.name:
            self.tasks.spawn(self._run())

    @override
    async def open_stream(self, peer: PeerId, protocol: str) -> Stream:
        stream = await super().open_stream(peer, protocol)
        if protocol == GOSSIP.name:
            self._streams[peer] = stream
        return stream

    async def _run(self) -> None:
        while self.parts.session.alive:
            await asyncio.sleep(self.pause_seconds)
            replica = self.parts.replica()
            if replica is not None and self.parts.session.alive:
                await self.act(replica)

    async def publish(
        self, replica: Replica, topic: Topic, message: Message, signer: Signer | None = None
    ) -> Digest:
        """Sign a message (as another one, if given), gossip it to all peers, return its digest."""
        signed = seal(message, replica.run_id, signer or self.parts.signer)
        self._seqno += 1
        name = topic_name(topic, replica.run_id)
        gossiped = sign_message(self.parts.signer, name, signed.envelope, self._seqno)
        frames = frame(encode_rpc(Rpc(publish=(encode_message(gossiped),))))
        for peer in self._streams:
            self.tasks.spawn(self.write(peer, frames))
        return signed.digest

    async def write(self, peer: PeerId, frames: bytes) -> None:
        """Write frames to the gossip stream of a peer, if there is one that takes them."""
        stream = self._streams.get(peer)
        if stream is not None:
            with suppress(TransportError):
                await within(WRITE_SECONDS, stream.write(frames))
