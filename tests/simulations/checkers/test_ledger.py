"""Ledger rules: the work of final pages, stated accounts, and the accounts of nodes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import peer_id_from_public_key, public_key_from_peer_id
from protocol.core.types import Digest
from protocol.ledger.accounts import Accounts, CreditRules
from protocol.ledger.receipts import PageWork, Receipt, Reversal, Step
from protocol.rollout.audit import SLASHABLE_REASONS
from simulations.checkers.accounts import TracedAccounts
from simulations.checkers.ledger import LedgerSums
from simulations.checkers.wire import CreditTerms, Rules
from simulations.checkers.work import TracedReceipt, TracedReversal, TracedStep, TracedWork
from tests.simulations.trace_examples import (
    CREDIT,
    LED_EPOCH,
    PATIENCE,
    TraceExample,
    forged,
    small_run,
)

VALIDATORS = ("validator-0", "validator-1", "validator-2")
OTHER = b"\2" * 32


class Decisions:
    """A run whose pages decide commits; ``final`` makes one final."""

    def __init__(self, **options):
        self.run = small_run(**options)
        self.parent = b""
        self.commits = {}
        """Commits of each worker."""
        self.page = b""
        """The page that drew the committee of the last decision."""

    def commit(self, worker="worker-0"):
        own = self.commits.setdefault(worker, [])
        commit = self.run.commit(worker, slot=len(own))
        own.append(commit)
        self.run.spread(commit)
        return commit

    def decide(self, commit, *names, accepted=True, escalated=False, signers=()):
        """Certify or reject a commit; return its digest, and the bits of the named validators."""
        run, signers = self.run, signers or names
        self.page = run.drawn_for(commit, [run.peers[name] for name in signers])
        run.spread(
            run.certificate(
                signers,
                commit,
                accepted=accepted,
                escalated=escalated or not accepted,
                page=self.page,
            )
        )
        ranking = run.committee(commit, self.page)
        return run.digest(commit), sum(1 << ranking.index(name) for name in names)

    def verdict(self, name, commit, **changes):
        """Return another verdict for the page of the last decision."""
        return self.run.verdict(name, commit, page=self.page, **changes)

    def final(self, **contents):
        """Make a page final; return it."""
        epoch = None if self.parent else LED_EPOCH
        page = self.run.voted(self.run.page(self.parent, epoch, **contents))
        self.parent = self.run.chain(2, page)[-1]
        return page

    def certified(self, *names, **options):
        """Make a page final that accepts one new commit; return the commit."""
        commit = self.commit()
        digest, bits = self.decide(commit, *names, **options)
        receipt = self.run.receipt(commit, *names)
        self.final(certified=[digest], checkers=[bits], receipts=[receipt])
        return commit

    @property
    def sums(self):
        return self.run.checkers.ledger.sums

    def found(self, rule):
        """Return what is wrong; empty if nothing is."""
        assert {violation.rule for violation in self.run.violations} <= {rule}
        return "".join(violation.what for violation in self.run.violations)


# Decided commits


def test_accepted_and_rejected_rollouts_are_counted():
    swarm = Decisions()
    swarm.certified(*VALIDATORS[:2])
    commit = swarm.commit("liar")
    digest, bits = swarm.decide(commit, *VALIDATORS, accepted=False)
    receipt = swarm.run.receipt(commit, *VALIDATORS, reason="computation")
    swarm.final(rejected=[digest], checkers=[bits], receipts=[receipt])
    assert swarm.run.violations == []
    assert swarm.sums == LedgerSums(rollouts=1, tokens=40, checks=5, slashed=1)


def test_two_thirds_of_the_larger_committee_suffice():
    for names in (VALIDATORS[:2], VALIDATORS[1:], VALIDATORS[::2], VALIDATORS):
        swarm = Decisions()
        swarm.certified(*names, escalated=True, signers=VALIDATORS)
        assert swarm.run.violations == []
        assert swarm.sums.checks == len(names)


def test_checkers_that_are_too_few_decide_nothing():
    swarm = Decisions()
    swarm.certified("validator-0", signers=VALIDATORS[:2])
    assert "1 members do not suffice" in swarm.found("true-work")


def test_the_whole_first_committee_suffices_and_a_part_of_it_does_not():
    """Of one member that is, where the larger committee has four."""
    names = {"validator-3": ("validator",)}
    for place, suffices in ((0, True), (1, False)):
        swarm = Decisions(more=names, size=1, escalated_size=4)
        commit = swarm.commit()
        digest, bits = swarm.decide(commit, "validator-0", signers=["validator-0"])
        assert bits == 1
        if place:
            swarm.run.stored(swarm.verdict("validator-1", commit), "validator-1")
            bits = 0
        checkers = ["validator-0"] if suffices else []
        receipt = swarm.run.receipt(commit, *checkers)
        swarm.final(certified=[digest], checkers=[bits], receipts=[receipt])
        assert bool(swarm.found("true-work")) is not suffices


def test_a_first_committee_rejects_nothing():
    swarm = Decisions(more={"validator-3": ("validator",)}, escalated_size=4)
    commit = swarm.commit("liar")
    digest, _ = swarm.decide(commit, *VALIDATORS, accepted=False)
    first = swarm.run.committee(commit, swarm.page)[:2]
    receipt = swarm.run.receipt(commit, *first, reason="computation")
    swarm.final(rejected=[digest], checkers=[3], receipts=[receipt])
    assert "2 members do not suffice" in swarm.found("true-work")


def test_a_checker_has_signed_the_outcome():
    swarm = Decisions()
    swarm.certified(*VALIDATORS, signers=VALIDATORS[:2])
    assert "validator-2 has signed no acceptance" in swarm.found("true-work")


def test_a_verdict_outside_of_the_certificate_counts():
    swarm = Decisions()
    commit = swarm.commit()
    digest, bits = swarm.decide(commit, *VALIDATORS, signers=VALIDATORS[:2])
    swarm.run.stored(swarm.verdict("validator-2", commit), "validator-2")
    receipt = swarm.run.receipt(commit, *VALIDATORS)
    swarm.final(certified=[digest], checkers=[bits], receipts=[receipt])
    assert swarm.run.violations == []
    assert swarm.sums.checks == 3


def test_a_verdict_for_another_page_does_not_count():
    """That page drew another committee, to which the member may not belong."""
    swarm = Decisions()
    commit = swarm.commit()
    swarm.run.dishonest(*VALIDATORS)
    digest, bits = swarm.decide(commit, *VALIDATORS, signers=VALIDATORS[:2])
    swarm.run.stored(swarm.run.verdict("validator-2", commit), "validator-2")
    receipt = swarm.run.receipt(commit, *VALIDATORS)
    swarm.final(certified=[digest], checkers=[bits], receipts=[receipt])
    assert "validator-2 has signed no acceptance" in swarm.found("true-work")


def test_a_verdict_without_its_authors_signature_does_not_count():
    swarm = Decisions(signatures="ed25519")
    commit = swarm.commit()
    digest, bits = swarm.decide(commit, *VALIDATORS, signers=VALIDATORS[:2])
    swarm.run.stored(forged(swarm.verdict("validator-2", commit)), "relay")
    receipt = swarm.run.receipt(commit, *VALIDATORS)
    swarm.final(certified=[digest], checkers=[bits], receipts=[receipt])
    assert "validator-2 has signed no acceptance" in swarm.found("true-work")


@pytest.mark.parametrize("outside", [8, 16])
def test_bits_name_members_of_the_larger_committee(outside):
    swarm = Decisions()
    commit = swarm.commit()
    digest, _ = swarm.decide(commit, *VALIDATORS[:2])
    receipt = swarm.run.receipt(commit, *VALIDATORS[:2])
    swarm.final(certified=[digest], checkers=[outside], receipts=[receipt])
    assert "its larger committee has 3 members" in swarm.found("true-work")


@pytest.mark.parametrize("known", ["none", "commit", "certificate"])
def test_a_decided_commit_has_a_certificate_of_that_outcome(known):
    swarm = Decisions()
    commit = swarm.run.commit("worker-0") if known == "none" else swarm.commit()
    digest, bits = swarm.run.digest(commit), 3
    if known == "certificate":
        digest, bits = swarm.decide(commit, *VALIDATORS, escalated=True)
    receipt = swarm.run.receipt(commit, *VALIDATORS, reason="computation")
    swarm.final(rejected=[digest], checkers=[bits], receipts=[receipt])
    found = swarm.found("true-work")
    what = "no node has stored" if known == "none" else "no certificate shows the rejection"
    assert what in found


CHANGES = [
    {"worker": "liar"},
    {"tokens": 41},
    {"version": 1},
    {"slot": 9},
    {"evaluation": True},
    {"reason": "computation"},
    {"commit": OTHER},
    {"checkers": 2},
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_page_states_the_digest_of_its_work(change):
    swarm = Decisions()
    commit = swarm.commit()
    digest, bits = swarm.decide(commit, *VALIDATORS, escalated=True)
    receipt = swarm.run.receipt(commit, *VALIDATORS)
    if "worker" in change:
        change = {"worker": swarm.run.peers[change["worker"]]}
    if "checkers" in change:
        change = {"checkers": receipt.checkers[: change["checkers"]]}
    swarm.final(certified=[digest], checkers=[bits], receipts=[receipt._replace(**change)])
    assert "another digest of its work" in swarm.found("true-work")


def test_work_that_a_page_does_not_state_is_missed():
    swarm = Decisions()
    digest, bits = swarm.decide(swarm.commit(), *VALIDATORS[:2])
    swarm.final(certified=[digest], checkers=[bits])
    assert "another digest of its work" in swarm.found("true-work")


@pytest.mark.parametrize("reason", ["computation", "assignment", "proofs"])
def test_a_receipt_has_a_reason_that_its_checkers_may_have_agreed_on(reason):
    """One of them signed two verdicts, so members may hold either."""
    swarm = Decisions()
    swarm.run.dishonest(*VALIDATORS)
    commit = swarm.commit("liar")
    digest, bits = swarm.decide(commit, *VALIDATORS[:2], accepted=False)
    second = swarm.verdict("validator-1", commit, accept=False, reason="assignment")
    swarm.run.stored(second, "validator-1")
    receipt = swarm.run.receipt(commit, *VALIDATORS[:2], reason=reason)
    swarm.final(rejected=[digest], checkers=[bits], receipts=[receipt])
    assert bool(swarm.found("true-work")) is (reason == "proofs")


def test_the_reason_is_that_of_most_checkers():
    swarm = Decisions()
    commit = swarm.commit("liar")
    reasons = dict(zip(VALIDATORS, ("format", "proofs", "proofs"), strict=True))
    verdicts = [
        swarm.run.verdict(name, commit, accept=False, reason=reason)
        for name, reason in reasons.items()
    ]
    certificate = swarm.run.assembled(
        "validator-0", commit, verdicts, accepted=False, escalated=True
    )
    swarm.run.spread(certificate)
    receipt = swarm.run.receipt(commit, *VALIDATORS, reason="proofs")
    swarm.final(rejected=[swarm.run.digest(commit)], checkers=[7], receipts=[receipt])
    assert swarm.run.violations == []
    assert swarm.sums == LedgerSums(rollouts=0, tokens=0, checks=3, slashed=0)


# Versions


def learned_run():
    """Return a run with two versions, the second of which learned from a rollout."""
    swarm = Decisions()
    commit = swarm.certified(*VALIDATORS[:2])
    first = swarm.run.published(1, swarm.run.genesis)
    second = swarm.run.published(2, first, [commit], omitted=[swarm.commit()])
    return swarm, [swarm.run.genesis, first, second]


def test_versions_that_become_final_are_work():
    swarm, versions = learned_run()
    swarm.final(head=swarm.run.digest(versions[0]))
    swarm.final(head=swarm.run.digest(versions[2]))
    swarm.final()
    assert swarm.run.violations == []
    learned = swarm.run.accounts(swarm.run.digest(swarm.parent), 10**9)
    assert learned.totals.steps == 2


@pytest.mark.parametrize("number", [0, 1, 2])
def test_the_first_version_is_no_work_and_each_later_one_is(number):
    swarm, versions = learned_run()
    swarm.final(head=swarm.run.digest(versions[number]), work=b"")
    assert bool(swarm.found("true-work")) is (number > 0)


@pytest.mark.parametrize(
    "change",
    [{"version": 3}, {"trainer": "relay"}, {"manifest": OTHER}, {"learned": ()}, {"omitted": 0}],
)
def test_a_step_is_that_of_the_manifest(change):
    swarm, versions = learned_run()
    if "trainer" in change:
        change = {"trainer": swarm.run.peers["relay"]}
    steps = swarm.run.steps(b"", swarm.run.digest(versions[2]))
    work = PageWork(steps=(*steps[:-1], steps[-1]._replace(**change)))
    swarm.final(head=swarm.run.digest(versions[2]), work=work.digest)
    assert "another digest of its work" in swarm.found("true-work")


def test_the_trainers_of_a_round_share_the_credit_of_its_version():
    swarm = Decisions(more={"trainer-1": ("trainer",), "trainer-2": ("trainer",)})
    commit = swarm.certified(*VALIDATORS[:2])
    trainers = "trainer", "trainer-1", "trainer-2"
    version = swarm.run.published(1, swarm.run.genesis, [commit], contributors=trainers)
    swarm.final(head=swarm.run.digest(version))
    swarm.final()
    assert swarm.run.violations == []
    learned = swarm.run.accounts(swarm.run.digest(swarm.parent), 10**9)
    assert all(learned.account(swarm.run.peers[one]).held for one in trainers)
    alone = Decisions(more={"trainer-1": ("trainer",), "trainer-2": ("trainer",)})
    commit = alone.certified(*VALIDATORS[:2])
    version = alone.run.published(1, alone.run.genesis, [commit], contributors=trainers)
    (step,) = alone.run.steps(b"", alone.run.digest(version))
    work = PageWork(steps=(step._replace(partners=step.partners[:1]),))
    alone.final(head=alone.run.digest(version), work=work.digest)
    assert "another digest of its work" in alone.found("true-work")


# Each commit once


@pytest.mark.parametrize("accepted", [True, False])
def test_a_commit_is_decided_once(accepted):
    """It has certificates of both outcomes, by dishonest validators."""
    swarm = Decisions()
    swarm.run.dishonest("worker-0", *VALIDATORS)
    commit = swarm.certified(*VALIDATORS[:2])
    assert swarm.run.violations == []
    digest, bits = swarm.decide(commit, *VALIDATORS, accepted=accepted, escalated=True)
    reason = "accepted" if accepted else "computation"
    receipt = swarm.run.receipt(commit, *VALIDATORS, reason=reason)
    lists = {"certified" if accepted else "rejected": [digest]}
    swarm.final(**lists, checkers=[bits], receipts=[receipt])
    assert "again, after epoch" in swarm.found("one-ledger")


def test_a_page_decides_a_commit_once():
    swarm = Decisions()
    commit = swarm.commit()
    digest, bits = swarm.decide(commit, *VALIDATORS[:2])
    receipts = [swarm.run.receipt(commit, *VALIDATORS[:2])] * 2
    swarm.final(certified=[digest] * 2, checkers=[bits] * 2, receipts=receipts)
    assert "again, after epoch" in swarm.found("one-ledger")


def test_totals_never_shrink(monkeypatch):
    swarm = Decisions()
    swarm.certified(*VALIDATORS[:2])
    total = TracedAccounts.total
    monkeypatch.setattr(TracedAccounts, "total", lambda self, name: total(self, name) - 1)
    swarm.final(ledger=swarm.run.checkers.ledger.roots[LED_EPOCH])
    assert "falls from" in swarm.found("one-ledger")


# Stated accounts


@pytest.mark.parametrize("stated", [OTHER, b""])
def test_a_page_states_the_accounts_after_the_page_that_it_shows_final(stated):
    swarm = Decisions()
    swarm.certified(*VALIDATORS[:2])
    assert swarm.run.violations == []
    swarm.final(ledger=stated)
    assert "it states accounts" in swarm.found("true-accounts")


def test_accounts_of_another_page_are_wrong():
    swarm = Decisions()
    swarm.certified(*VALIDATORS[:2])
    swarm.final()
    roots = swarm.run.checkers.ledger.roots
    swarm.final(ledger=roots[sorted(roots)[-2]])
    assert "it states accounts" in swarm.found("true-accounts")


def test_the_first_pages_state_the_accounts_of_no_page():
    swarm = Decisions()
    swarm.final(ledger=OTHER)
    assert "after epoch -1" in swarm.found("true-accounts")


# Accounts of nodes


def sampled(swarm, *names, epoch=None, root=None):
    """Let nodes state that they have counted the newest page, or another one."""
    roots = swarm.run.checkers.ledger.roots
    epoch = max(roots) if epoch is None else epoch
    root = roots.get(epoch, OTHER) if root is None else root
    for name in names:
        swarm.run.emit(name, "sample", counted_epoch=epoch, counted_root=root)


def counted_run():
    """Return a calm run with a final page."""
    swarm = Decisions()
    swarm.run.emit("world", "calm")
    swarm.certified(*VALIDATORS[:2])
    return swarm


def test_a_node_has_the_accounts_of_its_newest_page():
    swarm = counted_run()
    sampled(swarm, *swarm.run.roles)
    sampled(swarm, "relay", epoch=-1)
    assert swarm.run.violations == []
    sampled(swarm, "liar", root=OTHER)  # it is dishonest
    assert swarm.run.violations == []
    sampled(swarm, "relay", root=OTHER)
    assert "has other accounts" in swarm.found("equal-accounts")
    assert swarm.run.violations[0].node == "relay"


def test_a_node_without_accounts_is_seen():
    swarm = counted_run()
    swarm.run.emit("relay", "sample", counted_epoch=LED_EPOCH, counted_root=None)
    assert "has other accounts" in swarm.found("equal-accounts")


def test_a_node_has_counted_final_pages_only():
    swarm = counted_run()
    sampled(swarm, "relay", epoch=LED_EPOCH + 40)
    assert swarm.run.violations == []  # the trace may show it final a moment later
    swarm.run.wait(2)
    assert "which is not final" in swarm.found("equal-accounts")


@pytest.mark.parametrize("is_right", [True, False])
def test_the_trace_may_show_a_page_final_after_a_node_does(is_right):
    swarm, first = Decisions(), Decisions()
    first.final()
    (newest,) = set(first.run.checkers.ledger.roots) - {-1, LED_EPOCH}
    root = first.run.checkers.ledger.roots[newest] if is_right else OTHER
    sampled(swarm, "relay", epoch=newest, root=root)
    swarm.final()
    swarm.run.wait(2)
    assert bool(swarm.found("equal-accounts")) is not is_right


def test_a_node_counts_final_pages():
    """A restarted node has as much time as the others."""
    swarm = counted_run()
    swarm.run.down("worker-0")
    swarm.run.wait(1)
    swarm.run.up("worker-0", restart=True)
    swarm.run.wait(PATIENCE.converge_epochs - 2)
    sampled(swarm, "relay", "worker-0", epoch=-1)
    swarm.run.wait(1)
    sampled(swarm, "worker-0", epoch=-1)
    assert swarm.run.violations == []
    swarm.run.wait(1)
    sampled(swarm, "relay", "worker-0")
    assert swarm.run.violations == []
    sampled(swarm, "worker-0", epoch=LED_EPOCH)
    assert "has not counted the page" in swarm.found("equal-accounts")


@pytest.mark.parametrize(
    "excuse", ["not calm", "calm for a moment", "restarted", "dishonest", "new"]
)
def test_a_node_may_be_behind(excuse):
    swarm = Decisions()
    if excuse not in ("not calm", "calm for a moment"):
        swarm.run.emit("world", "calm")
    if excuse == "new":
        swarm.run.wait(2)
    swarm.certified(*VALIDATORS[:2])
    if excuse != "new":
        swarm.run.wait(2)
    if excuse == "calm for a moment":
        swarm.run.emit("world", "calm")
    if excuse == "restarted":
        swarm.run.down("relay")
        swarm.run.up("relay", restart=True)
    swarm.run.wait(PATIENCE.converge_epochs - 1)
    sampled(swarm, "liar" if excuse == "dishonest" else "relay", epoch=-1)
    assert swarm.run.violations == []


# The same accounts as the protocol

PEERS = [peer_id_from_public_key(bytes([number]) * 32) for number in range(5)]
COUNTS = st.integers(0, 300)
CREDITS = st.builds(
    CreditRules,
    per_token=st.integers(0, 9),
    per_checked_token=st.integers(0, 9),
    per_learned_token=st.integers(0, 9),
    lock_epochs=st.integers(0, 40),
    gap_max=st.integers(0, 9) | st.integers(0, 300),
    slash=st.booleans(),
    era_epochs=st.integers(32, 50),
    reward_disagreement_rate=st.sampled_from([0.0, 0.01]),
)
SOME_PEERS = st.lists(st.sampled_from(PEERS), max_size=3, unique=True).map(sorted).map(tuple)
RECEIPTS = st.builds(
    Receipt,
    commit=st.binary(min_size=32, max_size=32),
    worker=st.sampled_from(PEERS),
    version=COUNTS,
    slot=st.integers(0, 9) | st.integers(0, 600),
    evaluation=st.booleans(),
    tokens=COUNTS,
    reason=st.sampled_from(["accepted", "accepted", "proofs", "reward", *SLASHABLE_REASONS]),
    checkers=SOME_PEERS,
)
SHARES = st.dictionaries(st.sampled_from(PEERS), st.tuples(COUNTS, COUNTS), max_size=3)
STEPS = st.builds(
    Step,
    version=COUNTS,
    manifest=st.binary(min_size=32, max_size=32),
    trainer=st.sampled_from(PEERS),
    learned=SHARES.map(lambda all_of: tuple((one, *all_of[one]) for one in sorted(all_of))),
    omitted=COUNTS,
    partners=SOME_PEERS,
).map(
    lambda one: one._replace(partners=tuple(peer for peer in one.partners if peer != one.trainer))
)
WORKS = st.builds(
    PageWork,
    st.lists(RECEIPTS, max_size=4).map(tuple),
    st.lists(STEPS, max_size=2).map(tuple),
)


def traced(work):
    """Return the same work by keys."""
    key = public_key_from_peer_id
    receipts = [
        TracedReceipt(*one)._replace(worker=key(one.worker), checkers=tuple(map(key, one.checkers)))
        for one in work.receipts
    ]
    steps = [
        TracedStep(*one)._replace(
            trainer=key(one.trainer),
            learned=tuple((key(peer), *rest) for peer, *rest in one.learned),
            partners=tuple(map(key, one.partners)),
        )
        for one in work.steps
    ]
    reversals = [
        TracedReversal(traced(PageWork((one.receipt,))).receipts[0], one.reason)
        for one in work.overturned
    ]
    return TracedWork(tuple(receipts), tuple(steps), tuple(reversals))


RULES = Rules.read(TraceExample({}).manifest)


def rules_of(credit):
    """Return the rules of a run with this credit."""
    terms = CreditTerms(
        **{name: getattr(credit, name) for name in CREDIT},
        reward_rate=credit.reward_disagreement_rate,
    )
    return replace(RULES, credit=terms, era_epochs=credit.era_epochs)


def overturning(receipts, number) -> tuple[Reversal, ...]:
    """Return what a page may undo of an earlier receipt, which leaves the list."""
    for one in receipts:
        reason = ("computation", "reward", "reward")[number % 3]
        if one.reason == "accepted" or one.reason in SLASHABLE_REASONS:
            receipts.remove(one)
            return (Reversal(one, reason if one.reason == "accepted" else "accepted"),)
    return ()


@given(CREDITS, st.lists(st.tuples(st.integers(1, 60), WORKS, st.booleans()), max_size=12))
def test_accounts_are_those_of_the_protocol(credit, pages):
    ours, theirs = TracedAccounts(rules_of(credit)), Accounts(credit)
    assert ours.root == theirs.root
    epoch, receipts, last = -1, list[Receipt](), dict[str, int]()
    for number, (more_epochs, plain, overturns) in enumerate(pages):
        epoch += more_epochs
        work = plain._replace(overturned=overturning(receipts, number) if overturns else ())
        for one in work.receipts:  # only a counted one can be overturned
            if one.evaluation or one.slot > last.get(one.worker, -1):
                receipts.append(one)
            if not one.evaluation:
                last[one.worker] = max(one.slot, last.get(one.worker, -1))
        page, beacon, head = (bytes([number, kind]) + bytes(30) for kind in range(3))
        assert traced(work).digest == work.digest
        ours.count(page, epoch, beacon, head, traced(work))
        theirs.apply(page, epoch, Digest(beacon), head, work)
        assert ours.root == theirs.root
        assert ours.held == theirs.totals.credit
