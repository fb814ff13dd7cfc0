"""Checkers on committees, evidence and trainers that are wholly dishonest."""

import pytest

from simulations.checkers.excluded import CLOSING_EPOCHS
from tests.simulations.trace_examples import PATIENCE, small_run

VALIDATORS = ("validator-0", "validator-1", "validator-2")
EXPIRE_EPOCHS = 10


def dishonest(run, *names):
    for name in names:
        run.watch.swarm.members[name].behaviour = "two-certificates"


# Committees


def false_and_accepted(run, **options):
    """Let validators 0 and 1 accept a false rollout; return its commit, and its page."""
    commit = run.commit("liar")
    run.spread(commit)
    page = run.drawn_for(commit, [run.peers[name] for name in VALIDATORS[:2]])
    run.spread(run.certificate(VALIDATORS[:2], commit, page=page, **options))
    return commit, page


def test_what_a_dishonest_committee_accepts_may_be_rejected_by_a_larger_one():
    run = small_run()
    dishonest(run, "validator-0", "validator-1")
    commit, page = false_and_accepted(run)
    assert run.violations == []
    dishonest(run, "validator-2")
    run.spread(run.certificate(VALIDATORS[1:], commit, accepted=False, escalated=True, page=page))
    run.wait(EXPIRE_EPOCHS + 3)
    assert run.violations == []
    assert (run.certificates.contradictory, run.certificates.certified_false) == (1, 0)


def test_a_rejection_of_a_worse_rank_does_not_reject_what_is_false():
    run = small_run(more={"validator-3": ("validator",)}, escalated_size=4, size=1)
    dishonest(run, "validator-0", *VALIDATORS[1:], "validator-3")
    commit = run.commit("liar")
    run.spread(commit)
    page = run.drawn_for(commit, [run.peers["validator-0"]])
    run.spread(run.certificate(["validator-0"], commit, page=page))
    others = ["validator-1", "validator-2", "validator-3"]
    run.spread(run.certificate(others, commit, accepted=False, escalated=True, page=page))
    run.wait(EXPIRE_EPOCHS + 2)
    assert run.rules_broken == ["no-false-rollout-certified"]


def test_what_a_dishonest_committee_accepts_must_be_rejected_before_it_expires():
    run = small_run()
    dishonest(run, "validator-0", "validator-1")
    false_and_accepted(run)
    run.wait(EXPIRE_EPOCHS)
    assert run.violations == []
    run.wait(2)
    assert run.rules_broken == ["no-false-rollout-certified"]


@pytest.mark.parametrize("escalated", [False, True])
def test_an_honest_member_or_a_larger_committee_never_accepts_what_is_false(escalated):
    run = small_run()
    dishonest(run, "validator-0", *(["validator-1"] if escalated else []))
    false_and_accepted(run, escalated=escalated)
    assert run.rules_broken == ["no-false-rollout-certified"]


def test_every_node_must_come_to_the_outcome_that_counts():
    run = small_run()
    run.emit("world", "calm")
    dishonest(run, *VALIDATORS)
    commit, page = false_and_accepted(run)
    rejecting = run.certificate(VALIDATORS[1:], commit, accepted=False, escalated=True, page=page)
    everyone_but_the_relay = [name for name in run.roles if name != "relay"]
    run.spread(rejecting, *everyone_but_the_relay)
    run.wait(PATIENCE.converge_epochs)
    assert run.rules_broken == ["ledgers-converge"]
    assert run.violations[0].node == "relay"


def test_an_outcome_that_does_not_count_need_not_be_known():
    run = small_run()
    run.emit("world", "calm")
    commit = run.commit("liar")
    run.spread(commit)
    dishonest(run, *VALIDATORS)
    run.spread(run.certificate(VALIDATORS[1:], commit, accepted=False, escalated=True))
    run.stored(run.certificate(VALIDATORS[:2], commit), "validator-0", "relay")
    run.wait(PATIENCE.converge_epochs + 1)
    assert run.violations == []


# Evidence


def evidence(run, commit, validator="validator-0", other="validator-0", about=None):
    return run.envelope(
        "evidence",
        "relay",
        commit=commit,
        first=run.verdict(validator, commit),
        second=run.verdict(other, about or commit, accept=False),
    )


def run_with_evidence():
    """Return a run with evidence against validator 0, and the commit that it concerns."""
    run = small_run(more={"validator-3": ("validator",)})
    dishonest(run, "validator-0")
    commit = run.commit("worker-0")
    run.spread(commit)
    run.stored(evidence(run, commit), "relay", "validator-0")
    return run, commit


REMOVAL_EPOCHS = PATIENCE.converge_epochs + CLOSING_EPOCHS
"""Epochs from evidence to the first council without its key."""


@pytest.mark.parametrize(
    ("epochs", "broken"), [(REMOVAL_EPOCHS, []), (REMOVAL_EPOCHS + 1, ["excluded"])]
)
def test_a_validator_with_evidence_loses_its_seat(epochs, broken):
    run, _ = run_with_evidence()
    run.emit("world", "calm")
    run.voted(run.page(epoch=epochs))
    assert run.rules_broken == broken


def test_the_time_to_remove_a_validator_begins_with_the_evidence():
    run = small_run(more={"validator-3": ("validator",)})
    run.emit("world", "calm")
    dishonest(run, "validator-0")
    run.wait(EXPIRE_EPOCHS)
    commit = run.commit("worker-0")
    run.spread(commit)
    run.stored(evidence(run, commit), "relay")
    first = run.voted(run.page(epoch=EXPIRE_EPOCHS + REMOVAL_EPOCHS))
    assert run.violations == []
    run.voted(run.page(first))
    assert run.rules_broken == ["excluded"]


@pytest.mark.parametrize("calm", [False, True])
def test_the_time_to_remove_a_validator_begins_after_the_faults(calm):
    run, _ = run_with_evidence()
    run.wait(4)
    if calm:
        run.emit("world", "calm")
    first = run.voted(run.page(epoch=REMOVAL_EPOCHS + 4))
    assert run.violations == []
    run.voted(run.page(first))
    assert run.rules_broken == (["excluded"] if calm else [])


def test_a_council_with_a_third_of_dishonest_members_may_keep_them():
    run, _ = run_with_evidence()
    run.emit("world", "calm")
    dishonest(run, "validator-1")
    run.voted(run.page(epoch=REMOVAL_EPOCHS + 1))
    assert run.violations == []


def test_a_page_that_draws_nothing_may_have_an_accused_member():
    run, _ = run_with_evidence()
    run.emit("world", "calm")
    run.voted(run.page(epoch=REMOVAL_EPOCHS + 1, reveals=[b"", b""]))
    assert run.violations == []


@pytest.mark.parametrize(
    ("validator", "other", "worker"),
    [
        ("validator-0", "validator-1", "worker-0"),
        ("validator-0", "validator-0", "liar"),
    ],
)
def test_evidence_that_proves_nothing_is_not_taken(validator, other, worker):
    run = small_run()
    about = run.commit(worker)
    run.stored(evidence(run, run.commit("worker-0"), validator, other, about), "relay")
    assert run.rules_broken == ["excluded"]
