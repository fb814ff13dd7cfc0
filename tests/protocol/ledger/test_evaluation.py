import pytest

from protocol.core.faults import Fault, FaultCode
from protocol.ledger.chain import Lead
from protocol.ledger.commits import CommitState
from protocol.ledger.ledger import Ledger
from tests.worlds.messages import World, found, run_manifest, set_outcome

WORLD = World(run_manifest(evaluation={"every_versions": 2, "rollouts_per_worker": 2}))
WORKER = WORLD.workers[0]
CHAIN = [*WORLD.chain(WORKER, 2, evaluation=True), *WORLD.chain(WORKER, 2)]
"""Slots 0 and 1 evaluate version 0; then slots 0 and 1 of the training data."""


def settled() -> Ledger:
    ledger = Ledger(WORLD.manifest)
    assert ledger.offer_checkpoint(WORLD.genesis(), WORLD.at(0), Lead(0, b"")) is True
    for commit in CHAIN:
        assert ledger.offer_commit(commit, 0) is True
        assert set_outcome(ledger, WORLD.unchecked_certificate(commit), found("accepted")) is True
    return ledger


def offered(ledger, *batch):
    digests = tuple(commit.digest for commit in batch)
    version = WORLD.checkpoint(ledger.chain.head, batch=digests)
    return ledger.offer_checkpoint(version, WORLD.at(0), Lead(0, b""))


def test_evaluation_rollouts_are_certified_work_and_no_version_waits_for_them():
    ledger = settled()
    assert {entry.state for entry in ledger.commits.entries.values()} == {CommitState.CERTIFIED}
    assert ledger.workers.counts[WORKER.peer_id].certified == 4
    assert {entry.commit.digest for entry in ledger.backpressure.usable()} == {
        commit.digest for commit in CHAIN[2:]
    }
    assert ledger.backpressure.backlog(ledger.epoch) == 2
    grpo = WORLD.manifest.grpo
    assert (
        ledger.backpressure.wanted(ledger.epoch) == grpo.rollouts_per_step * grpo.rollouts_ahead - 2
    )


def test_a_version_that_learned_from_an_evaluation_is_refused():
    for commit in CHAIN[:2]:
        result = offered(settled(), CHAIN[2], commit)
        assert isinstance(result, Fault)
        assert result.code is FaultCode.EVALUATION_BATCH
    assert offered(settled(), *CHAIN[2:]) is True


def test_evaluations_are_not_kept_for_a_version_to_come():
    ledger = settled()
    epochs = 4 * WORLD.manifest.committee.expire_after_epochs + 1
    ledger.advance(epochs)
    kept = {commit.digest for commit in CHAIN[1:]}
    assert ledger.commits.kept.keys() == kept, "the last one tells which slots are used"
    assert ledger.commits.next_slot(WORKER.peer_id, CHAIN[0].message.checkpoint) == 2
    for _ in range(WORLD.manifest.grpo.async_level + 1):
        assert offered(ledger) is True
    ledger.advance(epochs + 1)
    assert CHAIN[1].digest not in ledger.commits.kept


def test_an_evaluation_slot_is_another_one_than_the_training_slot_of_its_number():
    ledger = settled()
    assert ledger.workers.forks == {}
    second = WORLD.commit(WORKER, 1, evaluation=True, tokens=3)
    assert ledger.offer_commit(second, 0) is True
    assert ledger.workers.forks == {WORKER.peer_id: (CHAIN[1].digest, second.digest)}


@pytest.mark.parametrize("changes", [{"slot": 2}, {"version": 1}])
def test_an_evaluation_of_another_slot_or_version_is_a_fault(changes):
    commit = WORLD.commit(WORKER, **changes, evaluation=True)
    result = Ledger(WORLD.manifest).offer_commit(commit, 0)
    assert isinstance(result, Fault)
    assert result.code is FaultCode.EVALUATION_SLOT
