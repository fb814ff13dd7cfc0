"""Limit of remembered workers, and the order of eviction."""

import pytest

from protocol.core.containers import table_sizes
from protocol.ledger import worker_stats
from protocol.ledger.chain import Lead
from protocol.ledger.commits import CommitState
from protocol.ledger.ledger import Ledger
from tests.worlds.messages import World, found, identity, run_manifest, set_outcome

WORLD = World(run_manifest())
UNTRUSTED = [identity(f"untrusted {number}") for number in range(6)]
LONG_AFTER = 1 + 5 * WORLD.manifest.committee.expire_after_epochs
"""An epoch in which commits of epoch 0 are forgotten."""


def keys(*signers):
    return {one.peer_id for one in signers}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(worker_stats, "UNCERTIFIED_MAX", 4)


@pytest.fixture
def ledger():
    made = Ledger(WORLD.manifest)
    assert made.offer_checkpoint(WORLD.genesis(), WORLD.at(0), Lead(0, b"")) is True
    return made


def fork(ledger, signer, epoch=0):
    pair = [WORLD.commit(signer, epoch=epoch, tokens=tokens) for tokens in (10, 11)]
    assert [ledger.offer_commit(one, epoch) for one in pair] == [True, True]
    return pair


def certify(ledger, commit, *, accepted=True):
    certificate = WORLD.unchecked_certificate(commit, accepted=accepted)
    assert set_outcome(ledger, certificate, found("computation"))


def much_later(ledger):
    """Advance until commits of epoch 0 are forgotten and their version is old."""
    for _ in range(4 * WORLD.manifest.shardcast.versions_kept + 1):
        version = WORLD.checkpoint(ledger.chain.head)
        assert ledger.offer_checkpoint(version, WORLD.at(0), Lead(0, b"")) is True
    ledger.advance(LONG_AFTER)


def remembered(ledger):
    return {entry.commit.signer for entry in ledger.commits.kept.values()}


def test_forks_of_many_keys_are_forgotten_the_oldest_first(ledger):
    for one in UNTRUSTED:
        fork(ledger, one)
    much_later(ledger)
    last = keys(*UNTRUSTED[2:])
    assert ledger.workers.counts.keys() == ledger.workers.forks.keys() == remembered(ledger) == last
    assert len(ledger.commits.kept) == 2 * 4
    assert table_sizes(ledger.tables)["uncertified_workers"] == 4
    assert ledger.workers.totals.committed == 12
    assert not ledger.workers.is_slashed(UNTRUSTED[0].peer_id)
    assert ledger.workers.is_slashed(UNTRUSTED[5].peer_id)


def test_who_has_commits_here_is_not_forgotten(ledger):
    for one in UNTRUSTED[:5]:
        fork(ledger, one)
    first = UNTRUSTED[0]
    assert ledger.offer_commit(WORLD.commit(first, 1, epoch=LONG_AFTER), LONG_AFTER) is True
    much_later(ledger)
    assert ledger.workers.forks.keys() == keys(*UNTRUSTED[:5])
    for one in UNTRUSTED[5:]:
        fork(ledger, one, LONG_AFTER)
    ledger.advance(2 * LONG_AFTER)
    assert ledger.workers.forks.keys() == keys(*UNTRUSTED[2:])


def test_untrusted_peers_take_no_place_of_who_has_had_a_rollout_certified(ledger):
    worker = WORLD.workers[0]
    first, _ = fork(ledger, worker)
    certify(ledger, first)
    for one in UNTRUSTED:
        fork(ledger, one)
    much_later(ledger)
    assert ledger.workers.forks.keys() == keys(worker, *UNTRUSTED[2:])
    assert ledger.workers.is_slashed(worker.peer_id)
    assert ledger.workers.counts[worker.peer_id].certified == 1


def test_workers_with_certified_rollouts_are_bounded_by_themselves(ledger, monkeypatch):
    monkeypatch.setattr(worker_stats, "MEMBERS_MAX", 3)
    for one in UNTRUSTED:
        commit = WORLD.commit(one)
        assert ledger.offer_commit(commit, 0) is True
        certify(ledger, commit)
    much_later(ledger)
    assert ledger.workers.counts.keys() == keys(*UNTRUSTED[3:])
    assert (table_sizes(ledger.tables)["uncertified_workers"], ledger.workers.totals.certified) == (
        0,
        6,
    )


def test_the_evidence_of_a_lie_goes_with_its_worker(ledger):
    lies = [WORLD.commit(one) for one in UNTRUSTED]
    for commit in lies:
        assert ledger.offer_commit(commit, 0) is True
        certify(ledger, commit, accepted=False)
    much_later(ledger)
    kept = set(ledger.commits.kept)
    assert kept == {commit.digest for commit in lies[2:]}
    assert {entry.state for entry in ledger.commits.kept.values()} == {CommitState.REJECTED}
    again = WORLD.commit(UNTRUSTED[0], epoch=LONG_AFTER)
    assert ledger.offer_commit(again, LONG_AFTER) is True
    assert ledger.workers.counts[UNTRUSTED[0].peer_id].committed == 1
    assert not ledger.workers.is_slashed(UNTRUSTED[0].peer_id)


def test_an_older_judgement_goes_with_its_worker_too(ledger):
    for one in UNTRUSTED:
        commit = WORLD.commit(one)
        assert ledger.offer_commit(commit, 0) is True
        certify(ledger, commit, accepted=False)
    assert ledger.workers.was_judged(UNTRUSTED[0].peer_id, 0)
    much_later(ledger)
    assert not ledger.workers.was_judged(UNTRUSTED[0].peer_id, 0)
    assert ledger.workers.was_judged(UNTRUSTED[5].peer_id, 0)
