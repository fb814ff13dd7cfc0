"""Accounts of a run, recomputed from the work of its final pages, and their Merkle root.

One leaf is the header: the newest page and the totals. Then follows one leaf for each key, sorted
by key. A leaf is canonical msgpack: keys of maps are sorted. The tree is that of RFC 6962 over
BLAKE3.

All leaves and the root are recomputed for each page, so no state of an earlier page can survive by
mistake. Amounts are not bounded: no simulated run comes near to 64 bits.
"""

import math
from fractions import Fraction
from typing import Any

import msgpack

from simulations.checkers.wire import Rules, blake3_digest
from simulations.checkers.work import (
    ACCEPTED,
    TracedReceipt,
    TracedReversal,
    TracedStep,
    TracedWork,
)

ERA_MARGIN_EPOCHS = 8
"""A page of the last epochs before an era counts for that era."""

ERAS_KEPT = 4

BUCKET_EPOCHS = 8
"""Credit that is earned in so many epochs unlocks with the last of them."""

SLASHED_FOR = ("format", "termination", "computation", "history", "reward-history")
"""Reasons of rejections that no accident explains."""

WINDOW_SLOTS = 256
"""Slots of a worker that may become final out of order."""
CERTAIN = ("format", "termination", "computation")
"""Those that do not depend on a validator's history."""

HONEST_MISJUDGED = 8
"""Wrong rewards that prove nothing, beside twice the expected ones."""

TracedAccount = dict[str, Any]
"""Account of one key by the field names of its leaf; locked credit and eras as dictionaries.

The decided slots are a set under ``decided``; a leaf has three fields that follow from it.
"""

_COUNTS = (
    "rollouts", "tokens", "rejected", "checks", "checked_tokens", "learned", "learned_tokens",
    "steps", "omitted", "credit", "forfeited", "forgiven", "offences", "cleared", "misjudged",
    "lies",
)  # fmt: skip


class TracedAccounts:
    """Accounts after the newest page that was counted."""

    def __init__(self, rules: Rules) -> None:
        self._terms, self._era_epochs = rules.credit, rules.era_epochs
        self.epoch, self.page = -1, b""
        self._head = b""
        self._beacons: dict[int, bytes] = {}
        self._accounts: dict[bytes, TracedAccount] = {}

    def count(self, page: bytes, epoch: int, beacon: bytes, head: bytes, work: TracedWork) -> None:
        """Count the next final page."""
        era = (epoch + ERA_MARGIN_EPOCHS) // self._era_epochs
        for account in self._accounts.values():
            self._unlock(account, epoch)
        for receipt in work.receipts:
            self._count_receipt(receipt, epoch, era)
        for reversal in work.overturned:
            self._count_reversal(reversal, epoch, era)
        for step in work.steps:
            self._count_step(step, epoch)
        for account in self._accounts.values():
            account["eras"] = _recent(account["eras"], era)
        self._beacons = _recent({era: beacon} | self._beacons, era)
        self.epoch, self.page, self._head = epoch, page, head

    @property
    def root(self) -> bytes:
        """Merkle root of all leaves."""
        leaves = [self._header()]
        leaves += [_leaf(self._accounts[key]) for key in sorted(self._accounts)]
        return _root([blake3_digest(b"\0" + leaf) for leaf in leaves])

    def total(self, name: str) -> int:
        """Return the sum of a number over all accounts."""
        return sum(account[name] for account in self._accounts.values())

    @property
    def held(self) -> int:
        """Credit of all accounts, locked or not."""
        return self.total("credit") + sum(
            sum(one["locked"].values()) for one in self._accounts.values()
        )

    @property
    def slashed(self) -> int:
        """Number of keys that have lost their locked credit."""
        return sum(one["slashed"] >= 0 for one in self._accounts.values())

    # Changes

    def _unlock(self, account: TracedAccount, epoch: int) -> None:
        locked: dict[int, int] = account["locked"]
        for last in [one for one in locked if one + self._terms.lock_epochs <= epoch]:
            account["credit"] += locked.pop(last)

    def may_decide(self, receipt: TracedReceipt) -> bool:
        """Return whether the training slot of a receipt is undecided, and not too old."""
        account = self._accounts.get(receipt.worker)
        if account is None or receipt.evaluation:
            return True
        decided: set[int] = account["decided"]
        is_old = receipt.slot + WINDOW_SLOTS <= max(decided, default=-1)
        return receipt.slot not in decided and not is_old

    def _count_receipt(self, receipt: TracedReceipt, epoch: int, era: int) -> None:
        if not self.may_decide(receipt):
            return
        worker, tokens = self._account(receipt.worker, epoch), receipt.tokens
        if not receipt.evaluation:
            worker["decided"].add(receipt.slot)
        if receipt.reason == ACCEPTED:
            worker["rollouts"] += 1
            beyond = _gaps(worker) - worker["forgiven"] > self._terms.gap_max
            if beyond and not receipt.evaluation:
                worker["forgiven"] += 1
            else:
                self._count_tokens(worker, tokens, epoch, era)
        else:
            self._reject(worker, receipt.reason, epoch)
        for key in receipt.checkers:
            checker = self._account(key, epoch)
            checker["checks"] += 1
            checker["checked_tokens"] += tokens
            _lock(checker, self._terms.per_checked_token * tokens, epoch)

    def _count_tokens(self, worker: TracedAccount, tokens: int, epoch: int, era: int) -> None:
        worker["tokens"] += tokens
        worker["eras"][era] = worker["eras"].get(era, 0) + tokens
        _lock(worker, self._terms.per_token * tokens, epoch)

    def _reject(self, worker: TracedAccount, reason: str, epoch: int) -> None:
        worker["rejected"] += 1
        if reason in SLASHED_FOR:
            worker["offences"] += 1
            self._slash(worker, epoch)

    def _slash(self, account: TracedAccount, epoch: int) -> None:
        if self._terms.slash and account["slashed"] < 0:
            account["slashed"] = epoch
            _forfeit(account)

    def _count_reversal(self, reversal: TracedReversal, epoch: int, era: int) -> None:
        """Undo an outcome, which an earlier page has counted."""
        receipt = reversal.receipt
        worker = self._account(receipt.worker, epoch)
        if reversal.reason == ACCEPTED:
            worker["rejected"] -= 1
            worker["offences"] -= 1
            worker["cleared"] += 1
            if worker["slashed"] >= 0 and not (worker["offences"] or worker["lies"]):
                worker["slashed"] = -1
                _lock(worker, worker["forfeited"], epoch)
                worker["forfeited"] = 0
            worker["rollouts"] += 1
            self._count_tokens(worker, receipt.tokens, epoch, era)
        else:
            taken = min(receipt.tokens, worker["tokens"])  # it may have paid for a gap instead
            worker["rollouts"] -= 1
            worker["tokens"] -= taken
            surplus = sum(worker["eras"].values()) - worker["tokens"]
            _take(worker["eras"], max(taken, surplus))
            if not worker["rollouts"]:
                worker["eras"] = {}
            _take(worker["locked"], self._terms.per_token * receipt.tokens)
            self._reject(worker, reversal.reason, epoch)
        for key in receipt.checkers:
            self._blame(self._account(key, epoch), reversal, epoch)

    def _blame(self, checker: TracedAccount, reversal: TracedReversal, epoch: int) -> None:
        is_clearing = reversal.reason == ACCEPTED
        lied = (reversal.receipt.reason if is_clearing else reversal.reason) in CERTAIN
        if not lied and not is_clearing:
            checker["misjudged"] += 1
            rate = Fraction(self._terms.reward_rate)
            honest = math.floor(2 * checker["checks"] * rate) + HONEST_MISJUDGED if rate else 0
            lied = checker["misjudged"] > honest
        if lied:
            checker["lies"] += 1
            _forfeit(checker)
            self._slash(checker, epoch)

    def _count_step(self, step: TracedStep, epoch: int) -> None:
        trainer = self._account(step.trainer, epoch)
        trainer["steps"] += 1
        trainer["omitted"] += step.omitted
        left = self._terms.per_learned_token * sum(tokens for _, _, tokens in step.learned)
        each = left // (len(step.partners) + 1)
        for key in step.partners:
            _lock(self._account(key, epoch), each, epoch)
            left -= each
        _lock(trainer, left, epoch)
        for key, rollouts, tokens in step.learned:
            worker = self._account(key, epoch)
            worker["learned"] += rollouts
            worker["learned_tokens"] += tokens

    def _account(self, key: bytes, epoch: int) -> TracedAccount:
        new = {"key": key, "since": epoch, "locked": {}, "eras": {}, "slashed": -1}
        return self._accounts.setdefault(key, new | {"decided": set()} | dict.fromkeys(_COUNTS, 0))

    # Leaves

    def _header(self) -> bytes:
        beacons = {str(era): beacon for era, beacon in self._beacons.items()}
        return _packed(
            {
                "beacons": dict(sorted(beacons.items())),
                "epoch": self.epoch,
                "head": self._head,
                "page": self.page,
                "rollouts": self.total("rollouts"),
                "tokens": self.total("tokens"),
                "credit": self.held,
                "steps": self.total("steps"),
            }
        )


def _lock(account: TracedAccount, amount: int, epoch: int) -> None:
    if amount and account["slashed"] < 0:
        last = epoch - epoch % BUCKET_EPOCHS + BUCKET_EPOCHS - 1
        account["locked"][last] = account["locked"].get(last, 0) + amount


def _forfeit(account: TracedAccount) -> None:
    account["forfeited"] += sum(account["locked"].values())
    account["locked"] = {}


def _take(amounts: dict[int, int], total: int) -> None:
    """Lower the newest amounts by a total; those that become 0 end."""
    for number in sorted(amounts, reverse=True):
        if total <= 0:
            return
        taken = min(total, amounts[number])
        amounts[number] -= taken
        total -= taken
        if not amounts[number]:
            del amounts[number]


def _recent(eras: dict[int, Any], present: int) -> dict[int, Any]:
    return {era: value for era, value in eras.items() if era > present - ERAS_KEPT}


def _gaps(account: TracedAccount) -> int:
    """Return the number of slots before the last decided one that are not decided."""
    return max(account["decided"], default=-1) + 1 - len(account["decided"])


def _leaf(account: TracedAccount) -> bytes:
    pairs = {name: sorted(account[name].items()) for name in ("locked", "eras")}
    decided: set[int] = account["decided"]
    last = max(decided, default=-1)
    bits = sum(1 << age for age in range(WINDOW_SLOTS) if last - age in decided)
    slots = {
        "next_slot": last + 1,
        "slots": len(decided),
        "window": bits.to_bytes(WINDOW_SLOTS // 8, "big"),
    }
    leaf = {name: value for name, value in account.items() if name != "decided"}
    return _packed(leaf | pairs | slots)


def _packed(fields: dict[str, Any]) -> bytes:
    return bytes(msgpack.packb(dict(sorted(fields.items()))))


def _root(hashes: list[bytes]) -> bytes:
    """Return the root of a tree that splits at the largest power of two below its size."""
    if len(hashes) < 2:
        return hashes[0]
    split = 1 << (len(hashes) - 1).bit_length() - 1
    return blake3_digest(b"\1" + _root(hashes[:split]) + _root(hashes[split:]))
