"""Our own record: made, told to the swarm, put into the directory; and the directory's hints."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

import structlog

from node.context import NodeContext
from node.local.addresses import ADDRESS_CHARACTERS_MAX
from node.membership.admission import OwnAdmission
from node.membership.incarnation import KeyGuard
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
"""One call of transport or directory; a live directory gives up before."""

RECORDS_MAX = 1024
"""Read of one answer of the directory; the live one keeps 240."""

DIRECTORY_LIFETIMES = 4
"""A directory entry outlives the record's place on the roster: it is only an address hint."""

ADDRESSES_MAX = 8
"""As ``NodeRecord`` has it."""


@dataclass(frozen=True, slots=True)
class About:
    """What this node says of itself besides what changes."""

    roles: tuple[Role, ...]
    hardware: Hardware
    reachable: bool
    """Whether we want to be dialled."""
    software: str
    scoring: bytes = b""
    """Digest of our scoring runtime; empty where we do not score."""
    upload_bytes_per_second: int = 0
    """No more than this; 0: no limit of our own."""
    http_port: int = 0
    invite: bytes = b""
    """What admits us to a run of invited keys; one that an earlier start had is kept."""


class Announcer:
    """Announces us and listens to the directory; ``hint`` takes the records that it finds.

    ``synchronised`` waits until a peer has told us what we missed; ``reachable`` is what others
    found of us, ``witnessed`` what we found of them: a class of rates for each public key;
    ``relayed`` are the addresses at which relays take connections for us.
    """

    def __init__(
        self,
        context: NodeContext,
        incarnation: KeyGuard,
        admission: OwnAdmission,
        about: About,
        network: Network,
        *,
        hint: Callable[[bytes], object],
        synchronised: Callable[[], Awaitable[None]],
        reachable: Callable[[], bool],
        witnessed: Callable[[], Mapping[bytes, int]],
        policy_version: Callable[[], int],
        relayed: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self._context = context
        self._incarnation = incarnation
        self._admission = admission
        self._about = about
        self._network = network
        self._hint = hint
        self._synchronised = synchronised
        self._reachable = reachable
        self._witnessed = witnessed
        self._policy_version = policy_version
        self._relayed = relayed
        self._stale = asyncio.Event()
        self._newest: Signed[NodeRecord] | None = None
        self._announced = asyncio.Event()
        self._buckets = Buckets(context.replica.run_id)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that we told last."""
        return () if self._newest is None else self._newest.message.addresses

    async def announce(self, *, leaving: bool = False) -> None:
        """Tell the swarm that we are here, or that we leave; raises ``TransportError``.

        Not before we are admitted: nobody would take our record.
        """
        if not self._admission.here:
            return
        record = await self._record(leaving=leaving)
        self._incarnation.said(record)
        try:
            self._newest = await self._network.publish(Topic.ROSTER, record)
        except RefusedError as error:
            log.warning("our own record is refused", error=str(error))
            self._context.conditions.set("record", f"our record is refused: {error}")
            return
        self._context.conditions.clear("record")
        self._announced.set()

    async def run(self) -> None:
        """Refresh our record until cancelled."""
        epochs = self._context.replica.manifest.epochs
        async with asyncio.TaskGroup() as group:
            # Beside: a slow directory must not cost us our place on the roster.
            group.create_task(self._look_up())
            group.create_task(self._stay_listed())
            group.create_task(self._incarnation.run(self._synchronised))
            group.create_task(self._admission.run())
            await self._admission.wait()
            if self._incarnation.is_new:
                # A peer may show us a record of ours; our next one would take its place.
                with suppress(TimeoutError):  # the first node of a run is alone
                    async with asyncio.timeout(epochs.seconds):
                        await self._synchronised()
            await self._incarnation.listen(self._synchronised)
            await self._incarnation.wait_alone()
            early_seconds = self._incarnation.early_seconds()
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
        """Announce us again as soon as that is news: what our record says is not so any more."""
        self._stale.set()

    async def _rest(self, seconds: float) -> None:
        """Wait until our next record is due."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stale.wait()
                await asyncio.sleep(max(0.0, self._incarnation.early_seconds()))
        self._stale.clear()

    async def _record(self, *, leaving: bool) -> NodeRecord:
        # What nobody gets through to is left out where there is another way.
        addresses = self._relayed() or await within(
            CALL_SECONDS, self._context.ports.transport.addresses()
        )
        short = [item for item in addresses if len(item) <= ADDRESS_CHARACTERS_MAX]
        head = self._context.replica.ledger.head
        conditions = self._context.conditions
        roles = [role for role in self._about.roles if not conditions.has_resigned(role)]
        witnessed = self._witnessed()
        await self._incarnation.advance(leaving=leaving)
        return NodeRecord(
            sequence=self._incarnation.sequence,
            joined_at=self._incarnation.joined_at,
            roles=tuple(str(role) for role in roles or (Role.RELAY,)),
            addresses=tuple(short[:ADDRESSES_MAX]),
            hardware=self._about.hardware,
            upload_bytes_per_second=self._about.upload_bytes_per_second,
            reachable=self._about.reachable and self._reachable(),
            witnessed=tuple(witnessed),
            upload_classes=tuple(witnessed.values()),
            http_port=self._about.http_port,
            software=self._about.software,
            scoring=self._about.scoring,
            protocol_version=PROTOCOL_VERSION,
            policy_version=self._policy_version(),
            checkpoint=b"" if head is None else head.digest,
            admission=self._admission.proof,
            leaving=leaving,
        )

    async def _stay_listed(self) -> None:
        """Put each record that we announce into the directory."""
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
                    log.debug("the directory did not take our record")
            except TransportError as error:
                log.info("record not put into the directory", error=str(error))

    async def _look_up(self) -> None:
        """Pass the directory's records on; they are judged like any other."""
        reader = BucketReader(self._buckets, self._context.ports.rng.child("buckets"))
        own, pause_seconds = self._context.signer.peer_id, LOOKUP_SECONDS_MIN
        while True:
            try:
                lookup = self._context.ports.directory.lookup(reader.next(self._members()))
                found = await within(CALL_SECONDS, lookup)
            except TransportError as error:
                log.info("no answer from the directory", error=str(error))
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
        """Return how many members are live, as far as we know."""
        return len(self._context.replica.roster.live(self._context.ports.clock.now()))
