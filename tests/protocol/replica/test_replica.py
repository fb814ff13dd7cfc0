import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.containers import table_sizes
from protocol.core.crypto import digest, verify
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Topic, ValidationResult
from protocol.ledger.commits import COMMITS_IN_FLIGHT_MAX, CommitState
from protocol.replica import replica as replica_module
from protocol.replica.replica import TOPIC_KINDS, Received, Replica
from tests.worlds.messages import World, fingerprint, forged, run_manifest

WORLD = World(run_manifest(trainers=2))
WORKER, OTHER = WORLD.workers[:2]
VALIDATOR = WORLD.validators[0]
COMMIT = WORLD.commit(WORKER)
CERTIFICATE = WORLD.certificate(COMMIT)
NOW = WORLD.at(1)
EXPIRE_SECONDS = 100
GENESIS = WORLD.genesis()


def replica(*signed, **options) -> Replica:
    result = WORLD.replica(**options)
    for one in signed:
        assert take(result, one) is ValidationResult.ACCEPT
    return result


def take(target, signed, now=NOW) -> ValidationResult:
    return target.receive(signed.envelope, now).result


def refused(target, envelope, relay=ValidationResult.REJECT, now=NOW) -> str:
    """Offer an envelope that must change nothing, and return the reason."""
    before = fingerprint(target)
    received = target.receive(envelope, now)
    assert received.result is relay
    assert isinstance(received.fault, Fault)
    end = -1 if received.settled else None  # verdicts come last
    assert fingerprint(target)[:end] == before[:end]
    return received.fault.code


# Entry of messages


def test_a_rollout_from_commit_to_version():
    target = replica(WORLD.record(WORKER, ("inference",)), COMMIT, CERTIFICATE)
    entry = target.ledger.commits.entries[COMMIT.digest]
    assert (entry.state, entry.reason) == (CommitState.CERTIFIED, "accepted")
    assert (
        take(target, WORLD.checkpoint(GENESIS, batch=(COMMIT.digest,))) is ValidationResult.ACCEPT
    )
    assert target.ledger.chain.version == 1
    assert not target.behind


@pytest.mark.parametrize("signed", [COMMIT, CERTIFICATE, GENESIS, WORLD.record(OTHER, ("relay",))])
def test_what_is_known_is_no_news(signed):
    target = replica(COMMIT, CERTIFICATE, WORLD.record(OTHER, ("relay",)))
    assert take(target, signed) is ValidationResult.IGNORE


@pytest.mark.parametrize("topic", Topic)
def test_a_topic_carries_its_kind_alone(topic):
    messages = [WORLD.record(OTHER, ("relay",)), COMMIT, CERTIFICATE, WORLD.checkpoint(GENESIS)]
    messages += [WORLD.verdict(VALIDATOR, COMMIT), WORLD.evidence(VALIDATOR, COMMIT)]
    for signed in messages:
        target = replica()
        before = fingerprint(target)
        received = target.receive(signed.envelope, NOW, topic=topic)
        if isinstance(signed.message, TOPIC_KINDS[topic]):
            assert received.fault is None
        else:
            assert received.fault == Fault(FaultCode.WRONG_TOPIC)
            assert fingerprint(target) == before


@given(st.binary(max_size=200))
def test_random_bytes_are_rejected(data):
    assert SHARED.receive(data, NOW).result is ValidationResult.REJECT


SHARED = replica(COMMIT)


@given(st.data())
def test_no_changed_byte_of_any_message_is_taken(data):
    signed = data.draw(st.sampled_from([CERTIFICATE, WORLD.verdict(VALIDATOR, COMMIT), GENESIS]))
    place = data.draw(st.integers(0, len(signed.envelope) - 1))
    flipped = bytes([signed.envelope[place] ^ data.draw(st.integers(1, 255))])
    refused(SHARED, signed.envelope[:place] + flipped + signed.envelope[place + 1 :])


@pytest.mark.parametrize(
    "signed", [COMMIT, CERTIFICATE, WORLD.checkpoint(GENESIS), WORLD.verdict(VALIDATOR, COMMIT)]
)
def test_forgeries_are_rejected(signed):
    target = replica() if signed is COMMIT else replica(COMMIT)
    for signer in (OTHER.peer_id, VALIDATOR.peer_id + " ", WORLD.trainers[1].peer_id):
        assert refused(target, forged(signed, signer=signer)) == "bad-signature"
    assert refused(target, forged(signed, signature=bytes(64))) == "bad-signature"
    assert refused(target, forged(signed, kind="hardware")) == "wrong-kind"
    other_run = World(run_manifest(trainers=3)).sealed(signed.message, WORLD.by_peer[signed.signer])
    assert refused(target, other_run.envelope) == "bad-signature"


# Commits, and the node at fault


def test_only_what_is_wrong_for_everyone_is_blamed_on_its_carrier():
    target = replica(COMMIT)
    wrong = WORLD.commit(OTHER, sequences=5)
    assert refused(target, wrong.envelope) == "bad-counts"
    # Two honest nodes may each hold one of two such messages.
    views = {
        "wrong-checkpoint": WORLD.commit(OTHER, checkpoint=bytes(32)),
        "future-epoch": WORLD.commit(OTHER, epoch=9),
        "clock-skew": WORLD.record(OTHER, ("relay",), 9),
        "protocol-version": WORLD.record(OTHER, ("relay",), protocol_version=2),
        "unknown-role": WORLD.record(OTHER, ("muse",)),
        "term-jump": WORLD.checkpoint(GENESIS, term=4),
        "version-reused": WORLD.genesis(index_bytes=99),
    }
    for reason, signed in views.items():
        assert refused(target, signed.envelope, ValidationResult.IGNORE) == reason


def test_the_outcome_of_a_commit_that_comes_after_its_worker_is_slashed_is_taken():
    rejection = WORLD.certificate(COMMIT, accepted=False, escalated=True)
    target = replica(COMMIT, rejection)
    assert target.ledger.commits.entries[COMMIT.digest].reason == "computation"
    successor = WORLD.commit(WORKER, 1, COMMIT.digest)
    take(target, successor)
    take(target, WORLD.certificate(successor, accepted=False, escalated=True))
    assert target.ledger.commits.entries[successor.digest].state is CommitState.REJECTED


def test_a_commit_with_an_old_date_is_neither_taken_nor_passed_on():
    target = replica()
    late = WORLD.at(10)
    old = WORLD.commit(WORKER)
    assert refused(target, old.envelope, ValidationResult.IGNORE, late) == "old-date"
    received = target.receive(old.envelope, late, topic=Topic.COMMITS)
    assert (received.result, received.fault.code) == (ValidationResult.IGNORE, "old-date")
    assert old.digest not in target.ledger.commits.entries


def test_a_late_commit_survives_a_restart_only_with_its_outcome():
    """After the restart no node knows that it came too late."""
    target = replica()
    late = WORLD.at(10)
    received = target.receive(COMMIT.envelope, late, anti_entropy=True)
    assert (received.result, received.lasting) == (ValidationResult.ACCEPT, False)
    assert COMMIT.digest not in restarted(target).ledger.commits.entries
    assert target.receive(CERTIFICATE.envelope, late, anti_entropy=True).lasting
    again = restarted(target)
    assert again.ledger.commits.entries[COMMIT.digest].state is CommitState.CERTIFIED
    in_time = replica().receive(COMMIT.envelope, NOW, anti_entropy=True)
    assert (in_time.result, in_time.lasting) == (ValidationResult.ACCEPT, True)


def test_two_commits_for_one_slot_end_the_same_everywhere():
    fork = WORLD.commit(WORKER, tokens=11)
    one, other = replica(COMMIT), replica(fork)
    for target in (one, other):
        for signed in (COMMIT, fork, CERTIFICATE):
            take(target, signed)
        target.advance(NOW)
    assert one.ledger.workers.totals.certified == other.ledger.workers.totals.certified


# Verdicts


def test_verdicts_are_of_validators_and_count_for_the_certificate():
    target = replica(COMMIT)
    committee = target.verdicts.committee(COMMIT)
    for peer in committee.first:
        assert take(target, WORLD.verdict(WORLD.by_peer[peer], COMMIT)) is ValidationResult.ACCEPT
    assert target.verdicts.pool(COMMIT.digest).outcome(committee).accepted
    assert refused(target, WORLD.verdict(OTHER, COMMIT).envelope) == "not-a-validator"


def test_two_verdicts_of_one_validator_are_recorded():
    target = replica(COMMIT, WORLD.verdict(VALIDATOR, COMMIT))
    for detail in map(str, range(50)):
        liar = WORLD.verdict(VALIDATOR, COMMIT, accept=False, detail=detail)
        assert refused(target, liar.envelope, ValidationResult.IGNORE) == "equivocation"
    assert list(target.verdicts.pool(COMMIT.digest).equivocations) == [VALIDATOR.peer_id]


def test_a_certificate_shows_equivocation_too():
    ranked = WORLD.committee(COMMIT).first
    liar = WORLD.verdict(WORLD.by_peer[ranked[0]], COMMIT, accept=False)
    target = replica(COMMIT, liar, CERTIFICATE)
    assert list(target.verdicts.pool(COMMIT.digest).equivocations) == [ranked[0]]


def test_an_equivocation_that_is_found_is_told_once_and_excludes_its_author():
    ranked = WORLD.committee(COMMIT).first
    liar = WORLD.by_peer[ranked[0]]
    target = replica(COMMIT, CERTIFICATE)
    assert target.verdicts.evidence_due() == []
    take(target, WORLD.verdict(liar, COMMIT, accept=False))
    (message,) = target.verdicts.evidence_due()
    assert target.verdicts.evidence_due() == []
    evidence = WORLD.sealed(message, OTHER)
    assert take(target, evidence) is ValidationResult.ACCEPT
    assert take(target, evidence) is ValidationResult.IGNORE
    take(target, WORLD.verdict(liar, COMMIT, accept=False, detail="once more"))
    assert target.verdicts.evidence_due() == [], "everybody knows by now"
    assert restarted(target).verdicts.equivocators.evidence == [evidence]


@pytest.mark.parametrize("both_known", ["by verdict", "by certificate"])
def test_evidence_does_not_depend_on_which_verdict_came_first(both_known):
    ranked = WORLD.committee(COMMIT).first
    lie = WORLD.verdict(WORLD.by_peer[ranked[0]], COMMIT, accept=False)
    true = WORLD.verdict(WORLD.by_peer[ranked[0]], COMMIT)
    one, other = replica(COMMIT, lie), replica(COMMIT, true)
    take(one, CERTIFICATE if both_known == "by certificate" else true)
    take(other, lie)
    assert one.verdicts.evidence_due() == other.verdicts.evidence_due() != []


EXCLUDED_FROM = WORLD.manifest.committee.expire_after_epochs + 1
"""An epoch in which validators that equivocated about ``COMMIT`` are excluded."""


def test_the_excluded_are_not_drawn_and_count_for_nothing_in_a_certificate():
    late = WORLD.commit(WORKER, epoch=EXCLUDED_FROM)
    target = replica(roster_at=EXCLUDED_FROM)
    now = WORLD.at(EXCLUDED_FROM + 1)
    ranked = target.verdicts.committee(late).ranking
    liars = [WORLD.by_peer[peer] for peer in ranked[:2]]
    certificate = WORLD.certificate(late)
    assert take(target, late, now) is ValidationResult.ACCEPT
    for liar in liars:
        assert take(target, WORLD.evidence(liar, COMMIT)) is ValidationResult.ACCEPT
    assert target.verdicts.committee(late).ranking == ranked[2:]
    received = target.receive(certificate.envelope, now)
    assert received.fault is not None
    assert received.fault.code == "other-committee"
    before = WORLD.commit(WORKER, epoch=EXCLUDED_FROM - 2, slot=1, previous=COMMIT.digest)
    assert set(target.verdicts.committee(before).ranking) == set(ranked)


def test_verdicts_go_with_their_commit():
    target = replica(COMMIT, WORLD.verdict(VALIDATOR, COMMIT))
    target.advance(WORLD.at(41))
    assert target.verdicts.pools == {}


# Certificates


def lies() -> dict:
    """Return invalid certificates by their fault."""
    committee = WORLD.committee(COMMIT)
    ranked = [WORLD.by_peer[peer] for peer in committee.ranking]
    other = WORLD.commit(OTHER)

    def votes(signers, **options):
        return tuple(WORLD.verdict(one, COMMIT, **options).envelope for one in signers)

    three = votes(ranked[:3])
    elsewhere = World(run_manifest(trainers=3)).verdict(ranked[0], COMMIT).envelope
    worker_vote = WORLD.verdict(WORKER, COMMIT).envelope
    with pytest.raises(ValueError, match="limit"):
        WORLD.verdict(ranked[0], COMMIT, reason="é" * 200, detail="é" * 200)
    return {
        "one verdict": {"verdicts": three[:1]},
        "one verdict three times": {"verdicts": three[:1] * 3},
        "the wrong end of the ranking": {"verdicts": votes(ranked[3:6])},
        "a verdict of the worker": {"verdicts": (*three[:2], worker_vote)},
        "a verdict too many, of the worker": {"verdicts": (*three, worker_vote)},
        "verdicts of trainers": {"verdicts": votes(WORLD.trainers)},
        "a verdict about another commit": {
            "verdicts": (*three[:2], WORLD.verdict(ranked[2], other).envelope)
        },
        "a verdict of another run": {"verdicts": (*three[1:], elsewhere)},
        "a reject shown as accept": {"verdicts": (*three[:2], *votes(ranked[2:3], accept=False))},
        "a rejection by the small committee": {
            "accepted": False,
            "verdicts": votes(ranked[:3], accept=False),
        },
        "escalated without its quorum": {"escalated": True, "verdicts": votes(ranked[3:6])},
        "no verdicts at all but bytes": {"verdicts": (b"", b"\xc1", b"x" * 100)},
        "another kind of message": {"verdicts": (COMMIT.envelope,) * 3},
        "a forged verdict": {"verdicts": (*three[:2], forged_verdict(ranked))},
    }


def forged_verdict(ranked) -> bytes:
    return forged(WORLD.verdict(ranked[3], COMMIT), signer=ranked[2].peer_id)


@pytest.mark.parametrize("name", sorted(lies()))
def test_a_lying_certificate_settles_nothing(name):
    target = replica(COMMIT)
    before = fingerprint(target)
    certificate = WORLD.certificate(COMMIT, **lies()[name])
    received = target.receive(certificate.envelope, NOW)
    assert received.result is not ValidationResult.ACCEPT
    assert received.fault is not None
    for epoch in range(1, 4):
        assert target.advance(WORLD.at(epoch)) == []
    end = -1 if received.settled else None  # verdicts come last
    assert fingerprint(target)[:end] == before[:end]
    assert take(target, CERTIFICATE) is ValidationResult.ACCEPT


@pytest.mark.parametrize(
    "name",
    [
        "one verdict three times",
        "a forged verdict",
        "a reject shown as accept",
        "a rejection by the small committee",
        "a verdict about another commit",
        "a verdict too many, of the worker",
    ],
)
@pytest.mark.parametrize("roster_at", [0, None], ids=["committee", "none can be drawn"])
def test_what_is_wrong_with_a_certificate_for_everyone_is_rejected(name, roster_at):
    target = replica(COMMIT, roster_at=roster_at)
    certificate = WORLD.certificate(COMMIT, **lies()[name])
    assert refused(target, certificate.envelope) == "bad-certificate"
    assert not target.behind


def test_only_validators_assemble_certificates():
    target = replica(COMMIT)
    sealed = WORLD.sealed(CERTIFICATE.message, OTHER)
    assert refused(target, sealed.envelope) == "not-a-validator"


def test_a_certificate_waits_for_its_commit():
    target = replica()
    assert take(target, CERTIFICATE) is ValidationResult.IGNORE
    assert target.behind
    assert take(target, COMMIT) is ValidationResult.ACCEPT
    assert target.advance(NOW) == [CERTIFICATE]
    assert not target.behind
    assert target.ledger.workers.totals.certified == 1


@pytest.mark.parametrize("known", [0, 2])
def test_a_certificate_waits_for_the_roster_that_can_check_it(known):
    target = replica(COMMIT, roster_at=None)
    for one in WORLD.validators[:known]:
        target.receive(WORLD.record(one, ("validator",)).envelope, NOW)
    assert refused(target, CERTIFICATE.envelope, ValidationResult.IGNORE) == "other-committee"
    assert target.advance(NOW) == []
    assert target.behind
    WORLD.refresh(target, 0)
    assert target.advance(NOW) == [CERTIFICATE]


def test_verdicts_of_a_committee_that_is_not_ours_count_with_our_own():
    """A node that sees one validator more needs more rejections, and adds its own verdict."""
    target = replica(COMMIT)
    committee = target.verdicts.committee(COMMIT)
    *others, last = (
        WORLD.verdict(WORLD.by_peer[peer], COMMIT, accept=False)
        for peer in committee.ranking[: committee.quorum]
    )
    smaller = tuple(one.envelope for one in others)
    rejection = WORLD.certificate(COMMIT, accepted=False, escalated=True, verdicts=smaller)
    received = target.receive(rejection.envelope, NOW)
    assert received.fault.code == "other-committee"
    assert received.settled == tuple(others)
    assert target.receive(rejection.envelope, NOW).settled == ()
    assert target.ledger.commits.entries[COMMIT.digest].certificate is None
    assert take(target, last) is ValidationResult.ACCEPT
    outcome = target.verdicts.pool(COMMIT.digest).outcome(committee)
    assert outcome is not None
    assert not outcome.accepted


def test_two_outcomes_of_one_commit_end_the_same_everywhere():
    """Three of the first committee certify a commit that the larger one rejects, on two sides."""
    rejection = WORLD.certificate(COMMIT, accepted=False, escalated=True)
    one, other = replica(COMMIT, CERTIFICATE), replica(COMMIT, rejection)
    first, second = WORLD.checkpoint(GENESIS, batch=(COMMIT.digest,)), None
    second = WORLD.checkpoint(first)
    assert take(one, rejection) is ValidationResult.ACCEPT
    assert take(other, CERTIFICATE) is ValidationResult.IGNORE
    for target in (one, other):
        for version in (first, second):
            assert take(target, version) is ValidationResult.ACCEPT
    assert fingerprint(one)[1:5] == fingerprint(other)[1:5]
    assert fingerprint(restarted(one))[1:5] == fingerprint(one)[1:5]
    assert one.ledger.commits.entries[COMMIT.digest].state is CommitState.REJECTED
    assert not one.ledger.backpressure.usable()
    assert take(one, WORLD.certificate(COMMIT, escalated=True)) is ValidationResult.IGNORE


def test_what_outranks_an_outcome_is_checked_like_any_other():
    target = replica(COMMIT, CERTIFICATE)
    lie = WORLD.certificate(
        COMMIT,
        accepted=False,
        escalated=True,
        verdicts=(WORLD.verdict(VALIDATOR, COMMIT, accept=False).envelope,),
    )
    assert refused(target, lie.envelope, ValidationResult.IGNORE) == "other-committee"
    assert target.ledger.commits.entries[COMMIT.digest].state is CommitState.CERTIFIED


def test_the_commonest_reason_is_kept():
    committee = WORLD.committee(COMMIT)
    reasons = ("sampling", "reward", "reward")
    verdicts = tuple(
        WORLD.verdict(WORLD.by_peer[peer], COMMIT, accept=False, reason=reason).envelope
        for peer, reason in zip(committee.escalated, reasons, strict=False)
    )
    rejection = WORLD.certificate(COMMIT, accepted=False, escalated=True, verdicts=verdicts)
    target = replica(COMMIT, rejection)
    assert target.ledger.commits.entries[COMMIT.digest].reason == "reward"


# Pending messages


def test_verdicts_and_versions_wait_for_what_comes_before():
    target = replica()
    verdict = WORLD.verdict(VALIDATOR, COMMIT)
    first = WORLD.checkpoint(GENESIS)
    second = WORLD.checkpoint(first)
    third = WORLD.checkpoint(second)
    for signed in (verdict, third, second):
        assert take(target, signed) is ValidationResult.IGNORE
    assert target.behind
    assert take(target, COMMIT) is ValidationResult.ACCEPT
    received = target.receive(first.envelope, NOW)
    assert received == Received(ValidationResult.ACCEPT, first, settled=(second, third))
    assert target.advance(NOW) == [verdict]
    assert (target.ledger.chain.version, target.behind) == (3, False)
    assert take(target, verdict) is ValidationResult.IGNORE


def test_a_version_of_a_later_term_waits_for_its_parent():
    target = replica(WORLD.checkpoint(GENESIS))
    parent = WORLD.checkpoint(GENESIS, trainer=1, term=1)
    child = WORLD.checkpoint(parent, trainer=1)
    assert take(target, child) is ValidationResult.IGNORE
    assert target.behind
    assert target.receive(parent.envelope, NOW).settled == (child,)
    assert target.ledger.chain.head == child
    assert not target.behind


def unknown(name: str):
    """Return a commit that never arrives."""
    return WORLD.commit(OTHER, body=digest(name.encode()))


def test_what_waits_is_bounded_and_a_flood_displaces_itself_alone(monkeypatch):
    monkeypatch.setattr(replica_module, "WAITING_MAX", 8)
    target = replica()
    honest = WORLD.verdict(WORLD.validators[1], COMMIT)
    assert take(target, honest) is ValidationResult.IGNORE
    for n in range(50):
        take(target, WORLD.verdict(VALIDATOR, unknown(f"flood {n}")))
    waiting = [signed for signed, _ in target._early_verdicts.entries.values()]
    assert len(waiting) == 8
    assert waiting[0] == honest
    assert take(target, COMMIT) is ValidationResult.ACCEPT
    assert target.advance(NOW) == [honest]


def test_a_certificate_of_nothing_does_not_keep_a_node_asking_for_ever():
    target = replica()
    ghost = WORLD.sealed(
        CERTIFICATE.message.model_copy(update={"commit": digest(b"ghost")}), VALIDATOR
    )
    assert take(target, ghost) is ValidationResult.IGNORE
    target.advance(NOW + EXPIRE_SECONDS / 2)
    take(target, ghost, NOW + EXPIRE_SECONDS / 2)  # a repeat does not prolong its wait
    target.advance(NOW + EXPIRE_SECONDS)
    assert target.behind
    target.advance(NOW + EXPIRE_SECONDS + 1)
    assert not target.behind


def test_untrusted_peers_cannot_fill_any_waiting_table():
    target = replica()
    for message in (
        WORLD.verdict(VALIDATOR, unknown("x")).message,
        WORLD.certificate(unknown("x")).message,
        WORLD.checkpoint(WORLD.checkpoint(GENESIS)).message,
    ):
        refused(target, WORLD.sealed(message, OTHER).envelope)
    assert not target.behind
    assert table_sizes(target.tables)["waiting"] == 0


# Leading


def test_the_first_live_trainer_leads_and_then_the_last_publisher():
    target = replica()
    first, second = WORLD.trainers
    assert target.leader(NOW) is None
    take(target, WORLD.record(second, ("trainer",)))
    assert target.leader(NOW) == second.peer_id
    take(target, WORLD.record(first, ("trainer",)))
    assert target.leader(NOW) == first.peer_id
    take(target, WORLD.checkpoint(GENESIS, trainer=1, term=1))
    assert target.leader(NOW) == second.peer_id
    assert (
        take(target, WORLD.record(second, ("trainer",), 1, leaving=True)) is ValidationResult.ACCEPT
    )
    assert target.leader(WORLD.at(1)) == first.peer_id


def test_a_trainers_key_that_only_relays_does_not_lead():
    target = replica()
    first, second = WORLD.trainers
    take(target, WORLD.record(first, ("relay",)))
    take(target, WORLD.record(second, ("trainer",)))
    assert target.leader(NOW) == second.peer_id


# Restart


def restarted(target) -> Replica:
    result = Replica(WORLD.manifest, verify)
    for envelope in target.envelopes():
        result.restore(envelope)
    return result


def test_a_restart_brings_back_the_ledger_and_the_votes():
    chain = WORLD.chain(WORKER, 3)
    target = replica(*chain, WORLD.commit(OTHER), WORLD.verdict(VALIDATOR, chain[2]))
    assert take(target, WORLD.certificate(chain[0])) is ValidationResult.ACCEPT
    rejection = WORLD.certificate(WORLD.commit(OTHER), accepted=False, escalated=True)
    assert take(target, rejection) is ValidationResult.ACCEPT
    assert (
        take(target, WORLD.checkpoint(GENESIS, batch=(chain[0].digest,))) is ValidationResult.ACCEPT
    )
    again = restarted(target)
    assert fingerprint(again)[1:] == fingerprint(target)[1:]
    assert sorted(target.envelopes()) == sorted(set(target.envelopes())), "each once"


def test_a_restart_keeps_more_commits_than_may_wait_at_once():
    target = replica()
    count = 2 * COMMITS_IN_FLIGHT_MAX
    for commit in WORLD.chain(WORKER, count):
        assert take(target, commit) is ValidationResult.ACCEPT
        assert take(target, WORLD.certificate(commit)) is ValidationResult.ACCEPT
    again = restarted(target)
    assert again.ledger.workers.totals == target.ledger.workers.totals
    assert again.ledger.workers.totals.certified == count


def test_a_restart_keeps_a_commit_whose_version_was_superseded():
    first = WORLD.checkpoint(GENESIS, policy=digest(b"first"))
    target = replica(first)
    old = WORLD.commit(WORKER, version=1, checkpoint=first.digest)
    assert take(target, old) is ValidationResult.ACCEPT
    successor = WORLD.checkpoint(GENESIS, trainer=1, term=1, policy=digest(b"second"))
    assert take(target, successor) is ValidationResult.ACCEPT
    assert old.digest in restarted(target).ledger.commits.entries


@pytest.mark.parametrize(
    "kind", ["rollout-commit", "certificate", "checkpoint-manifest", "verdict", "evidence"]
)
def test_damaged_storage_is_passed_over(kind):
    target = replica(COMMIT)
    before = fingerprint(target)
    for signed in (COMMIT, CERTIFICATE, GENESIS, WORLD.verdict(VALIDATOR, COMMIT)):
        target.restore(forged(signed, kind=kind, signature=bytes(64)))
    target.restore(b"\xc1")
    target.restore(WORLD.record(OTHER, ("relay",)).envelope)
    target.restore(WORLD.certificate(unknown("gone")).envelope)
    assert fingerprint(target) == before
