"""Overturned outcomes in traces: valid ones are counted, all others and their victims reported."""

import pytest

from protocol.ledger.receipts import Reversal
from simulations.checkers.reexamination import TracedDecision
from simulations.checkers.wire import key_of
from tests.simulations.trace_examples import LED_EPOCH, small_run

LOT = b"prime-node/reexamine"
MORE = {f"validator-{number}": ("validator",) for number in range(3, 9)}


class Reviewed:
    """A run in which a committee of two accepts a rollout, and a page draws it again."""

    def __init__(self, worker="liar"):
        self.run = run = small_run(more=MORE)
        self.commit = run.commit(worker)
        self.digest = run.digest(self.commit)
        run.spread(self.commit)
        listing = run.voted(run.page(b"", LED_EPOCH, commits=[self.digest]))
        drawing, last = run.chain(2, listing)
        ranking = run.committee(self.commit, drawing)
        self.signers, self.committee = ranking[:2], ranking[:3]
        run.dishonest(*self.signers)
        run.spread(
            run.certificate(self.signers, self.commit, accepted=True, escalated=False, page=drawing)
        )
        self.receipt = run.receipt(self.commit, *self.signers)
        decided = {"certified": [self.digest], "checkers": [0b11], "receipts": [self.receipt]}
        deciding = run.voted(run.page(last, **decided))
        self.before, self.page, self.last = run.chain(3, deciding)
        names = {peer: name for name, peer in run.peers.items()}
        lot = run.states[run.digest(self.page)].beacon + self.digest + LOT
        ranked = [names[peer] for peer in run.ranked(lot)]
        self.members = [name for name in ranked if name not in self.committee]

    def overturn(self, *places, reason="computation", page=None):
        """Store an overturn by some drawn members."""
        fields = {
            "commit": self.digest,
            "page": self.run.digest(self.page if page is None else page),
            "reason": reason,
        }
        signatures = [self.run.signature("objection", self.members[n], **fields) for n in places]
        bits = sum(1 << place for place in places)
        author = self.members[0]
        self.run.spread(
            self.run.envelope("overturn", author, **fields, members=bits, signatures=signatures)
        )

    def listed(self, reason="computation"):
        """Make a page final that lists the overturn; return the rules that are broken."""
        reversal = Reversal(self.receipt, reason)
        page = self.run.voted(
            self.run.page(self.last, overturned=[self.digest], reversals=[reversal])
        )
        self.run.chain(2, page)
        return {violation.rule for violation in self.run.violations}


def test_a_valid_overturn_is_counted():
    swarm = Reviewed()
    assert len(swarm.members) == 6
    swarm.overturn(0, 1, 3, 5)
    assert swarm.listed() == set()
    overturns = swarm.run.checkers.overturns
    assert [(one, reason) for one, reason, _ in overturns.outcomes] == [
        (swarm.digest, "computation")
    ]
    assert set(overturns.blamed) == {swarm.run.peers[one] for one in swarm.signers}
    assert swarm.run.checkers.ledger.sums.rollouts == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"places": (0, 1, 2)},
        {"places": (0, 1, 2, 6)},
        {"reason": "statistics"},
        {"reason": "accepted"},
        {"page": "before"},
        {"page": "last"},
    ],
)
def test_an_overturn_that_does_not_hold_undoes_nothing(wrong):
    swarm = Reviewed()
    swarm.members += swarm.committee  # a member of the committee is never drawn
    page = getattr(swarm, wrong.get("page", "page"))
    reason = wrong.get("reason", "computation")
    swarm.overturn(*wrong.get("places", (0, 1, 2, 3)), reason=reason, page=page)
    assert swarm.listed(reason) == {"true-work"}


def test_a_page_without_an_overturn_undoes_nothing():
    assert Reviewed().listed() == {"true-work"}


def test_an_overturned_honest_rollout_is_reported():
    swarm = Reviewed("worker-0")
    swarm.overturn(0, 1, 2, 3)
    assert swarm.listed() == {"no-honest-overturned"}


def test_a_blamed_honest_validator_is_reported():
    swarm = Reviewed()
    other = next(one for one in swarm.members if one not in swarm.signers)
    worker, honest = (key_of(swarm.run.peers[name]) for name in ("liar", other))
    overturns, page = swarm.run.checkers.overturns, swarm.run.pages.final_page
    decision = TracedDecision(page(swarm.run.digest(swarm.page)), worker, "accepted", (honest,))
    overturns.note(swarm.digest, decision, "reward", 9)
    assert swarm.run.violations == [], "machines may differ in a reward"
    overturns.note(swarm.digest, decision, "computation", 9)
    assert {violation.rule for violation in swarm.run.violations} == {"no-honest-blamed"}
