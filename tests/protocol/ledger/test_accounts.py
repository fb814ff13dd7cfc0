import operator
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.codec import decode, encode
from protocol.core.crypto import digest, peer_id_from_public_key, public_key_from_peer_id
from protocol.core.faults import Fault
from protocol.core.merkle import leaf_hash, root_of
from protocol.ledger.account_leaves import AMOUNT_MAX
from protocol.ledger.accounts import (
    ERAS_KEPT,
    LOCK_BUCKET_EPOCHS,
    MARGIN_EPOCHS,
    Account,
    Accounts,
    CreditRules,
    check_proof,
)
from protocol.ledger.receipts import COUNT_MAX, PageWork, Receipt, Reversal, Step
from protocol.ledger.reversals import MISJUDGED_MIN, misjudged_max
from protocol.rollout.audit import SLASHABLE_REASONS

KEYS = sorted(digest(b"key %d" % number) for number in range(6))
PEERS = [peer_id_from_public_key(key) for key in KEYS]
A, B, C, D, *_ = PEERS
RULES = CreditRules(
    per_token=100,
    per_checked_token=7,
    per_learned_token=3,
    lock_epochs=20,
    slash=True,
    gap_max=3,
    era_epochs=40,
)
FREE = RULES._replace(per_token=0, per_checked_token=0, per_learned_token=0, lock_epochs=0)


def page(epoch: int) -> bytes:
    return digest(b"page %d" % epoch)


def lot(epoch: int) -> bytes:
    return digest(b"beacon %d" % epoch)


def receipt(worker=A, tokens=10, reason="accepted", checkers=(), slot=None) -> Receipt:
    """Return a receipt for a training slot; without one, for an evaluation, which counts none."""
    place = (1, 0, True) if slot is None else (1, slot, False)
    return Receipt(digest(b"commit %d" % place[1]), worker, *place, tokens, reason, checkers)


def step(trainer=D, learned=(), version=1, omitted=0, partners=()) -> Step:
    return Step(version, digest(b"manifest %d" % version), trainer, learned, omitted, partners)


def applied(accounts: Accounts, epoch: int, *work) -> Accounts:
    """Count the page of an epoch with some receipts, steps and reversals."""
    parts = (
        tuple(one for one in work if isinstance(one, kind)) for kind in (Receipt, Step, Reversal)
    )
    accounts.apply(page(epoch), epoch, lot(epoch), b"", PageWork(*parts))
    return accounts


def restored(accounts: Accounts) -> Accounts:
    found = Accounts.restore(accounts.leaves, accounts.rules)
    assert isinstance(found, Accounts), found
    return found


# The leaves follow from the pages


class NaiveLedger:
    """The rules of the ledger and nothing else: maps of plain numbers, all read at every page."""

    NAMES = (
        "rollouts tokens rejected checks checked_tokens learned learned_tokens steps omitted credit"
        " offences cleared misjudged lies"
    )

    def __init__(self, rules: CreditRules):
        self.rules, self.table, self.beacons = rules, {}, {}
        self.epoch, self.head = -1, b""

    def of(self, peer):
        key = public_key_from_peer_id(peer)
        start = {"key": key, "since": self.epoch, "slashed": -1, "forfeited": 0}
        start |= dict.fromkeys(self.NAMES.split(), 0) | {"decided": set(), "forgiven": 0}
        return self.table.setdefault(key, {**start, "locked": Counter(), "eras": Counter()})

    def lock(self, peer, amount):
        if self.of(peer)["slashed"] == -1 and amount:
            self.of(peer)["locked"][self.epoch // 8 * 8 + 7] += amount

    def count(self, epoch, head, work):
        self.epoch, self.head, rules = epoch, head, self.rules
        era = (epoch + 8) // rules.era_epochs
        for account in self.table.values():
            for one in [one for one in account["locked"] if one + rules.lock_epochs <= epoch]:
                account["credit"] += account["locked"].pop(one)
        for one in work.receipts:
            self.count_receipt(one, era)
        for one in work.overturned:
            self.count_reversal(one, era)
        for one in work.steps:
            self.of(one.trainer)["steps"] += 1
            self.of(one.trainer)["omitted"] += one.omitted
            trainers = [one.trainer, *one.partners]
            total = rules.per_learned_token * sum(part[2] for part in one.learned)
            shares = [total // len(trainers)] * len(trainers)
            shares[0] = total - sum(shares[1:])
            for peer, amount in zip(trainers, shares, strict=True):
                self.of(peer)
                self.lock(peer, amount)
            for peer, rollouts, tokens in one.learned:
                self.of(peer)["learned"] += rollouts
                self.of(peer)["learned_tokens"] += tokens
        self.beacons.setdefault(era, lot(epoch))
        for counted in (self.beacons, *(account["eras"] for account in self.table.values())):
            for old in [one for one in counted if one <= era - 4]:
                del counted[old]

    def count_receipt(self, one, era):
        decided = self.table.get(public_key_from_peer_id(one.worker), {}).get("decided", set())
        if not one.evaluation and (one.slot in decided or one.slot < max(decided, default=0) - 255):
            return
        worker = self.of(one.worker)
        if not one.evaluation:
            worker["decided"].add(one.slot)
        if one.reason == "accepted":
            worker["rollouts"] += 1
            missing = {*range(max(worker["decided"], default=-1) + 1)} - worker["decided"]
            if not one.evaluation and len(missing) - worker["forgiven"] > self.rules.gap_max:
                worker["forgiven"] += 1
            else:
                self.count_tokens(one, era)
        else:
            self.reject(worker, one.reason)
        for peer in one.checkers:
            self.of(peer)["checks"] += 1
            self.of(peer)["checked_tokens"] += one.tokens
            self.lock(peer, self.rules.per_checked_token * one.tokens)

    def count_tokens(self, one, era):
        worker = self.of(one.worker)
        worker["tokens"] += one.tokens
        worker["eras"][era] += one.tokens
        self.lock(one.worker, self.rules.per_token * one.tokens)

    def reject(self, worker, reason):
        worker["rejected"] += 1
        if reason in SLASHABLE_REASONS:
            worker["offences"] += 1
            self.slash(worker)

    def slash(self, account):
        if self.rules.slash and account["slashed"] == -1:
            account["slashed"] = self.epoch
            self.forfeit(account)

    def forfeit(self, account):
        account["forfeited"] += account["locked"].total()
        account["locked"].clear()

    def count_reversal(self, one, era):
        receipt = one.receipt
        worker = self.of(receipt.worker)
        certain = {"format", "termination", "computation"}
        if one.reason == "accepted":
            lied = receipt.reason in certain
            worker["rejected"] = max(0, worker["rejected"] - 1)
            worker["cleared"] += 1
            worker["offences"] = max(0, worker["offences"] - 1)
            if worker["slashed"] >= 0 and worker["offences"] == worker["lies"] == 0:
                worker["slashed"] = -1
                self.lock(receipt.worker, worker["forfeited"])
                worker["forfeited"] = 0
            worker["rollouts"] += 1
            self.count_tokens(receipt, era)
        else:
            lied = one.reason in certain
            taken = min(receipt.tokens, worker["tokens"])
            worker["rollouts"] = max(0, worker["rollouts"] - 1)
            worker["tokens"] -= taken
            surplus = max(taken, worker["eras"].total() - worker["tokens"])
            if worker["rollouts"]:
                take(worker["eras"], surplus)
            else:
                worker["eras"].clear()
            take(worker["locked"], self.rules.per_token * receipt.tokens)
            self.reject(worker, one.reason)
        for peer in receipt.checkers:
            checker, guilty = self.of(peer), lied
            if not lied and one.reason != "accepted":
                checker["misjudged"] += 1
                rate = self.rules.reward_disagreement_rate
                guilty = checker["misjudged"] > misjudged_max(rate, checker["checks"])
            if guilty:
                checker["lies"] += 1
                self.forfeit(checker)
                self.slash(checker)

    def leaves(self):
        accounts = [self.table[key] for key in sorted(self.table)]
        header = {name: sum(one[name] for one in accounts) for name in SUMS}
        header["credit"] = sum(one["credit"] + one["locked"].total() for one in accounts)
        header |= {
            "epoch": self.epoch,
            "page": page(self.epoch) if accounts or self.beacons else b"",
        }
        header |= {"beacons": {str(era): one for era, one in self.beacons.items()}}
        header |= {"head": self.head}
        pairs = [
            {name: sorted(one[name].items()) for name in ("locked", "eras")} for one in accounts
        ]
        bare = [
            {name: value for name, value in one.items() if name != "decided"} | slots_of(one)
            for one in accounts
        ]
        return [encode(one) for one in (header, *map(operator.or_, bare, pairs))]


def slots_of(account):
    decided = account["decided"]
    last = max(decided, default=-1)
    bits = "".join(str(int(last - age in decided)) for age in range(255, -1, -1))
    window = int(bits, 2).to_bytes(32, "big")
    return {"next_slot": last + 1, "slots": len(decided), "window": window}


def take(counted, amount):
    """Lower the newest counts by an amount; those that become 0 end."""
    for number in sorted(counted, reverse=True):
        if not amount:
            return
        part = min(amount, counted[number])
        counted[number] -= part
        amount -= part
        if not counted[number]:
            del counted[number]


SUMS = ("rollouts", "tokens", "steps")


def naive_leaves(pages, rules: CreditRules) -> list[bytes]:
    ledger = NaiveLedger(rules)
    for one in pages:
        ledger.count(*one)
    return ledger.leaves()


TOKENS = st.integers(0, 50)
PEER_SETS = st.sets(st.sampled_from(PEERS), max_size=4).map(lambda peers: tuple(sorted(peers)))
REASONS = st.sampled_from(["accepted"] * 6 + ["computation", "reward", "logprobs"])
RECEIPT = st.builds(
    Receipt,
    st.binary(min_size=32, max_size=32),
    st.sampled_from(PEERS),
    TOKENS,
    st.integers(0, 12) | st.integers(0, 600),
    st.booleans(),
    TOKENS,
    REASONS,
    PEER_SETS,
)
RECEIPTS = st.lists(RECEIPT, max_size=4).map(tuple)
REVERSALS = st.lists(
    st.builds(Reversal, RECEIPT, st.sampled_from(["accepted", "computation", "format", "reward"])),
    max_size=2,
).map(tuple)
SHARES = PEER_SETS.flatmap(
    lambda peers: st.tuples(*(st.tuples(st.just(one), TOKENS, TOKENS) for one in peers))
)
STEPS = st.lists(
    st.builds(
        Step, TOKENS, st.just(page(0)), st.sampled_from(PEERS), SHARES, TOKENS, PEER_SETS
    ).map(
        lambda one: one._replace(
            partners=tuple(peer for peer in one.partners if peer != one.trainer)
        )
    ),
    max_size=2,
).map(tuple)
GAPS = st.integers(1, 30)
PAGES = st.lists(
    st.tuples(
        GAPS,
        st.sampled_from([b"", digest(b"head")]),
        st.builds(PageWork, RECEIPTS, STEPS, REVERSALS),
    ),
    max_size=12,
)
SOME_RULES = st.sampled_from(
    [
        RULES,
        FREE,
        RULES._replace(slash=False),
        RULES._replace(lock_epochs=0),
        RULES._replace(lock_epochs=200),
        RULES._replace(gap_max=0),
        RULES._replace(gap_max=500),
        RULES._replace(reward_disagreement_rate=0.1),
    ]
)


def dated(pages):
    """Return pages with epochs instead of gaps."""
    epoch, found = -1, []
    for gap, head, work in pages:
        epoch += gap
        found.append((epoch, head, work))
    return found


def apply_all(accounts: Accounts, pages) -> Accounts:
    for epoch, head, work in pages:
        accounts.apply(page(epoch), epoch, lot(epoch), head, work)
    return accounts


@given(PAGES, SOME_RULES)
def test_the_leaves_are_those_of_a_naive_recomputation(pages, rules):
    pages = dated(pages)
    accounts = apply_all(Accounts(rules), pages)
    leaves = naive_leaves(pages, rules)
    assert accounts.leaves == leaves
    assert accounts.root == root_of([leaf_hash(leaf) for leaf in leaves])


@given(PAGES, SOME_RULES, st.data())
def test_a_node_that_joins_continues_as_one_that_has_followed(pages, rules, data):
    pages = dated(pages)
    cut = data.draw(st.integers(0, len(pages)))
    accounts = apply_all(Accounts(rules), pages[:cut])
    copy = restored(accounts)
    assert copy.leaves == accounts.leaves
    for one in (accounts, copy):
        apply_all(one, pages[cut:])
    assert copy.leaves == accounts.leaves
    assert copy.all() == accounts.all()
    assert copy.totals == accounts.totals


@given(PAGES, st.data())
def test_roots_between_pages_change_nothing(pages, data):
    """Cached leaves are those of the accounts as they are."""
    pages = dated(pages)
    accounts = Accounts(RULES)
    for number in range(len(pages)):
        apply_all(accounts, pages[number : number + 1])
        if data.draw(st.booleans()):
            assert accounts.leaves == naive_leaves(pages[: number + 1], RULES)


def test_cached_leaves_follow_what_pages_without_work_change():
    accounts = applied(Accounts(RULES), 0, receipt(A, 1, checkers=(B,)))
    for epoch in (26, 27, 28, 4 * 40 - 9, 4 * 40 - 8, 4 * 40):
        before = accounts.leaves
        applied(accounts, epoch)
        later = applied(applied(Accounts(RULES), 0, receipt(A, 1, checkers=(B,))), epoch)
        assert accounts.leaves[1:] == later.leaves[1:]
        assert (before[1:] != accounts.leaves[1:]) == (epoch in {27, 4 * 40 - 8})


@given(RECEIPTS, st.data())
def test_without_slashing_the_order_of_receipts_does_not_matter(receipts, data):
    receipts = tuple({(one.worker, one.slot): one for one in receipts}.values())
    receipts = tuple(one for one in receipts if one.slot < 256)
    rules = RULES._replace(slash=False, gap_max=256)
    other = data.draw(st.permutations(receipts))
    one, two = (
        apply_all(Accounts(rules), [(3, b"", PageWork(tuple(order)))])
        for order in (receipts, other)
    )
    assert one.leaves == two.leaves


# Rules


def test_the_beginning():
    accounts = Accounts(RULES)
    assert accounts.totals == (0, 0, 0, 0)
    assert accounts.all() == {}
    assert accounts.account(A) is None
    assert accounts.proof(A) is None
    assert accounts.beacon(0) is None
    assert accounts.header[:3] == (-1, b"", b"")
    assert accounts.root == root_of([leaf_hash(accounts.header.encoded())])


def test_what_each_party_of_a_rollout_gains():
    accounts = applied(Accounts(RULES), 5, receipt(A, 10, checkers=(B, C)))
    assert accounts.account(A) == Account(
        KEYS[0], 5, rollouts=1, tokens=10, locked=[[7, 1000]], eras=[[0, 10]]
    )
    assert accounts.account(B) == Account(KEYS[1], 5, checks=1, checked_tokens=10, locked=[[7, 70]])
    assert accounts.totals == (1, 10, 1140, 0)
    assert list(accounts.all()) == [A, B, C]
    assert list(accounts.scan()) == list(accounts.all().items())


def test_a_rejected_rollout_pays_its_checkers():
    accounts = applied(Accounts(RULES), 5, receipt(A, 10, "reward", (B,)))
    assert accounts.account(A) == Account(KEYS[0], 5, rejected=1)
    assert accounts.account(B).held == 70
    assert accounts.totals == (0, 0, 70, 0)


def test_what_a_version_gains():
    accounts = applied(Accounts(RULES), 5, step(D, ((A, 2, 20), (B, 1, 5))))
    assert accounts.account(D) == Account(KEYS[3], 5, steps=1, locked=[[7, 75]])
    assert accounts.account(A) == Account(KEYS[0], 5, learned=2, learned_tokens=20)
    assert accounts.totals == (0, 0, 75, 1)


@pytest.mark.parametrize(
    ("tokens", "trainer", "partner"), [(25, 25, 25), (26, 26, 26), (1, 1, 1), (0, 0, 0)]
)
def test_the_trainers_of_a_round_share_the_credit_of_its_version(tokens, trainer, partner):
    accounts = applied(Accounts(RULES), 5, step(D, ((A, 1, tokens),), partners=(B, C)))
    assert [accounts.account(one).held for one in (D, B, C)] == [trainer, partner, partner]
    assert accounts.account(B).steps == 0, "it published no version"
    assert accounts.totals.steps == 1


def test_the_trainer_of_a_version_gets_what_its_partners_cannot_divide():
    rules = RULES._replace(per_learned_token=1)
    accounts = applied(Accounts(rules), 5, step(D, ((A, 1, 11),), partners=(B, C)))
    assert [accounts.account(one).held for one in (D, B, C)] == [5, 3, 3]
    slashed = applied(Accounts(rules), 5, receipt(B, 1, "format"))
    applied(slashed, 6, step(D, ((A, 1, 11),), partners=(B, C)))
    assert [slashed.account(one).held for one in (D, B, C)] == [5, 0, 3], "nobody gets its share"


def test_credit_unlocks_by_buckets_of_epochs():
    accounts = applied(Accounts(RULES), 0, receipt(A, 1))
    applied(accounts, 7, receipt(A, 2))
    applied(accounts, 8, receipt(A, 4))
    assert LOCK_BUCKET_EPOCHS == 8
    assert accounts.account(A).locked == [[7, 300], [15, 400]]
    applied(accounts, 26)
    assert accounts.account(A).credit == 0
    applied(accounts, 27)
    assert (accounts.account(A).credit, accounts.account(A).locked) == (300, [[15, 400]])
    applied(accounts, 100)
    assert (accounts.account(A).credit, accounts.account(A).locked) == (700, [])
    assert accounts.totals.credit == 700


@pytest.mark.parametrize("reason", sorted(SLASHABLE_REASONS))
def test_a_slashed_key_loses_what_is_locked_and_gains_no_more(reason):
    accounts = applied(Accounts(RULES), 0, receipt(A, 1))
    applied(accounts, 28, receipt(A, 2), receipt(A, 5, reason), receipt(A, 3))
    applied(
        accounts, 29, receipt(B, 1, checkers=(A,)), step(A, ((B, 1, 1),)), receipt(A, 1, reason)
    )
    assert accounts.account(A) == Account(
        KEYS[0],
        0,
        rollouts=3,
        tokens=6,
        rejected=2,
        checks=1,
        checked_tokens=1,
        steps=1,
        credit=100,
        forfeited=200,
        eras=[[0, 6]],
        slashed=28,
        offences=2,
    )
    applied(accounts, 99)
    assert accounts.account(A).held == 100
    assert accounts.totals.credit == 100 + accounts.account(B).held


def test_a_run_that_does_not_slash():
    accounts = applied(Accounts(RULES._replace(slash=False)), 0, receipt(A, 1))
    applied(accounts, 1, receipt(A, 5, "computation"))
    assert (accounts.account(A).slashed, accounts.account(A).locked) == (-1, [[7, 100]])


def test_locked_credit_can_be_forfeited():
    accounts = applied(Accounts(RULES), 0, receipt(A, 1, checkers=(B,)))
    before = accounts.root
    accounts.forfeit(A)
    accounts.forfeit(C)
    assert accounts.account(A).forfeited == 100
    assert accounts.account(A).locked == []
    assert accounts.totals.credit == 7
    assert accounts.root != before
    assert restored(accounts).leaves == accounts.leaves
    assert applied(accounts, 99).totals.credit == 7


@pytest.mark.parametrize(("epoch", "era"), [(0, 0), (31, 0), (32, 1), (71, 1), (72, 2), (400, 10)])
def test_a_page_counts_for_the_era_of_some_epochs_later(epoch, era):
    assert MARGIN_EPOCHS == 8
    assert Accounts(RULES).era(epoch) == era
    accounts = applied(Accounts(RULES), epoch, receipt(A, 3))
    assert accounts.tokens([era]) == {A: 3}
    assert accounts.beacon(era) == lot(epoch)


def test_the_tokens_of_the_keys_that_worked_in_each_era():
    accounts = applied(Accounts(RULES), 30, receipt(A, 5), receipt(B, 7), receipt(A, 1))
    applied(accounts, 31, receipt(A, 10), receipt(C, 2), receipt(B, 9, "reward"))
    applied(accounts, 32, receipt(A, 100), receipt(B, 200), receipt(D, 300))
    assert accounts.tokens([0]) == {A: 16, B: 7, C: 2}
    assert accounts.tokens([1]) == {A: 100, B: 200, D: 300}
    assert accounts.tokens([0, 1]) == {A: 116, B: 207}, "keys that worked in both"
    assert accounts.tokens([1, 2]) == {}


def test_the_beacon_of_an_era_is_that_of_its_first_page_and_old_eras_are_dropped():
    accounts = Accounts(RULES)
    for epoch in (3, 30, 35, 36, 80):
        applied(accounts, epoch, receipt(A, epoch))
    assert [accounts.beacon(era) for era in range(4)] == [lot(3), lot(35), lot(80), None]
    for era in range(3, ERAS_KEPT):
        applied(accounts, era * 40)
    assert accounts.tokens([0]) == {A: 33}
    applied(accounts, ERAS_KEPT * 40)
    assert accounts.tokens([0]) == {}
    assert accounts.beacon(0) is None
    assert accounts.account(A).eras == [[1, 71], [2, 80]]
    assert accounts.account(A).tokens == 184, "the total remains"


@pytest.mark.parametrize("epoch", [4, 5])
def test_pages_come_in_order(epoch):
    accounts = applied(Accounts(RULES), 5)
    with pytest.raises(ValueError, match=f"page of epoch {epoch} after that of epoch 5"):
        applied(accounts, epoch)


def test_a_worker_without_a_key_is_our_fault():
    with pytest.raises(ValueError, match="not an Ed25519 peer id"):
        applied(Accounts(RULES), 0, receipt("nobody"))


def test_a_query_returns_copies():
    accounts = applied(Accounts(RULES), 5, receipt(A, 10))
    root = accounts.root
    for one in (accounts.account(A), accounts.all()[A]):
        one.credit += 1
        one.locked[0][1] += 1
        one.eras.clear()
    assert accounts.root == root
    assert accounts.account(A).held == 1000
    assert restored(accounts).root == root


def test_no_number_overflows():
    rules = RULES._replace(per_token=2**31, per_checked_token=2**31, per_learned_token=2**31)
    accounts = Accounts(rules)
    most = [receipt(peer, COUNT_MAX, checkers=tuple(PEERS)) for peer in PEERS]
    for epoch in range(3):
        applied(accounts, epoch, *most, step(A, ((B, COUNT_MAX, COUNT_MAX),)))
    assert accounts.account(A).locked == [[7, AMOUNT_MAX]]
    assert accounts.totals.credit == AMOUNT_MAX
    copy = restored(accounts)
    for one in (accounts, copy):
        applied(one, 30, *most)
        applied(one, 31, receipt(A, 1, "computation"))
        applied(one, 99)
    assert copy.leaves == accounts.leaves
    assert accounts.account(A).forfeited == AMOUNT_MAX
    assert accounts.account(B).credit == AMOUNT_MAX
    assert restored(accounts).leaves == accounts.leaves


# Slots


def test_a_slot_is_decided_once_and_its_second_receipt_changes_nothing():
    accounts = applied(Accounts(RULES), 0, receipt(A, 1, slot=0), receipt(B, 1, "reward", slot=4))
    again = applied(Accounts(RULES), 0, receipt(A, 1, slot=0), receipt(B, 1, "reward", slot=4))
    second = receipt(A, 9, slot=0, checkers=(C,)), receipt(B, 9, "computation", slot=4)
    applied(accounts, 1, *second, receipt(A, 9, "reward", slot=0))
    assert accounts.leaves == applied(again, 1).leaves


def test_an_evaluation_decides_no_training_slot():
    accounts = applied(Accounts(RULES), 0, receipt(A, 1), receipt(A, 2), receipt(A, 3, slot=0))
    assert accounts.account(A).decided == (1, 1, bytes(31) + b"\1")
    assert accounts.account(A).tokens == 6


def test_gaps_beyond_the_allowance_cost_one_rollout_each():
    accounts = applied(Accounts(RULES), 0, receipt(A, 1, slot=0), receipt(A, 1, slot=4))
    assert (accounts.account(A).gaps, accounts.account(A).tokens) == (3, 2), "within the allowance"
    for slot in (7, 8, 9, 10):
        applied(accounts, slot, receipt(A, 10, checkers=(B,), slot=slot))
    account = accounts.account(A)
    assert (account.gaps, account.forgiven) == (5, 2)
    assert (account.rollouts, account.tokens, account.held) == (6, 22, 2200)
    assert account.eras == [[0, 22]]
    assert accounts.account(B).checks == 4, "its checkers worked all the same"
    assert accounts.totals[:2] == (6, 22)
    assert restored(accounts).leaves == accounts.leaves


def test_an_evaluation_pays_for_no_gap():
    accounts = applied(Accounts(RULES), 0, receipt(A, 1, slot=9))
    applied(accounts, 1, receipt(A, 5))
    assert (accounts.account(A).forgiven, accounts.account(A).tokens) == (1, 5)


def test_a_rejected_rollout_fills_its_slot_and_pays_for_no_gap():
    accounts = applied(Accounts(RULES), 0, *(receipt(A, 1, "reward", slot=n) for n in range(4)))
    assert accounts.account(A).gaps == 0
    applied(accounts, 1, receipt(A, 1, "reward", slot=9))
    assert (accounts.account(A).gaps, accounts.account(A).forgiven) == (5, 0)


def test_rollouts_that_become_final_in_another_order_cost_nothing():
    rules = RULES._replace(gap_max=16)
    accounts, order = Accounts(rules), [n ^ 15 for n in range(64)]
    for epoch, slot in enumerate(order):
        applied(accounts, epoch, receipt(A, 1, slot=slot))
    assert (accounts.account(A).gaps, accounts.account(A).forgiven) == (0, 0)
    assert accounts.account(A).tokens == 64


def test_slots_that_a_page_may_decide():
    accounts = applied(Accounts(RULES), 0, receipt(A, 1, slot=2), receipt(A, 1, slot=257))
    opened = [accounts.is_open(A, slot, is_evaluation=False) for slot in (1, 2, 3, 256, 257, 258)]
    assert opened == [False, False, True, True, False, True]
    assert accounts.is_open(A, 257, is_evaluation=True)
    assert accounts.is_open(B, 257, is_evaluation=False)
    assert (accounts.next_slot(A), accounts.next_slot(B)) == (258, 0)


# Leaves from outside


def sample() -> Accounts:
    accounts = applied(Accounts(RULES), 0, receipt(A, 1, checkers=(B, C)))
    applied(
        accounts, 33, receipt(A, 2, slot=1), receipt(B, 5, "computation"), step(D, ((A, 1, 1),))
    )
    applied(accounts, 50, receipt(A, 7, checkers=(D,), slot=2))
    return applied(accounts, 51, receipt(C, 7, slot=9))


SAMPLE = sample().leaves


def edited(number: int, **changes) -> list[bytes]:
    """Return the leaves of the sample with other fields in one of them."""
    values = decode(SAMPLE[number], bytes_max=10_000)
    return [*SAMPLE[:number], encode({**values, **changes}), *SAMPLE[number + 1 :]]


HEADER, OF_A, OF_B = (decode(leaf, bytes_max=10_000) for leaf in SAMPLE[:3])


def test_the_sample_is_accepted():
    assert OF_A["locked"] == ((39, 200), (55, 700))
    assert OF_B["slashed"] == 33
    for leaves in (SAMPLE, edited(1), edited(0)):
        assert Accounts.restore(leaves, RULES).leaves == SAMPLE


WRONG = {
    "nothing": [],
    "no header": SAMPLE[1:],
    "the header alone": SAMPLE[:1],
    "an account less": SAMPLE[:-1],
    "an account twice": [*SAMPLE, SAMPLE[-1]],
    "another order": [SAMPLE[0], SAMPLE[2], SAMPLE[1], *SAMPLE[3:]],
    "two headers": [SAMPLE[0], *SAMPLE],
    "a header before the first page": edited(0, epoch=-1, page=b"", beacons={}),
    "a header without a page": edited(0, page=b""),
    "a short page": edited(0, page=b"p" * 31),
    "a short head": edited(0, head=b"h" * 31),
    "no beacon of the era": edited(0, beacons={"0": lot(0)}),
    "a beacon of a later era": edited(0, beacons={"1": lot(33), "2": lot(80)}),
    "a beacon of an old era": edited(0, beacons={"1": lot(33), "-3": lot(0)}),
    "a short beacon": edited(0, beacons={"1": lot(33)[:31]}),
    "an era in another spelling": edited(0, beacons={"1": lot(33), "01": lot(0)}),
    "an era of many digits": edited(0, beacons={"1": lot(33), "1" * 5000: lot(0)}),
    "an era of other digits": edited(0, beacons={"1": lot(33), "²": lot(0)}),
    "a header with another field": edited(0, more=1),
    "more rollouts": edited(0, rollouts=HEADER["rollouts"] + 1),
    "more tokens": edited(0, tokens=HEADER["tokens"] + 1),
    "more steps": edited(0, steps=HEADER["steps"] + 1),
    "more credit": edited(0, credit=HEADER["credit"] + 1),
    "a total that is true": edited(0, steps=True),
    "an account with another field": edited(1, more=1),
    "a short key": edited(1, key=KEYS[0][:31]),
    "another key": edited(1, key=KEYS[1]),
    "since the future": edited(1, since=52),
    "since before the first": edited(1, since=-1),
    "slashed in the future": edited(2, slashed=52),
    "slashed before it was known": edited(2, slashed=-2),
    "slashed before its first page": edited(2, since=34),
    "slashed without a rejection": edited(2, rejected=0),
    "slashed in the first page without one": edited(2, rejected=0, slashed=0),
    "slashed with locked credit": edited(2, locked=[[55, 1]], credit=OF_B["credit"] - 1),
    "a negative count": edited(1, checks=-1),
    "a count that is too large": edited(1, checks=AMOUNT_MAX + 1),
    "a count that is true": edited(1, checks=True),
    "a count that is text": edited(1, checks="1"),
    "locked within a bucket": edited(1, locked=[[38, 200], [55, 700]]),
    "locked in the future": edited(1, locked=[[39, 200], [63, 700]]),
    "locked before it was known": edited(1, locked=[[39, 200], [55, 700]], since=40),
    "locked too long": edited(1, locked=[[23, 200], [55, 700]]),
    "locked out of order": edited(1, locked=[[55, 700], [39, 200]]),
    "locked twice": edited(1, locked=[[39, 200], [55, 300], [55, 400]]),
    "locked nothing": edited(1, locked=[[39, 200], [47, 0], [55, 700]]),
    "locked negative": edited(1, locked=[[39, 200], [47, -1], [55, 701]]),
    "locked as a map": edited(1, locked={"39": 200}),
    "locked in threes": edited(1, locked=[[39, 200, 1], [55, 700]]),
    "an era of the future": edited(1, eras=[[0, 1], [1, 2], [2, 7]]),
    "more tokens in eras than ever": edited(1, eras=[[0, 3], [1, 9]]),
    "eras out of order": edited(1, eras=[[1, 9], [0, 1]]),
    "eras of no rollout": edited(2, eras=[[1, 0]]),
    "a short window": edited(1, window=bytes(30) + b"\3"),
    "a window that is text": edited(1, window="\3".rjust(32, "\0")),
    "a window without its last slot": edited(1, window=bytes(31) + b"\2"),
    "a window of slots before the first": edited(1, window=bytes(31) + b"\x0b", slots=3),
    "fewer slots than the window has": edited(1, slots=1),
    "more slots than the window has": edited(1, slots=3),
    "more slots than rollouts": edited(1, next_slot=9, slots=9, window=bytes(30) + b"\1\xff"),
    "slots without a next one": edited(1, next_slot=0),
    "more gaps paid for than there were": edited(3, forgiven=8),
    "a gap paid for without a rollout": edited(4, forgiven=1),
}


@pytest.mark.parametrize("name", WRONG)
def test_leaves_that_no_pages_lead_to_are_refused(name):
    assert isinstance(Accounts.restore(WRONG[name], RULES), Fault)


def test_a_slashed_key_in_a_run_that_does_not_slash_is_refused():
    assert isinstance(Accounts.restore(SAMPLE, RULES._replace(slash=False)), Fault)


def test_an_account_before_the_first_page_is_refused():
    start = Accounts(RULES).leaves
    idle = Account(KEYS[0], 0).encoded()
    assert isinstance(Accounts.restore([*start, idle], RULES), Fault)
    assert isinstance(Accounts.restore([*start, *SAMPLE[1:]], RULES), Fault)
    assert restored(Accounts(RULES)).leaves == start


def test_a_version_before_the_first_page_is_refused():
    header = decode(Accounts(RULES).leaves[0], bytes_max=1000)
    assert isinstance(Accounts.restore([encode({**header, "head": lot(0)})], RULES), Fault)


@given(st.lists(st.binary(max_size=60), max_size=3))
def test_random_leaves_never_raise(leaves):
    assert isinstance(Accounts.restore(leaves, RULES), Fault)
    assert isinstance(Accounts.restore([*SAMPLE[:2], *leaves], RULES), Fault)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.binary(max_size=33)
    | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.integers(0, len(SAMPLE) - 1), st.data(), VALUES)
def test_another_value_in_a_leaf_is_refused_or_comes_back(number, data, value):
    fields = decode(SAMPLE[number], bytes_max=10_000)
    leaves = edited(number, **{data.draw(st.sampled_from(sorted(fields))): value})
    found = Accounts.restore(leaves, RULES)
    assert isinstance(found, Fault) or found.leaves == leaves


@given(st.data())
def test_a_changed_byte_gives_another_root_or_a_fault(data):
    number = data.draw(st.integers(0, len(SAMPLE) - 1))
    good = SAMPLE[number]
    place = data.draw(st.integers(0, len(good) - 1))
    bad = good[:place] + bytes([good[place] ^ data.draw(st.integers(1, 255))]) + good[place + 1 :]
    found = Accounts.restore([*SAMPLE[:number], bad, *SAMPLE[number + 1 :]], RULES)
    assert isinstance(found, Fault) or found.root != sample().root


# Proofs


@given(PAGES)
def test_every_account_has_a_proof(pages):
    accounts = apply_all(Accounts(RULES), dated(pages))
    for peer, account in accounts.all().items():
        assert check_proof(accounts.proof(peer), accounts.root) == (accounts.header, account)


def test_a_changed_proof_is_refused():
    accounts = sample()
    proof, root = accounts.proof(B), accounts.root
    for changes in (
        {"size": proof.size + 4},
        {"place": 0},
        {"place": 1},
        {"place": -1},
        {"account": SAMPLE[1]},
        {"account": SAMPLE[0]},
        {"account": b""},
        {"header": SAMPLE[1]},
        {"header": edited(0, steps=5)[0]},
        {"header": b""},
        {"header_path": proof.account_path},
        {"account_path": proof.header_path},
        {"account_path": proof.account_path[:-1]},
        {"header_path": (*proof.header_path, bytes(32))},
    ):
        assert isinstance(check_proof(proof._replace(**changes), root), Fault), changes
    assert isinstance(check_proof(proof, lot(0)), Fault)


# Overturned outcomes


def overturned(receipt: Receipt, reason: str) -> Reversal:
    return Reversal(receipt, reason)


def test_a_certain_rejection_takes_an_acceptance_back_and_slashes_worker_and_checkers():
    wrong = receipt(A, 10, checkers=(B, C))
    accounts = applied(Accounts(RULES), 3, wrong, receipt(A, 5, slot=1, checkers=(D,)))
    applied(accounts, 4, overturned(wrong, "computation"))
    worker, checker, other = (accounts.account(peer) for peer in (A, B, D))
    assert (worker.rollouts, worker.tokens, worker.rejected, worker.eras) == (1, 5, 1, [[0, 5]])
    assert (worker.slashed, worker.held, worker.forfeited) == (4, 0, 500)
    assert (checker.slashed, checker.held, checker.forfeited, checker.lies) == (4, 0, 70, 1)
    assert accounts.has_lied(B)
    assert accounts.has_lied(C)
    assert not accounts.has_lied(A), "a worker is no validator"
    assert (other.slashed, other.held, other.lies) == (-1, 35, 0)
    assert (accounts.totals.rollouts, accounts.totals.tokens, accounts.totals.credit) == (1, 5, 35)


def test_without_slashing_only_the_credit_of_the_rollout_and_of_its_checkers_is_lost():
    wrong = receipt(A, 10, checkers=(B,))
    accounts = Accounts(RULES._replace(slash=False))
    applied(accounts, 3, wrong, receipt(A, 5, slot=1))
    applied(accounts, 4, overturned(wrong, "computation"))
    assert (accounts.account(A).held, accounts.account(A).slashed) == (500, -1)
    assert (accounts.account(B).held, accounts.account(B).forfeited) == (0, 70)
    assert accounts.has_lied(B)


def test_an_overturned_slash_ends_everywhere():
    wrong = receipt(A, 10, "computation", checkers=(B,), slot=1)
    accounts = applied(Accounts(RULES), 3, receipt(A, 5), wrong)
    assert accounts.is_slashed(A)
    applied(accounts, 4, overturned(wrong, "accepted"))
    worker = accounts.account(A)
    assert (worker.slashed, worker.rejected, worker.offences, worker.cleared) == (-1, 0, 0, 1)
    assert (worker.rollouts, worker.tokens, worker.forfeited) == (2, 15, 0)
    assert worker.held == 1500, "what it lost, and the credit of the rollout"
    assert accounts.was_cleared(A)
    assert accounts.has_lied(B)


def test_a_slash_stands_while_another_offence_does():
    wrong, right = (receipt(A, 10, "computation", slot=one) for one in range(2))
    accounts = applied(Accounts(RULES), 3, wrong, right)
    applied(accounts, 4, overturned(wrong, "accepted"))
    assert accounts.is_slashed(A)
    assert accounts.account(A).held == 0, "it earns nothing"
    applied(accounts, 5, overturned(right, "accepted"))
    assert not accounts.is_slashed(A)


@pytest.mark.parametrize("reason", ["history", "reward-history"])
def test_a_rejection_by_history_blames_no_checker(reason):
    """Members hold histories of different length."""
    wrong = receipt(A, 10, reason, checkers=(B,))
    accounts = applied(Accounts(RULES), 3, wrong)
    applied(accounts, 4, overturned(wrong, "accepted"))
    assert not accounts.is_slashed(A)
    assert (accounts.has_lied(B), accounts.account(B).misjudged) == (False, 0)


def test_wrong_rewards_count_and_the_first_is_a_lie_where_none_may_differ():
    wrong = receipt(A, 10, checkers=(B,))
    accounts = applied(Accounts(RULES), 3, wrong)
    applied(accounts, 4, overturned(wrong, "reward"))
    worker = accounts.account(A)
    assert (worker.rollouts, worker.rejected, worker.slashed, worker.held) == (0, 1, -1, 0)
    assert accounts.has_lied(B)


def test_some_wrong_rewards_are_honest_where_they_may_differ():
    accounts = Accounts(RULES._replace(reward_disagreement_rate=0.001))
    wrong = [receipt(A, 1, checkers=(B,), slot=one) for one in range(MISJUDGED_MIN + 1)]
    applied(accounts, 3, *wrong)
    applied(accounts, 4, *(overturned(one, "reward") for one in wrong[:-1]))
    assert (accounts.account(B).misjudged, accounts.has_lied(B)) == (MISJUDGED_MIN, False)
    applied(accounts, 5, overturned(wrong[-1], "reward"))
    assert accounts.has_lied(B)


def test_the_wrong_rewards_that_are_honest_grow_with_the_checks():
    assert misjudged_max(0.0, 10**6) == 0
    assert misjudged_max(0.001, 0) == MISJUDGED_MIN
    assert misjudged_max(0.001, 5000) == MISJUDGED_MIN + 10
