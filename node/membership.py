"""Our own record: made, told to the swarm, put into the directory; and the directory's hints."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from node.gossip import Gossip
from protocol.crypto import Signer
from protocol.messages import PROTOCOL_VERSION, Hardware, NodeRecord, Signed, seal
from protocol.replica import Replica
from protocol.rng import Rng
from protocol.types import Relay, Role
from roles.ports import Clock, Directory, Transport, TransportError

log = structlog.get_logger()

BUCKETS = 1
"""A key's dictionary travels whole; one bucket serves the first thousand members."""

LOOKUP_SECONDS_MIN = 2.0
LOOKUP_SECONDS_MAX = 60.0
DIRECTORY_LIFETIMES = 4
"""A directory entry outlives the record's place on the roster: it is only an address hint."""


def directory_keys(run_id: bytes) -> list[str]:
    """Return the directory keys of a run."""
    return [f"{run_id.hex()}/members/{bucket}" for bucket in range(BUCKETS)]


@dataclass(frozen=True, slots=True)
class About:
    """What this node says of itself besides what changes."""

    roles: tuple[Role, ...]
    hardware: Hardware
    reachable: bool
    software: str
    upload_bytes_per_second: int = 0


class Membership:
    """Announces us and listens to the directory."""

    def __init__(
        self,
        signer: Signer,
        replica: Replica,
        about: About,
        *,
        transport: Transport,
        directory: Directory,
        gossip: Gossip,
        topic: str,
        clock: Clock,
        rng: Rng,
        policy_version: Callable[[], int],
    ) -> None:
        self._signer = signer
        self._replica = replica
        self._about = about
        self._transport = transport
        self._directory = directory
        self._gossip = gossip
        self._topic = topic
        self._clock = clock
        self._policy_version = policy_version
        self._joined_at = round(clock.now() * 1000)
        self._sequence = 0
        self._keys = directory_keys(replica.run_id)
        self._own_key = self._keys[rng.below(len(self._keys))]

    async def announce(self, *, leaving: bool = False) -> None:
        """Tell the swarm that we are here, or that we leave."""
        epochs = self._replica.manifest.epochs
        record = await self._record(leaving=leaving)
        received = self._replica.receive(record.envelope, self._clock.now())
        if received.relay is not Relay.ACCEPT:
            log.warning("our own record is refused", fault=str(received.fault))
            return
        await self._gossip.publish(self._topic, record.envelope)
        if not leaving:
            lifetime_seconds = DIRECTORY_LIFETIMES * epochs.record_epochs * epochs.seconds
            expires_at = self._clock.now() + lifetime_seconds
            await self._directory.publish(self._own_key, record.envelope, expires_at)

    async def run(self) -> None:
        """Refresh our record until cancelled."""
        epochs = self._replica.manifest.epochs
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_up())
            while True:
                try:
                    await self.announce()
                except TransportError as error:
                    log.warning("record not announced", error=str(error))
                await asyncio.sleep(epochs.refresh_epochs * epochs.seconds)

    async def _record(self, *, leaving: bool) -> Signed[NodeRecord]:
        now_ms = round(self._clock.now() * 1000)
        self._sequence = max(self._sequence + 1, now_ms)
        return seal(
            NodeRecord(
                sequence=self._sequence,
                joined_at=min(self._joined_at, self._sequence),
                roles=tuple(str(role) for role in self._about.roles),
                addresses=tuple((await self._transport.addresses())[:8]),
                hardware=self._about.hardware,
                upload_bytes_per_second=self._about.upload_bytes_per_second,
                reachable=self._about.reachable,
                software=self._about.software,
                protocol_version=PROTOCOL_VERSION,
                policy_version=self._policy_version(),
                leaving=leaving,
            ),
            self._replica.run_id,
            self._signer,
        )

    async def _look_up(self) -> None:
        """Feed the directory's records to the replica; they pass the same checks as any other."""
        pause_seconds = LOOKUP_SECONDS_MIN
        while True:
            for key in self._keys:
                for owner, envelope in (await self._directory.lookup(key)).items():
                    if owner != self._signer.peer_id:
                        self._replica.receive(envelope, self._clock.now())
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(1.5 * pause_seconds, LOOKUP_SECONDS_MAX)
