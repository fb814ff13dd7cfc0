"""Key grinding: makes keys until one has easy first problems, and backdates its admission."""

from typing_extensions import override

from protocol.core.crypto import Identity, Signer
from protocol.core.rng import Rng
from protocol.core.types import Digest, Role, Topic
from protocol.membership.proof_of_work import solve
from protocol.messages import (
    PROTOCOL_VERSION,
    CheckpointManifest,
    Hardware,
    NodeRecord,
    Signed,
)
from protocol.replica.replica import Replica
from protocol.rollout.assignment import assign
from simulations.adversaries.gossiping import GossipingTransport
from simulations.adversaries.unverifiable import unfounded
from simulations.ports.parts import Parts

KEYS = 32
"""Keys per version; the published one has the easiest problems of these."""

DATED_BACK_EPOCHS = 16
"""Epochs before the version: longer than a probation and the propagation of a record."""

NONCES = range(1 << 20)


class GrindingTransport(GossipingTransport):
    """Publishes, for every version, the best of many new keys, and commits with it.

    Its records and commits are well formed and its work is done; only its date is false. It serves
    no bodies: the test is whether any validator would check a rollout.
    """

    pause_seconds = 4.0

    def __init__(self, parts: Parts, rng: Rng) -> None:
        super().__init__(parts)
        self._rng = rng
        self._chosen: Identity | None = None
        self._checkpoint = Digest(b"")
        self._slot = 0

    @override
    async def act(self, replica: Replica) -> None:
        head = replica.ledger.chain.head
        if head is None:
            return
        if head.digest != self._checkpoint or self._chosen is None:
            self._chosen, self._checkpoint = self._easiest(replica), head.digest
            self._slot = 0
            await self._appear(replica, head, self._chosen)
        elif self._slot < 4:
            await self._commit(replica, head, self._chosen)

    def _easiest(self, replica: Replica) -> Identity:
        keys = [Identity(self._rng.bytes(32)) for _ in range(KEYS)]
        return min(keys, key=lambda key: self._difficulty(replica, key))

    def _difficulty(self, replica: Replica, key: Identity) -> int:
        """Return the difficulty of the problems in a key's first slot; small is easy."""
        sequences = assign(replica.manifest, key.peer_id, 0)
        return sum(sequence.problem_seed for sequence in sequences)

    async def _appear(
        self, replica: Replica, head: Signed[CheckpointManifest], key: Signer
    ) -> None:
        manifest, now = replica.manifest, self.parts.ports.clock.now()
        made = manifest.epoch_at(head.message.created_at / 1000)
        date = max(0, made - DATED_BACK_EPOCHS)
        proof = solve(manifest.admission, replica.run_id, key.peer_id, date, NONCES)
        record = NodeRecord(
            sequence=round(now * 1000),
            joined_at=round(manifest.epoch_start(date) * 1000),
            roles=(Role.INFERENCE,),
            addresses=(),
            hardware=Hardware(),
            reachable=False,
            software="",
            protocol_version=PROTOCOL_VERSION,
            policy_version=-1,
            admission=proof or b"",
        )
        await self.publish(replica, Topic.ROSTER, record, key)

    async def _commit(
        self, replica: Replica, head: Signed[CheckpointManifest], key: Signer
    ) -> None:
        now, body = self.parts.ports.clock.now(), self._rng.bytes(32)
        commit = unfounded(replica, head, now, self._slot, body)
        self._slot += 1
        await self.publish(replica, Topic.COMMITS, commit, key)


def chosen_problems(parts: Parts, rng: Rng) -> Parts:
    """Commit, for every version, with a key selected for its problems."""
    return parts.with_ports(transport=GrindingTransport(parts, rng))
