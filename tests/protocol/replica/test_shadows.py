"""Reports of trainers that repeat the leader's steps, and what members conclude."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import digest
from protocol.core.faults import FaultCode
from protocol.core.types import Topic, ValidationResult
from protocol.ledger.chain import Lead
from protocol.messages import StepReport
from protocol.replica.shadows import (
    REPORT_EPOCHS,
    REPORTS_MAX,
    SILENT_VERSIONS_MAX,
    STEPS_AWAITED,
    VERSIONS_KEPT,
)
from tests.protocol.replica import test_leading as viewed
from tests.protocol.replica.test_leading import View
from tests.worlds.leads import show_lead
from tests.worlds.messages import World, run_manifest

TRAINERS = 5
WORLD = World(run_manifest(trainers=TRAINERS, validators=7, grpo={"steps": 100}))
GENESIS = WORLD.genesis()
OTHERS = [digest(b"other %d" % number) for number in range(3)]


def versions(count, parent=GENESIS, trainer=0, **changes):
    chain = [parent]
    for _ in range(count):
        chain.append(WORLD.checkpoint(chain[-1], trainer, **changes))
    return chain[1:]


def report(version, trainer, policy=None, world=WORLD):
    stated = version.message.policy if policy is None else policy
    message = StepReport(manifest=version.digest, policy=stated)
    return world.sealed(message, world.trainers[trainer])


def begun(count=1):
    """Return a node that has accepted some versions of trainer 0."""
    replica, chain = WORLD.replica(pages_to=0, roster_at=None), versions(count)
    for one in chain:
        assert replica.receive(one.envelope, WORLD.at(3)).result is ValidationResult.ACCEPT
    return replica, chain


def take(replica, signed, epoch=4):
    return replica.receive(signed.envelope, WORLD.at(epoch), topic=Topic.CHECKPOINTS)


# Messages


def test_a_report_of_a_trainer_is_accepted_once():
    replica, (first,) = begun()
    one = report(first, 1)
    assert take(replica, one).result is ValidationResult.ACCEPT
    assert take(replica, one).result is ValidationResult.IGNORE
    assert replica.shadows.all() == [one]
    assert replica.shadows.has_reported(one.signer, first.digest)
    assert not replica.shadows.has_reported(WORLD.trainers[2].peer_id, first.digest)


def test_the_trainers_that_confirm_a_version_have_reported_its_policy_only():
    replica, (first,) = begun()
    assert replica.shadows.confirmed(first.digest) == set()
    for trainer in (0, 1, 2):
        take(replica, report(first, trainer))
    take(replica, report(first, 2, OTHERS[0]))
    take(replica, report(first, 3, OTHERS[0]))
    assert replica.shadows.confirmed(first.digest) == {WORLD.trainers[1].peer_id}
    assert replica.shadows.confirmed(GENESIS.digest) == set()
    assert replica.shadows.confirmed(OTHERS[0]) == set(), "unknown"


def test_nobody_but_a_trainer_of_the_run_reports():
    replica, (first,) = begun()
    message = StepReport(manifest=first.digest, policy=OTHERS[0])
    received = take(replica, WORLD.sealed(message, WORLD.validators[0]))
    assert received.result is ValidationResult.REJECT
    assert received.fault.code is FaultCode.NOT_A_TRAINER
    assert replica.shadows.all() == []


def test_a_report_about_an_unknown_or_old_version_is_not_kept():
    replica, chain = begun(VERSIONS_KEPT + 1)
    unknown = WORLD.checkpoint(chain[-1], 0, index_bytes=99)
    assert take(replica, report(unknown, 1)).result is ValidationResult.IGNORE
    show_lead(WORLD, replica, 0, chain[-1])
    replica.advance(WORLD.at(4))
    assert take(replica, report(chain[0], 1)).result is ValidationResult.IGNORE
    assert take(replica, report(chain[1], 1)).result is ValidationResult.ACCEPT


def test_a_report_about_a_version_that_waits_is_kept():
    replica, (first,) = begun()
    second, third = versions(2, first)
    assert replica.receive(third.envelope, WORLD.at(3)).result is ValidationResult.IGNORE
    assert take(replica, report(third, 1, OTHERS[0])).result is ValidationResult.ACCEPT
    replica.receive(second.envelope, WORLD.at(4))
    assert replica.shadows.comparison(3).others == {OTHERS[0]: 1}


def test_reports_about_versions_that_are_dropped_or_old_are_forgotten():
    replica, chain = begun(2)
    for one in chain:
        take(replica, report(one, 2))
    show_lead(WORLD, replica, 1, chain[0])
    replica.advance(WORLD.at(4))
    assert [one.message.manifest for one in replica.shadows.all()] == [chain[0].digest]
    old, chain = begun(VERSIONS_KEPT + 1)
    for one in chain[:2]:
        take(old, report(one, 2))
    show_lead(WORLD, old, 0, chain[-1])
    old.advance(WORLD.at(4))
    assert [one.message.manifest for one in old.shadows.all()] == [chain[1].digest]


def test_a_restart_keeps_reports():
    replica, (first,) = begun()
    take(replica, report(first, 1, OTHERS[0]))
    other = WORLD.replica(pages_to=0, roster_at=None)
    for envelope in replica.envelopes():
        other.restore(envelope)
    assert other.shadows.comparison(1) == replica.shadows.comparison(1)
    assert other.shadows.comparison(1).others == {OTHERS[0]: 1}


def test_a_trainer_that_reports_much_displaces_only_its_own_reports():
    replica, chain = begun(REPORTS_MAX + 2)
    take(replica, report(chain[0], 2))
    for one in chain:
        take(replica, report(one, 1))
    sizes = [len(table) for table in replica.shadows.tables]
    assert sizes == [0, REPORTS_MAX, 1, 0, 0]
    take(replica, report(chain[-1], 1, OTHERS[0]))
    table = replica.shadows.tables[1]
    assert (len(table), table.limit) == (REPORTS_MAX + 1, 2 * REPORTS_MAX)
    assert replica.shadows.comparison(1).confirmations == 2
    assert replica.shadows.comparison(REPORTS_MAX + 1).confirmations == 2


# Disputes


def test_two_equal_reports_outnumber_the_leader():
    replica, (first,) = begun()
    take(replica, report(first, 1, OTHERS[0]))
    assert replica.shadows.dispute(0) is None, "nobody can know which of two is wrong"
    take(replica, report(first, 2, OTHERS[1]))
    assert replica.shadows.dispute(0) is None, "they do not agree"
    take(replica, report(first, 3, OTHERS[0]))
    assert replica.shadows.dispute(0).manifest == first
    assert "version 1 of trainer" in str(replica.shadows.dispute(0))
    assert "2 trainers computed another policy" in str(replica.shadows.dispute(0))
    take(replica, report(first, 4))
    assert replica.shadows.dispute(0) is None, "two confirm it, the leader and one more"


def test_a_leader_that_reports_about_its_own_version_counts_once():
    replica, (first,) = begun()
    take(replica, report(first, 0))
    assert replica.shadows.comparison(1).confirmations == 1
    contradicting = report(first, 0, OTHERS[0])
    take(replica, contradicting)
    assert replica.shadows.comparison(1).others == {}


def test_a_trainer_that_contradicts_itself_says_nothing():
    replica, (first,) = begun()
    for one in (report(first, 1, OTHERS[0]), report(first, 2, OTHERS[0])):
        take(replica, one)
    assert replica.shadows.is_disputed(1)
    assert take(replica, report(first, 2)).result is ValidationResult.ACCEPT
    comparison = replica.shadows.comparison(1)
    assert (comparison.confirmations, comparison.others) == (1, {OTHERS[0]: 1})
    assert take(replica, report(first, 2, OTHERS[1])).result is ValidationResult.IGNORE


def test_versions_after_a_disputed_one_do_not_count_as_undisputed():
    replica, chain = begun(3)
    for trainer in (1, 2):
        take(replica, report(chain[1], trainer, OTHERS[0]))
    assert replica.shadows.undisputed(0) == 1
    assert replica.shadows.undisputed(2) == 3, "a final version stays"
    assert replica.shadows.is_disputed(2)
    assert not replica.shadows.is_disputed(4)


@given(
    stated=st.dictionaries(
        st.integers(1, TRAINERS - 1), st.sampled_from([None, *OTHERS]), max_size=TRAINERS - 1
    ),
    data=st.data(),
)
def test_the_majority_decides_in_any_order_of_arrival(stated, data):
    replica, (first,) = begun()
    signed = [report(first, trainer, policy) for trainer, policy in stated.items()]
    for one in data.draw(st.permutations(signed)):
        take(replica, one)
    confirming = 1 + sum(policy is None for policy in stated.values())
    agreeing = max([0, *(list(stated.values()).count(one) for one in OTHERS)])
    expected = agreeing >= 2 and agreeing > confirming
    assert replica.shadows.is_disputed(1) is expected
    comparison = replica.shadows.comparison(1)
    assert comparison.confirmations == confirming
    assert sum(comparison.others.values()) == len(stated) - confirming + 1


@pytest.mark.parametrize("liars", range(TRAINERS))
def test_honest_trainers_are_never_outnumbered_by_a_minority(liars):
    """Of five trainers, up to two that lie alike cannot dispute an honest version."""
    for lying in itertools.combinations(range(1, TRAINERS), liars):
        replica, (first,) = begun()
        for trainer in range(1, TRAINERS):
            take(replica, report(first, trainer, OTHERS[0] if trainer in lying else None))
        assert replica.shadows.is_disputed(1) is (liars > TRAINERS - liars)


# Members


class ShadowedView(View):
    """A member's view of a chain, with reports of its three trainers."""

    def report(self, version, trainer, policy=None, *, epoch):
        self.take(report(version, trainer, policy, VIEWED), epoch=epoch)


VIEWED, NEXT, LAST, RECORD = viewed.WORLD, viewed.NEXT, viewed.LAST, viewed.RECORD


def shadowed(count=1, live=(0, 1, 2), taken=LAST - 1):
    """Return a view with live trainers and some versions, which it holds."""
    view = ShadowedView(held=count)
    view.live(*live, epoch=LAST - 2)
    chain = viewed.versions(count)
    view.take(*chain, epoch=taken)
    return view, chain


def test_a_version_is_final_once_a_second_trainer_confirms_it():
    view, (first,) = shadowed()
    assert view.proposed(NEXT).head == viewed.GENESIS.digest
    assert not view.approves(head=first.digest)
    view.report(first, 1, epoch=LAST)
    assert view.approves(head=first.digest)
    assert view.proposed(NEXT).head == viewed.GENESIS.digest, "others may not have the report yet"
    assert view.proposed(NEXT + 1) == Lead(0, first.digest)


def test_members_wait_for_nobody_when_less_than_two_others_shadow():
    """One alone cannot decide anything."""
    view, (first,) = shadowed(live=(0, 1))
    assert view.proposed(NEXT).head == first.digest
    view.report(first, 1, OTHERS[0], epoch=LAST)
    assert view.proposed(NEXT).head == first.digest
    assert view.approves(head=first.digest)


def test_members_wait_no_longer_once_all_have_reported():
    view, (first,) = shadowed()
    view.report(first, 1, OTHERS[0], epoch=LAST - 1)
    assert view.proposed(NEXT).head == viewed.GENESIS.digest
    view.report(first, 2, OTHERS[1], epoch=LAST - 1)
    assert view.proposed(NEXT).head == first.digest, "three digests decide nothing"


def test_silent_trainers_delay_a_version_and_stop_nothing():
    view, (first, second) = shadowed(2, taken=LAST)
    view.report(first, 1, epoch=LAST)
    due = LAST + REPORT_EPOCHS
    view.live(0, 1, 2, epoch=due - 2)
    assert view.proposed(due).head == first.digest
    assert view.proposed(due + 1).head == second.digest
    assert view.approves(due - 1, head=second.digest), "a little sooner than it proposes"
    assert not view.approves(due - 2, head=second.digest)


def test_a_step_that_takes_long_gets_longer_for_its_reports():
    view = ShadowedView(held=2)
    view.live(0, 1, 2, epoch=LAST)
    first, second = viewed.versions(2)
    view.take(first, epoch=LAST)
    view.take(second, epoch=LAST + 2)
    epochs = VIEWED.manifest.epochs
    expected = (REPORT_EPOCHS + 2 * STEPS_AWAITED) * epochs.seconds
    assert view.target.shadows.patience_seconds(2) == expected
    later = viewed.versions(1, second)
    view.take(*later, epoch=LAST + 200)
    longest = epochs.stall_epochs * epochs.seconds
    assert view.target.shadows.patience_seconds(3) == longest


def test_trainers_that_never_shadow_are_not_awaited_for_long():
    count = SILENT_VERSIONS_MAX + 1
    view, chain = shadowed(count)
    assert not view.target.shadows.awaiting(count, VIEWED.at(LAST), 0.0)
    assert view.proposed(NEXT).head == chain[-1].digest
    view.report(chain[-2], 2, epoch=LAST)
    view.report(chain[-2], 1, OTHERS[0], epoch=LAST)
    assert view.target.shadows.awaiting(count, VIEWED.at(LAST), 0.0), "they report again"


def test_no_member_makes_a_disputed_version_final_and_its_term_ends():
    view, (first, second) = shadowed(2, taken=LAST)
    view.live(0, 1, 2, epoch=LAST)
    for trainer in (1, 2):
        view.report(first, trainer, OTHERS[0], epoch=LAST)
    end = LAST + RECORD
    view.live(0, 1, 2, epoch=LAST + 2, policy_version=2)
    for epoch in range(NEXT, end + 1):
        assert view.proposed(epoch).head == viewed.GENESIS.digest
        assert not view.approves(epoch, head=first.digest)
        assert not view.approves(epoch, head=second.digest)
    assert view.term_in(end) == 0
    assert view.proposed(end + 1) == Lead(1, viewed.GENESIS.digest)
    assert view.approves(end + 1, term=1)


def test_versions_before_a_disputed_one_become_final():
    view, (first, second) = shadowed(2)
    view.report(first, 1, epoch=LAST - 1)
    for trainer in (1, 2):
        view.report(second, trainer, OTHERS[0], epoch=LAST - 1)
    assert view.proposed(NEXT).head == first.digest
