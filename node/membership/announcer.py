"""Our own record: made, told to the swarm, put into the directory; and the directory's hints."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import structlog

from node.gossip.driver import Gossip
from node.replication.anti_entropy import AntiEntropy
from node.streams.deadline import within
from protocol.crypto import Signer
from protocol.membership import CLOCK_SKEW_SECONDS_MAX
from protocol.messages import PROTOCOL_VERSION, Hardware, NodeRecord, Signed, seal
from protocol.replica import Replica
from protocol.rng import Rng
from protocol.types import Role, Topic
from roles.ports.clock import Clock
from roles.ports.storage import Put, StorageFullError, Store
from roles.ports.transport import Directory, Transport, TransportError

log = structlog.get_logger()

BUCKETS = 1
"""A key's dictionary travels whole; one bucket serves the first thousand members."""

LOOKUP_SECONDS_MIN = 2.0
LOOKUP_SECONDS_MAX = 60.0
CALL_SECONDS = 15.0
"""One call of transport or directory; a live directory gives up before."""

RECORDS_MAX = 1024
"""Read of one answer of the directory; the live one keeps 240."""

DIRECTORY_LIFETIMES = 4
"""A directory entry outlives the record's place on the roster: it is only an address hint."""

ADDRESSES_MAX = 8
ADDRESS_CHARACTERS_MAX = 200
"""As ``NodeRecord`` has them."""

_TABLE = "membership"
_KEY = b"own"
_LEFT = b"left"


def is_known(store: Store) -> bool:
    """Tell whether this disk was here before: it holds what we last said of ourselves."""
    return store.get(_TABLE, _KEY) is not None


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
        store: Store,
        rng: Rng,
        policy_version: Callable[[], int],
        anti_entropy: AntiEntropy,
    ) -> None:
        self._signer = signer
        self._replica = replica
        self._about = about
        self._transport = transport
        self._directory = directory
        self._gossip = gossip
        self._topic = topic
        self._clock = clock
        self._store = store
        self._policy_version = policy_version
        self._anti_entropy = anti_entropy
        self._joined_at, self._sequence = self._resumed()
        self._newest: Signed[NodeRecord] | None = None
        self._announced = asyncio.Event()
        self._keys = directory_keys(replica.run_id)
        self._own_key = self._keys[rng.below(len(self._keys))]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that we told last."""
        return () if self._newest is None else self._newest.message.addresses

    async def announce(self, *, leaving: bool = False) -> None:
        """Tell the swarm that we are here, or that we leave; raises ``TransportError``."""
        record = await self._record(leaving=leaving)
        received = self._replica.receive(record.envelope, self._clock.now())
        if received.fault is not None:
            log.warning("our own record is refused", fault=str(received.fault))
            return
        self._newest = record
        self._announced.set()
        await self._gossip.publish(self._topic, record.envelope)

    async def run(self) -> None:
        """Refresh our record until cancelled."""
        epochs = self._replica.manifest.epochs
        begun = is_known(self._store)
        async with asyncio.TaskGroup() as group:
            # Beside: a slow directory must not cost us our place on the roster.
            group.create_task(self._look_up())
            group.create_task(self._stay_listed())
            if not begun:
                await self._hear_of_past()
            early_seconds = self._early_seconds()
            while True:
                try:
                    await self.announce()
                    wait_seconds = epochs.refresh_epochs * epochs.seconds
                    if early_seconds > 0:
                        wait_seconds, early_seconds = early_seconds, 0.0
                except TransportError as error:
                    log.warning("record not announced", error=str(error))
                    wait_seconds = epochs.seconds
                await asyncio.sleep(wait_seconds)

    async def _hear_of_past(self) -> None:
        """Let a peer show us a record of a life before; our next one would take its place."""
        with suppress(TimeoutError):  # the first node of a run is alone
            async with asyncio.timeout(self._replica.manifest.epochs.seconds):
                await self._anti_entropy.wait_until_synchronised()

    def _resumed(self) -> tuple[int, int]:
        """Return since when we are here and our last sequence number, in unix milliseconds.

        A break shorter than a record's life is none, unless we said that we leave: nobody else can
        see it, and whoever was drawn before a restart stays drawn after it. Without our disk we
        seem to have just come, until a peer shows us what we said before (``_take_up``).
        """
        now_ms = round(self._clock.now() * 1000)
        stored = self._store.get(_TABLE, _KEY) or b""
        joined_at, sequence = (int.from_bytes(part, "big") for part in (stored[:8], stored[8:16]))
        stayed = self._is_recent(sequence) and stored[16:] != _LEFT
        return (joined_at if stayed else now_ms), sequence

    def _is_recent(self, sequence: int) -> bool:
        epochs = self._replica.manifest.epochs
        now_ms = round(self._clock.now() * 1000)
        return abs(now_ms - sequence) <= epochs.record_epochs * epochs.seconds * 1000

    def _take_up(self) -> None:
        """Go on from the record of a life whose disk is lost.

        Certificates that we signed then stay valid for whoever comes late and draws their
        committees from today's records.
        """
        former = self._anti_entropy.former
        if former is not None and self._is_recent(former.message.sequence):
            if not former.message.leaving:
                self._joined_at = min(self._joined_at, former.message.joined_at)
            self._sequence = max(self._sequence, former.message.sequence)

    def _early_seconds(self) -> float:
        """Return for how long a record of ours is no news yet to whoever heard the last one.

        That may have said that we leave: who comes back this soon has to say so once more.
        """
        self._take_up()
        if not self._is_recent(self._sequence):
            return 0.0
        news_at = self._sequence / 1000 + self._replica.roster.pause_seconds
        return news_at - self._clock.now()

    def _next_sequence(self) -> int:
        now_ms = round(self._clock.now() * 1000)
        if self._sequence > now_ms + CLOCK_SKEW_SECONDS_MAX * 1000:
            return now_ms  # our clock was ahead and was set back: nobody took what it said
        return max(self._sequence + 1, now_ms)

    async def _remember(self, *, leaving: bool) -> None:
        value = b"".join(part.to_bytes(8, "big") for part in (self._joined_at, self._sequence))
        value += _LEFT if leaving else b""
        try:
            await self._store.commit([Put(_TABLE, _KEY, value)])
        except StorageFullError as error:
            log.warning("a restart will look like a new arrival", error=str(error))

    async def _record(self, *, leaving: bool) -> Signed[NodeRecord]:
        addresses = await within(CALL_SECONDS, self._transport.addresses())
        short = [item for item in addresses if len(item) <= ADDRESS_CHARACTERS_MAX]
        self._take_up()
        self._sequence = self._next_sequence()
        await self._remember(leaving=leaving)
        return seal(
            NodeRecord(
                sequence=self._sequence,
                joined_at=min(self._joined_at, self._sequence),
                roles=tuple(str(role) for role in self._about.roles),
                addresses=tuple(short[:ADDRESSES_MAX]),
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

    async def _stay_listed(self) -> None:
        """Put each record that we announce into the directory."""
        epochs = self._replica.manifest.epochs
        lifetime_seconds = DIRECTORY_LIFETIMES * epochs.record_epochs * epochs.seconds
        while True:
            await self._announced.wait()
            self._announced.clear()
            assert self._newest is not None
            expires_at = self._clock.now() + lifetime_seconds
            publishing = self._directory.publish(self._own_key, self._newest.envelope, expires_at)
            try:
                if not await within(CALL_SECONDS, publishing):
                    log.debug("the directory did not take our record")
            except TransportError as error:
                log.info("record not put into the directory", error=str(error))

    async def _look_up(self) -> None:
        """Feed the directory's records to the replica; they pass the same checks as any other."""
        pause_seconds = LOOKUP_SECONDS_MIN
        while True:
            for key in self._keys:
                await self._take(key)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(1.5 * pause_seconds, LOOKUP_SECONDS_MAX)

    async def _take(self, key: str) -> None:
        try:
            found = await within(CALL_SECONDS, self._directory.lookup(key))
        except TransportError as error:
            log.info("no answer from the directory", error=str(error))
            return
        for owner, envelope in islice(found.items(), RECORDS_MAX):
            member = self._replica.roster.get(owner)
            known = member is not None and member.record.envelope == envelope
            if owner != self._signer.peer_id and not known:
                # Nothing but records: another message would be known here without being archived.
                self._replica.receive_topic(Topic.ROSTER, envelope, self._clock.now())
                await asyncio.sleep(0)
