"""A transport that sends gossip beside its daemon's: base class of active adversaries."""

import asyncio
from abc import abstractmethod
from contextlib import suppress

from typing_extensions import override

from node.network.gossip.tasks import Tasks
from node.network.streams.deadline import within
from node.network.streams.protocols import GOSSIP, topic_name
from protocol.core.crypto import Signer
from protocol.core.types import Digest, PeerId, Topic
from protocol.gossipsub.message import encode_message, sign_message
from protocol.gossipsub.rpc import Rpc, encode_rpc, frame
from protocol.messages import Message, seal
from protocol.replica.replica import Replica
from roles.ports.transport import Stream, StreamHandler, TransportError
from simulations.adversaries.passthrough import PassingTransport
from simulations.ports.parts import Parts

WRITE_SECONDS = 5.0


class GossipingTransport(PassingTransport):
    """Calls ``act`` repeatedly while its daemon runs, and writes to its gossip streams."""

    pause_seconds = 0.5
    """Interval between two calls."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        parts.accomplices[parts.signer.peer_id] = parts.signer
        self.tasks = Tasks()
        self._streams: dict[PeerId, Stream] = {}
        self._seqno = 0

    @abstractmethod
    async def act(self, replica: Replica) -> None:
        """Attack, given the daemon's replica."""

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
            await asyncio.sleep(self.pause_seconds / self.parts.times)
            replica = self.parts.replica()
            if replica is not None and self.parts.session.alive and self.parts.acting():
                with suppress(TransportError):  # its daemon is draining
                    await self.act(replica)

    async def victims(self) -> list[PeerId]:
        """Return the connected peers that are no accomplices."""
        return [peer for peer in await self.peers() if peer not in self.parts.accomplices]

    def approach(self, replica: Replica, peer: PeerId) -> None:
        """Dial a member at the address in its record."""
        member = replica.roster.get(peer)
        for address in () if member is None else member.record.message.addresses[:1]:
            self.tasks.spawn(self._dial(address))

    async def _dial(self, address: str) -> None:
        with suppress(TransportError):
            await within(WRITE_SECONDS, self.connect(address))

    async def publish(
        self, replica: Replica, topic: Topic, message: Message, signer: Signer | None = None
    ) -> Digest:
        """Sign a message, with another key if given; gossip it to all peers; return its digest."""
        signed = seal(message, replica.run_id, signer or self.parts.signer)
        frames = self.gossiped(replica, topic, signed.envelope)
        for peer in self._streams:
            self.tasks.spawn(self.write(peer, frames))
        return signed.digest

    def gossiped(self, replica: Replica, topic: Topic, envelope: bytes) -> bytes:
        """Return the frame in which this peer gossips an envelope."""
        self._seqno += 1
        name = topic_name(topic, replica.run_id)
        message = sign_message(self.parts.signer, name, envelope, self._seqno)
        return frame(encode_rpc(Rpc(publish=(encode_message(message),))))

    async def write(self, peer: PeerId, frames: bytes) -> None:
        """Write frames to the gossip stream of a peer, if it has an open one."""
        stream = self._streams.get(peer)
        if stream is not None:
            with suppress(TransportError):
                await within(WRITE_SECONDS, stream.write(frames))
