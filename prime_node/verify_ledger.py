"""Verify an exported ledger of a prime-node run, or a proof of one account, offline.

    python verify_ledger.py FILE [--run ID] [--json]

The file shows that its run's council decided every page in it. The work that these pages decide
gives every key's account. This program recomputes all of it with its own code: it needs Python
3.11, ``blake3``, ``msgpack`` and ``pynacl``, and nothing of prime-node. It trusts the run id only,
so compare the one that it prints, or name it with ``--run``. Votes convince if less than a third of
the seats of each council were dishonest, and no former council's keys were sold since: compare the
newest page, too, with that of a node that you trust.

It reads the file once, line by line. Exit codes: 0 valid, 1 refused with one line that names the
place, 2 the file is no readable export.

- ``{"format", "manifest", "start", "start_page"}``: the run manifest; its digest is the run id.
  ``start`` holds the accounts before the first page of the file, or null at the run's beginning.
- ``{"handover": [...]}`` for each council after the first: pages with the votes of more than two
  thirds of the council before it. Three consecutive epochs show that its seating page is final.
- ``{"newest": [...]}``: the same for the newest final page, unless that page seats a council.
- ``{"proof"}``: one account, and its path to the root that the newest final page states; or
- ``{"page", "work"}``: every final page, and the work that it decides. Each page contains the
  digests of the page before it and of its work, up to the page that the votes show final.

Not recomputed are the random draws: proposers, beacons and committees, of which the votes convince.
"""

import argparse
import json
import sys
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgpack
from blake3 import blake3
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

FORMAT = "prime-node-ledger/1"
HEAD_BYTES_MAX, LINE_BYTES_MAX = 1 << 30, 1 << 22
"""Longest first line, which may hold many accounts, and longest other line."""

DOMAIN = b"prime-node/2"
BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
PEER_ID_PREFIX = bytes.fromhex("002408011220")
"""Identity multihash of a libp2p Ed25519 key."""

MARGIN_EPOCHS, ERAS_KEPT, BUCKET_EPOCHS, WINDOW_SLOTS = 8, 4, 8, 256
AMOUNT_MAX = 2**63 - 1
SLASHABLE_REASONS = {"format", "termination", "computation", "history", "reward-history"}
CERTAIN_REASONS = {"format", "termination", "computation"}
MISJUDGED_MIN = 8
"""Constants of the accounts (``protocol.ledger.accounts``, ``protocol.ledger.reversals``)."""

WORK_PARTS = ("receipts", "steps", "overturned")

CREDIT_RULES = ("per_token", "per_checked_token", "per_learned_token", "lock_epochs", "gap_max")
"""Numbers in the section ``credit`` of a manifest."""

SHOWN = 20
"""Accounts in the table."""


class RefusedError(Exception):
    """The export is wrong; the text names the place and the reason."""


class UnreadableError(Exception):
    """The file is no export."""


# Encodings


def digest(data: bytes) -> bytes:
    """Return 32 bytes of BLAKE3."""
    return blake3(data).digest()


def peer_id(key: bytes) -> str:
    """Return the libp2p peer id of an Ed25519 key: base58 of its identity multihash."""
    number, text = int.from_bytes(PEER_ID_PREFIX + key, "big"), ""
    while number:
        number, place = divmod(number, 58)
        text = BASE58[place] + text
    return "1" + text  # the zero byte in front


def key_of(peer: object) -> bytes:
    """Return the key inside a peer id; raises ``ValueError``."""
    number = 0
    for letter in str(peer)[:64]:
        number = 58 * number + max(0, BASE58.find(letter))
    key = number.to_bytes(64, "big")[-32:]
    if peer_id(key) != peer:
        raise ValueError("not an Ed25519 peer id")
    return key


def signed_bytes(kind: str, run: bytes, payload: bytes) -> bytes:
    """Return what a signature of this kind and run covers."""
    return DOMAIN + bytes([len(kind)]) + kind.encode() + run + payload


def is_signed(key: bytes, message: bytes, signature: bytes) -> bool:
    """Return whether an Ed25519 signature is valid."""
    try:
        VerifyKey(key).verify(message, signature)
    except (BadSignatureError, ValueError, TypeError):
        return False
    return True


def pack(value: object) -> bytes:
    """Return the MessagePack of a value whose maps are sorted."""
    return bytes(msgpack.packb(value, use_bin_type=True))


def unpack(data: bytes, place: str) -> Any:
    """Return the value of canonical MessagePack, with arrays as tuples."""
    try:
        value = msgpack.unpackb(data, use_list=False, strict_map_key=True)
        is_sorted = not isinstance(value, dict) or list(value) == sorted(value)
        if is_sorted and pack(value) == data:
            return value
    except (ValueError, TypeError, OverflowError, RecursionError):
        pass
    raise RefusedError(f"{place}: not canonical MessagePack")


def unbase64(text: object, place: str) -> bytes:
    """Return the bytes of standard base64, which has one spelling."""
    try:
        data = b64decode(str(text), validate=True)
    except ValueError:
        data = b""
    if not isinstance(text, str) or b64encode(data).decode() != text:
        raise RefusedError(f"{place}: not base64")
    return data


# Pages and councils


class Page(NamedTuple):
    """The parts of a page that count here."""

    id: bytes
    epoch: int
    council: bytes
    parent: bytes
    seed: bytes
    """Beacon of the page before it."""
    final_epoch: int
    head: bytes
    reveals: tuple[bytes, ...]
    joined: tuple[bytes, ...]
    removed: tuple[bytes, ...]
    drawn: tuple[bytes, ...]
    seats: tuple[int, ...]
    work: bytes
    ledger: bytes

    @property
    def place(self) -> str:
        """Name of the page in messages."""
        return f"page of epoch {self.epoch}"

    @property
    def changes_council(self) -> bool:
        """True if another council follows it."""
        return bool(self.joined or self.removed or self.drawn)


@dataclass(frozen=True)
class Run:
    """Constants of a run, from its manifest."""

    id: bytes
    name: str
    genesis: tuple[bytes, ...]
    recovery_epochs: int
    era_epochs: int
    seats_max: int
    credit: dict[str, int]
    slash: bool
    reward_rate: Fraction
    """Share of honest rollouts whose rewards differ between machines."""

    @classmethod
    def of(cls, manifest: bytes) -> "Run":
        """Read a canonical manifest."""
        values = unpack(manifest, "manifest")
        try:
            council, credit = values["council"], values["credit"]
            recovery, era, seats = (
                council[name] for name in ("recovery_epochs", "era_epochs", "seats_max")
            )
            amounts = {name: credit[name] for name in CREDIT_RULES}
            genesis = tuple(map(key_of, values["genesis"]["validators"]))
            slash, name = credit["slash"], values["name"]
            reward_rate = Fraction(credit.get("reward_disagreement_rate", 0.001))
        except (ArithmeticError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise RefusedError(f"manifest: {type(error).__name__} {error}") from None
        counts = [recovery, era, seats, *amounts.values()]
        if not all(type(one) is int and one >= 0 for one in counts) or not era:
            raise RefusedError("manifest: a number that is none")
        if not genesis or len(set(genesis)) < len(genesis) or type(name) is not str:
            raise RefusedError("manifest: no council or no name")
        council_rules = recovery, era, seats
        credit_rules = amounts, slash is True, reward_rate
        return cls(digest(manifest), name, genesis, *council_rules, *credit_rules)


@dataclass(frozen=True)
class Council:
    """Keys that vote on pages, with the seats of each."""

    seat: bytes
    """The page that seated it; empty for the genesis."""
    members: dict[bytes, int]
    since: int = -1
    era: int = 0

    def after(self, page: Page, run: Run) -> "Council":
        """Return the council that a page seats."""
        if page.drawn:
            members = dict(zip(page.drawn, page.seats, strict=True))
            return Council(page.id, members, page.epoch, page.epoch // run.era_epochs)
        members = {key: one for key, one in self.members.items() if key not in page.removed}
        members |= dict.fromkeys(page.joined, 1)
        return Council(page.id, dict(sorted(members.items())), page.epoch, self.era)

    def change_fault(self, page: Page, run: Run, *, recovers: bool) -> str:
        """Return why a page cannot change this council; empty if it can."""
        if page.drawn or page.seats:
            total = sum(page.seats)
            if page.joined or page.removed or page.epoch // run.era_epochs <= self.era:
                return "draws a council that is not due"
            if len(page.drawn) != len(page.seats) or list(page.drawn) != sorted(set(page.drawn)):
                return "draws keys that are not in order"
            return "draws too many seats" if total > run.seats_max else ""
        joined, removed = set(page.joined), set(page.removed)
        if len(joined) + len(removed) != len(page.joined) + len(page.removed):
            return "changes a key twice"
        if not removed <= self.members.keys() or joined & self.members.keys():
            return "changes another council"
        if not 1 <= len(self.members) + len(joined) - len(removed) <= run.seats_max:
            return "leaves too few or too many members"
        return "seats members without a draw" if joined and (self.era or recovers) else ""


def page_of(values: Any, place: str) -> Page:
    """Return a page of the fields of its payload, which may be anything."""
    try:
        page = Page(b"", *(values[name] for name in Page._fields[1:]))
    except (KeyError, TypeError):
        raise RefusedError(f"{place}: a page without the fields of one") from None
    digests = page.council, page.parent, page.head, page.work, page.ledger
    keys = page.joined, page.removed, page.drawn
    is_valid = (
        all(type(one) is int for one in (page.epoch, page.final_epoch))
        and -1 <= page.final_epoch < page.epoch
        and all(type(one) is bytes and len(one) in {0, 32} for one in digests)
        and type(page.seed) is bytes
        and all(type(one) is tuple for one in (page.reveals, page.seats, *keys))
        and all(type(key) is bytes and len(key) == 32 for one in keys for key in one)
        and all(type(count) is int and count > 0 for count in page.seats)
    )
    if not is_valid:
        raise RefusedError(f"{place}: a page with a field out of bounds")
    return page


def open_page(
    data: bytes, run: Run, councils: dict[bytes, Council], place: str, prefix: str = ""
) -> Page:
    """Open the envelope of a page that a member of its council signed.

    Messages begin with ``place``, or with ``prefix`` and the epoch of the page once it is known.
    """
    envelope = unpack(data, place)
    names = ["kind", "payload", "signature", "signer"]
    if type(envelope) is not dict or list(envelope) != names or envelope["kind"] != "page":
        raise RefusedError(f"{place}: not the envelope of a page")
    payload = envelope["payload"]
    if type(payload) is not bytes:
        raise RefusedError(f"{place}: not the envelope of a page")
    page = page_of(unpack(payload, place), place)
    place = prefix + page.place
    council = councils.get(page.council)
    if council is None:
        raise RefusedError(f"{place}: no handover seats its council")
    try:
        signer = key_of(envelope["signer"])
    except ValueError:
        signer = b""
    signed = signed_bytes("page", run.id, payload)
    if signer not in council.members or not is_signed(signer, signed, envelope["signature"]):
        raise RefusedError(f"{place}: not signed by a member of its council")
    identity = signed_bytes("page", run.id, str(envelope["signer"]).encode() + payload)
    return page._replace(id=digest(identity))


def open_notarised(
    data: bytes, run: Run, council: Council, place: str
) -> tuple[Page, list[tuple[bytes, bytes]]]:
    """Open a page with its votes: pairs of a member and its signature, not checked yet."""
    values = unpack(data, place)
    names = ["page", "signatures", "voters"]
    if type(values) is not dict or list(values) != names:
        raise RefusedError(f"{place}: not a page with votes")
    envelope, signatures, voters = values.values()
    if not all(type(one) is bytes for one in values.values()) or voters[-1:] == b"\x00":
        raise RefusedError(f"{place}: not a page with votes")
    page = open_page(envelope, run, {council.seat: council}, place, f"{place}, ")
    bits, keys = int.from_bytes(voters, "little"), list(council.members)
    voted = [key for number, key in enumerate(keys) if bits >> number & 1]
    if bits >> len(keys) or len(signatures) != 64 * len(voted):
        raise RefusedError(f"{place}, {page.place}: votes of another council")
    parts = [signatures[i : i + 64] for i in range(0, len(signatures), 64)]
    return page, list(zip(voted, parts, strict=True))


def check_chain(items: Sequence[bytes], run: Run, council: Council, place: str) -> list[Page]:
    """Return notarised pages of a council, each the parent of the next.

    A page that changes the council ends its chain. The pages after it have no reveals and only show
    it final; of those after a recovery, too, more than half of the seats suffice.
    """
    pages: list[Page] = []
    has_ended = recovers = False
    for data in items:
        page, votes = open_notarised(data, run, council, place)
        where = f"{place}, {page.place}"
        if pages and (page.parent != pages[-1].id or page.epoch <= pages[-1].epoch):
            raise RefusedError(f"{where}: not the child of the page before it")
        if page.epoch <= council.since:
            raise RefusedError(f"{where}: before its council was seated")
        has_ended = has_ended if pages else not page.reveals
        if has_ended != (not page.reveals) or (has_ended and page.changes_council):
            raise RefusedError(f"{where}: its council has ended, or has not")
        begins = bool(page.removed) and page.epoch - page.final_epoch >= run.recovery_epochs
        fault = council.change_fault(page, run, recovers=begins)
        if fault:
            raise RefusedError(f"{where}: {fault}")
        recovers = recovers or begins
        total = sum(council.members.values())
        needed = total // 2 + 1 if recovers else 2 * total // 3 + 1
        if sum(council.members[key] for key, _ in votes) < needed:
            raise RefusedError(f"{where}: too few votes")
        vote = {"council": page.council, "epoch": page.epoch, "page": page.id}
        message = signed_bytes("page-vote", run.id, pack({**vote, "parent": page.parent}))
        if not all(is_signed(key, message, signature) for key, signature in votes):
            raise RefusedError(f"{where}: a vote with a bad signature")
        pages.append(page)
        has_ended = has_ended or page.changes_council
    if [one.epoch - pages[-1].epoch for one in pages[-3:]] != [-2, -1, 0]:
        raise RefusedError(f"{place}: does not end with three consecutive epochs")
    return pages


# Accounts


@dataclass(slots=True)
class Account:
    """Work and credit of one key; the fields are those of its leaf."""

    key: bytes
    since: int
    checked_tokens: int = 0
    checks: int = 0
    cleared: int = 0
    credit: int = 0
    eras: list[list[int]] = field(default_factory=list)
    forfeited: int = 0
    forgiven: int = 0
    learned: int = 0
    learned_tokens: int = 0
    lies: int = 0
    locked: list[list[int]] = field(default_factory=list)
    misjudged: int = 0
    next_slot: int = 0
    offences: int = 0
    omitted: int = 0
    rejected: int = 0
    rollouts: int = 0
    slashed: int = -1
    slots: int = 0
    steps: int = 0
    tokens: int = 0
    window: bytes = bytes(WINDOW_SLOTS // 8)

    @property
    def held(self) -> int:
        """Unlocked and locked credit."""
        return self.credit + sum(amount for _, amount in self.locked)

    def decide(self, slot: int) -> bool:
        """Record the decision of a training slot; False if it was decided before or is too old."""
        bits, ahead = int.from_bytes(self.window, "big"), slot + 1 - self.next_slot
        if ahead <= 0 and (-ahead >= WINDOW_SLOTS or bits >> -ahead & 1):
            return False
        if ahead > 0:
            bits = bits << ahead if ahead < WINDOW_SLOTS else 0
            self.next_slot, ahead = slot + 1, 0
        bits = (bits | 1 << -ahead) & (1 << WINDOW_SLOTS) - 1
        self.slots += 1
        self.window = bits.to_bytes(WINDOW_SLOTS // 8, "big")
        return True

    def bound(self) -> None:
        """Lower every number above the largest one to it."""
        for name in COUNTERS:
            if getattr(self, name) > AMOUNT_MAX:
                setattr(self, name, AMOUNT_MAX)
        for entry in (*self.locked[-1:], *self.eras[-1:]):  # the others do not grow
            entry[1] = min(entry[1], AMOUNT_MAX)

    def forfeit(self) -> None:
        """Lose all locked credit."""
        self.forfeited += sum(amount for _, amount in self.locked)
        self.locked = []

    def leaf(self) -> bytes:
        """Return the encoded account."""
        return pack({name: getattr(self, name) for name in ACCOUNT_FIELDS})


ACCOUNT_FIELDS = sorted(one.name for one in fields(Account))
COUNTERS = sorted({*ACCOUNT_FIELDS} - {"key", "since", "eras", "locked", "slashed", "window"})


def account_of(leaf: bytes, place: str) -> Account:
    """Read a leaf; raises ``TypeError``, ``KeyError`` or ``ValueError`` if it is no account."""
    values = unpack(leaf, place)
    pairs = {name: [[*one] for one in values[name]] for name in ("eras", "locked")}
    return Account(**{**values, **pairs})


def is_plain(account: Account) -> bool:
    """Return whether the numbers of an account are numbers."""
    entries = (*account.eras, *account.locked)
    pairs = [number for entry in entries for number in entry]
    numbers = [account.since, account.slashed, *pairs, *(getattr(account, one) for one in COUNTERS)]
    is_paired = all(len(entry) == 2 for entry in entries)
    texts = {type(account.key), type(account.window)}
    is_sized = texts == {bytes} and len(account.window) == WINDOW_SLOTS // 8
    return is_sized and set(map(type, numbers)) == {int} and is_paired


Receipts = Sequence[tuple[bytes, bytes, int, int, bool, int, str, tuple[bytes, ...]]]
"""Commit, worker, version, slot, whether it evaluates the version, tokens, reason, checkers."""
Reversals = Sequence[tuple[Any, str]]
"""Receipts of overturned outcomes, and the new reason of each."""
Learned = Sequence[tuple[bytes, int, int]]
"""Workers with their learned rollouts and tokens."""
Steps = Sequence[tuple[int, bytes, bytes, Learned, int, *tuple[Sequence[bytes], ...]]]
"""Version, manifest, trainer, learned, and left-out rollouts; then its other trainers, if any."""


@dataclass(frozen=True)
class Proof:
    """One account, and the header of the accounts, with their paths to a root."""

    header: dict[str, Any]
    account: Account
    root: bytes

    @classmethod
    def of(cls, values: Any) -> "Proof":
        """Read a proof; its two paths must lead to one root."""
        try:
            leaves = [unbase64(values[name], "proof") for name in ("header", "account")]
            paths = [
                [unbase64(one, "proof") for one in values[name]]
                for name in ("header_path", "account_path")
            ]
            place, size = values["place"], values["size"]
            roots = [
                root_from(leaf, number, size, path)
                for leaf, number, path in zip(leaves, (0, place), paths, strict=True)
            ]
            header, account = unpack(leaves[0], "proof"), account_of(leaves[1], "proof")
            is_sound = place > 0 and roots[0] == roots[1] and is_plain(account)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise RefusedError("proof: its paths lead to no root")
        return cls(header, account, roots[0])


def root_from(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """Return the root that a path leads to; raises ``ValueError`` for a path of another tree."""
    if not 0 <= index < size or any(len(one) != 32 for one in path):
        raise ValueError("no path of this tree")
    found, last = digest(b"\x00" + leaf), size - 1
    while last:
        if index ^ 1 <= last:
            other = path.pop(0)
            found = digest(b"\x01" + (other + found if index & 1 else found + other))
        index, last = index >> 1, last >> 1
    if path:
        raise ValueError("a longer path than that of this tree")
    return found


class Ledger:
    """Accounts of all keys, by the rules of a run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.epoch, self.page, self.head = -1, b"", b""
        self.beacons: dict[int, bytes] = {}
        self.accounts: dict[bytes, Account] = {}
        self._due: dict[int, set[bytes]] = {}
        """Keys with locked credit, by the epoch of the entry."""
        self._changed: dict[bytes, Account] = {}

    @classmethod
    def of(cls, leaves: Sequence[bytes], run: Run) -> "Ledger":
        """Read the leaves of accounts, which a page has to confirm."""
        ledger = cls(run)
        try:
            head = unpack(leaves[0], "start")
            ledger.epoch, ledger.page, ledger.head = head["epoch"], head["page"], head["head"]
            ledger.beacons = {int(era): beacon for era, beacon in head["beacons"].items()}
            for leaf in leaves[1:]:
                account = account_of(leaf, "start")
                ledger.accounts[account.key] = account
                for last, _ in account.locked:
                    ledger._due.setdefault(last, set()).add(account.key)
            is_same = ledger.leaves() == list(leaves) and all(
                map(is_plain, ledger.accounts.values())
            )
        except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError):
            is_same = False
        texts = ledger.page, ledger.head, *ledger.beacons.values()
        if not is_same or type(ledger.epoch) is not int or set(map(type, texts)) != {bytes}:
            raise RefusedError("start: not the leaves of accounts")
        return ledger

    @property
    def totals(self) -> dict[str, int]:
        """Sums over all accounts."""
        sums: Counter[str] = Counter(rollouts=0, tokens=0, credit=0, steps=0)
        for one in self.accounts.values():
            sums.update(
                {
                    "rollouts": one.rollouts,
                    "tokens": one.tokens,
                    "credit": one.held,
                    "steps": one.steps,
                }
            )
        return {name: min(AMOUNT_MAX, sums[name]) for name in sorted(sums)}

    def leaves(self) -> list[bytes]:
        """Return the header and the accounts by key, encoded."""
        header: dict[str, Any] = {"epoch": self.epoch, "head": self.head, "page": self.page}
        beacons = {str(era): beacon for era, beacon in self.beacons.items()}
        header |= {"beacons": dict(sorted(beacons.items())), **self.totals}
        accounts = (self.accounts[key].leaf() for key in sorted(self.accounts))
        return [pack(dict(sorted(header.items()))), *accounts]

    def root(self) -> bytes:
        """Return the Merkle root of the leaves (RFC 6962 over BLAKE3)."""
        level = [digest(b"\x00" + leaf) for leaf in self.leaves()]
        while len(level) > 1:
            pairs = zip(level[::2], level[1::2], strict=False)
            lone = level[-1:] if len(level) % 2 else []
            level = [digest(b"\x01" + left + right) for left, right in pairs] + lone
        return level[0]

    def apply(
        self,
        page: bytes,
        epoch: int,
        beacon: bytes,
        head: bytes,
        work: tuple[Receipts, Steps, Reversals],
    ) -> None:
        """Count a page: its digest, epoch, beacon, newest final version, and work."""
        self._unlock(epoch)
        era = (epoch + MARGIN_EPOCHS) // self.run.era_epochs
        for receipt in work[0]:
            self._count_receipt(receipt, epoch, era)
        for receipt, reason in work[2]:
            self._count_reversal(receipt, reason, epoch, era)
        for _, _, trainer, learned, omitted, *others in work[1]:
            account = self._touch(trainer, epoch)
            account.steps += 1
            account.omitted += omitted
            self._reward([trainer, *(key for keys in others for key in keys)], learned, epoch)
            for key, rollouts, tokens in learned:
                worker = self._touch(key, epoch)
                worker.learned += rollouts
                worker.learned_tokens += tokens
        if era not in self.beacons:
            self.beacons[era] = beacon
            self.beacons = {one: lot for one, lot in self.beacons.items() if one > era - ERAS_KEPT}
            for account in self.accounts.values():
                account.eras = [entry for entry in account.eras if entry[0] > era - ERAS_KEPT]
        self.epoch, self.page, self.head = epoch, page, head
        for account in self._changed.values():
            account.bound()
        self._changed = {}

    def _count_receipt(self, receipt: Any, epoch: int, era: int) -> None:
        _, key, _, slot, evaluation, tokens, reason, checkers = receipt
        worker = self._touch(key, epoch)
        if not evaluation and not worker.decide(slot):
            return
        if reason == "accepted":
            worker.rollouts += 1
            gaps = worker.next_slot - worker.slots - worker.forgiven
            if not evaluation and gaps > self.run.credit["gap_max"]:
                worker.forgiven += 1
            else:
                self._count_tokens(worker, tokens, epoch, era)
        else:
            self._reject(worker, reason, epoch)
        amount = self.run.credit["per_checked_token"] * tokens
        for checker in checkers:
            account = self._touch(checker, epoch)
            account.checks += 1
            account.checked_tokens += tokens
            self._lock(account, amount, epoch)

    def _count_tokens(self, worker: Account, tokens: int, epoch: int, era: int) -> None:
        worker.tokens += tokens
        add(worker.eras, era, tokens)
        self._lock(worker, self.run.credit["per_token"] * tokens, epoch)

    def _reject(self, worker: Account, reason: str, epoch: int) -> None:
        worker.rejected += 1
        if reason in SLASHABLE_REASONS:
            worker.offences += 1
            self._slash(worker, epoch)

    def _slash(self, account: Account, epoch: int) -> None:
        if self.run.slash and account.slashed < 0:
            account.slashed = epoch
            account.forfeit()

    def _count_reversal(self, receipt: Any, reason: str, epoch: int, era: int) -> None:
        """Undo an outcome that an earlier page has counted."""
        _, key, _, _, _, tokens, decided, checkers = receipt
        worker = self._touch(key, epoch)
        if reason == "accepted":
            worker.rejected = max(0, worker.rejected - 1)
            worker.offences = max(0, worker.offences - 1)
            worker.cleared += 1
            if worker.slashed >= 0 and worker.offences == worker.lies == 0:
                worker.slashed, returned, worker.forfeited = -1, worker.forfeited, 0
                self._lock(worker, returned, epoch)
            worker.rollouts += 1
            self._count_tokens(worker, tokens, epoch, era)
        else:
            taken = min(tokens, worker.tokens)
            worker.rollouts = max(0, worker.rollouts - 1)
            worker.tokens -= taken
            take(worker.eras, max(taken, sum(one for _, one in worker.eras) - worker.tokens))
            worker.eras = worker.eras if worker.rollouts else []
            take(worker.locked, self.run.credit["per_token"] * tokens)
            self._reject(worker, reason, epoch)
        for checker in checkers:
            self._blame(self._touch(checker, epoch), decided, reason, epoch)

    def _blame(self, checker: Account, decided: str, reason: str, epoch: int) -> None:
        """Count a verdict that decided an overturned outcome, which may be a lie."""
        lied = (decided if reason == "accepted" else reason) in CERTAIN_REASONS
        if not lied and reason != "accepted":
            checker.misjudged += 1
            rate = self.run.reward_rate
            honest = int(2 * checker.checks * rate) + MISJUDGED_MIN if rate else 0
            lied = checker.misjudged > honest
        if lied:
            checker.lies += 1
            checker.forfeit()
            self._slash(checker, epoch)

    def _touch(self, key: bytes, epoch: int) -> Account:
        account = self.accounts.get(key)
        if account is None:
            account = self.accounts[key] = Account(key, epoch)
        self._changed[key] = account
        return account

    def _lock(self, account: Account, amount: int, epoch: int) -> None:
        if amount and account.slashed < 0:
            last = epoch // BUCKET_EPOCHS * BUCKET_EPOCHS + BUCKET_EPOCHS - 1
            add(account.locked, last, amount)
            self._due.setdefault(last, set()).add(account.key)

    def _reward(self, trainers: Sequence[bytes], learned: Learned, epoch: int) -> None:
        """Divide the credit of a version among its trainers; the first gets what is left over."""
        credit = self.run.credit["per_learned_token"] * sum(tokens for _, _, tokens in learned)
        share, rest = divmod(credit, len(trainers))
        for place, key in enumerate(trainers):
            self._lock(self._touch(key, epoch), share + rest * (place == 0), epoch)

    def _unlock(self, epoch: int) -> None:
        oldest = epoch - self.run.credit["lock_epochs"]
        for last in [one for one in self._due if one <= oldest]:
            for key in self._due.pop(last):
                account = self._touch(key, epoch)
                account.credit += sum(amount for one, amount in account.locked if one == last)
                account.locked = [entry for entry in account.locked if entry[0] != last]


def add(entries: list[list[int]], number: int, amount: int) -> None:
    """Add to the last entry, or append one with a later number."""
    if entries and entries[-1][0] == number:
        entries[-1][1] += amount
    else:
        entries.append([number, amount])


def take(entries: list[list[int]], amount: int) -> None:
    """Lower the last of some numbered amounts by a total; those that become 0 end."""
    while entries and amount:
        taken = min(amount, entries[-1][1])
        entries[-1][1] -= taken
        amount -= taken
        if entries[-1][1]:
            break
        entries.pop()


def work_of(data: bytes, place: str) -> tuple[Receipts, Steps, Reversals]:
    """Decode the work of a page, of which the digest is checked; empty for none."""
    if not data:
        return (), (), ()
    values = unpack(data, place)
    try:
        receipts, steps, reversals = (values[name] for name in WORK_PARTS)
        keys, numbers, texts = set(), [0], {reason for _, reason in reversals}
        flags = set()
        named = [*receipts, *(receipt for receipt, _ in reversals)]
        for commit, worker, version, slot, evaluation, tokens, reason, checkers in named:
            keys.update(checkers)
            keys |= {commit, worker}
            numbers += (version, slot, tokens)
            texts.add(reason)
            flags.add(type(evaluation))
        for version, manifest, trainer, learned, omitted, *others in steps:
            keys |= {manifest, trainer}
            keys.update(*others)
            numbers += (version, omitted)
            for key, rollouts, tokens in learned:
                keys.add(key)
                numbers += (rollouts, tokens)
        is_valid = len(values) == 3 and all(type(one) is bytes and len(one) == 32 for one in keys)
        is_valid &= set(map(type, numbers)) <= {int} and set(map(type, texts)) <= {str}
        is_valid &= flags <= {bool}
        is_valid &= min(numbers) >= 0 and max(numbers) <= 2**53
    except (KeyError, TypeError, ValueError, IndexError):
        is_valid = False
    if not is_valid:
        raise RefusedError(f"{place}: its work is malformed")
    return receipts, steps, reversals


# The file


class Line(NamedTuple):
    """A line of the file: its number, counted from 1, and its object."""

    number: int
    values: dict[str, Any]

    @property
    def place(self) -> str:
        """Name of the line in messages."""
        return f"line {self.number}"


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """Yield the lines of an export; their objects are not checked yet."""
    number = 0
    while data := stream.readline(LINE_BYTES_MAX if number else HEAD_BYTES_MAX):
        number += 1
        try:
            text = data.decode()
            values = json.loads(text)
            is_exact = type(values) is dict and json.dumps(values) + "\n" == text
        except (ValueError, RecursionError):
            is_exact = False
        if not is_exact and number == 1:
            raise UnreadableError("line 1: not the first line of an export")
        if not is_exact:
            raise RefusedError(f"line {number}: not a line of an export, or cut off")
        yield Line(number, values)


class Verifier:
    """Check of one export, line by line."""

    def __init__(self, first: Line, run_id: str | None) -> None:
        if first.values.get("format") != FORMAT:
            raise UnreadableError(f"line 1: not an export of the format {FORMAT}")
        if list(first.values) != ["format", "manifest", "start", "start_page"]:
            raise RefusedError("line 1: other keys than those of an export")
        self.run = Run.of(unbase64(first.values["manifest"], "manifest"))
        if run_id is not None and run_id.lower() != self.run.id.hex():
            raise RefusedError(f"manifest: of run {self.run.id.hex()}, not {run_id}")
        self.ledger = Ledger(self.run)
        leaves = first.values["start"]
        if leaves is not None:
            data = [unbase64(leaf, "start") for leaf in leaves] if type(leaves) is list else []
            self.ledger = Ledger.of(data, self.run)
        if unbase64(first.values["start_page"], "start_page") != self.ledger.page:
            raise RefusedError("start_page: not the page of the accounts in start")
        self.start_epoch, self._start_root = self.ledger.epoch, self.ledger.root()
        self._is_start_stated = leaves is None
        genesis = Council(b"", dict.fromkeys(sorted(self.run.genesis), 1))
        self.councils = {b"": genesis}
        """All councils, by the page that seats them, in order."""
        self.final: Page | None = None
        """The newest final page, as the votes show."""
        self._final_beacon = b""
        self._stated: dict[int, bytes] = {}
        """Roots of the accounts after pages, by epoch, in pages with votes."""
        self._has_newest = False
        self._last: tuple[Page, bytes] | None = None
        """The last page of the file so far, and its work, which its child's seed completes."""
        self.proof: Proof | None = None
        self.pages = self.receipts = 0

    def read(self, line: Line) -> None:
        """Check the next line."""
        match list(line.values):
            case ["handover"] if not self._has_newest and self._last is None:
                self._read_handover(self._items(line, "handover"))
            case ["newest"] if not self._has_newest and self._last is None:
                self._read_newest(self._items(line, "newest"))
            case ["proof"] if self.proof is None and self._last is None and self.start_epoch < 0:
                self._read_proof(line.values["proof"])
            case ["page", "work"] if self.proof is None:
                envelope = unbase64(line.values["page"], line.place)
                self._read_page(envelope, unbase64(line.values["work"], line.place), line.place)
            case _:
                raise RefusedError(f"{line.place}: other keys than allowed there")

    @staticmethod
    def _items(line: Line, name: str) -> list[bytes]:
        items = line.values[name]
        if type(items) is not list or len(items) < 3:
            raise RefusedError(f"{line.place}: fewer than three pages")
        return [unbase64(one, line.place) for one in items]

    def _council(self) -> Council:
        return list(self.councils.values())[-1]

    def _read_handover(self, items: Sequence[bytes]) -> None:
        place = f"handover {len(self.councils)}"
        pages = check_chain(items, self.run, self._council(), place)
        seating = next((n for n, one in enumerate(pages) if one.changes_council), len(pages))
        if seating > len(pages) - 2:
            raise RefusedError(f"{place}: shows no page final that changes the council")
        page = pages[seating]
        self.councils[page.id] = self._council().after(page, self.run)
        self.final, self._final_beacon = page, pages[seating + 1].seed
        self._note_roots(pages)

    def _read_newest(self, items: Sequence[bytes]) -> None:
        pages = check_chain(items, self.run, self._council(), "newest")
        if len(pages) != 3 or not pages[0].reveals or any(one.changes_council for one in pages[:2]):
            raise RefusedError("newest: not three pages that show a page of this council final")
        self._has_newest = True
        self.final, self._final_beacon = pages[1], pages[2].seed
        self._note_roots(pages)

    def _note_roots(self, pages: Sequence[Page]) -> None:
        for page in pages:
            if (
                page.ledger
                and self._stated.setdefault(page.final_epoch, page.ledger) != page.ledger
            ):
                raise RefusedError(f"{page.place}: states other accounts than the pages before it")
            self._check_start(page)

    def _check_start(self, page: Page) -> None:
        """Compare the accounts before the first page with those that a page states."""
        if page.ledger and page.final_epoch == self.start_epoch:
            self._is_start_stated = True
            if page.ledger != self._start_root:
                raise RefusedError(f"start: other accounts than the {page.place} states")

    def _read_proof(self, values: Any) -> None:
        proof = Proof.of(values)
        if self._stated.get(proof.header.get("epoch", -1)) != proof.root:
            raise RefusedError("proof: of other accounts than the newest final page states")
        self.proof = proof

    def _read_page(self, envelope: bytes, work: bytes, place: str) -> None:
        page = open_page(envelope, self.run, self.councils, place)
        if self._last is None:
            parent, epoch = self.ledger.page, self.start_epoch
            seat = [one.seat for one in self.councils.values() if one.since <= epoch][-1]
        else:
            before = self._last[0]
            parent, epoch = before.id, before.epoch
            seat = before.id if before.changes_council else before.council
        if page.parent != parent or page.epoch <= epoch:
            raise RefusedError(f"{page.place}: not the child of the page before it ({place})")
        if page.council != seat:
            raise RefusedError(f"{page.place}: of another council than the page before it leaves")
        if (digest(work) if work else b"") != page.work:
            raise RefusedError(f"{page.place}: its work does not match the page")
        self._check_start(page)
        self._count_last(page.seed)
        self._last = page, work
        self.pages += 1

    def _count_last(self, beacon: bytes) -> None:
        """Count the page before, whose beacon is the seed of its child."""
        if self._last is None:
            return
        page, data = self._last
        work = work_of(data, page.place)
        self.ledger.apply(page.id, page.epoch, beacon, page.head, work)
        self.receipts += len(work[0])
        stated = self._stated.pop(page.epoch, None)
        if stated is not None and stated != self.ledger.root():
            raise RefusedError(
                f"{page.place}: the accounts after it are not those that pages state"
            )

    def finish(self) -> None:
        """Check that nothing is missing at the end of the file."""
        if self.proof is not None:
            return
        last = self._last[0] if self._last else None
        end = last.id if last else self.ledger.page
        if self.final is not None and end != self.final.id:
            raise RefusedError(f"{self.final.place}: the file does not end with this final page")
        if last is not None and self.final is None:
            raise RefusedError(f"{last.place}: no votes show it final")
        self._count_last(self._final_beacon)
        missing = [epoch for epoch in self._stated if epoch > self.start_epoch]
        if missing:
            raise RefusedError(f"page of epoch {missing[0]}: missing, and its accounts are stated")
        if not self._is_start_stated:
            raise RefusedError("start: no page of the file states the root of these accounts")


def verify(stream: BinaryIO, run_id: str | None = None) -> Verifier:
    """Read an export; raises ``RefusedError`` or ``UnreadableError``."""
    lines = read_lines(stream)
    first = next(lines, None)
    if first is None:
        raise UnreadableError("the file is empty")
    verifier = Verifier(first, run_id)
    for line in lines:
        verifier.read(line)
    verifier.finish()
    return verifier


# Output


def report(verifier: Verifier) -> dict[str, Any]:
    """Return what an export or a proof shows; accounts by credit."""
    ledger, proof = verifier.ledger, verifier.proof
    run = {"run": verifier.run.id.hex(), "name": verifier.run.name}
    if proof is not None:
        shown = {
            name: one.hex() if type(one) is bytes else one for name, one in proof.header.items()
        }
        del shown["beacons"]
        return {**run, **shown, "root": proof.root.hex(), "account": values_of(proof.account)}
    ranked = sorted(ledger.accounts.values(), key=lambda one: (-one.held, -one.tokens, one.key))
    return {
        **run,
        "start_epoch": verifier.start_epoch,
        "epoch": ledger.epoch,
        "page": ledger.page.hex(),
        "head": ledger.head.hex(),
        "root": ledger.root().hex(),
        "pages": verifier.pages,
        "receipts": verifier.receipts,
        "councils": len(verifier.councils),
        "totals": ledger.totals,
        "accounts": list(map(values_of, ranked)),
    }


def values_of(account: Account) -> dict[str, Any]:
    """Return an account as JSON values."""
    values = {name: getattr(account, name) for name in ACCOUNT_FIELDS if name != "key"}
    values |= {"gaps": account.next_slot - account.slots, "window": account.window.hex()}
    return {"peer": peer_id(account.key), "held": account.held, **values}


def table(found: dict[str, Any]) -> str:
    """Return a report as text, with the accounts that hold most credit."""
    if "account" in found:
        run = {name: one for name, one in found.items() if name != "account"}
        parts = {**run, "name": json.dumps(found["name"])}, found["account"]
        texts = ("\n".join(f"{name:<16}{one}" for name, one in part.items()) for part in parts)
        return "\n\n".join(texts)
    totals, accounts = found["totals"], found["accounts"]
    shown = [
        f"run       {found['run']}",
        f"name      {json.dumps(found['name'])}",
        f"pages     {found['pages']:,} up to epoch {found['epoch']}: {found['page']}",
        f"councils  {found['councils']:,}",
        f"work      {totals['rollouts']:,} rollouts, {totals['tokens']:,} tokens",
        f"versions  {totals['steps']:,}",
        f"credit    {totals['credit']:,} of {len(accounts):,} keys",
        f"root      {found['root']}",
        "",
    ]
    names = ("rollouts", "tokens", "rejected", "checks", "learned", "steps", "held", "slashed")
    rows = [["peer", *names]]
    for one in accounts[:SHOWN]:
        rows.append([one["peer"], *(f"{one[name]:,}" for name in names[:-1])])
        rows[-1].append("" if one["slashed"] < 0 else f"epoch {one['slashed']}")
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        shown.append("  ".join([row[0].ljust(widths[0]), *cells[1:]]).rstrip())
    if len(accounts) > SHOWN:
        shown.append(f"and {len(accounts) - SHOWN:,} more")
    return "\n".join(shown)


def main(arguments: Sequence[str] | None = None) -> int:
    """Verify the export that the arguments name; return the exit code."""
    parser = argparse.ArgumentParser(description="Verify an exported ledger of a prime-node run.")
    parser.add_argument("file", type=Path, help="export or proof, JSON Lines")
    parser.add_argument("--run", metavar="ID", help="refuse an export of another run")
    parser.add_argument("--json", action="store_true", help="print all accounts as JSON")
    options = parser.parse_args(arguments)
    try:
        with options.file.open("rb") as stream:
            verifier = verify(stream, options.run)
    except RefusedError as error:
        sys.stderr.write(f"refused: {error}\n")
        return 1
    except (OSError, UnreadableError) as error:
        sys.stderr.write(f"unreadable: {error}\n")
        return 2
    found = report(verifier)
    text = json.dumps(found) if options.json else table(found)
    sys.stdout.write(f"{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
