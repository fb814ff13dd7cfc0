"""Protection of a key against a lost disk and against a second process (doppelganger).

One durable row holds the first use of the disk, the start of unbroken membership and the last
sequence number. It also notes that an earlier disk of the key was lost. A key must never sign two
contradicting messages; without the old disk the node does not know what it signed. So it first
collects the messages that peers hold, and never again signs where it may have signed before. A
restart during this time begins it anew. The row also holds the first unused training slot: nodes
forget old commits.

A second process with the same key is equally unknown. A start on a directory that was used
elsewhere, or with a key that a peer has seen recently, therefore listens before it signs. A record
of this key that another process issued after the start ends this node, unless this node has been a
member for longer. Then the other process receives this node's record, and ends.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import structlog

from node.context import NodeContext
from protocol.core.codec import decode, encode
from protocol.core.containers import BoundedDict
from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX
from protocol.messages import NodeRecord, RolloutCommit, Signed
from roles.ports.storage import Put, StorageFullError

log = structlog.get_logger()

CAREFUL_EPOCHS = 8.0
"""Listening time of a key with a lost disk, long enough to synchronise with several peers: a guess.
It may have evaluated every version that it learns of meanwhile."""

SLOTS_SKIPPED = 32
"""Training slots that a key with a lost disk leaves out after the last one that peers know: four
times as many as an honest worker has without an outcome. The skipped slots are gaps, half of what a
run allows by default (``gap_max``)."""

ROW_BYTES_MAX = 256

GIVEN_MAX = 4096
"""Own sequence numbers kept: hours of records; peers send no older ones as new."""

_TABLE = "incarnation"
_KEY = b"own"


class KeyGuard:
    """Guard of this node's key; each change is stored before it takes effect."""

    def __init__(self, context: NodeContext, machine: bytes = b"") -> None:
        self._context = context
        self._machine = machine
        self._epochs = context.replica.manifest.epochs
        row = _row(context.ports.store.get(_TABLE, _KEY))
        now_ms = self._now_ms()
        self._born_at = int(row.get("born_at", now_ms))
        self._sequence = int(row.get("sequence", 0))
        stayed = self._is_recent(self._sequence) and not row.get("left", False)
        self._joined_at = int(row.get("joined_at", now_ms)) if stayed else now_ms
        self._left = bool(row.get("left", False))
        self._used_up_to: int | None = row.get("used_up_to")
        self._first_slot = int(row.get("first_slot", 0))
        self._began_ms, self._sequence_at_start = now_ms, self._sequence
        self._given = BoundedDict[int, None](GIVEN_MAX)
        self._elsewhere = bool(row) and row.get("machine", b"") != machine
        self._heard_of = False
        self._alone = asyncio.Event()
        self._duplicate = asyncio.Event()
        self._duplicate_sequence = 0
        self._said: NodeRecord | None = None
        self._outlasts_until_ms: int | None = None
        self._lost = asyncio.Event()
        if row.get("lost", False):
            self._lost.set()

    # Queries of roles and records

    @property
    def is_new(self) -> bool:
        """True if this disk has announced no record yet."""
        return self._sequence == 0

    @property
    def joined_at(self) -> int:
        """Unix milliseconds of the start of unbroken membership."""
        return min(self._joined_at, self._sequence)

    @property
    def sequence(self) -> int:
        """The last sequence number of the node's record, 0 before the first."""
        return self._sequence

    @property
    def first_slot(self) -> int | None:
        """First training slot that no disk has used; None while the lost one may have used any."""
        return None if self._lost.is_set() and self._used_up_to is None else self._first_slot

    def may_have_evaluated(self, version: int) -> bool:
        """Return whether the lost disk may have used evaluation slots of ``version``."""
        if not self._lost.is_set():
            return False
        return self._used_up_to is None or version <= self._used_up_to

    def may_have_judged(self, epoch: int) -> bool:
        """Return whether another disk may have signed verdicts on commits of ``epoch``."""
        return epoch < self._born_epoch

    def may_have_voted(self, epoch: int) -> bool:
        """Return whether another disk may have voted on pages of ``epoch``.

        A page is voted on in its own epoch, and the other disk's clock may have been ahead.
        """
        last = self._born_at / 1000 + CLOCK_SKEW_SECONDS_MAX
        return epoch <= self._context.replica.manifest.epoch_at(last)

    @property
    def _born_epoch(self) -> int:
        return self._context.replica.manifest.epoch_at(self._born_at / 1000)

    # Detection of another process

    async def wait_alone(self) -> None:
        """Wait until no other process seems to use the key: nothing is signed before that."""
        await self._alone.wait()

    async def wait_duplicate(self) -> str:
        """Wait for another process with this key; return one line for the operator."""
        await self._duplicate.wait()
        return (
            f"another node uses our key ({self._context.signer.peer_id}): a record of it is of "
            f"{_moment(self._duplicate_sequence)} and not made here; two nodes with one key sign "
            "contradictions that exclude both. Stop the other one and start again, or give this "
            "one a key of its own with another --data-dir"
        )

    async def listen(self, synchronised: Callable[[], Awaitable[None]]) -> None:
        """Listen for another process with this key, if there is reason to suspect one.

        Its next record is due after a refresh, and arrives by synchronisation at the latest.
        """
        loop, seconds = asyncio.get_running_loop(), self.listen_seconds
        if self._elsewhere or self._heard_of:
            log.warning("listening for another node with our key", seconds=seconds)
            text = "listening for another node with our key before we work"
            self._context.conditions.wait("key", f"{text}, {seconds:.0f} s")
            until = loop.time() + seconds
            with suppress(TimeoutError):  # without peers, no contradiction can spread
                async with asyncio.timeout(seconds):
                    await synchronised()
                    until = loop.time() + seconds
            await asyncio.sleep(until - loop.time())
            self._context.conditions.clear("key")
        if not self._duplicate.is_set():
            self._alone.set()
            if self._elsewhere:
                await self._write()

    @property
    def listen_seconds(self) -> float:
        """Seconds to listen: three records of the other process, and five pulls from peers."""
        return (3 * self._epochs.refresh_epochs + 1) * self._epochs.seconds

    def _note_other(self, record: NodeRecord, *, former: bool) -> None:
        """Note a record of this key by another process; ``former``: also by another disk."""
        if record.leaving:
            return
        newest_ms = max(self._began_ms + CLOCK_SKEW_SECONDS_MAX * 1000, self._sequence_at_start)
        if record.sequence > newest_ms:
            self._meet_duplicate(record)
        elif former and self._is_recent(record.sequence):
            self._heard_of = True

    def _meet_duplicate(self, record: NodeRecord) -> None:
        """Note another live process with this key, and decide which one ends.

        The process that joined later ends; if both joined together, the one with the higher
        addresses. The last announced record counts; a process without one has signed nothing, and
        ends. The other must be silent after the time that it needs to receive this node's record.
        """
        until_ms = self._outlasts_until_ms
        goes_on = self._said is not None and _rank(self._said) < _rank(record)
        if not goes_on or (until_ms is not None and record.sequence > until_ms):
            self._duplicate_sequence = record.sequence
            self._duplicate.set()
        elif until_ms is None:
            self._outlasts_until_ms = round(self._now_ms() + 1000 * self.listen_seconds)
            log.warning("another node used our key and must end", since=record.joined_at)

    # Changes

    async def use(self, slot: int) -> None:
        """Store that a training slot is used; its commit is stored already."""
        self._first_slot = max(self._first_slot, slot + 1)
        await self._write()

    def said(self, record: NodeRecord) -> None:
        """Keep the announced record for comparison with another process."""
        self._said = record

    async def begin(self) -> None:
        """Store the first use of a new disk."""
        if self._context.ports.store.get(_TABLE, _KEY) is None:
            await self._write()

    def shown(self, signed: Signed[Any], *, is_news: bool) -> None:
        """Note a message of this key that another node holds; ``is_news``: unknown here.

        A record with a sequence number that this disk never used comes from another disk. So does a
        commit that is news and older than this disk. A replica whose clock was wrong for a while
        may have forgotten younger ones.
        """
        message, former = signed.message, False
        if isinstance(message, NodeRecord):
            former = not self._born_at <= message.sequence <= self._sequence
            if message.sequence not in self._given:
                self._note_other(message, former=former)
            if former:
                self._take_up(message)
        elif isinstance(message, RolloutCommit):
            former = is_news and message.epoch <= self._born_epoch
        if former and not self._lost.is_set():
            log.warning("key in use before with a lost disk", kind=message.kind)
            self._lost.set()

    def _take_up(self, former: NodeRecord) -> None:
        """Continue from a record of the lost disk.

        Certificates signed then stay valid for late nodes, which draw their committees from today's
        records.
        """
        if self._is_recent(former.sequence):
            if not former.leaving:
                self._joined_at = min(self._joined_at, former.joined_at)
            self._sequence = max(self._sequence, former.sequence)

    def early_seconds(self) -> float:
        """Return the seconds until peers accept the node's next record as news.

        The last one may be a leaving record: a node that returns this early must announce again.
        """
        if not self._is_recent(self._sequence):
            return 0.0
        news_at = self._sequence / 1000 + self._context.replica.roster.pause_seconds
        return news_at - self._context.ports.clock.now()

    async def advance(self, *, leaving: bool) -> None:
        """Choose and store the sequence number of the next record."""
        now_ms = self._now_ms()
        if self._sequence > now_ms + CLOCK_SKEW_SECONDS_MAX * 1000:
            # The clock was ahead and was set back: peers rejected those records.
            self._sequence, self._born_at = now_ms, min(self._born_at, now_ms)
        else:
            self._sequence = max(self._sequence + 1, now_ms)
        if not self._given and self._joined_at >= self._began_ms:
            self._joined_at = self._sequence  # no record was sent while listening
        self._left = leaving
        self._given[self._sequence] = None
        await self._write()

    async def run(self, synchronised: Callable[[], Awaitable[None]]) -> None:
        """After the loss of a disk, synchronise and store what must not be used again."""
        await self._lost.wait()
        while not await self._write():  # noqa: ASYNC110 - no event reports free disk space
            await asyncio.sleep(self._epochs.seconds)
        if self._used_up_to is None:
            await synchronised()
            await asyncio.sleep(CAREFUL_EPOCHS * self._epochs.seconds)
            replica = self._context.replica
            while replica.intake.ledger.is_behind:  # noqa: ASYNC110 - no event reports the end
                await asyncio.sleep(self._epochs.seconds)
            known = replica.next_slot(self._context.signer.peer_id)
            self._first_slot = max(self._first_slot, known) + SLOTS_SKIPPED
            self._used_up_to = replica.ledger.chain.version
            await self._write()
        await asyncio.Event().wait()

    async def _write(self) -> bool:
        row = {
            "born_at": self._born_at,
            "first_slot": self._first_slot,
            "joined_at": self._joined_at,
            "left": self._left,
            "lost": self._lost.is_set(),
            # The next start must listen too, until one has completed.
            "machine": self._machine if self._alone.is_set() or not self._elsewhere else b"?",
            "sequence": self._sequence,
            "used_up_to": self._used_up_to,
        }
        try:
            await self._context.ports.store.commit([Put(_TABLE, _KEY, encode(row))])
        except StorageFullError as error:
            log.warning("key state not stored", error=str(error))
            return False
        return True

    def _is_recent(self, sequence: int) -> bool:
        """Return whether a record with this sequence number would still be valid today."""
        lifetime_seconds = self._epochs.record_epochs * self._epochs.seconds
        return abs(self._now_ms() - sequence) <= lifetime_seconds * 1000

    def _now_ms(self) -> int:
        return round(self._context.ports.clock.now() * 1000)


def _rank(record: NodeRecord) -> tuple[int, tuple[str, ...]]:
    """Return the rank of a process among those with its key: the lowest continues."""
    return record.joined_at, record.addresses


def _row(stored: bytes | None) -> dict[str, Any]:
    row = decode(stored or b"", bytes_max=ROW_BYTES_MAX)
    return row if isinstance(row, dict) else {}


def _moment(milliseconds: int) -> str:
    """Return a time in words; another process may have written any number."""
    try:
        at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return "a year that no calendar has"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
