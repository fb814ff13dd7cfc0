"""Head of a replica: the same for every order and sender of messages."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.core.containers import table_sizes
from protocol.core.crypto import digest, verify
from protocol.core.types import ValidationResult
from protocol.replica.replica import Received, Replica
from tests.worlds.messages import World, run_manifest

WORLD = World(run_manifest(trainers=2, validators=7))
FIRST, STANDBY = WORLD.trainers
GENESIS = WORLD.genesis()
WORKER = WORLD.workers[0]
NOW = WORLD.at(1)
EXPIRE = WORLD.manifest.committee.expire_after_epochs


def take(target, *signed, now=NOW) -> ValidationResult:
    """Offer messages and return the result of the last one."""
    return [target.receive(one.envelope, now).result for one in signed][-1]


def chain(length, parent=GENESIS, trainer=0, batches=(), **changes) -> list:
    """Return ``length`` versions after ``parent``; ``batches`` belong to the first ones."""
    result = [parent]
    for number in range(length):
        batch = tuple(one.digest for one in batches[number]) if number < len(batches) else ()
        result.append(WORLD.checkpoint(result[-1], trainer, batch=batch, **changes))
    return result[1:]


def names(validators, version, epoch=1) -> list:
    """Return records in which ``validators`` name ``version`` as their head."""
    return [
        WORLD.record(one, ("validator",), epoch, checkpoint=version.digest) for one in validators
    ]


def live(target, *trainers, epoch=1) -> None:
    take(target, *(WORLD.record(one, ("trainer",), epoch) for one in trainers))


# Versions by the trainer alone


def test_a_version_that_learned_from_made_up_commits_is_not_taken():
    target = WORLD.replica()
    made_up = WORLD.checkpoint(
        GENESIS, batch=tuple(digest(b"%d" % n) for n in range(200)), reward_mean=10**6
    )
    child = WORLD.checkpoint(made_up)
    assert take(target, made_up, child) is ValidationResult.IGNORE
    assert (target.ledger.chain.version, target.behind) == (0, True)
    target.advance(WORLD.at(EXPIRE))
    assert target.behind
    target.advance(WORLD.at(2 + EXPIRE))
    assert not target.behind, "it is dropped when no outcome can come any more"
    assert table_sizes(target.tables)["versions_waiting"] == 0


def test_a_version_is_taken_with_the_last_outcome_that_it_waited_for():
    target = WORLD.replica()
    commits = WORLD.chain(WORKER, 2)
    version, child = chain(2, batches=[commits])
    first, last = map(WORLD.certificate, commits)
    assert take(target, version, child, *commits, first) is ValidationResult.ACCEPT
    assert target.ledger.chain.version == 0
    received = target.receive(last.envelope, NOW)
    assert received == Received(ValidationResult.ACCEPT, last, settled=(version, child))
    assert target.ledger.chain.head == child


def test_a_rejected_commit_in_a_batch_does_not_end_the_chain():
    target = WORLD.replica()
    commit = WORLD.commit(WORKER)
    (version,) = chain(1, batches=[[commit]])
    rejection = WORLD.certificate(commit, accepted=False, escalated=True)
    assert take(target, version, commit, rejection) is ValidationResult.ACCEPT
    assert target.ledger.chain.version == 1
    assert [entry.commit for entry in target.ledger.commits.trained_on_rejected] == [commit]


def test_a_standby_trainer_takes_nothing_back_under_a_live_leader():
    versions = chain(40)
    target = WORLD.replica()
    take(target, *versions, *names(WORLD.validators, versions[-1]))
    live(target, FIRST, STANDBY)
    for parent in (GENESIS, versions[37], versions[38]):
        assert take(target, WORLD.checkpoint(parent, 1, term=1)) is ValidationResult.IGNORE
    target.advance(NOW)
    assert (target.ledger.chain.head, target.leader(NOW)) == (versions[-1], FIRST.peer_id)
    assert not target.behind, "nothing of that leads further"


def test_a_standby_trainer_replaces_one_version_of_a_leader_that_is_gone():
    versions = chain(40)
    target = WORLD.replica()
    take(target, *versions)
    live(target, FIRST)
    live(target, STANDBY, epoch=8)
    successor = WORLD.checkpoint(versions[38], 1, term=1)
    assert take(target, successor, now=WORLD.at(2)) is ValidationResult.IGNORE
    assert target.advance(WORLD.at(8)) == [successor], "the leader's record is too old by then"
    deeper = WORLD.checkpoint(versions[37], 1, term=1, index_bytes=11)
    assert take(target, deeper, now=WORLD.at(8)) is ValidationResult.IGNORE
    assert target.ledger.chain.head == successor


def test_no_term_fences_the_others_out():
    target = WORLD.replica()
    versions = chain(3)
    take(target, *versions)
    highest = 2**53 - 1
    for term in (5, 2**52 - 1, highest):
        assert take(target, WORLD.checkpoint(versions[-1], 1, term=term)) is not (
            ValidationResult.ACCEPT
        )
    head = target.ledger.chain.head
    for trainer in (1, 0, 1):
        term = WORLD.manifest.term_of(WORLD.trainers[trainer].peer_id, head.message.term + 1)
        head = WORLD.checkpoint(head, trainer, term=term)
        assert take(target, head) is ValidationResult.ACCEPT


def test_a_trainer_that_signs_two_versions_of_one_number_does_not_split_the_swarm():
    """Each part keeps the first one, until the validators show the majority."""
    one, other = WORLD.replica(), WORLD.replica()
    ours, theirs = chain(3), chain(3, policy=digest(b"another"))
    takeover = WORLD.checkpoint(ours[-1], 1, term=1)
    take(one, *ours, takeover)
    take(other, *theirs)
    for target in (one, other):
        take(target, *theirs, *ours, takeover)
        said = [*names(WORLD.validators[:4], takeover), *names(WORLD.validators[4:], theirs[-1])]
        take(target, *said, now=WORLD.at(1) + 1)
        target.advance(WORLD.at(2))
        assert target.ledger.chain.head == takeover
        assert target.advance(WORLD.at(2)) == []


# Versions supported by validators


def late_replica(*signed) -> Replica:
    """Return a replica that joined after all of this was certified."""
    target = Replica(WORLD.manifest, verify)
    for one in signed:
        target.receive(one.envelope, NOW)
    return target


OLD = [[WORLD.commit(WORKER, tokens=tokens)] for tokens in (3, 5, 7)]
"""Commits that every node has forgotten."""


@pytest.mark.parametrize(
    ("count", "taken"),
    [(7, True), (4, True), (3, False), (0, False)],
)
def test_a_new_node_takes_what_more_than_half_of_the_validators_have_taken(count, taken):
    versions = chain(5, batches=OLD)
    lagging = names(WORLD.validators[count:], GENESIS)
    target = late_replica(
        GENESIS, *versions, *names(WORLD.validators[:count], versions[-1]), *lagging
    )
    assert target.ledger.chain.version == 0
    assert target.advance(NOW) == (versions if taken else [])
    assert target.ledger.chain.version == (5 if taken else 0)
    assert target.behind is not taken


def test_a_validator_that_names_a_version_has_taken_all_before_it_and_nothing_after_it():
    versions = chain(5, batches=OLD)
    said = [*names(WORLD.validators[:4], versions[4]), *names(WORLD.validators[4:], versions[2])]
    target = late_replica(GENESIS, *versions[:4], *said)
    assert target.advance(NOW) == [], "who names what we have never seen says nothing of this"
    assert take(target, versions[4]) is ValidationResult.IGNORE
    assert target.advance(NOW) == versions
    learned = chain(5, batches=[*OLD, *([one] for one in WORLD.chain(WORLD.workers[1], 2))])
    said = [*names(WORLD.validators[:3], learned[4]), *names(WORLD.validators[3:], learned[2])]
    assert late_replica(GENESIS, *learned, *said).advance(NOW) == learned[:3]


def test_a_few_validators_are_not_enough_however_few_are_live():
    versions = chain(2, batches=OLD)
    needed = WORLD.manifest.committee.roster_min
    for count in range(needed + 1):
        said = names(WORLD.validators[:count], versions[-1])
        target = late_replica(GENESIS, *versions, *said)
        assert (target.advance(NOW) == versions) is (count >= needed)


def test_records_that_are_too_old_vouch_for_nothing():
    versions = chain(2, batches=OLD)
    target = late_replica(GENESIS, *versions, *names(WORLD.validators, versions[-1]))
    late = WORLD.at(2 + WORLD.manifest.epochs.record_epochs)
    assert target.advance(late) == []


def test_who_has_equivocated_vouches_for_nothing():
    versions = chain(2, batches=OLD)
    liars = WORLD.validators[:4]
    evidence = [WORLD.evidence(liar, WORLD.commit(WORKER)) for liar in liars]
    said = names(liars, versions[-1], epoch=EXPIRE + 2)
    others = names(WORLD.validators[4:], GENESIS, epoch=EXPIRE + 2)
    now = WORLD.at(EXPIRE + 2)
    for pieces in ([], evidence):
        target = late_replica(GENESIS)
        take(target, *pieces, *versions, *said, *others, now=now)
        assert bool(target.advance(now)) is not bool(pieces)


def test_a_chain_with_a_gap_waits_for_the_missing_link():
    versions = chain(4, batches=OLD)
    said = names(WORLD.validators, versions[-1])
    target = late_replica(GENESIS, *versions[:1], *versions[2:], *said)
    assert target.advance(NOW) == []
    assert target.forked
    take(target, versions[1])
    assert target.advance(NOW) == versions
    assert not target.forked


# A swarm after a partition


def apart(*sizes) -> tuple:
    """Return two branches, a replica of each part, and the validators' heads.

    ``sizes`` are the validators of the parts; the others have stayed at the common parent.
    """
    common = chain(2)
    ours, theirs = chain(4, common[-1]), chain(3, common[-1], 1, term=1)
    one, other = WORLD.replica(roster_at=None), WORLD.replica(roster_at=None)
    for target, branch in ((one, ours), (other, theirs)):
        take(target, *common, *branch)
        live(target, FIRST, STANDBY)
    said = [
        *names(WORLD.validators[: sizes[0]], ours[-1], 2),
        *names(WORLD.validators[sizes[0] : sum(sizes)], theirs[-1], 2),
        *names(WORLD.validators[sum(sizes) :], common[-1], 2),
    ]
    return (one, ours), (other, theirs), said


@pytest.mark.parametrize(("sizes", "winner"), [((4, 3), 0), ((3, 4), 1), ((5, 1), 0), ((2, 4), 1)])
def test_the_part_with_more_validators_goes_on_after_a_partition(sizes, winner):
    *parts, said = apart(*sizes)
    for target, _ in parts:
        take(target, *parts[0][1], *parts[1][1], *said, now=WORLD.at(2))
        target.advance(WORLD.at(2))
        assert target.ledger.chain.head == parts[winner][1][-1]
        assert target.advance(WORLD.at(3)) == []


PATIENCE = EXPIRE / 2
"""In epochs: waiting time of a branch without a majority."""


@pytest.mark.parametrize(("sizes", "winner"), [((3, 3), 1), ((3, 2), 0), ((2, 3), 1)])
def test_without_a_majority_the_part_with_more_goes_on_and_of_two_equal_ones_the_later_term(
    sizes, winner
):
    *parts, said = apart(*sizes)
    if sum(sizes) == 6:
        said.pop()  # two halves, and no other validator
    for target, branch in parts:
        take(target, *parts[0][1], *parts[1][1], now=WORLD.at(0))
        refreshed = [replaced(one, WORLD.at(4)) for one in said]
        take(target, *refreshed, now=WORLD.at(4))
        assert target.advance(WORLD.at(0) + PATIENCE * 10 - 1) == []
        assert target.ledger.chain.head == branch[-1]
        target.advance(WORLD.at(0) + PATIENCE * 10)
        assert target.ledger.chain.head == parts[winner][1][-1]
        assert target.advance(WORLD.at(7)) == []


def replaced(record, now):
    """Return a later record of the same member."""
    message = record.message.model_copy(update={"sequence": round(now * 1000)})
    return WORLD.sealed(message, WORLD.by_peer[record.signer])


def test_a_few_validators_never_outvote_the_others():
    """Waiting does not help them, nor does an unknown branch of the others."""
    versions, junk = chain(3), chain(5, policy=digest(b"junk"), batches=OLD)
    honest = [*names(WORLD.validators[:3], versions[-1], 4)]
    evil = names(WORLD.validators[3:5], junk[-1], 4)
    ours = WORLD.replica(roster_at=None)
    take(ours, *versions)
    fresh = late_replica(GENESIS)
    late = WORLD.at(1) + PATIENCE * 10 + 1
    for target in (ours, fresh):
        take(target, *junk)
        take(target, *honest, *evil, now=WORLD.at(4))
        target.advance(late)
    assert ours.ledger.chain.head == versions[-1]
    assert fresh.ledger.chain.head == GENESIS


def test_validators_that_come_back_together_do_not_wait_for_each_other_for_ever():
    """One of two extended the version that both had certified; the other missed it."""
    versions = chain(2, batches=OLD)
    back = late_replica(GENESIS, *versions)
    said = [
        *names(WORLD.validators[:1], versions[-1], 4),
        *names(WORLD.validators[1:3], GENESIS, 4),
    ]
    take(back, *said, now=WORLD.at(4))
    assert back.advance(WORLD.at(4)) == []
    assert back.advance(WORLD.at(1) + PATIENCE * 10) == versions


def test_a_validator_says_nothing_of_a_version_that_it_could_not_know_of():
    """Otherwise a lost version, accepted by every node, would replace the next one."""
    versions = chain(3)
    target = WORLD.replica()
    take(target, *versions, *names(WORLD.validators, versions[-1]))
    successor = WORLD.checkpoint(versions[1], 1, term=1)
    now = WORLD.at(3)
    assert take(target, successor, now=now) is ValidationResult.ACCEPT
    take(target, versions[-1], now=now)
    assert target.advance(now) == []
    assert target.ledger.chain.head == successor
    take(target, *names(WORLD.validators, versions[-1], 4), now=WORLD.at(4))
    assert target.advance(WORLD.at(4)) == [versions[-1]], "now they do know, and disagree"


def test_what_waits_is_bounded_and_a_flood_displaces_itself_alone(monkeypatch):
    target = WORLD.replica()
    monkeypatch.setattr(target.ledger.branches, "limit", 8)
    versions = chain(4, batches=OLD)
    live(target, FIRST)
    take(target, *versions)
    for number in range(50):
        take(target, WORLD.checkpoint(versions[number % 3], 1, term=1, index_bytes=number))
    assert table_sizes(target.tables)["versions_waiting"] == 8
    take(target, *names(WORLD.validators, versions[-1]))
    assert target.advance(NOW) == versions


# Any order


def everything_said(seed) -> tuple:
    """Return all messages of a run with two branches, and the version to agree on."""
    rng = random.Random(seed)
    commits = [WORLD.chain(worker, 3) for worker in WORLD.workers]
    flat = [commit for three in commits for commit in three]
    outcomes = []
    for commit in flat:
        kinds = rng.choice(["accepted", "rejected", "both"])
        if kinds != "rejected":
            outcomes.append(WORLD.certificate(commit))
        if kinds != "accepted":
            outcomes.append(WORLD.certificate(commit, accepted=False, escalated=True))
    batches = [flat[0:3], flat[3:6], flat[6:9]]
    fork = rng.randrange(3)
    ours = chain(3, batches=batches)
    parent = [GENESIS, *ours][fork]
    theirs = chain(4, parent, 1, term=1, batches=[batches[2], [digest_only(b"never")]])
    winner = rng.choice([ours, theirs])
    count = rng.choice([4, 5, 7])
    loser = theirs if winner is ours else ours
    said = [
        *names(WORLD.validators[:count], winner[-1], 2),
        *names(WORLD.validators[count:], loser[-1], 2),
    ]
    return [GENESIS, *flat, *outcomes, *ours, *theirs, *said], winner[-1]


def digest_only(name):
    return WORLD.commit(WORLD.workers[1], 7, digest(name))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), order=st.randoms(use_true_random=False))
def test_the_same_messages_in_any_order_lead_to_the_same_version(seed, order):
    messages, expected = everything_said(seed)
    messages = messages + order.sample(messages, len(messages) // 3)
    order.shuffle(messages)
    target = Replica(WORLD.manifest, verify)
    live(target, FIRST, STANDBY)
    for place, signed in enumerate(messages):
        target.receive(signed.envelope, WORLD.at(1) - 5)
        if place % 9 == 0:
            target.advance(WORLD.at(1))
    for signed in messages:  # as synchronisation repeats messages that were late or early
        target.receive(signed.envelope, WORLD.at(2))
    target.advance(WORLD.at(2))
    assert target.ledger.chain.head == expected
    assert target.ledger.workers.totals.trained == sum(
        len(entry.manifest.message.batch)
        - sum(
            commit not in target.ledger.commits.entries for commit in entry.manifest.message.batch
        )
        for entry in target.ledger.chain.checkpoints
    )
    again = Replica(WORLD.manifest, verify)
    for envelope in target.envelopes():
        again.restore(envelope)
    assert again.ledger.chain.head == expected
