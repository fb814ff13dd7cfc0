"""Accounts of all keys that worked for a run, recomputed by every node from its final pages.

The leaves are the whole state: a header, then one account for each key that any page names, sorted
by public key. A page states their Merkle root. A node that joins restores the leaves, compares the
root, and continues as a node that has followed all pages.

Integers only, so all machines agree. No sum can overflow: at the end of a page each number above
``AMOUNT_MAX`` becomes ``AMOUNT_MAX``. Honest runs stay far below.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from protocol.core.crypto import peer_id_from_public_key, public_key_from_peer_id
from protocol.core.faults import Fault, FaultCode
from protocol.core.merkle import leaf_hash, path, root_from, root_of
from protocol.core.types import Digest, PeerId
from protocol.ledger.account_leaves import (
    AMOUNT_MAX,
    NO_TOTALS,
    Account,
    Header,
    Totals,
    decode_account,
    decode_header,
)
from protocol.ledger.receipts import PageWork, Receipt, Reversal, Step
from protocol.ledger.reversals import is_lie, misjudged_max, take_credit, take_rollout
from protocol.messages import ACCEPTED
from protocol.rollout.audit import SLASHABLE_REASONS

__all__ = ["Account", "Accounts", "CreditRules", "Header", "Totals"]

MARGIN_EPOCHS = 8
"""Epochs before the end of an era whose pages belong to the next one. Pages are final two epochs
after their own when nothing fails; a later one delays the draw. A guess."""

ERAS_KEPT = 4
"""The present era, the two whose work counts, and one in reserve."""

LOCK_BUCKET_EPOCHS = 8
"""Epochs whose locked credit is one entry of an account, which unlocks with the last of them."""


class CreditRules(NamedTuple):
    """Constants of a run, from its manifest."""

    per_token: int
    """Credit of a worker for each token of an accepted rollout."""
    per_checked_token: int
    """Credit of each checker for each token of a decided rollout."""
    per_learned_token: int
    """Credit for each token that a final version learned from, divided among its trainers."""
    lock_epochs: int
    """Epochs for which new credit stays locked: a slashed key loses it."""
    slash: bool
    """True if a rejection for one of ``SLASHABLE_REASONS`` slashes the worker."""
    gap_max: int
    """Gaps of a worker beyond which an accepted rollout pays for one and earns nothing."""
    era_epochs: int
    """Epochs after which a council is drawn anew."""
    reward_disagreement_rate: float = 0.0
    """Share of honest rollouts whose rewards differ between machines."""


HashedLeaf = tuple[bytes, Digest]
"""A leaf and its hash."""


class AccountProof(NamedTuple):
    """A header and an account with their audit paths to one root."""

    size: int
    """Number of leaves."""
    header: bytes
    header_path: tuple[bytes, ...]
    place: int
    """Index of the account among the leaves; the header has 0."""
    account: bytes
    account_path: tuple[bytes, ...]


class Accounts:
    """Work and credit of every key, up to the newest final page that is counted."""

    def __init__(self, rules: CreditRules) -> None:
        self.rules = rules
        self._epoch, self._page, self._head = -1, b"", b""
        self._beacons: dict[int, Digest] = {}
        self._sums = NO_TOTALS._asdict()
        """Totals of the accounts, not bounded; a sum over all accounts takes 10 ms."""
        self._accounts: dict[PeerId, Account] = {}
        self._order: list[PeerId] = []
        """By peer id, which is the order of the public keys."""
        self._leaves: dict[PeerId, HashedLeaf] = {}
        """Leaves and their hashes, of the accounts that have not changed since they were read."""
        self._due: dict[int, dict[PeerId, None]] = {}
        """Keys with locked credit, by the epoch of the entry."""
        self._changed: dict[PeerId, Account] = {}
        """Accounts that the present page has changed."""

    # Queries

    @property
    def header(self) -> Header:
        """The newest page that is counted, and the totals of the run."""
        totals = Totals(**{name: min(AMOUNT_MAX, one) for name, one in self._sums.items()})
        return Header(self._epoch, self._page, self._head, dict(self._beacons), totals)

    @property
    def totals(self) -> Totals:
        """Totals of the run, up to the newest page that is counted."""
        return self.header.totals

    def account(self, peer: PeerId) -> Account | None:
        """Return a copy of a key's account; None if no page names the key."""
        found = self._accounts.get(peer)
        return None if found is None else found.copy()

    def next_slot(self, peer: PeerId) -> int:
        """Return a worker's highest decided training slot + 1; 0 for none."""
        found = self._accounts.get(peer)
        return 0 if found is None else found.next_slot

    def is_open(self, peer: PeerId, slot: int, *, is_evaluation: bool) -> bool:
        """Return whether a page may decide a worker's slot.

        It may decide a training slot once, and none below the window of its account.
        """
        found = self._accounts.get(peer)
        return is_evaluation or found is None or found.decided.is_open(slot)

    def is_slashed(self, peer: PeerId) -> bool:
        """Return whether a final page has slashed a key."""
        account = self._accounts.get(peer)
        return account is not None and account.slashed >= 0

    def was_cleared(self, peer: PeerId) -> bool:
        """Return whether a final page has overturned a rejection of a worker."""
        account = self._accounts.get(peer)
        return account is not None and account.cleared > 0

    def has_lied(self, peer: PeerId) -> bool:
        """Return whether overturned outcomes show that a validator lied."""
        account = self._accounts.get(peer)
        return account is not None and account.lies > 0

    def all(self) -> Mapping[PeerId, Account]:
        """Return copies of all accounts by peer id, sorted."""
        return {peer: self._accounts[peer].copy() for peer in self._order}

    def scan(self) -> Iterator[tuple[PeerId, Account]]:
        """Yield each peer id with its account, sorted; no copies, so the caller changes none.

        Twenty thousand copies take a tenth of a second.
        """
        yield from ((peer, self._accounts[peer]) for peer in self._order)

    @property
    def leaves(self) -> list[bytes]:
        """The whole state: the header's leaf, then those of the accounts by key."""
        return [self.header.encoded(), *(self._leaf(peer)[0] for peer in self._order)]

    @property
    def hashed_leaves(self) -> tuple[HashedLeaf, ...]:
        """The leaves with their hashes."""
        header = self.header.encoded()
        return (header, leaf_hash(header)), *map(self._leaf, self._order)

    @property
    def root(self) -> Digest:
        """Merkle root of the leaves."""
        return root_of(self._hashes())

    def proof(self, peer: PeerId) -> AccountProof | None:
        """Return the proof of a key's account; None if no page names the key."""
        if peer not in self._accounts:
            return None
        hashes = self._hashes()
        place = 1 + bisect_left(self._order, peer)
        header, account = self.header.encoded(), self._leaf(peer)[0]
        paths = path(hashes, 0), path(hashes, place)
        return AccountProof(len(hashes), header, paths[0], place, account, paths[1])

    def era(self, epoch: int) -> int:
        """Return the era to whose work a page of an epoch belongs.

        A page is counted some epochs ahead of its own: the work of an era is complete, and its
        pages are final everywhere, when the next era begins.
        """
        return (epoch + MARGIN_EPOCHS) // self.rules.era_epochs

    def tokens(self, eras: Iterable[int]) -> dict[PeerId, int]:
        """Return the tokens of the keys that worked in each of some eras; only recent are known."""
        wanted, found = list(eras), dict[PeerId, int]()
        for peer in self._order:
            worked = {era: count for era, count in self._accounts[peer].eras}  # noqa: C416 - a list is no pair
            if all(era in worked for era in wanted):
                found[peer] = sum(worked[era] for era in wanted)
        return found

    def beacon(self, era: int) -> Digest | None:
        """Return the beacon of the first final page of a recent era; None if it has none."""
        return self._beacons.get(era)

    def _leaf(self, peer: PeerId) -> HashedLeaf:
        kept = self._leaves.get(peer)
        if kept is None:
            leaf = self._accounts[peer].encoded()
            kept = self._leaves[peer] = leaf, leaf_hash(leaf)
        return kept

    def _hashes(self) -> list[Digest]:
        return [leaf_hash(self.header.encoded()), *(self._leaf(peer)[1] for peer in self._order)]

    # Changes

    def apply(self, page: bytes, epoch: int, beacon: Digest, head: bytes, work: PageWork) -> None:
        """Count the next final page: its digest, epoch, beacon, newest final version, and work.

        A page without work counts too: credit unlocks, and the header names the page. Raises
        ``ValueError`` if the page is not later than the one before.
        """
        if epoch <= self._epoch:
            raise ValueError(f"page of epoch {epoch} after that of epoch {self._epoch}")
        self._unlock(epoch)
        for receipt in work.receipts:
            self._count_receipt(receipt, epoch)
        for reversal in work.overturned:
            self._count_reversal(reversal, epoch)
        for step in work.steps:
            self._count_step(step, epoch)
        if self.era(epoch) > self.era(self._epoch):
            self._forget_eras(self.era(epoch) - ERAS_KEPT)
        self._beacons.setdefault(self.era(epoch), beacon)
        self._epoch, self._page, self._head = epoch, page, head
        self._settle()

    def forfeit(self, peer: PeerId) -> None:
        """Take a key's locked credit; no effect on a key without an account."""
        if peer in self._accounts:
            self._forfeit(self._touch(peer, self._epoch))
            self._settle()

    def _unlock(self, epoch: int) -> None:
        oldest = epoch - self.rules.lock_epochs
        for bucket in [one for one in self._due if one <= oldest]:
            for peer in self._due.pop(bucket):
                account = self._touch(peer, epoch)
                account.credit += sum(amount for last, amount in account.locked if last <= oldest)
                account.locked = [entry for entry in account.locked if entry[0] > oldest]

    def _count_receipt(self, receipt: Receipt, epoch: int) -> None:
        if not self.is_open(receipt.worker, receipt.slot, is_evaluation=receipt.evaluation):
            return
        worker, tokens = self._touch(receipt.worker, epoch), receipt.tokens
        if not receipt.evaluation:
            worker.decide(receipt.slot)
        if receipt.reason == ACCEPTED:
            self._count_rollout(worker)
            if receipt.evaluation or not self._pays_for_gap(worker):
                self._count_tokens(receipt.worker, worker, tokens, epoch)
        else:
            self._reject(worker, receipt.reason, epoch)
        for peer in receipt.checkers:
            checker = self._touch(peer, epoch)
            checker.checks += 1
            checker.checked_tokens += tokens
            self._lock(peer, checker, self.rules.per_checked_token * tokens, epoch)

    def _pays_for_gap(self, worker: Account) -> bool:
        """Return whether an accepted rollout pays for a gap; then count that."""
        if worker.gaps - worker.forgiven <= self.rules.gap_max:
            return False
        worker.forgiven += 1
        return True

    def _count_rollout(self, worker: Account) -> None:
        worker.rollouts += 1
        self._sums["rollouts"] += 1

    def _count_tokens(self, peer: PeerId, worker: Account, tokens: int, epoch: int) -> None:
        worker.tokens += tokens
        self._sums["tokens"] += tokens
        _add_to_last(worker.eras, self.era(epoch), tokens)
        self._lock(peer, worker, self.rules.per_token * tokens, epoch)

    def _reject(self, worker: Account, reason: str, epoch: int) -> None:
        worker.rejected += 1
        if reason in SLASHABLE_REASONS:
            worker.offences += 1
            self._slash(worker, epoch)

    def _slash(self, account: Account, epoch: int) -> None:
        if self.rules.slash and account.slashed < 0:
            account.slashed = epoch
            self._forfeit(account)

    def _count_reversal(self, reversal: Reversal, epoch: int) -> None:
        """Undo an outcome, and blame its checkers if their verdicts cannot be honest."""
        receipt, tokens = reversal.receipt, reversal.receipt.tokens
        worker = self._touch(receipt.worker, epoch)
        if reversal.reason == ACCEPTED:
            self._clear(receipt, worker, epoch)
            self._count_rollout(worker)
            self._count_tokens(receipt.worker, worker, tokens, epoch)
        else:
            rollouts, taken = take_rollout(worker, tokens)
            self._sums["rollouts"] -= rollouts
            self._sums["tokens"] -= taken
            self._sums["credit"] -= take_credit(worker, self.rules.per_token * tokens)
            self._reject(worker, reversal.reason, epoch)
        for peer in receipt.checkers:
            self._blame(self._touch(peer, epoch), reversal, epoch)

    def _clear(self, receipt: Receipt, worker: Account, epoch: int) -> None:
        """Undo a rejection. The slash ends with the last one, and its credit is locked again."""
        worker.rejected -= min(1, worker.rejected)
        worker.cleared += 1
        worker.offences -= min(1, worker.offences)  # only rejections that slash are overturned
        if worker.slashed >= 0 and not worker.offences and not worker.lies:
            worker.slashed, returned, worker.forfeited = -1, worker.forfeited, 0
            self._lock(receipt.worker, worker, returned, epoch)

    def _blame(self, checker: Account, reversal: Reversal, epoch: int) -> None:
        lied = is_lie(reversal)
        if not lied and reversal.reason != ACCEPTED:
            checker.misjudged += 1
            rate = self.rules.reward_disagreement_rate
            lied = checker.misjudged > misjudged_max(rate, checker.checks)
        if lied:
            checker.lies += 1
            self._forfeit(checker)
            self._slash(checker, epoch)

    def _count_step(self, step: Step, epoch: int) -> None:
        trainer = self._touch(step.trainer, epoch)
        trainer.steps += 1
        self._sums["steps"] += 1
        trainer.omitted += step.omitted
        learned = sum(tokens for _, _, tokens in step.learned)
        for peer, credit in step.shares(self.rules.per_learned_token * learned):
            self._lock(peer, self._touch(peer, epoch), credit, epoch)
        for peer, rollouts, tokens in step.learned:
            worker = self._touch(peer, epoch)
            worker.learned += rollouts
            worker.learned_tokens += tokens

    def _touch(self, peer: PeerId, epoch: int) -> Account:
        """Return the account of a key, which it gets now if it has none, to be changed."""
        account = self._accounts.get(peer)
        if account is None:
            key = public_key_from_peer_id(peer)
            if key is None:
                raise ValueError(f"{peer!r} is not an Ed25519 peer id")
            account = self._accounts[peer] = Account(key, epoch)
            insort(self._order, peer)
        if peer not in self._changed:
            self._changed[peer] = account
            self._leaves.pop(peer, None)
        return account

    def _lock(self, peer: PeerId, account: Account, amount: int, epoch: int) -> None:
        if amount and account.slashed < 0:
            bucket = _bucket(epoch)
            _add_to_last(account.locked, bucket, amount)
            self._sums["credit"] += amount
            self._due.setdefault(bucket, {})[peer] = None

    def _forfeit(self, account: Account) -> None:
        lost = account.locked_credit
        account.forfeited += lost
        account.locked = []
        self._sums["credit"] -= lost

    def _forget_eras(self, last: int) -> None:
        for old in [era for era in self._beacons if era <= last]:
            del self._beacons[old]
        for peer, account in self._accounts.items():
            if account.eras and account.eras[0][0] <= last:
                self._touch(peer, self._epoch)
                account.eras = [entry for entry in account.eras if entry[0] > last]

    def _settle(self) -> None:
        """Bound the numbers of the accounts that have changed."""
        for account in self._changed.values():
            if account.is_beyond:
                before = account.totals
                account.bound()
                for name, one, other in zip(Totals._fields, account.totals, before, strict=True):
                    self._sums[name] += one - other
        self._changed = {}

    # Snapshots

    @classmethod
    def restore(cls, leaves: Sequence[bytes], rules: CreditRules) -> "Accounts | Fault":
        """Return the state that has exactly these leaves, which may come from outside.

        Checks everything that holds for every state, but not that pages led to this one: compare
        the root with that of a final page. Takes time and memory in proportion to the leaves.
        """
        header = decode_header(leaves[0]) if leaves else None
        if header is None:
            return Fault(FaultCode.BAD_FIELDS, "no header of accounts")
        self = cls(rules)
        self._epoch, self._page, self._head = header.epoch, header.page, header.head
        self._beacons = dict(header.beacons)
        if not self._has_beacons():
            return Fault(FaultCode.BAD_FIELDS, "beacons of other eras")
        for leaf in leaves[1:]:
            if not self._add_leaf(leaf):
                return Fault(FaultCode.BAD_FIELDS, f"account {len(self._order)}")
        if self.totals != header.totals:
            return Fault(FaultCode.BAD_FIELDS, "totals of other accounts")
        return self

    def _add_leaf(self, leaf: bytes) -> bool:
        """Add the next account; False if it is none, cannot be there or is not in order."""
        account = decode_account(leaf)
        if account is None or not self._may_have(account):
            return False
        peer = peer_id_from_public_key(account.key)
        if self._order and peer <= self._order[-1]:
            return False
        self._accounts[peer] = account
        self._order.append(peer)
        self._leaves[peer] = leaf, leaf_hash(leaf)
        for bucket, _ in account.locked:
            self._due.setdefault(bucket, {})[peer] = None
        for name, one in account.totals._asdict().items():
            self._sums[name] += one
        return True

    def _has_beacons(self) -> bool:
        """Return whether the header has beacons of the right eras."""
        present = self.era(self._epoch)
        if self._epoch < 0:
            return not self._beacons
        return present in self._beacons and all(
            present - ERAS_KEPT < era <= present for era in self._beacons
        )

    def _may_have(self, account: Account) -> bool:
        """Return whether pages up to the present one can lead to an account."""
        if account.since > self._epoch or not self._may_have_slots(account):
            return False
        if account.slashed >= 0:
            is_possible = self.rules.slash and not account.locked
            is_possible = is_possible and bool(account.offences or account.lies)
            if not is_possible or not account.since <= account.slashed <= self._epoch:
                return False
        if account.offences > account.rejected:
            return False
        worked = sum(tokens for _, tokens in account.eras)
        if account.eras and (not account.rollouts or min(AMOUNT_MAX, worked) > account.tokens):
            return False
        present, bucket = self.era(self._epoch), _bucket(self._epoch)
        oldest = max(_bucket(account.since), self._epoch - self.rules.lock_epochs + 1)
        return all(present - ERAS_KEPT < era <= present for era, _ in account.eras) and all(
            min(oldest, bucket) <= last <= bucket and last == _bucket(last)
            for last, _ in account.locked
        )

    def _may_have_slots(self, account: Account) -> bool:
        """Return whether receipts can lead to the slots of an account."""
        beyond = max(0, account.next_slot - self.rules.gap_max)
        return (
            account.decided.is_possible
            and account.slots <= account.rollouts + account.rejected
            and account.forgiven <= min(account.rollouts + account.rejected, beyond)
        )


def check_proof(proof: AccountProof, root: bytes) -> tuple[Header, Account] | Fault:
    """Return what a proof shows of the accounts with a root; both may come from outside."""
    header, account = decode_header(proof.header), decode_account(proof.account)
    if header is None or account is None:
        return Fault(FaultCode.BAD_FIELDS, "no header or no account")
    shown = (
        root_from(leaf_hash(proof.header), 0, proof.size, proof.header_path),
        root_from(leaf_hash(proof.account), proof.place, proof.size, proof.account_path),
    )
    if shown != (root, root):
        return Fault(FaultCode.BAD_FIELDS, "a path to another root")
    return header, account


def _bucket(epoch: int) -> int:
    """Return the last epoch of the bucket of an epoch."""
    return epoch // LOCK_BUCKET_EPOCHS * LOCK_BUCKET_EPOCHS + LOCK_BUCKET_EPOCHS - 1


def _add_to_last(entries: list[list[int]], number: int, amount: int) -> None:
    """Add to the entry of a number, which is not below those of the other entries."""
    if entries and entries[-1][0] == number:
        entries[-1][1] += amount
    else:
        entries.append([number, amount])
