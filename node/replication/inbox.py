"""Intake of all messages: judge, write to the log, notify listeners.

The replica judges each message here, whatever path it came by. Messages that must survive a restart
go into the message log: own ones are written and synced before they leave, others in batches. The
connection manager receives each fault for which the sender is to blame.
"""

import asyncio
import math
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import structlog

from node.context import NodeContext
from node.membership.admission import AdmittedLog
from node.membership.key_guard import KeyGuard
from node.replication.ledger_log import LedgerLog
from node.replication.message_log import MessageLog
from protocol.core.containers import BoundedDict
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId, Role, Topic, ValidationResult
from protocol.messages import (
    Certificate,
    CheckpointManifest,
    Message,
    NodeRecord,
    Reveal,
    RolloutCommit,
    Signed,
)
from protocol.replica.received import Received
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.context import ChangeSignal

log = structlog.get_logger()

COMPACT_EPOCHS = 60
"""Interval of log compaction, a guess: the log stays near the replica's size."""

CHECKS_SECONDS = 1.0
"""Interval of ``advance`` while proofs of work of untrusted keys wait for a check."""

RESTORED_AT_ONCE = 64
"""Log messages between two yields to the event loop: about 10 ms, most of it signatures."""

OTHER_VERSIONS_MAX = 1024
"""Members of another protocol version that are kept."""


class MessageOrigin(Enum):
    """Path by which a message arrived."""

    GOSSIP = auto()
    DIRECT = auto()
    ANTI_ENTROPY = auto()
    DIRECTORY = auto()
    OWN = auto()
    LOG = auto()
    WAITED = auto()
    """Arrived earlier, by any path, and could not be judged then."""


Listener = Callable[[Received, MessageOrigin], None]


class MessageIntake:
    """Intake of every message; a new version notifies ``versions``, the rest the roles."""

    def __init__(
        self,
        context: NodeContext,
        message_log: MessageLog,
        key_guard: KeyGuard,
        roles: tuple[Role, ...],
        versions: ChangeSignal,
    ) -> None:
        self._context = context
        self._own_id = context.signer.peer_id
        self._replica = context.replica
        self._log = message_log
        self.history = LedgerLog(context.ports.store, context.replica.intake.open_page)
        """All final pages that this node has counted, with their work."""
        self._admitted_log = AdmittedLog(context.ports.store, context.replica.roster.admitted)
        self._key_guard = key_guard
        self._judges = Role.VALIDATOR in roles or Role.TRAINER in roles
        self._versions = versions
        self._listeners: list[Listener] = []
        self.other_versions = BoundedDict[PeerId, int](OTHER_VERSIONS_MAX)
        """Members whose record names another protocol version."""

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` for every message after it was judged, except those of the log."""
        self._listeners.append(listener)

    async def restore(self) -> None:
        """Load the messages accepted before the last restart."""
        self._admitted_log.restore()
        self.history.restore(self._replica.intake.ledger)
        for chain in self._log.chains():
            self._replica.intake.offer_chain(chain)
            await asyncio.sleep(0)
        for number, envelope in enumerate(self._log.replay(), start=1):
            self.take(envelope, MessageOrigin.LOG)
            if number % RESTORED_AT_ONCE == 0:
                await asyncio.sleep(0)
        self._replica.count_final()
        self._replica.fix_counted()

    def take(
        self,
        envelope: bytes,
        source: MessageOrigin,
        *,
        sender: PeerId | None = None,
        topic: Topic | None = None,
    ) -> Received:
        """Judge a message and apply the consequences.

        ``sender`` delivered it, if that is certain and the caller does not blame it itself;
        ``topic`` is given where only one kind of message is allowed.
        """
        now = self._context.ports.clock.now()
        if source is MessageOrigin.LOG:
            self._replica.restore(envelope)
            return Received(ValidationResult.IGNORE)
        missed = source is MessageOrigin.ANTI_ENTROPY
        received = self._replica.receive(envelope, now, topic=topic, anti_entropy=missed)
        self._note_fault(received, source, sender)
        self._follow_up(received, source)
        return received

    def take_chain(self, chain: bytes, sender: PeerId) -> Received:
        """Judge notarised pages that a peer sent, and apply the consequences."""
        received = self.judged(self._replica.intake.offer_chain(chain), sender)
        if received.result is not ValidationResult.ACCEPT:
            return received
        self._log.later_chain(chain)
        self._context.changes.notify()
        for page in self._replica.pages.take_adopted():
            self._follow_up(Received(ValidationResult.ACCEPT, page), MessageOrigin.WAITED)
        return received

    def judged(self, result: Fault | bool, sender: PeerId) -> Received:
        """Return the result of notarised pages that a peer sent, and blame it for a fault."""
        if isinstance(result, Fault):
            received = Received(ValidationResult.REJECT, fault=result)
            self._note_fault(received, MessageOrigin.ANTI_ENTROPY, sender)
            return received
        return Received(ValidationResult.ACCEPT if result else ValidationResult.IGNORE)

    def validate(self, topic: Topic, _author: PeerId, envelope: bytes) -> ValidationResult:
        """Judge a gossiped message; the result tells whether to forward it."""
        return self.take(envelope, MessageOrigin.GOSSIP, topic=topic).result

    async def record(self, signed: Signed[Any]) -> None:
        """Store and accept a message of this node, which may be announced after that.

        Raises ``StorageFullError`` and ``RefusedError``; then nothing remains of the message.
        Reveals and this node's records are not stored. Its records are accepted even after a later
        one that a wrong clock dated.
        """
        lasting = not isinstance(signed.message, NodeRecord | Reveal)
        written = lasting and await self._log.keep(signed.envelope)
        received = self.take(signed.envelope, MessageOrigin.OWN)
        if received.fault is None and (not lasting or received.result is ValidationResult.ACCEPT):
            return
        if written:  # or a restart would treat it as sent
            await self._log.forget(signed.envelope)
        raise RefusedError(str(received.fault or "no longer news"))

    async def run(self) -> None:
        """Advance the replica and write batches until cancelled."""
        loop, epoch_seconds = asyncio.get_running_loop(), self._replica.manifest.epochs.seconds
        compact_at = loop.time() + COMPACT_EPOCHS * epoch_seconds
        while True:
            self.advance()
            await self._flush()
            if loop.time() >= compact_at:
                await self._compact()
                compact_at = loop.time() + COMPACT_EPOCHS * epoch_seconds
            unchecked = self._replica.roster.unchecked
            await asyncio.sleep(min(CHECKS_SECONDS if unchecked else math.inf, epoch_seconds / 4))

    def advance(self) -> None:
        """Advance the replica's time, and process the messages that it can judge now."""
        for signed in self._replica.advance(self._context.ports.clock.now()):
            self._follow_up(Received(ValidationResult.ACCEPT, signed), MessageOrigin.WAITED)

    async def _flush(self) -> None:
        conditions = self._context.conditions
        try:
            await self._admitted_log.flush()
            await self._log.flush()
            await self.history.flush(self._replica.intake.ledger)
            conditions.clear("messages")
        except StorageFullError as error:
            conditions.set("messages", f"disk full: {error}; waiting for room")

    async def _compact(self) -> None:
        await self._log.compact(self._replica)
        try:
            await self.history.keep_accounts(self._replica.intake.ledger)
        except StorageFullError as error:
            log.warning("accounts not stored", error=str(error))

    def _follow_up(self, received: Received, source: MessageOrigin) -> None:
        signed, is_news = received.signed, received.result is ValidationResult.ACCEPT
        if signed is not None:
            if signed.signer == self._own_id and source is not MessageOrigin.OWN:
                self._key_guard.shown(signed, is_news=is_news)
            if is_news:
                self._accept(signed, source, lasting=received.lasting)
        for listener in self._listeners:
            listener(received, source)
        for settled in received.settled:
            self._follow_up(Received(ValidationResult.ACCEPT, settled), MessageOrigin.WAITED)

    def _accept(self, signed: Signed[Any], source: MessageOrigin, *, lasting: bool) -> None:
        message = signed.message
        if isinstance(message, NodeRecord):
            return  # it is sent again soon
        if source is not MessageOrigin.OWN and lasting:
            if isinstance(message, Certificate):  # a commit that came late is kept from now on
                self._log.later(
                    self._replica.ledger.commits.entries[Digest(message.commit)].commit.envelope
                )
            self._log.later(signed.envelope)
        if isinstance(message, CheckpointManifest):
            self._versions.notify()
        if source is MessageOrigin.OWN or self._concerns_roles(message):
            self._context.changes.notify()

    def _concerns_roles(self, message: Message) -> bool:
        """Return whether a role must act now, before its next scan."""
        if self._judges or not isinstance(message, RolloutCommit | Certificate):
            return True
        if isinstance(message, RolloutCommit):
            return False
        entry = self._replica.ledger.commits.entries.get(Digest(message.commit))
        return entry is not None and entry.commit.signer == self._own_id

    def _note_fault(self, received: Received, source: MessageOrigin, sender: PeerId | None) -> None:
        fault, signed = received.fault, received.signed
        if fault is None:
            return
        if sender is not None:
            self._context.peers.blame(sender, fault)
        if fault.code is FaultCode.PROTOCOL_VERSION and signed is not None:
            self.other_versions[signed.signer] = signed.message.protocol_version
        # ``ClockWatch`` names wrong clocks: it compares several.
        tell = log.debug if fault.code is FaultCode.CLOCK_SKEW else log.info
        tell(
            "message refused",
            fault=str(fault),
            kind=signed.message.kind if signed else "",
            signer=signed.signer[-8:] if signed else "",
            source=source.name.lower(),
        )
