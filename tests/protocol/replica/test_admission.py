"""Effects of admission on the records and commits of a replica."""

from itertools import count

import pytest

from protocol.core.faults import FaultCode
from protocol.core.types import ValidationResult
from protocol.ledger.commits import CommitState
from protocol.membership import admission as admitted
from protocol.membership import roster
from protocol.membership.proof_of_work import is_solved, solve, work_proof
from protocol.replica import replica
from tests.worlds.messages import World, identity, run_manifest

ACCEPT, IGNORE, REJECT = ValidationResult.ACCEPT, ValidationResult.IGNORE, ValidationResult.REJECT
RULES = {
    "rule": "open",
    "work_bits": 2,
    "work_kib": 8,
    "probation_epochs": 2,
    "settled_epochs": 20,
}
WORLD = World(run_manifest(admission=RULES))
WORKER = WORLD.workers[0]
WINDOW = 3


def proof(signer, epoch):
    rules, run_id = WORLD.manifest.admission, WORLD.run_id
    return solve(rules, run_id, signer.peer_id, epoch, count())


def is_unsolved(proof):
    rules = WORLD.manifest.admission
    return not is_solved(rules, WORLD.run_id, WORKER.peer_id, proof)


UNSOLVED = next(filter(is_unsolved, (work_proof(2, nonce) for nonce in count())))


def record(signer, epoch, roles=("inference",), *, date=None):
    admission = proof(signer, epoch if date is None else date)
    return WORLD.record(signer, roles, epoch, admission=admission)


def receive(here, signed, epoch, **options):
    return here.receive(signed.envelope, WORLD.at(epoch), **options)


def with_genesis_of(epoch):
    """Return a replica whose version 0 was made in an epoch, and that version."""
    genesis = WORLD.genesis(created_at=round(WORLD.at(epoch) * 1000))
    here = WORLD.replica(roster_at=None, genesis=False)
    assert receive(here, genesis, epoch).result is ACCEPT
    return here, genesis


def knowing(*records, epoch):
    """Return a replica that received members in an epoch, and its validators."""
    here = WORLD.replica(roster_at=epoch)
    for one in records:
        assert receive(here, one, epoch).result is ACCEPT
    return here


@pytest.mark.parametrize("roles", [("inference",), ("relay",)])
@pytest.mark.parametrize("bad", [b"", UNSOLVED, b"x" * 512])
def test_a_record_without_its_proof_is_refused_whatever_the_role(roles, bad):
    here = WORLD.replica()
    received = receive(here, WORLD.record(WORKER, roles, 2, admission=bad), 2)
    assert (received.result, received.fault.code) == (REJECT, FaultCode.NOT_ADMITTED)
    assert here.roster.get(WORKER.peer_id) is None


def test_a_commit_of_an_unknown_key_is_nobodys_fault_and_goes_nowhere():
    here = WORLD.replica()
    commit = WORLD.commit(WORKER, epoch=30)
    received = receive(here, commit, 30)
    assert (received.result, received.fault.code) == (IGNORE, FaultCode.UNKNOWN_KEY)
    assert not here.ledger.commits.entries


def test_a_key_that_came_after_a_checkpoint_is_not_judged_for_it():
    """The key may be ground for an easy first problem; its commits are forwarded anyway."""
    here = knowing(record(WORKER, 10), epoch=10)
    commit = WORLD.commit(WORKER, epoch=12)
    assert receive(here, commit, 12).result is ACCEPT
    entry = here.ledger.commits.entries[commit.digest]
    assert not entry.timely
    assert here.ledger.backpressure.backlog(here.ledger.epoch) == 0
    assert commit.envelope not in here.envelopes()


def test_a_key_counts_for_whatever_when_it_has_settled():
    here = knowing(record(WORKER, 10), epoch=10)
    last = 10 + WINDOW + 20 - 1
    for epoch, timely in ((last, False), (last + 1, True)):
        commit = WORLD.commit(WORKER, epoch=epoch, body=bytes([epoch]) * 32)
        assert receive(here, commit, epoch).result is ACCEPT
        assert here.ledger.commits.entries[commit.digest].timely is timely


@pytest.mark.parametrize(("heard", "timely"), [(1, True), (10, False)])
def test_a_date_that_was_put_back_gains_nothing(heard, timely):
    """The version is of epoch 8. A key of epoch 1 counts, one of 10 with a false date does not."""
    here, genesis = with_genesis_of(8)
    assert receive(here, record(WORKER, heard, date=1), heard).result is ACCEPT
    commit = WORLD.commit(WORKER, epoch=12, checkpoint=genesis.digest)
    assert receive(here, commit, 12).result is ACCEPT
    assert here.ledger.commits.entries[commit.digest].timely is timely
    assert here.counts(WORKER.peer_id, 0, 12) is timely


def test_a_version_that_is_not_here_may_be_as_old_as_any():
    here = knowing(record(WORKER, 10), epoch=10)
    commit = WORLD.commit(WORKER, epoch=30, version=5, checkpoint=bytes(32))
    assert receive(here, commit, 30).result is ACCEPT
    assert not here.ledger.commits.entries[commit.digest].timely


def test_who_was_absent_takes_what_the_others_have_certified():
    here, commit = WORLD.replica(roster_at=12), WORLD.commit(WORKER, epoch=12)
    assert receive(here, commit, 12, anti_entropy=True).result is ACCEPT
    assert not here.ledger.commits.entries[commit.digest].timely
    WORLD.refresh(here, 13)
    certificate = WORLD.certificate(commit)
    assert receive(here, certificate, 13).result is ACCEPT
    assert here.ledger.commits.entries[commit.digest].state is CommitState.CERTIFIED


def test_commits_of_so_many_unknown_keys_wait(monkeypatch):
    monkeypatch.setattr(replica, "UNKNOWN_KEYS_MAX", 2)
    here = WORLD.replica()
    untrusted = [identity(f"untrusted {n}") for n in range(3)]
    taken = [
        receive(here, WORLD.commit(one, epoch=12), 12, anti_entropy=True).result
        for one in untrusted
    ]
    assert taken == [ACCEPT, ACCEPT, IGNORE]
    more = WORLD.commit(untrusted[0], epoch=12, body=b"2" * 32)
    assert receive(here, more, 12, anti_entropy=True).result is ACCEPT


def test_records_wait_until_their_work_can_be_checked(monkeypatch):
    monkeypatch.setattr(admitted, "CHECKED_KIB_PER_SECOND", 8)
    monkeypatch.setattr(roster, "UNCHECKED_MAX", 2)
    here, now = WORLD.replica(), WORLD.at(2)
    crowd = [record(identity(f"untrusted {n}"), 2) for n in range(4)]
    results = [here.receive(one.envelope, now).result for one in crowd]
    assert results == [ACCEPT, IGNORE, IGNORE, IGNORE]
    assert [here.is_waiting(one.digest) for one in crowd] == [False, True, True, False]
    assert here.receive(WORLD.record(WORLD.validators[1], ("validator",), 2).envelope, now).result
    assert here.roster.get(WORLD.validators[1].peer_id).record.message.sequence > 0
    assert here.advance(now) == []
    assert here.advance(now + 1) == [crowd[1]]
    assert here.advance(now + 2) == [crowd[2]]
    assert len(here.roster.unchecked) == 0


def test_workers_of_the_genesis_commit_at_once():
    here = WORLD.replica()
    commit = WORLD.commit(WORLD.validators[0], epoch=0)
    assert receive(here, commit, 0).result is ACCEPT
    assert here.ledger.commits.entries[commit.digest].timely


@pytest.mark.parametrize(("version", "timely"), [(0, False), (1, True), (2, True)])
def test_whom_a_committee_has_judged_was_here_before_what_came_later(version, timely):
    """A late validator receives an old key now, with a certificate from before."""
    here = WORLD.replica(roster_at=None, genesis=False)
    versions = [WORLD.genesis()]
    for number in range(2):
        changes = {"created_at": round(WORLD.at(10 + number) * 1000)}
        versions.append(WORLD.checkpoint(versions[-1], **changes))
    WORLD.refresh(here, 12)
    for one in versions:
        assert receive(here, one, 12).result is ACCEPT
    old = WORLD.commit(WORKER, epoch=12, version=1, checkpoint=versions[1].digest)
    assert receive(here, old, 12, anti_entropy=True).result is ACCEPT
    WORLD.refresh(here, 13)
    assert receive(here, WORLD.certificate(old), 13).result is ACCEPT
    assert not here.counts(WORKER.peer_id, version, 14), "its record has not come"
    assert receive(here, record(WORKER, 14), 14).result is ACCEPT
    assert here.counts(WORKER.peer_id, version, 14) is timely
