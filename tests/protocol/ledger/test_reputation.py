"""Worker reputation: its rules and lifetime, and the ledger's limit for untrusted workers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.containers import DecayingSum
from protocol.core.types import ValidationResult
from protocol.ledger import reputation
from protocol.ledger.commits import CommitChange, CommitState, CommitStatus, Entry
from protocol.ledger.worker_stats import EARNED_MAX, HALF_LIFE_EPOCHS, WorkerStats
from tests.worlds.messages import World, found, identity, run_manifest, set_outcome

ACCEPT, IGNORE = ValidationResult.ACCEPT, ValidationResult.IGNORE
WORLD = World(run_manifest())
UNTRUSTED = [identity(f"untrusted {number}") for number in range(6)]
NOW = WORLD.at(1)


def take(here, signed, **options):
    return here.receive(signed.envelope, NOW, **options).result


@pytest.fixture
def full(monkeypatch):
    """Return a replica at its limit of commits from untrusted workers."""
    monkeypatch.setattr(reputation, "UNTRUSTED_COMMITS_MAX", 4)
    here = WORLD.replica()
    assert [take(here, WORLD.commit(one)) for one in UNTRUSTED[:4]] == [ACCEPT] * 4
    return here


@pytest.mark.parametrize("anti_entropy", [False, True])
def test_untrusted_peers_have_so_many_commits_under_way_together(full, anti_entropy):
    late = WORLD.commit(UNTRUSTED[4])
    assert take(full, late, anti_entropy=anti_entropy) is IGNORE
    assert late.digest not in full.ledger.commits.entries


def test_a_trusted_peer_is_not_held_up_by_untrusted_peers(monkeypatch):
    monkeypatch.setattr(reputation, "UNTRUSTED_COMMITS_MAX", 4)
    here, worker = WORLD.replica(), WORLD.workers[0]
    first = WORLD.commit(worker)
    take(here, first)
    set_outcome(here.ledger, WORLD.certificate(first), found())
    for one in UNTRUSTED:
        take(here, WORLD.commit(one))
    assert sum(here.ledger.commits.unsettled.values()) == 4
    for slot in range(1, 7):
        commit = WORLD.commit(worker, slot)
        assert take(here, commit) is ACCEPT
    assert take(here, WORLD.commit(UNTRUSTED[5])) is IGNORE


def test_a_flood_that_there_is_no_room_for_is_not_counted_again_and_again(full, monkeypatch):
    asked = []

    def counted(worker, manifest, ledger, honest=reputation.has_reputation):
        asked.append(worker)
        return honest(worker, manifest, ledger)

    monkeypatch.setattr(reputation, "has_reputation", counted)
    late = [WORLD.commit(one, body_bytes=n) for one in UNTRUSTED[4:] for n in range(1, 11)]
    assert {take(full, one) for one in late} == {IGNORE}
    assert len(asked) <= len(late) + 4, "one look at those that wait"


def test_an_outcome_makes_room(full):
    late, settled = WORLD.commit(UNTRUSTED[4]), next(iter(full.ledger.commits.entries))
    set_outcome(
        full.ledger, WORLD.certificate(full.ledger.commits.entries[settled].commit), found()
    )
    assert take(full, late) is ACCEPT


def test_what_others_have_certified_is_taken_however_full_it_is(full):
    """Otherwise nodes with other commits would follow another chain of versions."""
    late = WORLD.commit(UNTRUSTED[4])
    assert take(full, WORLD.certificate(late)) is IGNORE
    assert take(full, late, anti_entropy=True) is ACCEPT
    full.advance(NOW)
    assert full.ledger.commits.entries[late.digest].state is CommitState.CERTIFIED


def change(before, after, epoch):
    """Return the change of a commit's outcome."""
    entry = Entry(WORLD.commit(WORLD.workers[0], epoch=epoch))
    statuses = (CommitStatus(state, "", None) for state in (before, after))
    return CommitChange(entry, *statuses, is_outcome=True)


def with_work(certified=0, expired=0, rejected=0, epoch=0):
    """Return the ledger of a replica in which a worker has this record, all in one epoch."""
    here, worker = WORLD.replica(), WORLD.workers[0].peer_id
    counts = here.ledger.workers.counts[worker] = WorkerStats()
    work = {
        CommitState.CERTIFIED: certified,
        CommitState.EXPIRED: expired,
        CommitState.REJECTED: rejected,
    }
    for state, count in work.items():
        for _ in range(count):
            counts.apply(change(CommitState.COMMITTED, state, epoch))
    return here.ledger, worker


def has(ledger, worker, epoch=0):
    ledger.epoch = epoch
    return reputation.has_reputation(worker, WORLD.manifest, ledger)


def test_one_certified_rollout_gives_reputation_for_a_half_life():
    ledger, worker = with_work(certified=1, epoch=7)
    assert has(ledger, worker, 7)
    assert has(ledger, worker, 7 + HALF_LIFE_EPOCHS)
    assert not has(ledger, worker, 8 + HALF_LIFE_EPOCHS)


def test_more_work_lasts_longer_and_not_for_ever():
    ledger, worker = with_work(certified=1000)
    assert has(ledger, worker, 6 * HALF_LIFE_EPOCHS)
    assert not has(ledger, worker, 11 * HALF_LIFE_EPOCHS)


def test_who_has_done_a_lot_cannot_waste_as_much():
    assert has(*with_work(certified=10_000, expired=100))
    assert not has(*with_work(certified=10_000, expired=2 * int(EARNED_MAX)))
    assert not has(*with_work(certified=10_000, rejected=int(EARNED_MAX)))


def test_failed_commits_cost_reputation():
    assert has(*with_work(certified=2, expired=3))
    assert not has(*with_work(certified=2, expired=4))
    assert not has(*with_work(certified=1, rejected=1))


def test_an_outcome_that_is_taken_back_leaves_nothing():
    ledger, _ = with_work(certified=3, expired=1, epoch=5)
    counts = next(iter(ledger.workers.counts.values()))
    counts.apply(change(CommitState.EXPIRED, CommitState.COMMITTED, 5))
    assert counts.worth(5) == 3.0


@given(st.lists(st.tuples(st.sampled_from([1.0, -0.5]), st.integers(0, 20_000)), max_size=20))
def test_the_order_in_which_work_is_heard_of_does_not_matter(parts):
    one, other = DecayingSum(), DecayingSum()
    for part in parts:
        one.add(*part, HALF_LIFE_EPOCHS)
    for part in reversed(parts):
        other.add(*part, HALF_LIFE_EPOCHS)
    assert one.value_at(20_000, HALF_LIFE_EPOCHS) == pytest.approx(
        other.value_at(20_000, HALF_LIFE_EPOCHS), abs=1e-9
    )
    plain = sum(amount * 0.5 ** ((20_000 - epoch) / HALF_LIFE_EPOCHS) for amount, epoch in parts)
    assert one.value_at(20_000, HALF_LIFE_EPOCHS) == pytest.approx(plain, abs=1e-9)
