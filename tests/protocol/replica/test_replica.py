from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.consensus.committee import draw
from protocol.consensus.member import Contents
from protocol.core.containers import table_sizes
from protocol.core.crypto import digest
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Topic, ValidationResult
from protocol.ledger.chain import Lead
from protocol.ledger.commits import COMMITS_IN_FLIGHT_MAX, CommitState
from protocol.ledger.receipts import PageWork, Receipt
from protocol.ledger.slot_window import WINDOW_SLOTS
from protocol.messages import PROTOCOL_VERSION, Certificate
from protocol.replica import replica as replica_module
from protocol.replica.received import TOPIC_KINDS, Received
from protocol.replica.replica import Replica
from tests.worlds.messages import World, fingerprint, forged, run_manifest
from tests.worlds.page_book import PageBook, fast_output, fast_verify

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
    assert received.settled == ()
    assert fingerprint(target) == before
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
    target.ledger.follow(Lead(0, GENESIS.digest), WORLD.at(0))
    # Two honest nodes may each hold one of two such messages.
    views = {
        "wrong-checkpoint": WORLD.commit(OTHER, checkpoint=bytes(32)),
        "future-epoch": WORLD.commit(OTHER, epoch=9),
        "clock-skew": WORLD.record(OTHER, ("relay",), 9),
        "protocol-version": WORLD.record(OTHER, ("relay",), protocol_version=PROTOCOL_VERSION + 1),
        "unknown-role": WORLD.record(OTHER, ("muse",)),
        "version-reused": WORLD.genesis(index_bytes=99),
    }
    for reason, signed in views.items():
        assert refused(target, signed.envelope, ValidationResult.IGNORE) == reason


def test_the_outcome_of_a_commit_that_comes_after_its_worker_is_slashed_is_taken():
    rejection = WORLD.certificate(COMMIT, accepted=False, escalated=True)
    target = replica(COMMIT, rejection)
    assert target.ledger.commits.entries[COMMIT.digest].reason == "computation"
    successor = WORLD.commit(WORKER, 1)
    take(target, successor)
    take(target, WORLD.certificate(successor, accepted=False, escalated=True))
    assert target.ledger.commits.entries[successor.digest].state is CommitState.REJECTED


def test_a_slot_far_above_those_of_its_worker_is_ignored():
    target = replica()
    assert take(target, WORLD.commit(WORKER, WINDOW_SLOTS)) is ValidationResult.IGNORE
    assert target.ledger.commits.entries == {}
    assert take(target, WORLD.commit(WORKER, WINDOW_SLOTS - 1)) is ValidationResult.ACCEPT
    assert target.next_slot(WORKER.peer_id) == WINDOW_SLOTS
    last = WORLD.commit(WORKER, 2 * WINDOW_SLOTS - 1)
    assert take(target, last) is ValidationResult.ACCEPT, "expired ones may lie between"


def test_accounts_tell_which_slots_are_near_and_a_page_lists_any():
    target, peer = replica(), WORKER.peer_id
    receipt = Receipt(bytes(32), peer, 0, 900, False, 10, "accepted", ())
    accounts = target.intake.accounts
    accounts.apply(bytes(32), accounts.header.epoch + 1, bytes(32), b"", PageWork((receipt,)))
    assert target.next_slot(peer) == 901
    assert take(target, WORLD.commit(WORKER, 901 + WINDOW_SLOTS)) is ValidationResult.IGNORE
    assert take(target, WORLD.commit(WORKER, 900 + WINDOW_SLOTS)) is ValidationResult.ACCEPT
    far = WORLD.commit(OTHER, 5000)
    target.pages.lists = lambda commit: commit == far.digest
    assert take(target, far) is ValidationResult.ACCEPT


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
    assert COMMIT.digest not in WORLD.restarted(target).ledger.commits.entries
    assert target.receive(CERTIFICATE.envelope, late, anti_entropy=True).lasting
    again = WORLD.restarted(target)
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


def pool_of(target):
    return target.verdicts.pool(COMMIT.digest, WORLD.committee(COMMIT).page.digest)


def test_verdicts_are_of_validators_and_count_for_the_certificate():
    target, committee = replica(COMMIT), WORLD.committee(COMMIT)
    for peer in committee.first:
        assert take(target, WORLD.verdict(WORLD.by_peer[peer], COMMIT)) is ValidationResult.ACCEPT
    assert pool_of(target).outcome(committee).accepted
    before = fingerprint(target)
    for early in (False, True):  # another node may know a council with this key
        about = unknown("x") if early else COMMIT
        assert take(target, WORLD.verdict(OTHER, about)) is ValidationResult.IGNORE
    assert fingerprint(target) == before
    assert table_sizes(target.tables)["waiting"] == 0


def test_two_verdicts_of_one_validator_are_recorded():
    target = replica(COMMIT, WORLD.verdict(VALIDATOR, COMMIT))
    for detail in map(str, range(50)):
        liar = WORLD.verdict(VALIDATOR, COMMIT, accept=False, detail=detail)
        assert refused(target, liar.envelope, ValidationResult.IGNORE) == "equivocation"
    assert list(pool_of(target).equivocations) == [VALIDATOR.peer_id]


def test_a_certificate_shows_equivocation_too():
    ranked = WORLD.committee(COMMIT).first
    liar = WORLD.verdict(WORLD.by_peer[ranked[0]], COMMIT, accept=False)
    target = replica(COMMIT, liar, CERTIFICATE)
    assert list(pool_of(target).equivocations) == [ranked[0]]


def test_an_equivocation_that_is_found_is_published_once_and_kept():
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
    assert WORLD.restarted(target).intake.evidence.evidence == {liar.peer_id: evidence}


@pytest.mark.parametrize("both_known", ["by verdict", "by certificate"])
def test_evidence_does_not_depend_on_which_verdict_came_first(both_known):
    ranked = WORLD.committee(COMMIT).first
    lie = WORLD.verdict(WORLD.by_peer[ranked[0]], COMMIT, accept=False)
    true = WORLD.verdict(WORLD.by_peer[ranked[0]], COMMIT)
    one, other = replica(COMMIT, lie), replica(COMMIT, true)
    take(one, CERTIFICATE if both_known == "by certificate" else true)
    take(other, lie)
    assert one.verdicts.evidence_due() == other.verdicts.evidence_due() != []


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
    assert fingerprint(target) == before
    assert take(target, CERTIFICATE) is ValidationResult.ACCEPT


@pytest.mark.parametrize("name", sorted(lies()))
@pytest.mark.parametrize("roster_at", [0, None], ids=["a roster", "none"])
def test_what_is_wrong_with_a_certificate_is_wrong_for_everyone(name, roster_at):
    """Every node with the page draws the same committee, whatever members it sees."""
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


def test_a_certificate_waits_for_its_page():
    """Page 1 lists the commit and page 2 draws its committee: both must be notarised here."""
    target = Replica(WORLD.manifest, fast_verify, fast_output)
    book = listing(1)
    certificate = certified_by(book.drawing(COMMIT), accepted=True)
    for signed in (GENESIS, COMMIT):
        assert take(target, signed) is ValidationResult.ACCEPT
    before, now = fingerprint(target), WORLD.at(2)
    assert take(target, certificate, now) is ValidationResult.IGNORE
    assert target.is_waiting(certificate.digest)
    assert target.advance(now) == []
    assert (target.behind, fingerprint(target)) == (True, before)
    quorum = target.pages.council.quorum
    for epoch in (1, 2):
        page, votes = book.page(epoch), book.votes(epoch)
        for signed in (page, *votes[: quorum - 1]):
            assert take(target, signed, now) is ValidationResult.ACCEPT
        assert target.advance(now) == [], "the page is not notarised"
        assert take(target, votes[-1], now) is ValidationResult.ACCEPT
        assert target.advance(now) == ([certificate] if epoch == 2 else [])
    assert not target.behind


def test_a_certificate_waits_for_the_pages_that_list_its_commit():
    """Without them nobody can say whether its page draws for the commit."""
    book = listing(4)
    certificate = certified_by(book.drawing(COMMIT), accepted=True)
    other = certified_by(book.drawing(COMMIT), accepted=True, commit=WORLD.commit(OTHER))
    target = replica(COMMIT, WORLD.commit(OTHER), pages_to=2)
    target.pages.offer_chain(book.chain(5, 5))
    assert target.pages.page(certificate.message.page) is not None
    for signed in (certificate, other):
        assert take(target, signed) is ValidationResult.IGNORE
        assert target.is_waiting(signed.digest)
    target.pages.offer_chain(book.chain(4, 5))
    assert target.advance(NOW) == [certificate]
    assert not target.is_waiting(other.digest)
    assert take(target, other) is ValidationResult.REJECT


def listing(epoch) -> PageBook:
    """Return a book whose page of an epoch lists the commit."""
    lists = {epoch: Contents(commits=(COMMIT.digest,))}
    return PageBook(WORLD.manifest, WORLD.validators, lists)


def paged(page, signer=None, commit=COMMIT):
    """Return a certificate by the right committee that names a page of the book."""
    certificate = WORLD.certificate(commit, page=WORLD.book.page(page).digest)
    if signer is None:
        return certificate
    return WORLD.sealed(certificate.message, signer)


def test_a_page_that_does_not_draw_for_the_commit_is_no_excuse():
    target = replica(COMMIT)
    for page in (2, 3, 10):
        assert refused(target, paged(page).envelope) == "bad-certificate"
    later = WORLD.commit(OTHER, epoch=1)
    assert take(target, later) is ValidationResult.ACCEPT
    assert refused(target, paged(1, commit=later).envelope) == "bad-certificate"
    assert take(target, WORLD.certificate(later)) is ValidationResult.ACCEPT
    assert take(target, CERTIFICATE) is ValidationResult.ACCEPT


def test_a_page_of_another_council_names_other_signers():
    """A key that joins signs for pages after it, and one that left for those before.

    The page that changes the council draws with the old one: it was listed and voted for by it.
    """
    target = Replica(WORLD.manifest, fast_verify, fast_output)
    left, joined = WORLD.validators[0], WORLD.workers[2]
    commits = {epoch: WORLD.commit(WORKER, epoch=epoch, tokens=1 + epoch) for epoch in (1, 2, 6)}
    contents = {epoch: Contents(commits=(one.digest,)) for epoch, one in commits.items()}
    contents[3] = Contents(joined=(joined.public_key,), removed=(left.public_key,))
    book = PageBook(WORLD.manifest, [*WORLD.validators, joined], contents)
    book.show(target, 7)
    take(target, GENESIS)
    assert [book.drawing(one).epoch for one in commits.values()] == [2, 3, 7]
    for epoch, member, outsider in ((1, left, joined), (2, left, joined), (6, joined, left)):
        commit = commits[epoch]
        assert take(target, commit, WORLD.at(epoch)) is ValidationResult.ACCEPT
        committee = target.verdicts.committee(commit)
        assert member.peer_id in committee.ranking
        assert outsider.peer_id not in committee.ranking
        verdicts = tuple(
            WORLD.verdict(WORLD.by_peer[peer], commit, page=committee.page.digest).envelope
            for peer in committee.first
        )
        message = Certificate(
            commit=commit.digest,
            page=committee.page.digest,
            escalated=False,
            accepted=True,
            verdicts=verdicts,
        )
        now = WORLD.at(7)
        sealed = WORLD.sealed(message, outsider).envelope
        assert refused(target, sealed, now=now) == "not-a-validator"
        assert take(target, WORLD.sealed(message, member), now) is ValidationResult.ACCEPT


def test_two_outcomes_of_one_commit_end_the_same_everywhere():
    """Three of the first committee sign both: certify a commit, and reject it in the larger one."""
    rejection = WORLD.certificate(COMMIT, accepted=False, escalated=True)
    one, other = replica(COMMIT, CERTIFICATE), replica(COMMIT, rejection)
    version = WORLD.checkpoint(GENESIS, batch=(COMMIT.digest,))
    assert take(one, rejection) is ValidationResult.ACCEPT
    assert take(other, CERTIFICATE) is ValidationResult.IGNORE
    for target in (one, other):
        assert take(target, version) is ValidationResult.IGNORE
    assert fingerprint(one)[1:5] == fingerprint(other)[1:5]
    assert fingerprint(WORLD.restarted(one))[1:5] == fingerprint(one)[1:5]
    assert one.ledger.commits.entries[COMMIT.digest].state is CommitState.REJECTED
    assert not one.ledger.backpressure.usable()
    assert take(one, WORLD.certificate(COMMIT, escalated=True)) is ValidationResult.IGNORE


def outcomes(commit) -> list:
    """Return certificates of all kinds on one commit, each valid for itself."""
    ranking = [WORLD.by_peer[peer] for peer in WORLD.committee(commit).ranking]
    kinds = [(True, False, 3), (True, True, 4), (False, True, 4)]
    return [
        WORLD.certificate(
            commit,
            accepted=accepted,
            escalated=escalated,
            verdicts=tuple(WORLD.verdict(one, commit, accept=accepted).envelope for one in signers),
        )
        for accepted, escalated, places in kinds
        for signers in combinations(ranking[:places], 3)
    ]


OUTCOMES = outcomes(COMMIT)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(OUTCOMES), min_size=2, max_size=6, unique=True),
    st.randoms(use_true_random=False),
    st.booleans(),
)
def test_contradicting_outcomes_end_the_same_in_any_order(certificates, order, early):
    """The commit may also be the last message, and the page of its committee may come late."""
    ends = []
    for messages in (certificates, order.sample(certificates, len(certificates))):
        target = Replica(WORLD.manifest, fast_verify, fast_output)
        take(target, GENESIS)
        if not early:
            target.pages.offer_chain(WORLD.book.drawing(COMMIT).to_offer())
        said = (
            order.sample([*messages, COMMIT], len(messages) + 1) if early else [COMMIT, *messages]
        )
        for signed in said:
            take(target, signed)
        target.pages.offer_chain(WORLD.book.drawing(COMMIT).to_offer())
        target.advance(NOW)
        ends.append(target)
    one, other = ends
    assert one.ledger.commits.entries[COMMIT.digest].certificate is not None
    assert fingerprint(one)[1:5] == fingerprint(other)[1:5]
    assert fingerprint(WORLD.restarted(one))[1:5] == fingerprint(one)[1:5]


def test_a_certificate_of_an_earlier_page_wins_in_any_order():
    """Two branches draw for one commit; each node ends with the outcome of the earlier page."""
    late = WORLD.book.drawing(COMMIT, after=1)
    rejection = certified_by(late, accepted=False)
    assert (WORLD.committee(COMMIT).page.epoch, late.epoch) == (2, 3)
    one, other = replica(COMMIT), replica(COMMIT)
    assert take(one, rejection) is ValidationResult.ACCEPT
    assert one.ledger.workers.is_slashed(WORKER.peer_id)
    assert take(one, CERTIFICATE) is ValidationResult.ACCEPT
    assert take(other, CERTIFICATE) is ValidationResult.ACCEPT
    assert take(other, rejection) is ValidationResult.IGNORE
    assert fingerprint(one)[1:3] == fingerprint(other)[1:3]
    assert one.ledger.workers.totals == other.ledger.workers.totals
    assert one.ledger.commits.entries[COMMIT.digest].state is CommitState.CERTIFIED
    assert not one.ledger.workers.is_slashed(WORKER.peer_id)
    assert fingerprint(WORLD.restarted(one))[1:3] == fingerprint(one)[1:3]


def test_one_set_of_signers_ranks_by_the_earliest_page_that_drew_it():
    """In a council of three every page draws all members."""
    world = World(run_manifest(validators=3))
    commit = world.commit(WORKER)
    late = world.book.drawing(commit, after=1).digest
    certificates = [world.certificate(commit), world.certificate(commit, page=late)]
    ends = []
    for order in (certificates, certificates[::-1]):
        target = world.replica()
        for signed in (commit, *order):
            take(target, signed)
        ends.append(target.ledger.commits.entries[commit.digest].certificate)
    assert ends == [certificates[0]] * 2


def certified_by(page, *, accepted, commit=COMMIT):
    committee = draw(WORLD.manifest, page, commit)
    signers = committee.first if accepted else committee.escalated
    verdicts = [
        WORLD.verdict(WORLD.by_peer[peer], commit, accept=accepted, page=page.digest)
        for peer in signers
    ]
    return WORLD.certificate(
        commit,
        page=page.digest,
        accepted=accepted,
        escalated=not accepted,
        verdicts=tuple(verdict.envelope for verdict in verdicts),
    )


def test_what_outranks_an_outcome_is_checked_like_any_other():
    target = replica(COMMIT, CERTIFICATE)
    lie = WORLD.certificate(
        COMMIT,
        accepted=False,
        escalated=True,
        verdicts=(WORLD.verdict(VALIDATOR, COMMIT, accept=False).envelope,),
    )
    assert refused(target, lie.envelope) == "bad-certificate"
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


def second_term(final=GENESIS) -> PageBook:
    """Return pages that let the second trainer lead from a version on, once epoch 3 is final."""
    contents = {3: Contents(term=1, head=final.digest)}
    return PageBook(WORLD.manifest, WORLD.validators, contents)


def test_a_version_of_a_later_term_waits_for_its_parent():
    target = replica(pages_to=0)
    second_term().show(target, 4)
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
    assert table_sizes(target.tables)["waiting"] == 8
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
    certificate = WORLD.certificate(unknown("x")).message
    elsewhere = certificate.model_copy(update={"page": digest(b"no page")})
    version = WORLD.checkpoint(WORLD.checkpoint(GENESIS)).message
    for message in (certificate, version):
        refused(target, WORLD.sealed(message, OTHER).envelope)
    for message in (elsewhere, WORLD.verdict(VALIDATOR, unknown("x")).message):
        assert take(target, WORLD.sealed(message, OTHER)) is ValidationResult.IGNORE
    assert not target.behind
    assert table_sizes(target.tables)["waiting"] == 0


# Leading


def test_the_newest_final_page_says_who_leads():
    """Records of trainers say nothing of it."""
    target = replica(WORLD.record(WORLD.trainers[1], ("trainer",)), pages_to=0)
    first, second = (one.peer_id for one in WORLD.trainers)
    assert (target.leader, target.lead) == (first, Lead(0, b""))
    pages = second_term()
    pages.show(target, 3)
    assert target.leader == first
    pages.show(target, 4)
    assert (target.leader, target.lead) == (second, Lead(1, GENESIS.digest))
    pages.show(target, 9)
    assert (target.leader, target.lead) == (second, Lead(1, GENESIS.digest))


def test_a_page_that_becomes_final_by_gossip_lets_a_version_in_with_the_next_advance():
    pages, version = second_term(), WORLD.checkpoint(GENESIS, trainer=1, term=1)
    target = replica(pages_to=0)
    assert take(target, version) is ValidationResult.IGNORE
    for epoch in range(1, 5):
        for signed in (pages.page(epoch), *pages.votes(epoch)):
            take(target, signed, WORLD.at(epoch))
    assert target.leader == WORLD.trainers[1].peer_id
    assert target.advance(WORLD.at(4)) == [version]


# Restart


def test_a_restart_brings_back_the_ledger_and_the_votes():
    chain = WORLD.chain(WORKER, 3)
    target = replica(*chain, WORLD.commit(OTHER), WORLD.verdict(VALIDATOR, chain[2]))
    assert take(target, WORLD.certificate(chain[0])) is ValidationResult.ACCEPT
    rejection = WORLD.certificate(WORLD.commit(OTHER), accepted=False, escalated=True)
    assert take(target, rejection) is ValidationResult.ACCEPT
    assert (
        take(target, WORLD.checkpoint(GENESIS, batch=(chain[0].digest,))) is ValidationResult.ACCEPT
    )
    again = WORLD.restarted(target)
    assert fingerprint(again)[1:] == fingerprint(target)[1:]
    assert sorted(target.envelopes()) == sorted(set(target.envelopes())), "each once"


def test_a_restart_keeps_more_commits_than_may_wait_at_once():
    target = replica()
    count = 2 * COMMITS_IN_FLIGHT_MAX
    for commit in WORLD.chain(WORKER, count):
        assert take(target, commit) is ValidationResult.ACCEPT
        assert take(target, WORLD.certificate(commit)) is ValidationResult.ACCEPT
    again = WORLD.restarted(target)
    assert again.ledger.workers.totals == target.ledger.workers.totals
    assert again.ledger.workers.totals.certified == count


def test_a_restart_keeps_a_commit_whose_version_was_superseded():
    first = WORLD.checkpoint(GENESIS, policy=digest(b"first"))
    target = replica(first, pages_to=0)
    old = WORLD.commit(WORKER, version=1, checkpoint=first.digest)
    assert take(target, old) is ValidationResult.ACCEPT
    second_term().show(target, 4)
    target.advance(NOW)
    successor = WORLD.checkpoint(GENESIS, trainer=1, term=1, policy=digest(b"second"))
    assert take(target, successor) is ValidationResult.ACCEPT
    assert old.digest in WORLD.restarted(target).ledger.commits.entries


def test_a_restart_keeps_the_leader_and_drops_the_same_versions_again():
    """The disk holds every version that was accepted once."""
    dropped = WORLD.checkpoint(GENESIS)
    target = replica(dropped, pages_to=0)
    second_term().show(target, 4)
    target.advance(NOW)
    version = WORLD.checkpoint(GENESIS, trainer=1, term=1)
    for stored in ([dropped], [dropped, version]):
        for signed in stored[1:]:
            assert take(target, signed) is ValidationResult.ACCEPT
        again = Replica(WORLD.manifest, fast_verify, fast_output)
        again.intake.ledger.restore(target.intake.accounts.leaves)
        for chain in target.chains():
            again.intake.offer_chain(chain)
        for signed in (GENESIS, *stored):
            again.restore(signed.envelope)
        again.advance(NOW)
        assert again.lead == target.lead == Lead(1, GENESIS.digest)
        assert fingerprint(again)[2] == fingerprint(target)[2]
        assert not again.behind


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
