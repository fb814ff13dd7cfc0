"""Evidence against a worker, and the batch of a missed version, reach a node much later."""

import pytest

from protocol.core.containers import table_sizes
from protocol.core.crypto import digest
from protocol.core.types import ValidationResult
from protocol.ledger.commits import CommitState
from protocol.replica import late_evidence
from protocol.replica.replica import Replica
from tests.worlds.messages import World, fingerprint, forged, identity, run_manifest

WORLD = World(run_manifest())
WORKER, OTHER = WORLD.workers[:2]
EXPIRE = WORLD.manifest.committee.expire_after_epochs
LATE = 10 * EXPIRE
"""An epoch in which commits of epoch 0 are long forgotten."""

NOW = WORLD.at(LATE)
LIE = WORLD.commit(WORKER)
REJECTION = WORLD.certificate(LIE, accepted=False, escalated=True)
FORK = [WORLD.commit(WORKER, tokens=tokens) for tokens in (10, 11)]


def late(*, joined_epoch=0, validators=WORLD.validators, world=WORLD) -> Replica:
    """Return the replica of a node that has just joined, with records and pages of this epoch."""
    result = world.replica(roster_at=None, pages_to=LATE)
    joined_at = round(world.at(joined_epoch) * 1000)
    for one in validators:
        record = world.record(one, ("validator",), LATE, joined_at=joined_at)
        assert result.receive(record.envelope, NOW).result is ValidationResult.ACCEPT
    return result


def synchronise(target, *messages, now=NOW):
    """Pass the messages that a peer lists, and return the result of the last one."""
    received = None
    for signed in messages:
        envelope = signed if isinstance(signed, bytes) else signed.envelope
        received = target.receive(envelope, now, anti_entropy=True)
    return received


def learns(target, *messages) -> bool:
    """Return whether messages slash the worker, also after the next pruning and a restart."""
    synchronise(target, *messages)
    slashed = target.ledger.workers.is_slashed(WORKER.peer_id)
    target.advance(NOW)
    assert target.ledger.workers.is_slashed(WORKER.peer_id) is slashed
    again = WORLD.restarted(target)
    again.advance(NOW)
    assert again.ledger.workers.is_slashed(WORKER.peer_id) is slashed
    assert len(again.ledger.proofs()) == len(target.ledger.proofs())
    return slashed


def test_a_lie_is_believed_with_its_certificate():
    target = late()
    synchronise(target, LIE)
    assert target.is_waiting(LIE.digest), "and not asked for again"
    received = synchronise(target, REJECTION)
    assert received.result is ValidationResult.ACCEPT
    assert learns(target)
    assert [entry.commit.digest for entry in target.ledger.proofs()] == [LIE.digest]
    assert target.ledger.commits.entries == {}
    assert not target.ledger.workers.is_slashed(OTHER.peer_id)
    assert target.ledger.workers.totals.committed == 1
    before = fingerprint(target)
    assert synchronise(target, LIE, REJECTION).result is ValidationResult.IGNORE
    assert fingerprint(target) == before


def test_two_commits_for_one_slot_are_believed_of_themselves():
    target = late()
    received = synchronise(target, FORK[0])
    assert received.result is ValidationResult.IGNORE
    received = synchronise(target, FORK[1])
    assert received.result is ValidationResult.ACCEPT
    assert received.settled == (FORK[0],), "both are stored"
    assert learns(target)
    assert {entry.commit.digest for entry in target.ledger.proofs()} == {
        commit.digest for commit in FORK
    }
    assert target.ledger.commits.open_entries() == []


@pytest.mark.parametrize("again", [FORK[:1] * 2, [FORK[0], WORLD.chain(WORKER, 2, tokens=10)[1]]])
def test_other_old_commits_prove_nothing(again):
    assert not learns(late(), *again)


def test_validators_that_restarted_or_left_since_do_not_void_a_certificate():
    """The old records are gone, and no other message can prove their presence."""
    assert learns(late(joined_epoch=LATE - 5), LIE, REJECTION)
    signers = WORLD.committee(LIE).escalated[: WORLD.committee(LIE).quorum]
    others = [one for one in WORLD.validators if one.peer_id not in signers]
    assert learns(late(joined_epoch=LATE - 5, validators=others), LIE, REJECTION)


def rejections():
    """Return certificates that prove nothing, by their fault."""
    committee = WORLD.committee(LIE)
    ranked = [WORLD.by_peer[peer] for peer in committee.ranking]

    def votes(signers, **options):
        verdicts = (WORLD.verdict(one, LIE, accept=False, **options) for one in signers)
        return {"verdicts": tuple(verdict.envelope for verdict in verdicts)}

    quorum = committee.quorum
    return {
        "one verdict too few": votes(ranked[: quorum - 1]),
        "the wrong end of the ranking": votes(ranked[-quorum:]),
        "no lie": votes(ranked[:quorum], reason="sampling"),
        "not escalated": votes(ranked[:quorum]) | {"escalated": False},
        "of nobody": votes(identity(f"nobody {n}") for n in range(quorum)),
        "of the worker": votes([WORKER, *ranked[: quorum - 1]]),
        "of one validator": votes(ranked[:1] * quorum),
    }


@pytest.mark.parametrize("name", sorted(rejections()))
@pytest.mark.parametrize("joined_epoch", [0, LATE - 5])
def test_an_invented_rejection_proves_nothing(name, joined_epoch):
    target = late(joined_epoch=joined_epoch)
    changes = {"accepted": False, "escalated": True} | rejections()[name]
    certificate = WORLD.certificate(LIE, **changes)
    assert not learns(target, LIE, certificate)
    assert target.ledger.workers.totals.committed == 0, (
        "nor counts each time that it is handed over"
    )
    assert not target.behind, "it is not waited for"
    assert learns(target, LIE, REJECTION), "and displaces nothing"


def test_an_eclipsed_node_does_not_take_one_validators_word():
    liar = WORLD.committee(LIE).ranking[0]
    verdict = WORLD.verdict(WORLD.by_peer[liar], LIE, accept=False)
    certificate = WORLD.certificate(
        LIE, accepted=False, escalated=True, verdicts=(verdict.envelope,)
    )
    assert not learns(late(validators=[]), LIE, certificate)


def test_an_acceptance_and_a_commit_alone_prove_nothing():
    assert not learns(late(), LIE, WORLD.certificate(LIE))
    assert not learns(late(), REJECTION)


def test_a_certificate_waits_for_its_old_commit():
    target = late()
    synchronise(target, REJECTION, LIE)
    target.advance(NOW)
    assert learns(target)


def test_forged_evidence_is_blamed_on_who_hands_it_over():
    target = late()
    for forgery in (forged(LIE, signature=bytes(64)), forged(REJECTION, signature=bytes(64))):
        assert synchronise(target, forgery).result is ValidationResult.REJECT
    bad = WORLD.certificate(LIE, accepted=False, escalated=True, verdicts=(b"\xc1",) * 3)
    synchronise(target, LIE)
    assert synchronise(target, bad).result is ValidationResult.REJECT
    assert not target.ledger.workers.is_slashed(WORKER.peer_id)


def test_gossip_brings_no_old_evidence():
    target = late()
    for signed in (*FORK, LIE, REJECTION):
        target.receive(signed.envelope, NOW)
    assert not target.ledger.workers.is_slashed(WORKER.peer_id)


def test_a_run_that_does_not_slash_keeps_no_evidence():
    world = World(run_manifest(credit={"slash": False}))
    target = world.replica(roster_at=None)
    synchronise(target, *(world.commit(WORKER, tokens=tokens) for tokens in (10, 11)))
    assert table_sizes(target.tables)["old_commits"] == 0
    assert target.ledger.proofs() == []


# Batches of versions that were missed

BATCH = WORLD.chain(WORKER, 4)[1:]
CERTIFICATES = [WORLD.certificate(commit) for commit in BATCH]
MISSED = WORLD.checkpoint(WORLD.genesis(), batch=tuple(commit.digest for commit in BATCH))
OLD = [one for pair in zip(BATCH, CERTIFICATES, strict=True) for one in pair]


def states(target) -> set[CommitState]:
    known = map(target.ledger.commits.known, (commit.digest for commit in BATCH))
    return {entry.state for entry in known if entry is not None}


@pytest.mark.parametrize("joined_epoch", [0, LATE - 5])
@pytest.mark.parametrize("slash", [True, False])
def test_a_version_that_was_missed_is_taken_with_its_old_certificates(joined_epoch, slash):
    world = World(run_manifest(credit={"slash": slash}))
    batch = world.chain(WORKER, 3)
    missed = world.checkpoint(world.genesis(), batch=tuple(commit.digest for commit in batch))
    target = late(joined_epoch=joined_epoch, world=world)
    synchronise(target, missed, *batch)
    for commit in batch:
        assert target.ledger.chain.version == 0
        received = synchronise(target, world.certificate(commit))
        assert received.result is ValidationResult.ACCEPT
        target.advance(NOW)
    assert target.ledger.chain.head == missed
    assert {entry.trained_in for entry in target.ledger.commits.kept.values()} == {1}


def test_old_certificates_that_no_missed_version_names_are_not_taken():
    target = late()
    synchronise(target, *OLD)
    assert states(target) == set()
    synchronise(target, WORLD.checkpoint(MISSED, batch=MISSED.message.batch), *OLD)
    assert states(target) == set(), "of a version that may not follow"
    synchronise(target, MISSED, *OLD)
    assert states(target) == {CommitState.CERTIFIED}


def test_invented_old_certificates_let_no_version_in():
    target = late()
    committee = WORLD.committee(BATCH[0])
    outsiders = [WORLD.by_peer[peer] for peer in committee.ranking[-committee.first_size :]]
    verdicts = tuple(WORLD.verdict(one, BATCH[0]).envelope for one in outsiders)
    invented = WORLD.certificate(BATCH[0], verdicts=verdicts)
    synchronise(target, MISSED, *BATCH, invented, *CERTIFICATES[1:])
    assert target.ledger.chain.version == 0
    synchronise(target, *OLD)
    assert target.ledger.chain.head == MISSED


def test_a_missed_version_that_learned_from_a_worker_slashed_since_is_taken():
    target = late()
    synchronise(target, LIE, REJECTION, MISSED, *OLD)
    assert target.ledger.workers.is_slashed(WORKER.peer_id)
    assert target.ledger.chain.head == MISSED


def test_a_commit_that_expired_here_counts_once_after_its_certificate():
    target = late()
    target.receive(LIE.envelope, WORLD.at(0))
    missed = WORLD.checkpoint(WORLD.genesis(), batch=(LIE.digest,))
    target.receive(missed.envelope, NOW)
    target.advance(NOW)
    assert LIE.digest in target.ledger.commits.kept, "a version names it"
    synchronise(target, LIE, WORLD.certificate(LIE))
    assert target.ledger.chain.head == missed
    totals = target.ledger.workers.totals
    assert (totals.committed, totals.certified, totals.expired) == (1, 1, 0)
    assert len(target.ledger.commits.all_entries()) == 1


def test_the_batches_of_the_newest_versions_are_kept_for_those_that_missed_them():
    target = late()
    named = 1 + WORLD.manifest.grpo.async_level
    synchronise(target, MISSED, *OLD)
    target.advance(NOW)
    head = MISSED
    for _ in range(named):
        assert BATCH[0].digest in target.ledger.commits.kept
        assert BATCH[0].digest in target.ledger.named()
        head = WORLD.checkpoint(head)
        synchronise(target, head)
        target.advance(NOW)
    assert target.ledger.chain.version == 1 + named
    assert BATCH[0].digest not in target.ledger.commits.kept


# Bounds


def forks(count):
    for number in range(count):
        signer = identity(f"untrusted {number}")
        yield [WORLD.commit(signer, tokens=tokens) for tokens in (10, 11)]


def test_old_commits_that_wait_are_bounded_and_forgotten(monkeypatch):
    monkeypatch.setattr(late_evidence, "OLD_COMMITS_MAX", 16)
    target = late()
    synchronise(target, LIE)
    for number in range(40):  # one key
        synchronise(
            target,
            WORLD.commit(OTHER, body=digest(b"%d" % number), slot=number + 1),
        )
    assert table_sizes(target.tables)["old_commits"] == 16
    assert target.is_waiting(LIE.digest), "a flood displaces itself"
    for number in range(40):  # forty keys
        synchronise(target, WORLD.commit(identity(f"untrusted {number}")))
    assert table_sizes(target.tables)["old_commits"] == 16
    target.advance(NOW + (EXPIRE + 1) * WORLD.manifest.epochs.seconds)
    assert table_sizes(target.tables)["old_commits"] == 0


def test_invented_forks_of_free_keys_are_bounded(monkeypatch):
    monkeypatch.setattr(late_evidence, "FORKS_MAX", 8)
    target = late()
    for pair in forks(20):
        synchronise(target, *pair)
    for _ in range(3):
        assert len(target.ledger.workers.forks) == 8
        target.advance(NOW)
        assert target.ledger.commits.entries == {}
        assert len(target.ledger.commits.kept) == 2 * 8
        for pair in forks(40):
            synchronise(target, *pair)
    synchronise(target, LIE, REJECTION)
    assert target.ledger.workers.is_slashed(WORKER.peer_id), (
        "no invention keeps the committees' word out"
    )


def test_forks_of_keys_that_are_not_admitted_are_not_taken():
    """Unadmitted keys cost nothing; a rejected commit shows that its worker was admitted."""
    world = World(run_manifest(admission={"rule": "invite"}))
    target = world.replica(roster_at=None)
    for one in world.validators:
        target.receive(world.record(one, ("validator",), LATE).envelope, NOW)
    synchronise(target, *(world.commit(OTHER, tokens=tokens) for tokens in (10, 11)))
    assert not target.ledger.workers.is_slashed(OTHER.peer_id)
    lie = world.commit(WORKER)
    synchronise(target, lie, world.certificate(lie, accepted=False, escalated=True))
    assert target.ledger.workers.is_slashed(WORKER.peer_id)
