"""Announcer of this node's record to the swarm and the directory; reader of directory hints."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import structlog

from node.context import NodeContext
from node.local.addresses import ADDRESS_CHARACTERS_MAX
from node.membership.admission import OwnAdmission
from node.membership.key_guard import KeyGuard
from node.network.streams.deadline import within
from protocol.core.types import Role, Topic
from protocol.membership.directory_buckets import BucketReader, Buckets, bits_for
from protocol.messages import PROTOCOL_VERSION, Hardware, NodeRecord, Signed
from roles.ports.swarm import Network, RefusedError
from roles.ports.transport import TransportError

log = structlog.get_logger()

LOOKUP_SECONDS_MIN = 2.0
LOOKUP_SECONDS_MAX = 60.0
CALL_SECONDS = 15.0
"""Timeout of one transport or directory call; a live directory gives up earlier."""

RECORDS_MAX = 1024
"""Entries read of one directory answer; the live directory keeps 240."""

DIRECTORY_LIFETIMES = 4
"""Record lifetimes until a directory entry expires: longer than on the roster, as an address
hint."""

ADDRESSES_MAX = 8
"""The limit of ``NodeRecord``."""


@dataclass(frozen=True, slots=True)
class About:
    """Fixed fields of this node's record."""

    roles: tuple[Role, ...]
    hardware: Hardware
    reachable: bool
    """True if the node wants inbound connections."""
    software: str
    scoring: bytes = b""
    """Digest of the scoring runtime; empty on a node that does not score."""
    upload_bytes_per_second: int = 0
    """Upload limit set by the operator; 0 for none."""
    http_port: int = 0
    name: str = ""
    """Name chosen by the operator; empty for none."""
    invite: bytes = b""
    """Invite to a run with invited keys only; a node stores it for later starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Changing fields of this node's record, read when a record is made."""

    reachable: bool
    """Others can dial this node, as far as they have reported."""
    observations: Mapping[bytes, int]
    """Rate classes that this node observed, by public key."""
    policy_version: int
    relay_addresses: Sequence[str] = ()


class Announcer:
    """Publishes this node's record and passes directory records to ``hint``.

    ``synchronised`` waits until enough peers have sent what this node missed.
    """

    def __init__(
        self,
        context: NodeContext,
        key_guard: KeyGuard,
        admission: OwnAdmission,
        about: About,
        network: Network,
        facts: Callable[[], NodeFacts],
        *,
        hint: Callable[[bytes], object],
        synchronised: Callable[[], Awaitable[None]],
    ) -> None:
        self._context = context
        self._key_guard = key_guard
        self._admission = admission
        self._about = about
        self._network = network
        self._hint = hint
        self._synchronised = synchronised
        self._facts = facts
        self._stale = asyncio.Event()
        self._newest: Signed[NodeRecord] | None = None
        self._announced = asyncio.Event()
        self._buckets = Buckets(context.replica.run_id)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of the last published record."""
        return () if self._newest is None else self._newest.message.addresses

    async def announce(self, *, leaving: bool = False) -> None:
        """Publish a record, or a leaving record; raises ``TransportError``.

        Does nothing before admission: peers would reject the record.
        """
        if not self._admission.here:
            return
        record = await self._record(leaving=leaving)
        self._key_guard.said(record)
        try:
            self._newest = await self._network.publish(Topic.ROSTER, record)
        except RefusedError as error:
            log.warning("record refused", error=str(error))
            self._context.conditions.set("record", f"our record is refused: {error}")
            return
        self._context.conditions.clear("record")
        self._announced.set()

    async def run(self) -> None:
        """Refresh the record until cancelled."""
        epochs = self._context.replica.manifest.epochs
        async with asyncio.TaskGroup() as group:
            # A task of its own: a slow directory must not delay the record on the roster.
            group.create_task(self._look_up())
            group.create_task(self._stay_listed())
            group.create_task(self._key_guard.run(self._synchronised))
            group.create_task(self._admission.run())
            await self._admission.wait()
            if self._key_guard.is_new:
                # A peer may hold an older record of this key, which the next one must continue.
                with suppress(TimeoutError):  # the first node of a run is alone
                    async with asyncio.timeout(epochs.seconds):
                        await self._synchronised()
            await self._key_guard.listen(self._synchronised)
            await self._key_guard.wait_alone()
            early_seconds = self._key_guard.early_seconds()
            while True:
                try:
                    await self.announce()
                    wait_seconds = epochs.refresh_epochs * epochs.seconds
                    if early_seconds > 0:
                        wait_seconds, early_seconds = early_seconds, 0.0
                except TransportError as error:
                    log.warning("record not announced", error=str(error))
                    wait_seconds = epochs.seconds
                await self._rest(wait_seconds)

    def renew(self) -> None:
        """Announce a changed record as soon as peers accept it as news."""
        self._stale.set()

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stale.wait()
                await asyncio.sleep(max(0.0, self._key_guard.early_seconds()))
        self._stale.clear()

    async def _record(self, *, leaving: bool) -> NodeRecord:
        # Relay addresses replace addresses that others cannot reach.
        facts = self._facts()
        addresses = facts.relay_addresses or await within(
            CALL_SECONDS, self._context.ports.transport.addresses()
        )
        short = [item for item in addresses if len(item) <= ADDRESS_CHARACTERS_MAX]
        head = self._context.replica.ledger.chain.head
        conditions = self._context.conditions
        roles = [role for role in self._about.roles if not conditions.has_resigned(role)]
        await self._key_guard.advance(leaving=leaving)
        return NodeRecord(
            sequence=self._key_guard.sequence,
            joined_at=self._key_guard.joined_at,
            name=self._about.name,
            roles=tuple(str(role) for role in roles or (Role.RELAY,)),
            addresses=tuple(short[:ADDRESSES_MAX]),
            hardware=self._about.hardware,
            upload_bytes_per_second=self._about.upload_bytes_per_second,
            reachable=self._about.reachable and facts.reachable,
            witnessed=tuple(facts.observations),
            upload_classes=tuple(facts.observations.values()),
            http_port=self._about.http_port,
            software=self._about.software,
            scoring=self._about.scoring,
            protocol_version=PROTOCOL_VERSION,
            policy_version=facts.policy_version,
            checkpoint=b"" if head is None else head.digest,
            admission=self._admission.proof,
            leaving=leaving,
        )

    async def _stay_listed(self) -> None:
        """Publish each announced record in the directory."""
        epochs, ports = self._context.replica.manifest.epochs, self._context.ports
        lifetime_seconds = DIRECTORY_LIFETIMES * epochs.record_epochs * epochs.seconds
        while True:
            await self._announced.wait()
            self._announced.clear()
            assert self._newest is not None
            key = self._buckets.key_of(self._context.signer.peer_id, bits_for(self._members()))
            expires_at = ports.clock.now() + lifetime_seconds
            publishing = ports.directory.publish(key, self._newest.envelope, expires_at)
            try:
                if not await within(CALL_SECONDS, publishing):
                    log.debug("record refused by the directory")
            except TransportError as error:
                log.info("record not published in the directory", error=str(error))

    async def _look_up(self) -> None:
        """Pass directory records to ``hint``, which checks them like any other record."""
        reader = BucketReader(self._buckets, self._context.ports.rng.child("buckets"))
        own, pause_seconds = self._context.signer.peer_id, LOOKUP_SECONDS_MIN
        while True:
            try:
                lookup = self._context.ports.directory.lookup(reader.next(self._members()))
                found = await within(CALL_SECONDS, lookup)
            except TransportError as error:
                log.info("directory lookup failed", error=str(error))
                found = {}
            for owner, envelope in islice(found.items(), RECORDS_MAX):
                if owner == own:
                    continue
                reader.found()
                member = self._context.replica.roster.get(owner)
                if member is None or member.record.envelope != envelope:
                    self._hint(envelope)
                    await asyncio.sleep(0)
            await asyncio.sleep(pause_seconds)
            pause_seconds = min(1.5 * pause_seconds, LOOKUP_SECONDS_MAX)

    def _members(self) -> int:
        return len(self._context.replica.roster.live(self._context.ports.clock.now()))
