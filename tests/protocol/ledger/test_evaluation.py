from protocol.core.faults import Fault, FaultCode
from protocol.ledger.chain import Lead
from protocol.ledger.commits import CommitState
from protocol.ledger.ledger import Ledger
from tests.worlds.messages import World, found, run_manifest, set_outcome

WORLD = World(run_manifest(evaluation={"every_versions": 2, "rollouts_per_worker": 2}))
WORKER = WORLD.workers[0]
CHAIN = WORLD.chain(WORKER, 4)
"""Slots 0 and 1 evaluate version 0, slots 2 and 3 are training data."""


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
    kept = {commit.digest for commit in CHAIN[2:]}
    assert ledger.commits.kept.keys() == kept
