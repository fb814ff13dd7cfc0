"""A machine that announces many keys, at its own address or at another member's.

The records are well formed and signed by their keys; no daemon ever answers with one of them.
"""

from typing_extensions import override

from node.network.streams.deadline import within
from node.network.streams.framing import write_frame
from node.network.streams.protocols import DIAL_BACK
from protocol.core.crypto import Identity
from protocol.core.rng import Rng
from protocol.core.types import PeerId, Role, Topic
from protocol.messages import PROTOCOL_VERSION, Hardware, NodeRecord
from protocol.replica.replica import Replica
from roles.ports.transport import TransportError
from simulations.adversaries.gossiping import WRITE_SECONDS, GossipingTransport
from simulations.ports.parts import Parts

KEYS_PER_SECOND = 1
"""Per machine. A fast one makes ten thousand; more than one makes a simulation very slow."""


class KeyMakingTransport(GossipingTransport):
    """Gossips the records of freshly made keys."""

    pause_seconds = 1.0 / KEYS_PER_SECOND

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts)
        self.rng = rng

    @override
    async def act(self, replica: Replica) -> None:
        key = Identity(self.rng.bytes(32))
        now_ms = round(1000 * self.parts.ports.clock.now())
        record = NodeRecord(
            sequence=now_ms,
            joined_at=now_ms,
            roles=(Role.RELAY,),
            addresses=tuple(f"{where}/p2p/{key.peer_id}" for where in await self.doors(replica)),
            hardware=Hardware(),
            reachable=True,
            software="",
            protocol_version=PROTOCOL_VERSION,
            policy_version=-1,
        )
        await self.publish(replica, Topic.ROSTER, record, key)

    async def doors(self, _replica: Replica) -> list[str]:
        """Return the addresses of a key, without the ``/p2p`` part."""
        return [address.rpartition("/p2p/")[0] for address in await self.addresses()]


class ReflectingTransport(KeyMakingTransport):
    """Announces its keys at the address of one member, and requests dial-backs there.

    The target is the first dialable member by address; it has requested none of these dials.
    """

    @override
    async def act(self, replica: Replica) -> None:
        await super().act(replica)
        asked = [peer for peer in await self.victims() if peer != self._target(replica)[1]]
        for peer in self.rng.sample(asked, 1):
            self.tasks.spawn(self._ask(replica, peer))

    @override
    async def doors(self, replica: Replica) -> list[str]:
        return [self._target(replica)[0]]

    def _target(self, replica: Replica) -> tuple[str, PeerId]:
        """Return the address and peer id of the target."""
        genesis = replica.manifest.genesis
        members = map(replica.roster.get, map(PeerId, genesis.validators))
        there = [
            (address.rpartition("/p2p/")[0], member.peer)
            for member in members
            if member is not None
            for address in member.record.message.addresses
        ]
        return min(there, default=("/sim/nowhere", self.peer_id))

    async def _ask(self, replica: Replica, peer: PeerId) -> None:
        """Request a dial-back to the target's address."""
        asked = f"{self._target(replica)[0]}/p2p/{self.peer_id}".encode()
        try:
            protocol = DIAL_BACK.on(replica.run_id)
            stream = await within(WRITE_SECONDS, self.open_stream(peer, protocol))
            try:
                await within(WRITE_SECONDS, write_frame(stream, asked, length_bytes=2))
                await within(WRITE_SECONDS, stream.read(1))
            finally:
                await stream.close()
        except TransportError:
            pass  # the peer refuses the dial-back


def sybil_flood(parts: Parts, rng: Rng) -> Parts:
    """Be a new member every second."""
    return parts.with_ports(transport=KeyMakingTransport(parts, rng.child("keys")))


def address_reflection(parts: Parts, rng: Rng) -> Parts:
    """Cause others to dial a third party."""
    return parts.with_ports(transport=ReflectingTransport(parts, rng.child("keys")))
