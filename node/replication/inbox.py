"""The one door for messages: received, written, told to whoever waits.

Whatever a message came by, the replica judges it here. What must survive a restart goes into the
message log: what we announce is written and synced before it leaves, what others announced is
written in batches. A fault that its sender is to blame for is told to the peer table.
"""

import asyncio
import math
from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import structlog

from node.context import NodeContext
from node.membership.admission import AdmittedLog
from node.membership.incarnation import KeyGuard
from node.replication.message_log import MessageLog
from protocol.core.containers import BoundedDict
from protocol.core.faults import FaultCode
from protocol.core.types import Digest, PeerId, Role, Topic, ValidationResult
from protocol.messages import (
    Certificate,
    CheckpointManifest,
    Message,
    NodeRecord,
    RolloutCommit,
    Signed,
)
from protocol.replica.replica import Received
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.context import ChangeSignal

log = structlog.get_logger()

COMPACT_EPOCHS = 60
"""A guess: the log then holds little more than the replica, and deleting is rare."""

CHECKS_SECONDS = 1.0
"""While newcomers wait for a look at their work: so much is done at once."""

RESTORED_AT_ONCE = 64
"""Messages of the log between two looks at what else is due: about 10 ms, most of it signatures."""

OTHER_VERSIONS_MAX = 1024
"""Members of another protocol version that are remembered."""


class MessageOrigin(Enum):
    """What a message came by."""

    GOSSIP = auto()
    DIRECT = auto()
    ANTI_ENTROPY = auto()
    DIRECTORY = auto()
    OWN = auto()
    LOG = auto()
    WAITED = auto()
    """It came earlier, by whatever, and could not be decided then."""


Listener = Callable[[Received, MessageOrigin], None]


class MessageIntake:
    """Takes every message; ``versions`` is told when a version has come, the roles of the rest."""

    def __init__(
        self,
        context: NodeContext,
        message_log: MessageLog,
        incarnation: KeyGuard,
        roles: tuple[Role, ...],
        versions: ChangeSignal,
    ) -> None:
        self._context = context
        self._replica = context.replica
        self._log = message_log
        self._admitted_log = AdmittedLog(context.ports.store, context.replica.roster.admitted)
        self._incarnation = incarnation
        self._judges = Role.VALIDATOR in roles or Role.TRAINER in roles
        self._versions = versions
        self._listeners: list[Listener] = []
        self.other_versions = BoundedDict[PeerId, int](OTHER_VERSIONS_MAX)
        """Members whose record says that they speak another version of the protocol."""

    def listen(self, listener: Listener) -> None:
        """Have ``listener`` told of every message after it was judged, but for those of the log."""
        self._listeners.append(listener)

    async def restore(self) -> None:
        """Take back what was accepted before the last restart."""
        self._admitted_log.restore()
        for number, envelope in enumerate(self._log.replay(), start=1):
            self.take(envelope, MessageOrigin.LOG)
            if number % RESTORED_AT_ONCE == 0:
                await asyncio.sleep(0)

    def take(
        self,
        envelope: bytes,
        source: MessageOrigin,
        *,
        sender: PeerId | None = None,
        topic: Topic | None = None,
    ) -> Received:
        """Judge a message and do what follows from it.

        ``sender`` is who handed it to us, when that is certain and nobody else blames it; ``topic``
        is given where only one kind of message is in place.
        """
        now = self._context.ports.clock.now()
        if source is MessageOrigin.LOG:
            self._replica.restore(envelope)
            return Received(ValidationResult.IGNORE)
        if topic is None:
            missed = source is MessageOrigin.ANTI_ENTROPY
            received = self._replica.receive(envelope, now, anti_entropy=missed)
        else:
            received = self._replica.receive_topic(topic, envelope, now)
        self._note_fault(received, source, sender)
        self._follow_up(received, source)
        return received

    async def record(self, signed: Signed[Any]) -> None:
        """Write a message of ours durably and then take it; it may be announced after that.

        Raises ``StorageFullError`` and ``RefusedError``, and then it was not said. A record of ours
        is not written, and is in place even when we hold a later one that a wrong clock dated.
        """
        lasting = not isinstance(signed.message, NodeRecord)
        written = lasting and await self._log.keep(signed.envelope)
        received = self.take(signed.envelope, MessageOrigin.OWN)
        if received.fault is None and (not lasting or received.result is ValidationResult.ACCEPT):
            return
        if written:  # or a restart would take it for said
            await self._log.forget(signed.envelope)
        raise RefusedError(str(received.fault or "no longer news"))

    async def run(self) -> None:
        """Let time pass in the replica, and write in batches, until cancelled."""
        loop, epoch_seconds = asyncio.get_running_loop(), self._replica.manifest.epochs.seconds
        compact_at = loop.time() + COMPACT_EPOCHS * epoch_seconds
        while True:
            self.advance()
            await self._flush()
            if loop.time() >= compact_at:
                await self._log.compact(self._replica)
                compact_at = loop.time() + COMPACT_EPOCHS * epoch_seconds
            unchecked = self._replica.roster.unchecked
            await asyncio.sleep(min(CHECKS_SECONDS if unchecked else math.inf, epoch_seconds / 4))

    def advance(self) -> None:
        """Let time pass in the replica, and take what it can decide now."""
        for signed in self._replica.advance(self._context.ports.clock.now()):
            self._follow_up(Received(ValidationResult.ACCEPT, signed), MessageOrigin.WAITED)

    async def _flush(self) -> None:
        conditions = self._context.conditions
        try:
            await self._admitted_log.flush()
            await self._log.flush()
            conditions.clear("messages")
        except StorageFullError as error:
            conditions.set("messages", f"disk full: {error}; waiting for room")

    def _follow_up(self, received: Received, source: MessageOrigin) -> None:
        signed, is_news = received.signed, received.result is ValidationResult.ACCEPT
        if signed is not None:
            if signed.signer == self._context.signer.peer_id and source is not MessageOrigin.OWN:
                self._incarnation.shown(signed, is_news=is_news)
            if is_news:
                self._accept(signed, source, lasting=received.lasting)
        for listener in self._listeners:
            listener(received, source)
        for settled in received.settled:
            self._follow_up(Received(ValidationResult.ACCEPT, settled), MessageOrigin.WAITED)

    def _accept(self, signed: Signed[Any], source: MessageOrigin, *, lasting: bool) -> None:
        message = signed.message
        if isinstance(message, NodeRecord):
            return  # it comes again soon, and elections look at the clock anyway
        if source is not MessageOrigin.OWN and lasting:
            if isinstance(message, Certificate):  # a commit that came late is kept from now on
                self._log.later(
                    self._replica.ledger.entries[Digest(message.commit)].commit.envelope
                )
            self._log.later(signed.envelope)
        if isinstance(message, CheckpointManifest):
            self._versions.notify()
        if source is MessageOrigin.OWN or self._concerns_roles(message):
            self._context.changes.notify()

    def _concerns_roles(self, message: Message) -> bool:
        """Return whether a role has something to do now, and not only at its next look."""
        if self._judges or not isinstance(message, RolloutCommit | Certificate):
            return True
        if isinstance(message, RolloutCommit):
            return False
        entry = self._replica.ledger.entries.get(Digest(message.commit))
        return entry is not None and entry.commit.signer == self._context.signer.peer_id

    def _note_fault(self, received: Received, source: MessageOrigin, sender: PeerId | None) -> None:
        fault, signed = received.fault, received.signed
        if fault is None:
            return
        if sender is not None:
            self._context.peers.blame(sender, fault)
        if fault.code is FaultCode.PROTOCOL_VERSION and signed is not None:
            self.other_versions[signed.signer] = signed.message.protocol_version
        # A clock is named by who compares several of them.
        tell = log.debug if fault.code is FaultCode.CLOCK_SKEW else log.info
        tell(
            "message refused",
            fault=str(fault),
            kind=signed.message.kind if signed else "",
            signer=signed.signer[-8:] if signed else "",
            source=source.name.lower(),
        )
