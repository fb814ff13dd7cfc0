"""Checkers on committees, evidence and trainers that are wholly dishonest."""

import pytest

from tests.simulations.trace_examples import PATIENCE, TraceExample, small_run

VALIDATORS = ("validator-0", "validator-1", "validator-2")
EXPIRE_EPOCHS = 10


def dishonest(run, *names):
    for name in names:
        run.watch.swarm.members[name].behaviour = "two-certificates"


# Committees


def false_and_accepted(run, **options):
    """Let validators 0 and 1 accept a false rollout; return its commit."""
    commit = run.commit("liar")
    run.spread(commit)
    run.spread(run.certificate(VALIDATORS[:2], commit, **options))
    return commit


def test_what_a_dishonest_committee_accepts_may_be_rejected_by_a_larger_one():
    run = small_run()
    dishonest(run, "validator-0", "validator-1")
    commit = false_and_accepted(run)
    assert run.violations == []
    dishonest(run, "validator-2")
    run.spread(run.certificate(VALIDATORS[1:], commit, accepted=False, escalated=True))
    run.wait(EXPIRE_EPOCHS + 3)
    assert run.violations == []
    assert (run.certificates.contradictory, run.certificates.certified_false) == (1, 0)


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
    commit = false_and_accepted(run)
    rejecting = run.certificate(VALIDATORS[1:], commit, accepted=False, escalated=True)
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
        accepting=run.verdict(validator, commit),
        rejecting=run.verdict(other, about or commit, accept=False),
    )


def run_with_evidence():
    """Return a run with evidence against validator 0, and the commit that it concerns."""
    run = small_run()
    dishonest(run, "validator-0")
    commit = run.commit("worker-0")
    run.spread(commit)
    run.stored(evidence(run, commit), "relay", "validator-0")
    return run, commit


@pytest.mark.parametrize(
    ("epochs", "validators", "broken"),
    [
        (EXPIRE_EPOCHS - 1, VALIDATORS[:2], []),
        (EXPIRE_EPOCHS, VALIDATORS[:2], ["excluded"]),
        (EXPIRE_EPOCHS, VALIDATORS[1:], []),
    ],
)
def test_a_validator_with_evidence_is_in_no_later_committee(epochs, validators, broken):
    run, commit = run_with_evidence()
    run.wait(epochs)
    run.certified("worker-0", validators, slot=1, previous=run.digest(commit))
    assert run.rules_broken == broken


def test_evidence_counts_when_everyone_can_have_it():
    run = small_run()
    dishonest(run, "validator-0")
    commit = run.commit("worker-0")
    run.spread(commit)
    run.wait(EXPIRE_EPOCHS)
    run.stored(evidence(run, commit), "relay")
    run.wait(PATIENCE.converge_epochs - 2)
    second = run.certified("worker-0", slot=1, previous=run.digest(commit))
    assert run.violations == []
    run.wait(1)
    run.certified("worker-0", slot=2, previous=run.digest(second))
    assert run.rules_broken == ["excluded"]


@pytest.mark.parametrize(
    ("validator", "other", "worker"),
    [
        ("validator-0", "validator-1", "worker-0"),
        ("validator-0", "validator-0", "liar"),
        ("relay", "relay", "worker-0"),
    ],
)
def test_evidence_that_proves_nothing_is_not_taken(validator, other, worker):
    run = small_run()
    about = run.commit(worker)
    run.stored(evidence(run, run.commit("worker-0"), validator, other, about), "relay")
    assert run.rules_broken == ["excluded"]


# Chains


TRAINERS = {
    "relay": ("relay",),
    "trainer": ("trainer",),
    "standby": ("trainer",),
    "worker-0": ("inference",),
    **dict.fromkeys(VALIDATORS, ("validator",)),
}


def chain_of_three():
    """Return a run with versions 0 to 3, and the manifests."""
    run = TraceExample(TRAINERS)
    run.up()
    versions = [run.published(0)]
    for number in (1, 2, 3):
        versions.append(run.published(number, versions[-1]))
    return run, versions


def test_the_newest_version_may_be_replaced():
    run, versions = chain_of_three()
    run.spread(run.checkpoint(3, versions[2], term=1, author="standby", policy=bytes(32)))
    assert run.violations == []


def test_more_than_the_newest_version_is_never_given_up_for_a_standby():
    run, versions = chain_of_three()
    manifest = run.checkpoint(2, versions[1], term=1, author="standby", policy=bytes(32))
    run.stored(manifest, "standby", "relay")
    assert run.rules_broken == ["one-chain"]
    assert "replaced versions 2 to 3" in run.violations[0].what


def test_a_validator_does_not_vouch_for_its_own_roll_back():
    run, versions = chain_of_three()
    manifest = run.checkpoint(2, versions[1], term=1, author="standby", policy=bytes(32))
    run.stored(manifest, "standby", "validator-0")
    assert run.rules_broken == ["one-chain"]


def test_a_node_that_was_cut_off_comes_back_to_the_branch_of_the_validators():
    run, versions = chain_of_three()
    run.down("relay", how="lost")
    run.up("relay", restart=True)
    run.down("validator-0", how="lost")
    run.up("validator-0", restart=True)
    run.stored(versions[0], "validator-0")
    branch = run.checkpoint(1, versions[0], term=1, author="standby", policy=bytes(32))
    run.stored(branch, "standby", "validator-0")
    run.stored(branch, "worker-0")
    assert run.violations == []
