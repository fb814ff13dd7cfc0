"""Gain of a worker that chooses its problems, by the sum of the digits in a rollout's problems.

    python benchmarks/trust/choosing.py --json

A testnet rollout has four problems, each the sum of two digits. The digit sum is the difficulty: 36
on average. Assignments and accounts are the protocol's own. A worker knows the problems of all its
slots in advance.

Rows, each for ``delivered`` rollouts that are certified:

- ``honest``: all slots in order;
- ``old-rule``: slots began again with each version, so a key worked with its easiest quarter of
  versions, and stopped in each where the mean was lowest (``--per-version`` slots);
- ``allowance``: leaves out the hardest slots, as many as ``gap_max`` allows;
- ``pays``: leaves out the hardest ``share`` of all slots; those beyond the allowance cost a rollout
  each;
- ``stops``: stops for good when the mean so far is lowest, after a tenth of the rollouts or later;
- ``keys``: 100 keys, of which always the one with the easiest next slot works; no slot is left out;
- ``keys-allowance``: 100 keys, each of which leaves out its hardest slots within the allowance;
- ``ground``: the easiest of ``tried`` new keys by its first slots. ``formula`` is that of a normal
  distribution, also for more keys than this script tries.

``gain`` is 36 less the mean digit sum of the delivered rollouts, ``credited_gain`` that of the ones
that earned credit. ``credit`` is the credit for each generated rollout, 1 for an honest worker.
``sigma`` is the standard error of ``gain``. ``reached`` tells whether ``gain`` is at most 0.5.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush, nsmallest
from itertools import accumulate, count
from math import log, sqrt
from statistics import NormalDist, fmean
from typing import Any

from councils import identity, manifest_of

from protocol.core.crypto import digest
from protocol.core.types import Digest, PeerId
from protocol.ledger.accounts import Accounts
from protocol.ledger.receipts import PageWork, Receipt
from protocol.messages import ACCEPTED, LISTED_MAX
from protocol.replica.page_intake import credit_rules
from protocol.rollout.assignment import assign
from protocol.run.manifest import RunManifest
from roles.environments.characters import Arithmetic

MEAN, DEVIATION = 36.0, sqrt(8 * 8.25)
"""Of the sum of eight digits."""

GOAL = 0.5
KEYS = 100
TOKENS = 10


class Problems:
    """Digit sums of the slots of keys."""

    def __init__(self, manifest: RunManifest) -> None:
        self._manifest, self._task = manifest, Arithmetic()

    def digit_sum(self, key: PeerId, slot: int, evaluates: Digest | None = None) -> int:
        """Return the sum of the digits in the problems of a slot."""
        items = assign(self._manifest, key, slot, evaluates)
        seeds = dict.fromkeys(item.problem_seed for item in items)
        return sum(int(digit) for seed in seeds for digit in self._task.digits(seed, 2))

    def first(self, key: PeerId, slots: int) -> list[int]:
        """Return the digit sums of a key's first slots."""
        return [self.digit_sum(key, slot) for slot in range(slots)]

    def all(self, key: PeerId) -> Iterator[int]:
        """Yield the digit sums of a key's slots, without end."""
        yield from (self.digit_sum(key, slot) for slot in count())


class Run:
    """Measures choosers of one run."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._manifest = manifest_of(7)
        self._gap_max = self._manifest.credit.gap_max
        self._problems = Problems(self._manifest)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield all rows."""
        yield self._old_rule(self._given.old_versions)
        for delivered in self._given.delivered:
            yield self._honest(delivered)
            yield self._leaves_out("allowance", delivered, self._gap_max)
            for share in self._given.shares:
                most = round(delivered * share / (1 - share))
                yield {**self._leaves_out("pays", delivered, most), "share": share}
            yield self._stops(delivered)
            yield self._keys(delivered)
            yield self._keys_with_allowance(delivered)
            for tried in self._given.tried:
                yield self._ground(delivered, tried)

    def _row(self, chooser: str, delivered: int, sums: Sequence[float]) -> dict[str, Any]:
        gain = MEAN - fmean(sums)
        return {
            "chooser": chooser,
            "delivered": delivered,
            "gain": round(gain, 3),
            "sigma": round(DEVIATION / sqrt(len(sums)), 3),
            "reached": gain <= GOAL,
        }

    def _key(self, *names: object) -> PeerId:
        return identity("/".join(map(str, names))).peer_id

    def _repeats(self, delivered: int) -> range:
        """Return numbers of keys whose rollouts are enough for a mean."""
        return range(max(1, self._given.sample // delivered))

    def _honest(self, delivered: int) -> dict[str, Any]:
        sums = [
            one
            for n in self._repeats(delivered)
            for one in self._problems.first(self._key("honest", delivered, n), delivered)
        ]
        return {**self._row("honest", delivered, sums), "credit": 1.0}

    def _old_rule(self, count: int) -> dict[str, Any]:
        size, key = self._given.per_version, self._key("old")
        versions: list[tuple[float, list[int]]] = []
        for version in range(count):
            checkpoint = digest(b"version %d" % version)
            sums = [self._problems.digit_sum(key, slot, checkpoint) for slot in range(size)]
            means = [total / n for n, total in enumerate(accumulate(sums), 1)]
            best = means.index(min(means)) + 1
            versions.append((means[best - 1], sums[:best]))
        chosen = nsmallest(len(versions) // 4, versions)
        sums = [one for _, some in chosen for one in some]
        return {**self._row("old-rule", len(sums), sums), "credit": 1.0}

    def _leaves_out(self, chooser: str, delivered: int, most: int) -> dict[str, Any]:
        """Leave out the hardest slots; the accounts tell what that costs."""
        sums, credited, earned = list[int](), list[int](), 0.0
        for n in self._repeats(delivered):
            key = self._key(chooser, delivered, most, n)
            known = self._problems.first(key, delivered + most)
            hardest = set(sorted(range(len(known)), key=known.__getitem__)[delivered:])
            taken = [slot for slot in range(len(known)) if slot not in hardest]
            pays = self._earnings(key, taken)
            sums += [known[slot] for slot in taken]
            credited += [known[slot] for slot, paid in zip(taken, pays, strict=True) if paid]
            earned += sum(pays)
        row = self._row(chooser, delivered, sums)
        gain = round(MEAN - fmean(credited), 3)
        return {**row, "credited_gain": gain, "credit": round(earned / len(sums), 3)}

    def _earnings(self, key: PeerId, slots: Sequence[int]) -> list[bool]:
        """Return which of some accepted rollouts the accounts give credit for."""
        accounts, paid = Accounts(credit_rules(self._manifest)), list[bool]()
        for epoch in range(-(-len(slots) // LISTED_MAX)):
            part = slots[epoch * LISTED_MAX : (epoch + 1) * LISTED_MAX]
            for number, slot in enumerate(part):
                commit = digest(b"%d" % slot)
                receipt = Receipt(commit, key, 0, slot, False, TOKENS, ACCEPTED, ())
                before = accounts.totals.tokens
                page, work = epoch * LISTED_MAX + number, PageWork((receipt,))
                accounts.apply(commit, page, commit, b"", work)
                paid.append(accounts.totals.tokens > before)
        return paid

    def _stops(self, delivered: int) -> dict[str, Any]:
        gains = []
        for n in self._repeats(delivered):
            sums = self._problems.first(self._key("stops", delivered, n), delivered)
            means = [total / n for n, total in enumerate(accumulate(sums), 1)]
            gains.append(min(means[delivered // 10 :]))
        row = self._row("stops", delivered, gains)
        return {**row, "sigma": None, "credit": 1.0}

    def _keys(self, delivered: int) -> dict[str, Any]:
        heads: list[tuple[int, int, Iterator[int]]] = []
        for n in range(KEYS):
            slots = self._problems.all(self._key("keys", delivered, n))
            heappush(heads, (next(slots), n, slots))
        sums = list[int]()
        for _ in range(delivered):
            easiest, n, slots = heappop(heads)
            sums.append(easiest)
            heappush(heads, (next(slots), n, slots))
        return {**self._row("keys", delivered, sums), "keys": KEYS, "credit": 1.0}

    def _keys_with_allowance(self, delivered: int) -> dict[str, Any]:
        sums, each = list[int](), delivered // KEYS
        for n in range(KEYS):
            known = self._problems.first(self._key("each", delivered, n), each + self._gap_max)
            sums += nsmallest(each, known)
        return {**self._row("keys-allowance", delivered, sums), "keys": KEYS, "credit": 1.0}

    def _ground(self, delivered: int, tried: int) -> dict[str, Any]:
        """Grind keys by all rollouts that they will deliver."""
        formula = DEVIATION / sqrt(delivered) * expected_maximum(tried)
        row = {"chooser": "ground", "delivered": delivered, "tried": tried, "credit": 1.0}
        row |= {"formula": round(formula, 3), "reached": formula <= GOAL}
        if delivered * tried <= self._given.ground_slots:
            keys = (self._key("ground", delivered, tried, n) for n in range(tried))
            best = min(fmean(self._problems.first(key, delivered)) for key in keys)
            row["gain"] = round(MEAN - best, 3)
        return row


def expected_maximum(size: int) -> float:
    """Return the expected maximum of normal draws, by Blom's approximation for few of them."""
    if size > 10**12:
        return sqrt(2 * log(size))
    return NormalDist().inv_cdf((size - 0.375) / (size + 0.25))


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--delivered", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.25])
    parser.add_argument("--tried", type=int, nargs="+", default=[100, 1_000, 10**6, 10**9])
    parser.add_argument("--per-version", type=int, default=8, help="slots of a version")
    parser.add_argument("--old-versions", type=int, default=4_000)
    parser.add_argument("--sample", type=int, default=40_000, help="rollouts of a mean")
    parser.add_argument("--ground-slots", type=int, default=1_000_000)
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    given = parser.parse_args()
    for row in Run(given).rows():
        text = json.dumps(row) if given.json else "  ".join(f"{k}={v}" for k, v in row.items())
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
