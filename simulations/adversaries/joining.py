"""Attacks on joining nodes: false synchronisation, and eclipse by surrounding a node."""

from collections.abc import Mapping

from typing_extensions import override

from node.network.streams.deadline import within
from node.network.streams.framing import read_frame, write_frame
from node.network.streams.protocols import SYNC
from protocol.core.codec import decode, encode
from protocol.core.faults import Fault
from protocol.core.rng import Rng
from protocol.core.types import Digest, PeerId, Role
from protocol.messages import NodeRecord, Signed
from protocol.replica.replica import Replica
from roles.ports.transport import Stream, StreamHandler, TransportError
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.passthrough import while_acting, word_of
from simulations.ports.parts import Parts

OLD_SHARE = 0.5
"""Share of responses that list only members' records; the others are empty."""


class FalseSyncTransport(GossipingTransport):
    """Answers synchronisation requests as if the swarm had next to no messages."""

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts)
        self.rng = rng

    @override
    async def act(self, replica: Replica) -> None:
        """Do nothing; respond to requests only."""

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        if word_of(protocol) == SYNC.word:
            handler = while_acting(self.parts, self._answer, handler)
        await super().handle(protocol, handler)

    async def _answer(self, stream: Stream) -> None:
        if isinstance(await self._read(stream), Fault):
            return
        page = self._page()
        await write_frame(stream, encode({"ids": list(page)}))
        wanted = await self._read(stream)
        fields = wanted if isinstance(wanted, Fault) else decode(wanted, bytes_max=len(wanted))
        for item in fields.get("ids", ()) if isinstance(fields, dict) else ():
            await write_frame(stream, page[item].envelope)

    async def _read(self, stream: Stream) -> bytes | Fault:
        return await within(SYNC.stall_seconds, read_frame(stream, SYNC.opener_bytes_max))

    def _page(self) -> Mapping[Digest, Signed[NodeRecord]]:
        replica = self.parts.replica()
        if replica is None or self.rng.uniform() >= OLD_SHARE:
            return {}
        return {record.digest: record for record in replica.roster.records()}


class EclipsingTransport(FalseSyncTransport):
    """Connects to one worker and disconnects from all other peers, to be its only peers.

    The target is the first dialable worker by address.
    """

    @override
    async def act(self, replica: Replica) -> None:
        victim = self._victim()
        for peer in await self.peers():
            if peer != victim:
                await self.disconnect(peer)
        if victim is not None and victim not in await self.peers():
            self.approach(replica, victim)

    @override
    async def connect(self, address: str) -> PeerId:
        if self.parts.acting() and not address.endswith(f"/p2p/{self._victim()}"):
            raise TransportError("dials the victim only")
        return await super().connect(address)

    @override
    async def handle(self, protocol: str, handler: StreamHandler) -> None:
        async def serve(stream: Stream) -> None:
            if not self.parts.acting() or stream.peer == self._victim():
                await handler(stream)

        await super().handle(protocol, serve)

    def _victim(self) -> PeerId | None:
        replica = self.parts.replica()
        members = [] if replica is None else replica.roster.records()
        there = [
            (record.message.addresses[0], record.signer)
            for record in members
            if record.message.reachable
            and record.message.addresses
            and Role.INFERENCE in record.message.roles
        ]
        return min(there)[1] if there else None


def false_sync(parts: Parts, rng: Rng) -> Parts:
    """Answer joining nodes' synchronisation requests with nothing."""
    return parts.with_ports(transport=FalseSyncTransport(parts, rng.child("sync")))


def eclipse(parts: Parts, rng: Rng) -> Parts:
    """Be the only peers of one node."""
    return parts.with_ports(transport=EclipsingTransport(parts, rng.child("eclipse")))
