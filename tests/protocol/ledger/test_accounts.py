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
from protocol.ledger.receipts import COUNT_MAX, PageWork, Receipt, Step
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
    era_epochs=40,
)
FREE = RULES._replace(per_token=0, per_checked_token=0, per_learned_token=0, lock_epochs=0)


def page(epoch: int) -> bytes:
    return digest(b"page %d" % epoch)


def lot(epoch: int) -> bytes:
    return digest(b"beacon %d" % epoch)


def receipt(worker=A, tokens=10, reason="accepted", checkers=(), number=0) -> Receipt:
    return Receipt(digest(b"commit %d" % number), worker, 1, number, tokens, reason, checkers)


def step(trainer=D, learned=(), version=1, omitted=0) -> Step:
    return Step(version, digest(b"manifest %d" % version), trainer, learned, omitted)


def applied(accounts: Accounts, epoch: int, *work) -> Accounts:
    """Count the page of an epoch with some receipts and steps."""
    receipts = tuple(one for one in work if isinstance(one, Receipt))
    steps = tuple(one for one in work if isinstance(one, Step))
    accounts.apply(page(epoch), epoch, lot(epoch), b"", PageWork(receipts, steps))
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
    )

    def __init__(self, rules: CreditRules):
        self.rules, self.table, self.beacons = rules, {}, {}
        self.epoch, self.head = -1, b""

    def of(self, peer):
        key = public_key_from_peer_id(peer)
        start = {"key": key, "since": self.epoch, "slashed": -1, "forfeited": 0}
        start |= dict.fromkeys(self.NAMES.split(), 0)
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
        for one in work.steps:
            self.of(one.trainer)["steps"] += 1
            self.of(one.trainer)["omitted"] += one.omitted
            self.lock(one.trainer, rules.per_learned_token * sum(part[2] for part in one.learned))
            for peer, rollouts, tokens in one.learned:
                self.of(peer)["learned"] += rollouts
                self.of(peer)["learned_tokens"] += tokens
        self.beacons.setdefault(era, lot(epoch))
        for counted in (self.beacons, *(account["eras"] for account in self.table.values())):
            for old in [one for one in counted if one <= era - 4]:
                del counted[old]

    def count_receipt(self, one, era):
        worker = self.of(one.worker)
        if one.reason == "accepted":
            worker["rollouts"] += 1
            worker["tokens"] += one.tokens
            worker["eras"][era] += one.tokens
            self.lock(one.worker, self.rules.per_token * one.tokens)
        else:
            worker["rejected"] += 1
            if one.reason in SLASHABLE_REASONS and self.rules.slash and worker["slashed"] == -1:
                worker["slashed"] = self.epoch
                worker["forfeited"] += worker["locked"].total()
                worker["locked"].clear()
        for peer in one.checkers:
            self.of(peer)["checks"] += 1
            self.of(peer)["checked_tokens"] += one.tokens
            self.lock(peer, self.rules.per_checked_token * one.tokens)

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
        return [encode(one) for one in (header, *map(operator.or_, accounts, pairs))]


SUMS = ("rollouts", "tokens", "steps")


def naive_leaves(pages, rules: CreditRules) -> list[bytes]:
    ledger = NaiveLedger(rules)
    for one in pages:
        ledger.count(*one)
    return ledger.leaves()


TOKENS = st.integers(0, 50)
PEER_SETS = st.sets(st.sampled_from(PEERS), max_size=4).map(lambda peers: tuple(sorted(peers)))
REASONS = st.sampled_from(["accepted"] * 6 + ["computation", "reward", "logprobs"])
RECEIPTS = st.lists(
    st.builds(
        Receipt,
        st.binary(min_size=32, max_size=32),
        st.sampled_from(PEERS),
        TOKENS,
        TOKENS,
        TOKENS,
        REASONS,
        PEER_SETS,
    ),
    max_size=4,
).map(tuple)
SHARES = PEER_SETS.flatmap(
    lambda peers: st.tuples(*(st.tuples(st.just(one), TOKENS, TOKENS) for one in peers))
)
STEPS = st.lists(
    st.builds(Step, TOKENS, st.just(page(0)), st.sampled_from(PEERS), SHARES, TOKENS), max_size=2
).map(tuple)
GAPS = st.integers(1, 30)
PAGES = st.lists(
    st.tuples(GAPS, st.sampled_from([b"", digest(b"head")]), st.builds(PageWork, RECEIPTS, STEPS)),
    max_size=12,
)
SOME_RULES = st.sampled_from(
    [
        RULES,
        FREE,
        RULES._replace(slash=False),
        RULES._replace(lock_epochs=0),
        RULES._replace(lock_epochs=200),
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
    rules, other = RULES._replace(slash=False), data.draw(st.permutations(receipts))
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


# Leaves from outside


def sample() -> Accounts:
    accounts = applied(Accounts(RULES), 0, receipt(A, 1, checkers=(B, C)))
    applied(accounts, 33, receipt(A, 2), receipt(B, 5, "computation"), step(D, ((A, 1, 1),)))
    return applied(accounts, 50, receipt(A, 7, checkers=(D,)))


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
    "since the future": edited(1, since=51),
    "since before the first": edited(1, since=-1),
    "slashed in the future": edited(2, slashed=51),
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
    "eras of no rollout": edited(3, eras=[[1, 0]]),
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
