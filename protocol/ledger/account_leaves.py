"""Leaves of the accounts: the header and the account of one key, with their canonical encodings."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

from protocol.core.codec import decode, encode
from protocol.core.faults import Fault
from protocol.core.types import DIGEST_BYTES, Digest
from protocol.ledger.receipts import COUNT_MAX, is_count
from protocol.ledger.slot_window import WINDOW_BYTES, SlotWindow

AMOUNT_MAX = 2**63 - 1
"""Maximum of every number of an account, and of the totals of the run."""


class Totals(NamedTuple):
    """Sums over all accounts."""

    rollouts: int
    tokens: int
    credit: int
    """Unlocked and locked."""
    steps: int


NO_TOTALS = Totals(0, 0, 0, 0)


class Header(NamedTuple):
    """The newest page that is counted, and the totals of the run."""

    epoch: int
    """Epoch of the page; -1 before the first."""
    page: bytes
    """Digest of the page; empty before the first."""
    head: bytes
    """Manifest digest of the newest final version; empty for none."""
    beacons: Mapping[int, Digest]
    """Beacon of the first final page of each recent era."""
    totals: Totals

    def encoded(self) -> bytes:
        """Return the leaf."""
        return encode(
            {
                "beacons": {str(era): beacon for era, beacon in self.beacons.items()},
                "epoch": self.epoch,
                "head": self.head,
                "page": self.page,
                **self.totals._asdict(),
            }
        )


@dataclass(slots=True)
class Account:
    """Work and credit of one key."""

    key: bytes
    """Public key."""
    since: int
    """Epoch of the first page that names the key."""
    rollouts: int = 0
    """Accepted rollouts."""
    tokens: int = 0
    """Tokens of accepted rollouts."""
    rejected: int = 0
    """Rejected rollouts."""
    checks: int = 0
    """Rollouts that its verdicts helped to decide."""
    checked_tokens: int = 0
    """Tokens of these rollouts."""
    learned: int = 0
    """Rollouts that final versions learned from."""
    learned_tokens: int = 0
    """Tokens of these rollouts."""
    steps: int = 0
    """Final versions that it published."""
    omitted: int = 0
    """Final rollouts that it drew for these versions and left out."""
    credit: int = 0
    """Unlocked credit."""
    locked: list[list[int]] = field(default_factory=list)
    """Locked credit: last epoch of the bucket in which it was earned, and amount, ascending."""
    forfeited: int = 0
    """Credit that it lost while it was locked."""
    eras: list[list[int]] = field(default_factory=list)
    """Recent eras in which rollouts of it were accepted, and tokens of these, ascending."""
    slashed: int = -1
    """Epoch of the page that slashed it; -1 for none."""
    next_slot: int = 0
    """Its highest decided training slot + 1."""
    slots: int = 0
    """Its decided training slots."""
    window: bytes = bytes(WINDOW_BYTES)
    """Decisions of the newest slots (``protocol.ledger.slot_window``)."""
    forgiven: int = 0
    """Gaps that accepted rollouts without credit have paid for."""
    offences: int = 0
    """Rejected rollouts that slash, as far as they stand."""
    cleared: int = 0
    """Rejected rollouts that a re-examination has accepted."""
    misjudged: int = 0
    """Accepted rollouts with wrong rewards that it helped to accept."""
    lies: int = 0
    """Overturned outcomes that show it as a validator that lied."""

    @property
    def held(self) -> int:
        """Unlocked and locked credit."""
        return self.credit + self.locked_credit

    @property
    def locked_credit(self) -> int:
        """Credit that a fault may still take."""
        return sum(amount for _, amount in self.locked)

    @property
    def decided(self) -> SlotWindow:
        """Its decided training slots."""
        return SlotWindow(self.next_slot, self.slots, self.window)

    @property
    def gaps(self) -> int:
        """Training slots that it left out, or whose rollouts expired."""
        return self.decided.gaps

    def decide(self, slot: int) -> None:
        """Record the decision of an open training slot."""
        self.next_slot, self.slots, self.window = self.decided.decide(slot)

    @property
    def totals(self) -> Totals:
        """Its part of the totals."""
        return Totals(self.rollouts, self.tokens, self.held, self.steps)

    def copy(self) -> "Account":
        """Return a copy that shares nothing with this account."""
        locked, eras = [[*one] for one in self.locked], [[*one] for one in self.eras]
        return replace(self, locked=locked, eras=eras)

    @property
    def is_beyond(self) -> bool:
        """True if a number is above ``AMOUNT_MAX``; of the entries only the last ones grow."""
        last = (*self.locked[-1:], *self.eras[-1:])
        return any(number > AMOUNT_MAX for number in (*_counters(self), *(one[1] for one in last)))

    def bound(self) -> None:
        """Lower every number above ``AMOUNT_MAX`` to it."""
        for name in _COUNTERS:
            setattr(self, name, min(getattr(self, name), AMOUNT_MAX))
        for entry in (*self.locked[-1:], *self.eras[-1:]):
            entry[1] = min(entry[1], AMOUNT_MAX)

    def encoded(self) -> bytes:
        """Return the leaf."""
        return encode({name: getattr(self, name) for name in _FIELDS})


_FIELDS = tuple(one.name for one in fields(Account))

_COUNTERS = tuple(
    one for one in _FIELDS if one not in {"key", "since", "locked", "eras", "slashed", "window"}
)

_counters = operator.attrgetter(*_COUNTERS)


def decode_header(leaf: bytes) -> Header | None:
    """Decode the leaf of a header, which may come from outside; None if it is none."""
    values = decode(leaf, bytes_max=len(leaf))
    match values:
        case Fault():
            return None
        case {
            "beacons": dict(beacons),
            "epoch": epoch,
            "head": bytes(head),
            "page": bytes(page),
            "rollouts": rollouts,
            "tokens": tokens,
            "credit": credit,
            "steps": steps,
        } if len(values) == 8:
            totals = Totals(rollouts, tokens, credit, steps)
        case _:
            return None
    if not _is_epoch(epoch) or not all(map(_is_amount, totals)):
        return None
    if len(head) not in (0, DIGEST_BYTES) or len(page) != (DIGEST_BYTES if epoch >= 0 else 0):
        return None
    if not all(map(_is_decimal, beacons)):
        return None
    if any(type(one) is not bytes or len(one) != DIGEST_BYTES for one in beacons.values()):
        return None
    if epoch < 0 and head:
        return None
    by_era = {int(era): Digest(beacon) for era, beacon in beacons.items()}
    return Header(epoch, page, head, by_era, totals)


def decode_account(leaf: bytes) -> Account | None:
    """Decode the leaf of an account, which may come from outside; None if it is none."""
    values = decode(leaf, bytes_max=len(leaf))
    if isinstance(values, Fault) or not isinstance(values, dict) or values.keys() != set(_FIELDS):
        return None
    key, locked, eras = values["key"], _entries(values["locked"]), _entries(values["eras"])
    if type(key) is not bytes or len(key) != DIGEST_BYTES or locked is None or eras is None:
        return None
    if not is_count(values["since"]) or not _is_epoch(values["slashed"]):
        return None
    if not all(_is_amount(values[name]) for name in _COUNTERS):
        return None
    if not all(amount for _, amount in locked):
        return None
    window = values["window"]
    if type(window) is not bytes or len(window) != WINDOW_BYTES:
        return None
    return Account(**{**values, "locked": locked, "eras": eras})


def _entries(value: Any) -> list[list[int]] | None:
    """Return pairs of numbers of which the first ascend; None if they are no such pairs."""
    if type(value) is not tuple:
        return None
    entries: list[list[int]] = []
    for one in value:
        if type(one) is not tuple or len(one) != 2:
            return None
        number, amount = one
        if not is_count(number) or not _is_amount(amount):
            return None
        if entries and number <= entries[-1][0]:
            return None
        entries.append([number, amount])
    return entries


def _is_decimal(text: str) -> bool:
    """Return whether a text is the shortest decimal form of an era."""
    is_short = text.isascii() and text.isdigit() and len(text) <= len(str(COUNT_MAX))
    return is_short and str(int(text)) == text


def _is_epoch(value: object) -> bool:
    return type(value) is int and -1 <= value <= COUNT_MAX


def _is_amount(value: object) -> bool:
    return type(value) is int and 0 <= value <= AMOUNT_MAX
