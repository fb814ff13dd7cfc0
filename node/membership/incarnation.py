"""What this key remembers of itself across restarts, and what it cannot know.

One durable row tells since when this disk is in use, since when the node has been a member without
a break, the last sequence number of its record, and whether the key was in use before with a disk
that is lost. Two things that a key signs must never contradict each other; without the old disk it
does not know what it signed. So it first listens to what others remember, and leaves alone for good
what it may have signed something about. A restart while it listens begins that anew.

Nor does it know what another process signs that has the same key. So a start on a directory that
was used elsewhere, or on a key that somebody has just heard of, listens before it works. A record
of ours that was issued after our start, and that we never made, ends this node, unless it is the
one of the two that has been here for longer: then the other one ends, which comes to hold our
record as we came to hold its.
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
"""For how long a key without its disk listens: until it has asked several peers what it missed. It
may have used slots of every version that it hears of meanwhile. A guess."""

ROW_BYTES_MAX = 256

GIVEN_MAX = 4096
"""Sequence numbers of this process that are remembered: hours of records, and nobody shows older
ones as issued after its start."""

_TABLE = "incarnation"
_KEY = b"own"


class KeyGuard:
    """Read at start; changed only by what is written to the store before it counts."""

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
        self._began_ms, self._sequence_at_start = now_ms, self._sequence
        self._given = BoundedDict[int, None](GIVEN_MAX)
        self._elsewhere = bool(row) and row.get("machine", b"") != machine
        self._heard_of = False
        self._alone = asyncio.Event()
        self._twin = asyncio.Event()
        self._twin_sequence = 0
        self._said: NodeRecord | None = None
        self._outlasts_until_ms: int | None = None
        self._lost = asyncio.Event()
        if row.get("lost", False):
            self._lost.set()

    # What others and roles ask

    @property
    def is_new(self) -> bool:
        """Whether this disk has announced nothing yet."""
        return self._sequence == 0

    @property
    def joined_at(self) -> int:
        """Unix milliseconds since when we are a member without a break that others could see."""
        return min(self._joined_at, self._sequence)

    @property
    def sequence(self) -> int:
        """The last sequence number of our record, 0 before the first."""
        return self._sequence

    def may_have_used(self, version: int) -> bool:
        """Return whether we may have used slots of a version that this disk does not know of."""
        if not self._lost.is_set():
            return False
        return self._used_up_to is None or version <= self._used_up_to

    def may_have_judged(self, epoch: int) -> bool:
        """Return whether we may have signed verdicts on commits of ``epoch`` with another disk."""
        return epoch < self._born_epoch

    @property
    def _born_epoch(self) -> int:
        return self._context.replica.manifest.epoch_at(self._born_at / 1000)

    # Whether we are alone with our key

    async def wait_alone(self) -> None:
        """Return when nobody else seems to use our key: before that we sign nothing."""
        await self._alone.wait()

    async def wait_twin(self) -> str:
        """Return, in one line for people, that another process uses our key; mostly never."""
        await self._twin.wait()
        return (
            f"another node uses our key ({self._context.signer.peer_id}): a record of it is of "
            f"{_moment(self._twin_sequence)} and not made here; two nodes with one key sign "
            "what excludes both. Stop the other one and start again, or give this one a key of its "
            "own with another --data-dir"
        )

    async def listen(self, synchronised: Callable[[], Awaitable[None]]) -> None:
        """Hear whether another process uses our key, if there is a reason to think so.

        The other one's next record is due after a refresh, and comes here with what we ask of peers
        at the latest.
        """
        loop, seconds = asyncio.get_running_loop(), self.listen_seconds
        if self._elsewhere or self._heard_of:
            log.warning("listening for another node with our key", seconds=seconds)
            text = "listening for another node with our key before we work"
            self._context.conditions.wait("key", f"{text}, {seconds:.0f} s")
            until = loop.time() + seconds
            with suppress(TimeoutError):  # where nobody is, nobody hears what we sign
                async with asyncio.timeout(seconds):
                    await synchronised()
                    until = loop.time() + seconds
            await asyncio.sleep(until - loop.time())
            self._context.conditions.clear("key")
        if not self._twin.is_set():
            self._alone.set()
            if self._elsewhere:
                await self._write()

    @property
    def listen_seconds(self) -> float:
        """For how long a start listens: three records of the other, and five questions to peers."""
        return (3 * self._epochs.refresh_epochs + 1) * self._epochs.seconds

    def _note_other(self, record: NodeRecord, *, former: bool) -> None:
        """Note a record of ours that this process did not make; ``former``: nor this disk."""
        if record.leaving:
            return
        newest_ms = max(self._began_ms + CLOCK_SKEW_SECONDS_MAX * 1000, self._sequence_at_start)
        if record.sequence > newest_ms:
            self._meet_twin(record)
        elif former and self._is_recent(record.sequence):
            self._heard_of = True

    def _meet_twin(self, record: NodeRecord) -> None:
        """Take note of another process with our key that is alive, and of which of us ends.

        The one that has been here for less time does, and if neither has, the one with the higher
        addresses; what we told last is what it compares with. Whoever has announced nothing yet has
        signed nothing either. The other one must be silent when it has had the time to hear of us.
        """
        until_ms = self._outlasts_until_ms
        goes_on = self._said is not None and _rank(self._said) < _rank(record)
        if not goes_on or (until_ms is not None and record.sequence > until_ms):
            self._twin_sequence = record.sequence
            self._twin.set()
        elif until_ms is None:
            self._outlasts_until_ms = round(self._now_ms() + 1000 * self.listen_seconds)
            log.warning("another node used our key and has to end", since=record.joined_at)

    # What changes it

    def said(self, record: NodeRecord) -> None:
        """Note the record that is announced now."""
        self._said = record

    async def begin(self) -> None:
        """Write down that this disk is in use from now on, if it is new."""
        if self._context.ports.store.get(_TABLE, _KEY) is None:
            await self._write()

    def shown(self, signed: Signed[Any], *, is_news: bool) -> None:
        """Take note of a message of ours that another node holds, and whether it was news here.

        A record with a sequence number that this disk never gave was made with another one, and
        so was a commit that is news and was made before this disk came to be. Younger ones may
        have been forgotten, by a replica whose clock was wrong for a while.
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
            log.warning("this key was here before with a disk that is lost", kind=message.kind)
            self._lost.set()

    def _take_up(self, former: NodeRecord) -> None:
        """Go on from a record of the lost disk.

        Certificates that we signed then stay valid for whoever comes late and draws their
        committees from today's records.
        """
        if self._is_recent(former.sequence):
            if not former.leaving:
                self._joined_at = min(self._joined_at, former.joined_at)
            self._sequence = max(self._sequence, former.sequence)

    def early_seconds(self) -> float:
        """Return for how long a record of ours is no news yet to whoever heard the last one.

        That may have said that we leave: who comes back this soon has to say so once more.
        """
        if not self._is_recent(self._sequence):
            return 0.0
        news_at = self._sequence / 1000 + self._context.replica.roster.pause_seconds
        return news_at - self._context.ports.clock.now()

    async def advance(self, *, leaving: bool) -> None:
        """Take and write down the sequence number of our next record."""
        now_ms = self._now_ms()
        if self._sequence > now_ms + CLOCK_SKEW_SECONDS_MAX * 1000:
            # Our clock was ahead and was set back: nobody took what it said.
            self._sequence, self._born_at = now_ms, min(self._born_at, now_ms)
        else:
            self._sequence = max(self._sequence + 1, now_ms)
        if not self._given and self._joined_at >= self._began_ms:
            self._joined_at = self._sequence  # nobody has heard of us while we listened
        self._left = leaving
        self._given[self._sequence] = None
        await self._write()

    async def run(self, synchronised: Callable[[], Awaitable[None]]) -> None:
        """Listen, should the old disk be lost, and write down which versions to leave alone."""
        await self._lost.wait()
        while not await self._write():  # noqa: ASYNC110 - the disk tells nobody when it has room
            await asyncio.sleep(self._epochs.seconds)
        if self._used_up_to is None:
            await synchronised()
            await asyncio.sleep(CAREFUL_EPOCHS * self._epochs.seconds)
            self._used_up_to = self._context.replica.ledger.version
            await self._write()
        await asyncio.Event().wait()

    async def _write(self) -> bool:
        row = {
            "born_at": self._born_at,
            "joined_at": self._joined_at,
            "left": self._left,
            "lost": self._lost.is_set(),
            # Until we have listened, the next start must listen, too.
            "machine": self._machine if self._alone.is_set() or not self._elsewhere else b"?",
            "sequence": self._sequence,
            "used_up_to": self._used_up_to,
        }
        try:
            await self._context.ports.store.commit([Put(_TABLE, _KEY, encode(row))])
        except StorageFullError as error:
            log.warning("a restart will look like a new arrival", error=str(error))
            return False
        return True

    def _is_recent(self, sequence: int) -> bool:
        """Return whether a record with this sequence number would still count today."""
        lifetime_seconds = self._epochs.record_epochs * self._epochs.seconds
        return abs(self._now_ms() - sequence) <= lifetime_seconds * 1000

    def _now_ms(self) -> int:
        return round(self._context.ports.clock.now() * 1000)


def _rank(record: NodeRecord) -> tuple[int, tuple[str, ...]]:
    """Return by what two processes with one key are told apart: the lower one goes on."""
    return record.joined_at, record.addresses


def _row(stored: bytes | None) -> dict[str, Any]:
    row = decode(stored or b"", bytes_max=ROW_BYTES_MAX)
    return row if isinstance(row, dict) else {}


def _moment(milliseconds: int) -> str:
    """Return a time in words; whoever has our key writes what it likes."""
    try:
        at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, OSError, ValueError):
        return "a year that no calendar has"
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
