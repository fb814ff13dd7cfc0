"""Retention rules: traces that keep both rules, and traces that violate just one."""

import pytest

from tests.simulations.trace_examples import small_run

RULE = ["stored-is-kept"]
BODY, WEIGHTS, STATE, DIFFERENCE = "rollout-body", "weights", "optimiser-state", "difference"
BLOB = b"b" * 32


def own(run, node, purpose, subject, blob=BLOB):
    run.emit(node, "blob-owned", digest=blob, purpose=purpose, subject=subject)


def release(run, node, purpose, subject):
    run.emit(node, "blobs-released", purpose=purpose, subject=subject)


def delete(run, node, blob=BLOB):
    run.emit(node, "blob-deleted", digest=blob)


def index(version):
    return bytes(31) + bytes([version])


def versions(run, count):
    """Publish ``count`` versions after 0; the index of each is its number."""
    parent = run.genesis
    for version in range(1, count + 1):
        parent = run.published(version, parent, index=index(version))
        run.wait(1)
    return parent


# A blob goes with its last owner


def test_what_has_another_owner_is_not_deleted():
    run = small_run()
    own(run, "relay", BODY, b"c" * 32)
    own(run, "relay", WEIGHTS, b"i" * 32)
    release(run, "relay", BODY, b"c" * 32)
    assert run.rules_broken == []
    delete(run, "relay")
    assert run.rules_broken == RULE
    assert "stores for weights" in run.violations[0].what


def test_what_all_have_released_is_deleted():
    run = small_run()
    for subject in (b"c" * 32, b"d" * 32):
        own(run, "relay", BODY, subject)
        own(run, "validator-0", BODY, subject)
    for subject in (b"c" * 32, b"d" * 32):
        release(run, "relay", BODY, subject)
    delete(run, "relay")
    assert run.rules_broken == []


def test_who_lost_its_disk_begins_anew():
    run = small_run()
    own(run, "relay", BODY, b"c" * 32)
    run.down("relay", how="lost")
    run.up("relay")
    own(run, "relay", WEIGHTS, b"i" * 32)
    release(run, "relay", WEIGHTS, b"i" * 32)
    delete(run, "relay")
    assert run.rules_broken == []


# Bodies


def test_the_body_of_an_open_commit_is_kept_until_it_expires():
    for epochs, broken in ((7, RULE), (12, [])):
        run = small_run()
        commit = run.commit("worker-0")
        run.spread(commit)
        own(run, "validator-0", BODY, run.digest(commit))
        run.wait(epochs)
        release(run, "validator-0", BODY, run.digest(commit))
        assert run.rules_broken == broken


def test_the_body_of_a_rejected_commit_may_go():
    run = small_run()
    commit = run.commit("liar")
    run.spread(commit)
    own(run, "validator-0", BODY, run.digest(commit))
    validators = ("validator-0", "validator-1", "validator-2")
    rejected = run.certificate(validators, commit, accepted=False, escalated=True)
    run.wait(2)
    run.spread(rejected)
    release(run, "validator-0", BODY, run.digest(commit))
    assert run.rules_broken == []


@pytest.mark.parametrize(("newer", "broken"), [(2, RULE), (3, [])])
def test_the_body_of_a_certified_commit_is_kept_while_it_is_young(newer, broken):
    run = small_run()
    commit = run.certified("worker-0")
    own(run, "trainer", BODY, run.digest(commit))
    versions(run, newer)
    release(run, "trainer", BODY, run.digest(commit))
    assert run.rules_broken == broken


@pytest.mark.parametrize("taken", [True, False])
def test_a_version_of_a_dishonest_trainer_makes_bodies_old_once_a_node_takes_it(taken):
    run = small_run()
    run.watch.swarm.members["trainer"].behaviour = "two-versions"
    commit, parent = run.certified("worker-0"), run.genesis
    own(run, "relay", BODY, run.digest(commit))
    for version in range(1, 4):
        parent = run.checkpoint(version, parent)
        run.stored(parent, "trainer", *["relay"] * taken)
    release(run, "relay", BODY, run.digest(commit))
    assert run.rules_broken == ([] if taken else RULE)


@pytest.mark.parametrize(("epochs", "broken"), [(37, RULE), (42, [])])
def test_the_body_of_a_certified_commit_is_kept_until_all_forget_it(epochs, broken):
    run = small_run()
    commit = run.certified("worker-0")
    own(run, "trainer", BODY, run.digest(commit))
    run.wait(epochs)
    release(run, "trainer", BODY, run.digest(commit))
    assert run.rules_broken == broken


def test_the_body_of_a_commit_that_was_learned_from_may_go():
    run = small_run()
    commit = run.certified("worker-0")
    own(run, "trainer", BODY, run.digest(commit))
    run.wait(1)
    run.trained(commit)
    run.published(1, run.genesis, [commit])
    release(run, "trainer", BODY, run.digest(commit))
    assert run.rules_broken == []


def test_a_body_whose_commit_was_never_signed_may_go():
    run = small_run()
    own(run, "worker-0", BODY, b"c" * 32)
    release(run, "worker-0", BODY, b"c" * 32)
    assert run.rules_broken == []


# Versions


@pytest.mark.parametrize(
    ("purpose", "version", "broken"),
    [
        (WEIGHTS, 4, RULE),
        (WEIGHTS, 2, RULE),
        (WEIGHTS, 1, []),
        (STATE, 4, RULE),
        (STATE, 3, []),
        (DIFFERENCE, 4, []),
    ],
)
def test_what_the_newest_versions_are_made_of_is_kept(purpose, version, broken):
    run = small_run()
    own(run, "relay", purpose, index(version))
    versions(run, 4)
    release(run, "relay", purpose, index(version))
    assert run.rules_broken == broken


def test_a_version_that_a_later_term_replaced_may_go():
    run = small_run()
    own(run, "relay", WEIGHTS, index(1))
    run.published(1, run.genesis, index=index(1))
    run.led(1, run.genesis)
    run.published(1, run.genesis, index=index(9), term=1)
    release(run, "relay", WEIGHTS, index(1))
    assert run.rules_broken == []


@pytest.mark.parametrize(("forked", "broken"), [(False, RULE), (True, [])])
def test_the_longer_branch_may_go_when_a_later_term_has_begun_below_it(forked, broken):
    run = small_run()
    run.led(1, run.genesis)
    first = run.published(1, run.genesis, index=index(1), term=1)
    parent = first
    for version in (2, 3, 4):
        parent = run.checkpoint(version, parent, index=index(version), term=1)
        run.spread(parent, "relay", "validator-1")
    if forked:
        run.led(2, first)
        run.spread(run.checkpoint(2, first, index=index(9), term=2), "validator-0")
    own(run, "relay", WEIGHTS, index(4))
    release(run, "relay", WEIGHTS, index(4))
    assert run.rules_broken == broken


# Nodes covered by the rules


def test_a_restart_may_have_lost_the_reason_to_keep_something():
    run = small_run()
    commit = run.commit("worker-0")
    run.spread(commit)
    own(run, "validator-0", BODY, run.digest(commit))
    run.down("validator-0")
    run.wait(1)
    run.up("validator-0", restart=True)
    release(run, "validator-0", BODY, run.digest(commit))
    assert run.rules_broken == []


def test_a_dishonest_node_keeps_what_it_likes():
    run = small_run()
    commit = run.commit("worker-0")
    run.spread(commit)
    own(run, "liar", BODY, run.digest(commit))
    release(run, "liar", BODY, run.digest(commit))
    assert run.rules_broken == []


def test_commits_that_all_nodes_forgot_are_forgotten():
    run = small_run()
    commit = run.certified("worker-0")
    storage = next(
        handler.__self__
        for handler in run.watch._events["blob-owned"]
        if type(handler.__self__).__name__ == "Storage"
    )

    def remembered():
        return storage._settled, storage._learned

    assert run.digest(commit) in remembered()[0]
    run.wait(200)
    assert remembered() == ({}, {})
