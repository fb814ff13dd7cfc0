from itertools import permutations

import pytest

from protocol.core.crypto import digest
from protocol.core.faults import Fault
from protocol.ledger.chain import TERM_MAX, Lead
from protocol.ledger.commits import (
    COMMITS_IN_FLIGHT_MAX,
    EPOCHS_AHEAD_MAX,
    SHARE_VERSIONS,
    CommitState,
    window_epochs,
)
from protocol.ledger.ledger import Ledger
from protocol.ledger.worker_stats import CREDIT_MAX
from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX
from tests.worlds.messages import World, found, run_manifest, set_outcome

WORLD = World(run_manifest(trainers=2))
WORKER, OTHER = WORLD.workers[:2]
EXPIRE = WORLD.manifest.committee.expire_after_epochs
GENESIS = WORLD.genesis()
WINDOW = window_epochs(WORLD.manifest)
NOW = WORLD.at(0)


def ledger(*commits, epoch=0, world=WORLD) -> Ledger:
    """Return a ledger that holds version 0 and ``commits``."""
    result = Ledger(world.manifest)
    assert offer(result, world.genesis()) is True
    for commit in commits:
        assert result.offer_commit(commit, epoch) is True
    return result


def offer(result, version, lead=None, now=NOW):
    """Offer a version under ``lead``: its trainer leads from its parent, unless given."""
    message = version.message
    return result.offer_checkpoint(version, now, lead or Lead(message.term, message.parent))


def adopt(result, versions, now=NOW) -> list:
    """Let a final page name the last of pending versions, and return those accepted."""
    for version in versions:
        result.branches.add(version, now)
    last = versions[-1]
    return result.follow(Lead(last.message.term, last.digest), now)


def settle(result, commit, *, accepted=True, reason="computation") -> None:
    """Settle a commit; the replica, not the ledger, checks certificates."""
    certificate = WORLD.unchecked_certificate(commit, accepted=accepted)
    assert set_outcome(result, certificate, found(reason)) is True


def trained(result, *batch, parent=None, **changes) -> object:
    """Publish the version after ``parent`` (the head) and return the ledger's result."""
    parent = result.chain.head if parent is None else parent
    digests = tuple(commit.digest for commit in batch)
    version = WORLD.checkpoint(parent, batch=digests, **changes)
    return offer(result, version)


def reason(result) -> str:
    assert isinstance(result, Fault), result
    return result.code


# Commits


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"epoch": EPOCHS_AHEAD_MAX + 1}, "future-epoch"),
        ({"sequences": 3}, "bad-counts"),
        ({"sequences": 5}, "bad-counts"),
        ({"tokens": 4 * 8 + 1}, "bad-counts"),
        ({"body_bytes": 2**53}, "oversize"),
        ({"evaluation": True}, "evaluation-slot"),
    ],
)
def test_a_commit_out_of_its_limits_is_a_fault_and_changes_nothing(changes, fault):
    result = ledger()
    assert reason(result.offer_commit(WORLD.commit(WORKER, **changes), 0)) == fault
    assert result.commits.entries == {}
    assert result.workers.counts == {}
    assert result.commits.next_slot(WORKER.peer_id) == 0


def test_a_commit_to_another_version_is_a_fault_once_its_number_is_final():
    """Before, members of another branch may list it, and pages need all that vote to hold it."""
    result = ledger()
    assert result.offer_commit(WORLD.commit(WORKER, checkpoint=bytes(32)), 0) is True
    result.follow(Lead(0, GENESIS.digest), NOW)
    other = WORLD.commit(OTHER, checkpoint=bytes(32))
    assert reason(result.offer_commit(other, 0)) == "wrong-checkpoint"
    assert result.offer_commit(WORLD.commit(OTHER, version=1, checkpoint=bytes(32)), 0) is True


def test_a_commit_at_its_limits_is_taken():
    ledger(WORLD.commit(WORKER, epoch=EPOCHS_AHEAD_MAX, tokens=4 * 8))


def test_untrusted_peers_commit_only_where_the_run_is_open():
    world = World(run_manifest(admission={"rule": "allowlist", "workers": (OTHER.peer_id,)}))
    result = Ledger(world.manifest)
    assert reason(result.offer_commit(world.commit(WORKER), 0)) == "not-admitted"
    assert result.offer_commit(world.commit(OTHER), 0) is True


def test_a_commit_counts_once():
    commit = WORLD.commit(WORKER)
    result = ledger(commit)
    assert result.offer_commit(commit, 0) is False
    assert result.workers.totals.committed == result.workers.counts[WORKER.peer_id].committed == 1


def test_two_commits_for_one_slot_are_kept_and_end_the_workers_reputation():
    first, fork = WORLD.commit(WORKER), WORLD.commit(WORKER, tokens=11)
    result = ledger(first)
    assert result.offer_commit(fork, 0) is True
    assert result.workers.forks == {WORKER.peer_id: (first.digest, fork.digest)}
    assert result.commits.next_slot(WORKER.peer_id) == 1
    assert result.workers.is_slashed(WORKER.peer_id)
    assert result.offer_commit(WORLD.commit(OTHER, tokens=11), 0) is True
    assert not result.workers.is_slashed(OTHER.peer_id)


def test_a_commit_of_an_unknown_version_waits_for_it():
    # Version 1 is not known yet, so its checkpoint cannot be compared.
    assert ledger().offer_commit(WORLD.commit(WORKER, version=1), 0) is True


def test_one_slot_with_two_versions_ends_the_workers_reputation():
    first, again = WORLD.commit(WORKER), WORLD.commit(WORKER, version=1, checkpoint=bytes(32))
    result = ledger(first)
    assert result.offer_commit(again, 0) is True
    assert result.workers.forks == {WORKER.peer_id: (first.digest, again.digest)}


def test_slots_may_come_in_any_order():
    first, second, third = WORLD.chain(WORKER, 3)
    result = ledger(third)
    assert result.commits.next_slot(WORKER.peer_id) == 3
    for commit in (second, first):
        assert result.offer_commit(commit, 0) is True
    assert result.commits.next_slot(WORKER.peer_id) == 3
    assert result.workers.forks == {}


def test_what_waits_for_an_outcome_is_bounded_per_worker():
    chain = WORLD.chain(WORKER, COMMITS_IN_FLIGHT_MAX + 1)
    result = ledger(*chain[:-1])
    assert result.commits.in_flight(WORKER.peer_id) == COMMITS_IN_FLIGHT_MAX
    assert result.offer_commit(chain[-1], 0) is False
    assert result.offer_commit(WORLD.commit(OTHER), 0) is True
    settle(result, chain[3])
    assert result.commits.in_flight(WORKER.peer_id) == COMMITS_IN_FLIGHT_MAX - 1
    assert result.offer_commit(chain[-1], 0) is True


def test_an_expired_commit_is_no_news():
    commit = WORLD.commit(WORKER)
    assert ledger().offer_commit(commit, EXPIRE + 1, anti_entropy=True) is False
    assert ledger().offer_commit(commit, EXPIRE, anti_entropy=True) is True


def test_a_commit_is_announced_in_its_epoch_or_the_next_and_while_clocks_may_differ():
    """Otherwise its author could wait for a favourable committee and audit."""
    assert WINDOW == 2
    assert window_epochs(run_manifest(epochs={"seconds": 1.0})) == 4
    commit = WORLD.commit(WORKER, epoch=20)
    for epoch in range(20 - EPOCHS_AHEAD_MAX, 20 + WINDOW + 1):
        result = ledger()
        assert result.offer_commit(commit, epoch) is True
        assert result.commits.entries[commit.digest].timely
    result = ledger()
    for epoch in (20 + WINDOW + 1, 30, 40):
        assert reason(result.offer_commit(commit, epoch)) == "old-date"
    assert (result.commits.entries, result.workers.counts) == ({}, {})


def test_a_late_commit_is_here_for_the_outcome_that_it_has_elsewhere():
    first, late = WORLD.chain(WORKER, 2)
    result = ledger(first)
    settle(result, first)
    assert result.backpressure.backlog(result.epoch) == 1
    assert result.offer_commit(late, WINDOW + 1, anti_entropy=True) is True
    assert not result.commits.entries[late.digest].timely
    assert result.backpressure.backlog(result.epoch) == 1, "nobody here works on it"
    settle(result, late)
    assert [entry.commit for entry in result.backpressure.usable()] == sorted(
        (first, late), key=lambda one: one.digest
    )
    assert result.backpressure.backlog(result.epoch) == 2
    again = ledger(late)
    assert again.offer_commit(late, WINDOW + 1, anti_entropy=True) is False
    assert again.commits.entries[late.digest].timely, "it had come in time"


# Outcomes


def test_certified_rejected_and_expired_are_counted_for_worker_and_run():
    chain = WORLD.chain(WORKER, 3)
    result = ledger(*chain, WORLD.commit(OTHER))
    settle(result, chain[0])
    settle(result, chain[1], accepted=False)
    result.advance(EXPIRE + 1)
    assert expired(result) == [chain[2], WORLD.commit(OTHER)]
    counts = result.workers.counts[WORKER.peer_id]
    assert (counts.committed, counts.certified, counts.rejected, counts.expired) == (3, 1, 1, 1)
    assert counts.tokens_certified == 10
    assert counts.reasons == {"computation": 1}
    assert (result.workers.totals.committed, result.workers.totals.expired) == (4, 2)
    assert result.commits.in_flight(WORKER.peer_id) == 0
    result.advance(EXPIRE + 1)
    assert result.workers.totals.expired == 2


def expired(of: Ledger) -> list:
    return [
        entry.commit for entry in of.commits.entries.values() if entry.state is CommitState.EXPIRED
    ]


def outcomes(commit) -> list:
    """Return the three possible certificates of a commit, weakest first, with these ranks."""
    certificates = (
        WORLD.certificate(commit, escalated=True),
        WORLD.certificate(commit),
        WORLD.certificate(commit, accepted=False, escalated=True),
    )
    return list(zip(certificates, (b"2", b"1", b"0"), strict=True))


def test_a_commit_expires_when_it_is_older_than_an_outcome_may_take_and_not_before():
    commit = WORLD.commit(WORKER, epoch=3)
    result = ledger(commit, epoch=3)
    result.advance(3 + EXPIRE)
    assert expired(result) == []
    assert result.commits.entries[commit.digest].state is CommitState.COMMITTED
    result.advance(3 + EXPIRE + 1)
    assert expired(result) == [commit]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_of_contradicting_outcomes_one_wins_whichever_came_first(order):
    chain = WORLD.chain(WORKER, 2)
    result = ledger(*chain)
    settle(result, chain[1])
    certificates = outcomes(chain[0])
    highest = -1
    for place in order:
        certificate, rank = certificates[place]
        wins = set_outcome(result, certificate, found("computation"), rank)
        assert wins is (place > highest)
        highest = max(highest, place)
        assert set_outcome(result, certificate, found("computation"), rank) is False
    entry = result.commits.entries[chain[0].digest]
    assert (entry.state, entry.certificate) == (CommitState.REJECTED, certificates[2][0])
    counts = result.workers.counts[WORKER.peer_id]
    assert (counts.certified, counts.rejected, counts.tokens_certified) == (1, 1, 10)
    assert counts == result.workers.totals
    assert counts.reasons == {"computation": 1}
    assert result.workers.is_slashed(WORKER.peer_id)
    assert [item.commit for item in result.backpressure.usable()] == [chain[1]]
    assert result.commits.in_flight(WORKER.peer_id) == 0


def test_a_version_stays_when_what_it_learned_from_is_rejected_after_all():
    commit = WORLD.commit(WORKER)
    result = ledger(commit)
    _, (accepted, rank), (rejected, lower) = outcomes(commit)
    assert set_outcome(result, accepted, found(), rank) is True
    assert trained(result, commit) is True
    assert result.commits.trained_on_rejected == []
    assert set_outcome(result, rejected, found("computation"), lower) is True
    assert result.chain.version == 1
    assert [entry.commit for entry in result.commits.trained_on_rejected] == [commit]
    assert (result.workers.totals.trained, result.workers.totals.rejected) == (1, 1)
    assert trained(result) is True


def test_a_late_certificate_still_settles_an_expired_commit():
    commit = WORLD.commit(WORKER)
    result = ledger(commit)
    result.advance(EXPIRE + 1)
    settle(result, commit)
    assert result.commits.entries[commit.digest].state is CommitState.CERTIFIED
    assert (result.workers.totals.expired, result.workers.totals.certified) == (0, 1)


def test_a_rejected_rollout_ends_a_workers_reputation():
    chain = WORLD.chain(WORKER, 2)
    result = ledger(chain[0])
    settle(result, chain[0], accepted=False)
    assert result.workers.is_slashed(WORKER.peer_id)
    assert not result.workers.is_slashed(OTHER.peer_id)


def test_a_rollout_that_is_only_improbable_costs_no_more_than_itself():
    chain = WORLD.chain(WORKER, 3)
    result = ledger(*chain)
    settle(result, chain[0])
    settle(result, chain[1], accepted=False, reason="statistics")
    assert not result.workers.is_slashed(WORKER.peer_id)
    assert result.workers.counts[WORKER.peer_id].credit == 0
    settle(result, chain[2], accepted=False, reason="history")
    assert result.workers.is_slashed(WORKER.peer_id)


def test_the_decided_rollouts_of_a_worker_come_with_what_was_measured_by_epoch():
    late, early = WORLD.commit(WORKER, epoch=2), WORLD.commit(WORKER, epoch=1, tokens=20)
    unmeasured, other = (
        WORLD.commit(WORKER, epoch=1, slot=1),
        WORLD.commit(OTHER),
    )
    result = ledger(late, early, unmeasured, other, epoch=2)
    for commit, mean in ((late, 3), (early, 2), (other, 1)):
        verdicts = found(chunks=4, means=(mean * 10**9,) * 8)
        assert set_outcome(result, WORLD.unchecked_certificate(commit), verdicts) is True
    settle(result, unmeasured, accepted=False)
    known = result.decisions().workers
    assert [one.reason for one in known[WORKER.peer_id] if not one.accepted] == ["computation"]
    measured = [one.measured for one in known[WORKER.peer_id] if one.measured is not None]
    assert [(sums.tokens, sums.chunks, sums.means[0]) for sums in measured] == [
        (20, 4, 2.0),
        (10, 4, 3.0),
    ]
    assert len(known[OTHER.peer_id]) == 1


def test_what_a_slashed_worker_commits_to_is_heard_and_counts_for_nothing():
    chain = WORLD.chain(WORKER, 4)
    early, late = ledger(*chain[:3]), ledger(*chain[:2])
    for result in (early, late):
        settle(result, chain[0])
        settle(result, chain[1], accepted=False)
    assert late.offer_commit(chain[2], 0) is True  # known before the outcome elsewhere
    assert list(late.commits.entries) == list(early.commits.entries)
    assert late.workers.counts[WORKER.peer_id].credit == 0
    assert (
        late.backpressure.backlog(late.epoch) == early.backpressure.backlog(early.epoch) == 1
    )  # the certified one alone


def test_a_run_may_forgive():
    world = World(run_manifest(credit={"slash": False}))
    chain = world.chain(WORKER, 2)
    result = ledger(chain[0], world=world)
    settle(result, chain[0], accepted=False)
    assert not result.workers.is_slashed(WORKER.peer_id)
    assert result.offer_commit(chain[1], 0) is True


# Versions


def test_versions_form_one_chain():
    result = Ledger(WORLD.manifest)
    first = WORLD.checkpoint(GENESIS)
    assert (result.chain.head, result.chain.version, result.chain.get(0)) == (None, -1, None)
    assert offer(result, first) is False, "its parent is not here"
    assert offer(result, GENESIS) is True
    assert offer(result, GENESIS) is False
    assert offer(result, first) is True
    assert (result.chain.head, result.chain.version) == (first, 1)
    assert result.chain.get(0) == GENESIS
    assert result.chain.get(-1) is None
    assert result.chain.get(2) is None


@pytest.mark.parametrize(
    "changes",
    [{"policy": bytes(32)}, {"batch": (bytes(32),)}],
)
def test_a_wrong_version_0_is_refused(changes):
    wrong = WORLD.sealed(GENESIS.message.model_copy(update=changes), WORLD.trainers[0])
    assert reason(offer(Ledger(WORLD.manifest), wrong)) == "wrong-genesis"


def test_only_trainers_publish():
    message = WORLD.checkpoint(GENESIS).message
    imposter = WORLD.sealed(message, WORLD.validators[0])
    assert reason(offer(ledger(), imposter)) == "not-a-trainer"


def test_a_version_comes_after_its_parent_and_no_later_than_the_last():
    result = ledger()
    right = WORLD.checkpoint(GENESIS)
    for changes in ({"version": 2}, {"version": 0}, {"parent": b""}):
        wrong = WORLD.sealed(right.message.model_copy(update=changes), WORLD.trainers[0])
        assert reason(offer(result, wrong)) == "wrong-parent"
    after_last = WORLD.manifest.grpo.steps + 1
    assert reason(trained(result, version=after_last)) == "after-last-version"


def test_a_version_number_is_used_once_in_a_term():
    result = ledger()
    assert trained(result) is True
    other = WORLD.checkpoint(GENESIS, index_bytes=98)
    assert reason(offer(result, other)) == "version-reused"
    assert trained(result, parent=other) is False, "its parent may become final"
    assert result.chain.version == 1


def test_a_second_version_of_a_number_waits_while_the_final_version_is_not_here():
    """Our own one may be of a branch that nobody else has."""
    result = ledger()
    assert trained(result) is True
    other = WORLD.checkpoint(GENESIS, index_bytes=98)
    assert offer(result, other, Lead(0, WORLD.checkpoint(other).digest)) is False
    assert reason(offer(result, other, Lead(0, b""))) == "version-reused"


def test_terms_never_fall():
    result = ledger()
    assert trained(result, term=2) is True
    assert reason(trained(result, term=0)) == "old-term"
    assert trained(result, term=2) is True


def test_a_term_is_one_trainers():
    """Otherwise two trainers could sign versions of one number and term."""
    result = ledger()
    assert reason(trained(result, trainer=1)) == "other-term"
    assert reason(trained(result, trainer=1, term=2)) == "other-term"
    assert reason(trained(result, term=1)) == "other-term"
    assert trained(result, trainer=1, term=1) is True
    leaders = [WORLD.manifest.leader(term) for term in range(5)]
    first, second = (trainer.peer_id for trainer in WORLD.trainers)
    assert leaders == [first, second, first, second, first]


def test_a_later_term_always_fits_into_a_message():
    result = ledger()
    assert TERM_MAX % 2 == 0
    assert reason(trained(result, term=TERM_MAX + 2)) == "other-term"
    assert trained(result, term=TERM_MAX) is True


@pytest.mark.parametrize(
    ("term", "lead_term", "taken"), [(0, 0, True), (0, 2, False), (2, 0, False), (2, 2, True)]
)
def test_the_leader_of_the_present_term_alone_adds_a_version(term, lead_term, taken):
    """A later term is as far away as an earlier one, until a final page begins it."""
    result = ledger()
    version = WORLD.checkpoint(GENESIS, term=term)
    assert offer(result, version, Lead(lead_term, GENESIS.digest)) is taken
    assert result.chain.version == (1 if taken else 0)


def test_the_first_version_of_a_term_follows_the_final_one():
    result = ledger()
    assert trained(result) is True
    first = result.chain.head
    assert trained(result) is True
    lead = Lead(1, first.digest)
    later = WORLD.checkpoint(result.chain.head, trainer=1, term=1)
    earlier = WORLD.checkpoint(first, trainer=1, term=1)
    for version in (later, earlier):
        assert offer(result, version, lead) is False
    assert result.follow(lead, NOW) == []
    assert result.chain.head == first, "what the former leader has published after it is dropped"
    assert offer(result, WORLD.checkpoint(GENESIS, trainer=1, term=1), lead) is False
    assert offer(result, earlier, lead) is True
    assert offer(result, WORLD.checkpoint(earlier, trainer=1), lead) is True
    assert result.follow(lead, NOW) == []
    assert result.chain.version == 3, "the new leader's own versions stay"


def test_a_version_of_the_term_waits_while_the_final_version_is_not_here():
    result = ledger()
    other = WORLD.checkpoint(GENESIS, index_bytes=98)
    assert offer(result, WORLD.checkpoint(GENESIS), Lead(0, other.digest)) is False
    assert result.follow(Lead(2, other.digest), NOW) == []
    assert result.chain.head == GENESIS


def test_a_later_term_frees_what_a_dropped_version_learned():
    commits = [WORLD.commit(WORKER), WORLD.commit(OTHER)]
    result = ledger(*commits)
    for commit in commits:
        settle(result, commit)
    assert trained(result, *commits) is True
    assert result.workers.totals.trained == 2
    assert result.backpressure.usable() == []
    lead = Lead(1, GENESIS.digest)
    result.follow(lead, NOW)
    assert (result.chain.head, result.workers.totals.trained) == (GENESIS, 0)
    assert len(result.backpressure.usable()) == 2
    version = WORLD.checkpoint(GENESIS, 1, term=1, batch=(commits[1].digest,))
    assert offer(result, version, lead) is True
    assert [entry.commit for entry in result.backpressure.usable()] == [commits[0]]
    assert result.commits.entries[commits[1].digest].trained_in == 1
    assert (result.workers.totals.trained, result.workers.counts[WORKER.peer_id].trained) == (1, 0)


def test_a_new_leader_has_its_time_from_when_the_former_leaders_versions_are_dropped():
    """Not from the epoch in which the former one could have trained them."""
    commits = WORLD.chain(WORKER, 2)
    result = ledger(*commits)
    for commit in commits:
        settle(result, commit)
    result.advance(1)
    assert trained(result) is True
    assert result.batch_since is None
    result.advance(2)
    assert result.batch_since == 2
    result.advance(3)
    result.follow(Lead(0, GENESIS.digest), NOW)
    assert result.batch_since == 2, "nothing is dropped"
    result.follow(Lead(1, GENESIS.digest), NOW)
    assert result.batch_since is None


def test_a_version_dated_ahead_of_the_clock_waits():
    """Keys made a moment ago would count for it as old enough."""
    result = ledger()
    limit_ms = round((NOW + CLOCK_SKEW_SECONDS_MAX) * 1000)
    ahead = WORLD.checkpoint(GENESIS, created_at=limit_ms + 1)
    assert reason(offer(result, ahead)) == "clock-skew"
    assert offer(result, ahead, now=NOW + 1) is True
    assert offer(ledger(), WORLD.checkpoint(GENESIS, created_at=limit_ms)) is True


def test_a_commit_is_learned_from_once():
    commit = WORLD.commit(WORKER)
    result = ledger(commit)
    settle(result, commit)
    assert reason(trained(result, commit, commit)) == "trained-twice"
    assert trained(result, commit) is True
    assert reason(trained(result, commit)) == "trained-twice"
    assert result.workers.totals.trained == 1


def test_a_version_that_learned_from_a_rejected_commit_is_taken_only_when_it_is_final():
    """Otherwise the holder of both certificates could isolate a node for ever."""
    commit = WORLD.commit(WORKER)
    result = ledger(commit)
    settle(result, commit, accepted=False)
    assert trained(result, commit) is False
    version = WORLD.checkpoint(GENESIS, batch=(commit.digest,))
    assert adopt(result, [version]) == [version]
    assert [entry.commit for entry in result.commits.trained_on_rejected] == [commit]


def test_superseded_commits_that_are_not_here_are_freed_too():
    commit = WORLD.commit(WORKER)
    result = ledger()
    result.restore_checkpoint(WORLD.checkpoint(GENESIS, batch=(commit.digest,)))
    assert result.chain.version == 1
    result.follow(Lead(1, GENESIS.digest), NOW)
    assert result.chain.learned == {}
    assert result.offer_commit(commit, 0) is True
    assert result.commits.entries[commit.digest].trained_in is None
    assert result.workers.totals.trained == 0


def test_a_version_waits_for_the_certificates_of_all_that_it_learned_from():
    """The publisher may have invented the certificates."""
    chain = WORLD.chain(WORKER, 2)
    result = ledger(chain[0])
    assert trained(result, *chain) is False
    settle(result, chain[0])
    assert trained(result, *chain) is False
    assert result.offer_commit(chain[1], 0) is True
    assert trained(result, *chain) is False
    assert (result.chain.version, result.workers.totals.trained) == (0, 0)
    settle(result, chain[1])
    assert trained(result, *chain) is True
    assert result.workers.totals.trained == 2


@pytest.mark.parametrize("certified", [True, False])
def test_a_version_that_learned_from_a_policy_that_was_too_old_is_refused(certified):
    commit, unknown = WORLD.commit(WORKER), WORLD.commit(OTHER)
    result = ledger(commit)
    if certified:
        settle(result, commit)
    for _ in range(WORLD.manifest.grpo.async_level + 1):
        assert trained(result) is True
    before = result.chain.head
    for batch in ((commit,), (unknown, commit)):
        assert reason(trained(result, *batch)) == "stale-batch"
    assert trained(result, unknown) is False, "nobody here knows how old it is"
    assert (result.chain.head, result.commits.entries[commit.digest].trained_in) == (before, None)


def test_what_was_forgotten_but_for_its_fault_is_still_known_to_be_too_old():
    """A rejected commit is kept for good; this does not make it younger."""
    commit = WORLD.commit(WORKER)
    result = ledger(commit)
    settle(result, commit, accepted=False)
    for _ in range(WORLD.manifest.grpo.async_level + 1):
        assert trained(result) is True
    result.advance(5 * EXPIRE)
    assert commit.digest in result.commits.kept
    assert commit.digest not in result.commits.entries
    assert reason(trained(result, commit)) == "stale-batch"


def test_an_old_batch_of_a_final_version_or_of_one_taken_before_stands():
    """The council or this node knew its commits; judging them anew would split the node off."""
    commit = WORLD.commit(WORKER)
    lag = WORLD.manifest.grpo.async_level + 1
    versions = branch(GENESIS, batches=(*[()] * lag, (commit,)), term=1)
    adopting, restored = ledger(commit), ledger(commit)
    settle(adopting, commit)
    settle(restored, commit)
    assert adopt(adopting, versions) == versions
    for version in versions:
        restored.restore_checkpoint(version)
    assert adopting.chain.head == restored.chain.head == versions[-1]


@pytest.mark.parametrize("order", ["commit", "version"])
def test_totals_do_not_depend_on_what_came_first(order):
    commit = WORLD.commit(WORKER)
    result = ledger()
    version = WORLD.checkpoint(GENESIS, batch=(commit.digest,))
    if order == "version":
        assert adopt(result, [version]) == [version]
    result.offer_commit(commit, 0)
    settle(result, commit)
    if order == "commit":
        assert offer(result, version) is True
    assert (result.workers.totals.trained, result.workers.totals.certified) == (1, 1)


# Branches that final pages name, and restarts


def branch(*parents, batches=((), (), ()), **changes) -> list:
    """Return versions after ``parents`` by a second trainer."""
    result = [*parents]
    for batch in batches:
        digests = tuple(commit.digest for commit in batch)
        result.append(WORLD.checkpoint(result[-1], 1, batch=digests, **changes))
    return result[len(parents) :]


def test_a_final_branch_is_adopted_as_a_whole_in_place_of_ours():
    commit = WORLD.commit(WORKER)
    result = ledger(commit)
    settle(result, commit)
    for _ in range(3):
        assert trained(result) is True
    first = result.chain.get(1)
    adopted = branch(first, batches=((commit,), ()), term=1)
    assert adopt(result, adopted, 7.0) == adopted
    assert len(result.branches) == 0
    assert [entry.manifest for entry in result.chain.checkpoints] == [GENESIS, first, *adopted]
    assert [entry.taken_at for entry in result.chain.checkpoints] == [NOW, NOW, 7.0, 7.0]
    assert result.commits.entries[commit.digest].trained_in == 2
    assert not result.chain.is_taken(WORLD.checkpoint(first).digest)


def test_a_branch_with_a_flaw_changes_nothing():
    """No honest council names one."""
    commit = WORLD.commit(WORKER)
    result = ledger(commit)
    settle(result, commit)
    assert trained(result, commit) is True
    head = result.chain.head
    twice = branch(GENESIS, batches=((commit,), (commit,)), term=1)
    older = branch(GENESIS, batches=((),), term=3)
    for flawed in (
        branch(head, batches=((commit,),), term=1),
        twice,
        [*older, *branch(*older, batches=((),), term=1)],
        [WORLD.checkpoint(GENESIS, version=2)],
        [older[0], WORLD.checkpoint(older[0], 1, version=3)],
    ):
        assert adopt(result, flawed) == []
    assert (result.chain.head, result.commits.entries[commit.digest].trained_in) == (head, 1)


def test_no_page_takes_a_final_version_back():
    """Honest members name a version after the one before."""
    result = ledger()
    ours = [GENESIS]
    for _ in range(3):
        assert trained(result) is True
        ours.append(result.chain.head)
    assert result.follow(Lead(0, ours[2].digest), NOW) == []
    for parent in ours[:2]:
        assert adopt(result, branch(parent, term=1)) == []
        assert result.follow(Lead(1, parent.digest), NOW) == []
    versions = [entry.manifest for entry in result.chain.checkpoints]
    assert versions == ours, "nor what follows it"
    after = branch(ours[2], term=1)
    assert adopt(result, after) == after
    assert result.chain.final == 5


def test_a_restart_takes_back_whatever_had_been_taken():
    """Old outcomes are gone by then, and the live trainers are not known yet."""
    commit = WORLD.commit(WORKER)
    ours = [GENESIS, *branch(GENESIS, batches=((commit,), (), ()), term=1)]
    later = branch(GENESIS, term=3)
    result = Ledger(WORLD.manifest)
    for version in (*ours, *ours, *later):
        result.restore_checkpoint(version)
    assert [entry.manifest for entry in result.chain.checkpoints] == [GENESIS, *later]
    for flawed in (
        WORLD.checkpoint(later[-1], term=2),
        WORLD.checkpoint(WORLD.checkpoint(later[-1], 1), 1),
        WORLD.sealed(later[-1].message, WORLD.validators[0]),
    ):
        result.restore_checkpoint(flawed)
    assert result.chain.head == later[-1]


def test_the_largest_lag_is_kept():
    commit, lag = WORLD.commit(WORKER), WORLD.manifest.grpo.async_level
    result = ledger(commit)
    settle(result, commit)
    for _ in range(lag):
        assert trained(result) is True
    assert result.commits.policy_lag_max == 0
    assert trained(result, commit) is True, "it is as old as it may be"
    assert result.commits.policy_lag_max == lag == 2


# Time and demand


def test_old_commits_are_forgotten_and_cannot_come_back():
    commit = WORLD.commit(WORKER)
    result = ledger(commit)
    settle(result, commit)
    result.advance(4 * EXPIRE)
    assert commit.digest in result.commits.entries
    result.advance(4 * EXPIRE + 1)
    assert result.commits.entries == {}
    assert result.commits.next_slot(WORKER.peer_id) == 1, "a version may learn from it"
    again = WORLD.commit(OTHER)
    assert result.offer_commit(again, 4 * EXPIRE + 1, anti_entropy=True) is False
    assert result.workers.totals.certified == 1, "what was earned is kept"


def test_old_commits_stay_while_they_are_needed():
    commit, other = WORLD.commit(WORKER), WORLD.commit(OTHER)
    result = ledger(commit, other)
    result.advance(9 * EXPIRE, lambda: {commit.digest})
    assert result.commits.entries.keys() == {commit.digest}
    result.advance(9 * EXPIRE + 1)
    assert result.commits.entries == {}


def test_commits_for_versions_that_never_come_leave_nothing_behind():
    result = ledger()
    for round_number in range(10):
        epoch = round_number * (4 * EXPIRE + 1)
        result.advance(epoch)
        for version in range(COMMITS_IN_FLIGHT_MAX):
            fields = {"version": 2**53 - version - 100 * round_number, "epoch": epoch}
            commit = WORLD.commit(WORKER, slot=version, **fields)
            assert result.offer_commit(commit, epoch) is True
        assert result.commits.next_slot(WORKER.peer_id) == COMMITS_IN_FLIGHT_MAX
    result.advance(100 * EXPIRE)
    assert (result.commits.entries, result.commits.kept, result.commits.unsettled) == ({}, {}, {})
    assert result.commits.next_slot(WORKER.peer_id) == 0


def test_usable_are_certified_fresh_and_not_learned_from_oldest_first():
    late, early = WORLD.commit(WORKER, epoch=1), WORLD.commit(OTHER)
    waiting = WORLD.commit(WORLD.workers[2])
    result = ledger(late, early, waiting)
    settle(result, late)
    settle(result, early)
    assert [entry.commit for entry in result.backpressure.usable()] == [early, late]
    for _ in range(WORLD.manifest.grpo.async_level):
        assert trained(result) is True
    assert len(result.backpressure.usable()) == 2
    assert trained(result) is True
    assert result.backpressure.usable() == []


def test_a_commit_for_a_version_to_come_is_not_usable_yet():
    commit = WORLD.commit(WORKER, version=1)
    result = ledger(commit)
    settle(result, commit)
    assert result.backpressure.usable() == []


def test_workers_pause_when_enough_is_on_its_way():
    grpo = WORLD.manifest.grpo
    chain = WORLD.chain(WORKER, grpo.rollouts_per_step * grpo.rollouts_ahead)
    result = ledger(*chain)
    certified = chain[: len(chain) // 2]  # and this many of the others are expected
    for commit in certified:
        assert result.backpressure.wanted(result.epoch)
        settle(result, commit)
    assert result.backpressure.backlog(result.epoch) == len(chain)
    assert not result.backpressure.wanted(result.epoch)
    assert trained(result, *certified) is True
    assert result.backpressure.backlog(result.epoch) == len(chain) - len(certified) <= CREDIT_MAX
    assert result.backpressure.wanted(result.epoch)


def test_more_is_wanted_until_a_backlog_is_there_and_nothing_after_the_last_version():
    grpo = WORLD.manifest.grpo
    backlog_max = grpo.rollouts_per_step * grpo.rollouts_ahead
    chain = WORLD.chain(WORKER, backlog_max + 1)
    result = ledger(*chain)
    assert result.backpressure.wanted(result.epoch) == backlog_max, (
        "a new node's commits are not counted on"
    )
    settle(result, chain[0])
    assert result.backpressure.wanted(result.epoch) == backlog_max - 2, (
        "one is certified, another one believed in"
    )
    for commit in chain[1:]:
        settle(result, commit)
    assert result.backpressure.backlog(result.epoch) == backlog_max + 1
    assert result.backpressure.wanted(result.epoch) == 0
    last = World(run_manifest(grpo={"steps": 1}))
    over = ledger(world=last)
    assert (
        over.backpressure.wanted(over.epoch)
        == last.manifest.grpo.rollouts_per_step * last.manifest.grpo.rollouts_ahead
    )
    assert offer(over, last.checkpoint(over.chain.head)) is True
    assert over.backpressure.wanted(over.epoch) == 0, "nobody would learn from it"


def test_a_share_is_that_of_what_the_last_versions_learned_from():
    mine, others = WORLD.chain(WORKER, 3), [WORLD.commit(OTHER)]
    result = ledger(*mine, *others)
    for commit in (*mine, *others):
        settle(result, commit)
    assert result.commits.share(WORKER.peer_id) == 0, "nobody has learned from it"
    assert trained(result, *mine, *others) is True
    assert result.commits.share(WORKER.peer_id) == 0.75
    assert result.commits.share(OTHER.peer_id) == 0.25
    for _ in range(SHARE_VERSIONS):
        assert trained(result) is True
    assert result.commits.share(WORKER.peer_id) == 0, "long ago"


def test_commits_that_come_to_nothing_do_not_hold_up_the_others():
    chain = WORLD.chain(WORKER, COMMITS_IN_FLIGHT_MAX + CREDIT_MAX + 1)
    delivered, silent = chain[: CREDIT_MAX + 1], chain[CREDIT_MAX + 1 :]
    result = ledger(*delivered)
    assert result.backpressure.backlog(result.epoch) == 0, (
        "who has never delivered is not counted on"
    )
    for commit in delivered:
        settle(result, commit)
    for commit in silent:
        assert result.offer_commit(commit, 0) is True
    assert trained(result, *delivered) is True
    assert result.backpressure.backlog(result.epoch) == CREDIT_MAX, (
        "nor is more than an honest worker has in flight"
    )
    result.advance(EXPIRE + 1)
    again = WORLD.commit(WORKER, len(silent), epoch=EXPIRE + 1)
    assert result.offer_commit(again, EXPIRE + 1) is True
    assert result.backpressure.backlog(result.epoch) == 0, (
        "who let more expire than was certified is not counted on"
    )


def test_a_slot_used_with_a_superseded_version_stays_used():
    world = World(run_manifest(trainers=2))
    result = ledger(world=world)
    old = world.checkpoint(world.genesis())
    new = world.checkpoint(world.genesis(), trainer=1, term=1, policy=digest(b"another"))
    assert offer(result, old) is True
    before = world.commit(WORKER, version=1, checkpoint=old.digest)
    assert result.offer_commit(before, 0) is True
    result.follow(Lead(1, world.genesis().digest), NOW)
    assert offer(result, new) is True
    assert result.commits.entries[before.digest].state is CommitState.EXPIRED, (
        "nobody can check it now"
    )
    assert result.commits.in_flight(WORKER.peer_id) == 0
    assert result.commits.next_slot(WORKER.peer_id) == 1
    after = world.commit(WORKER, slot=1, version=1, checkpoint=new.digest)
    assert result.offer_commit(after, 0) is True
    assert not result.workers.is_slashed(WORKER.peer_id)
    settle(result, before)
    assert result.backpressure.usable() == [], "it is of another checkpoint"


def test_a_commit_to_another_version_of_a_number_than_the_one_taken_is_over():
    """Both when the commit precedes the version, and when it is replayed after a restart."""
    result = ledger(WORLD.commit(WORKER))
    stranded = WORLD.commit(WORKER, version=1, checkpoint=digest(b"another"))
    later = WORLD.commit(OTHER, version=2, checkpoint=digest(b"another"))
    for commit in (stranded, later):
        result.restore_commit(commit)
    result.restore_checkpoint(WORLD.checkpoint(GENESIS))
    states = {entry.commit: entry.state for entry in result.commits.entries.values()}
    assert states.pop(stranded) is CommitState.EXPIRED
    assert set(states.values()) == {CommitState.COMMITTED}
    assert (result.commits.in_flight(WORKER.peer_id), result.commits.in_flight(OTHER.peer_id)) == (
        1,
        1,
    )


def test_what_proves_a_fault_survives_restarts():
    liar = WORLD.commit(OTHER)
    result = ledger(*WORLD.chain(WORKER, 3), liar)
    settle(result, liar, accepted=False)
    result.advance(5 * EXPIRE)
    assert result.commits.entries == {}
    assert list(result.commits.kept) == [liar.digest]
    restarted = ledger()
    for entry in result.commits.kept.values():
        restarted.restore_commit(entry.commit)
        if entry.certificate is not None:
            set_outcome(restarted, entry.certificate, found(entry.reason), entry.rank)
    restarted.advance(5 * EXPIRE)
    assert restarted.workers.is_slashed(OTHER.peer_id)
    assert list(restarted.commits.kept) == list(result.commits.kept)


def test_a_version_that_reached_nobody_before_its_batch_was_old_is_taken_all_the_same():
    """All validators stop, the trainer publishes without receivers, and they return much later."""
    commit, other = WORLD.commit(WORKER), WORLD.commit(OTHER)
    result = ledger(commit, other)
    for one in (commit, other):
        settle(result, one)
    result.advance(100 * EXPIRE)
    assert result.commits.entries == {}
    assert result.backpressure.usable() == [], "it is too old to be learned from anew"
    assert trained(result, commit, other) is True
    assert (result.workers.totals.trained, result.backpressure.usable()) == (2, [])
    result.advance(100 * EXPIRE + 1)
    first = {one.digest for one in (commit, other)}  # the last of their slots, too
    assert first == set(result.commits.kept)
    for _ in range(WORLD.manifest.grpo.async_level + 1):
        assert trained(result) is True
    result.advance(100 * EXPIRE + 2)
    assert result.commits.kept == {}


def test_an_old_commit_is_not_wanted_again_when_its_version_is_superseded():
    world = World(run_manifest(trainers=2))
    commit = world.commit(WORKER)
    result = ledger(commit, world=world)
    settle(result, commit)
    result.advance(100 * EXPIRE)
    old = world.checkpoint(world.genesis(), batch=(commit.digest,))
    new = world.checkpoint(world.genesis(), trainer=1, term=1, policy=digest(b"another"))
    assert offer(result, old) is True
    assert (result.commits.kept[commit.digest].trained_in, result.workers.totals.trained) == (1, 1)
    result.follow(Lead(1, world.genesis().digest), NOW)
    assert offer(result, new) is True
    assert (result.commits.kept[commit.digest].trained_in, result.workers.totals.trained) == (
        None,
        0,
    )
    assert (result.backpressure.usable(), result.backpressure.backlog(result.epoch)) == ([], 0)


def test_what_a_version_may_have_learned_from_is_bounded_and_the_oldest():
    """Untrusted workers that produce more than trainers use gain no memory by it."""
    grpo = WORLD.manifest.grpo
    limit = grpo.rollouts_per_step * (1 + grpo.async_level + grpo.rollouts_ahead)
    chain = WORLD.chain(WORKER, int(limit) + 5)
    result = ledger()
    for commit in chain:
        result.restore_commit(commit)
        settle(result, commit)
    result.advance(100 * EXPIRE)
    oldest = sorted(one.digest for one in chain)[: int(limit)]
    assert set(result.commits.kept) == set(oldest)


def rounds_world(trainers=1, **grpo):
    """Return a run with rounds of up to 3 trainers of 2 steps, each of 2 rollouts."""
    outer = {"trainers": 3, "inner_steps": 2}
    return World(run_manifest(trainers=trainers, grpo=grpo | {"outer": outer}))


def test_in_a_run_with_rounds_workers_make_rollouts_for_the_most_trainers():
    world = rounds_world(rollouts_ahead=2)
    commit = world.commit(WORKER)
    result = ledger(commit, world=world)
    assert result.backpressure.wanted(result.epoch) == 3 * 2 * 2 * 2
    settle(result, commit)
    assert result.backpressure.wanted(result.epoch) == 3 * 2 * 2 * 2 - 1


def test_in_a_run_with_rounds_a_batch_is_there_with_the_rollouts_of_the_most_trainers():
    world = rounds_world()
    batch = 3 * 2 * 2
    chain = world.chain(WORKER, batch)
    result = ledger(world=world)
    for number, commit in enumerate(chain, start=1):
        result.restore_commit(commit)
        settle(result, commit)
        result.advance(number)
        assert (result.batch_since is None) is (number < batch)
    assert result.batch_since == batch


def test_in_a_run_with_rounds_the_rollouts_of_the_most_trainers_may_be_awaited():
    world = rounds_world(async_level=1, rollouts_ahead=2)
    limit = 3 * 2 * 2 * (1 + 1 + 2)
    chain = world.chain(WORKER, limit + 5)
    result = ledger(world=world)
    for commit in chain:
        result.restore_commit(commit)
        settle(result, commit)
    result.advance(100 * EXPIRE)
    assert set(result.commits.kept) == set(sorted(one.digest for one in chain)[:limit])


def test_what_nobody_can_use_does_not_hold_up_the_workers_for_ever():
    chain = WORLD.chain(WORKER, 6)
    result = ledger(*chain)
    for commit in chain:
        settle(result, commit)
    assert not result.backpressure.wanted(result.epoch)
    result.advance(EXPIRE)
    assert not result.backpressure.wanted(result.epoch)
    result.advance(EXPIRE + 1)
    assert result.backpressure.wanted(result.epoch)


def test_a_complete_run_wants_nothing_more():
    world = World(run_manifest(grpo={"steps": 1}))
    result = ledger(world=world)
    assert result.backpressure.wanted(result.epoch)
    assert offer(result, world.checkpoint(world.genesis())) is True
    assert not result.backpressure.wanted(result.epoch)


def test_a_restart_takes_back_more_than_may_wait_at_once():
    old = WORLD.chain(WORKER, COMMITS_IN_FLIGHT_MAX)
    result = ledger(*old)
    result.advance(EXPIRE + 1)
    new = WORLD.commit(WORKER, len(old), epoch=EXPIRE + 1)
    assert result.offer_commit(new, EXPIRE + 1) is True
    restarted = ledger()
    for commit in (*old, new, new):
        restarted.restore_commit(commit)
    restarted.advance(EXPIRE + 1)
    assert restarted.workers.totals == result.workers.totals
    assert list(restarted.commits.entries) == list(result.commits.entries)
    assert restarted.commits.in_flight(WORKER.peer_id) == 1
