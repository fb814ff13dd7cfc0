"""A member's judgement of the leader and of the final version."""

from dataclasses import dataclass, field

import pytest

from protocol.consensus.member import Contents
from protocol.core.crypto import digest
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import ValidationResult
from protocol.ledger.chain import Lead
from protocol.replica.batch_rule import BatchRule
from protocol.replica.leading import PATIENCE_EPOCHS, Leading
from protocol.replica.page_contents import OPEN_EPOCHS, PageContents
from protocol.replica.replica import Replica
from protocol.replica.settlement import DecidedCommits
from tests.worlds.messages import World, run_manifest
from tests.worlds.page_book import PageBook

RECORD, STALL = 5, 12
WORLD = World(
    run_manifest(trainers=3, validators=7, epochs={"record_epochs": RECORD, "stall_epochs": STALL})
)
ME = WORLD.validators[0]
LAST = 11
"""Epoch of the newest page: a member judges children of it."""
NEXT = LAST + 1
GENESIS = WORLD.genesis()


def versions(count, parent=GENESIS, trainer=0, **changes) -> list:
    """Return versions of one trainer."""
    chain = [parent]
    for _ in range(count):
        chain.append(WORLD.checkpoint(chain[-1], trainer, **changes))
    return chain[1:]


_FAULT = Fault(FaultCode.BATCH_OMITTED)


class AnyBatch(BatchRule):
    """Approves every batch: most tests are about other faults, with versions of no batch."""

    def __init__(self, target):
        super().__init__(target.manifest, target.ledger, target.pages)
        self._chain = target.ledger.chain

    def judged(self, number):
        return number <= self._chain.version


@dataclass
class View:
    """A member that holds the weights up to a version; pages state ``term`` and ``head``.

    From ``begun`` on; before, there is no final version. The page of ``LAST`` is not final.
    """

    since: int = 0
    held: int = 0
    term: int = 0
    head: bytes = GENESIS.digest
    begun: int = 3
    last: int = LAST
    target: Replica = field(init=False)
    leading: Leading = field(init=False)

    def __post_init__(self):
        contents = {self.begun: Contents(term=self.term, head=self.head)}
        self.book = PageBook(WORLD.manifest, WORLD.validators, contents)
        self.target = WORLD.replica(pages_to=0, roster_at=None)
        self.any_batch()
        self.book.show(self.target, self.last)
        self.restart(self.since)

    def any_batch(self) -> None:
        self.target.batches = AnyBatch(self.target)

    def restart(self, since) -> None:
        """Forget what was seen of the trainers before an epoch."""
        self.leading = Leading(self.target, since, lambda: self.held)

    def take(self, *signed, epoch) -> None:
        for one in signed:
            received = self.target.receive(one.envelope, WORLD.at(epoch))
            assert received.result is ValidationResult.ACCEPT, received

    def hear(self, *signed, epoch) -> None:
        """Receive versions that wait, or that the final page names."""
        for one in signed:
            received = self.target.receive(one.envelope, WORLD.at(epoch))
            assert received.result is ValidationResult.IGNORE
        self.target.advance(WORLD.at(epoch))

    def live(self, *trainers, epoch, roles=("trainer",), **changes) -> None:
        """Receive records of trainers: they are live for ``RECORD`` epochs more."""
        records = [WORLD.record(WORLD.trainers[one], roles, epoch, **changes) for one in trainers]
        self.take(*records, epoch=epoch)

    def proposed(self, epoch=NEXT) -> Lead:
        return self.leading.proposed(self.target.pages.tip(), epoch)

    def term_in(self, epoch) -> int:
        return self.proposed(epoch).term

    def approves(self, epoch=NEXT, **fields) -> bool:
        """Return whether this member votes for a page with another term or final version."""
        parent = self.target.pages.tip()
        stated = {"epoch": epoch, "term": parent.term, "head": parent.head, **fields}
        page = self.book.page(self.last).message.model_copy(update=stated)
        return self.leading.approves(page, parent)


# The final version


def test_a_version_is_final_an_epoch_after_it_is_here():
    """By then the other members have it, too."""
    view, (first,) = View(held=1), versions(1)
    view.live(0, epoch=LAST)
    view.take(first, epoch=LAST)
    assert view.proposed(LAST + 1) == Lead(0, GENESIS.digest)
    assert view.proposed(LAST + 2) == Lead(0, first.digest)
    other = View(held=1)
    other.target.receive(first.envelope, WORLD.manifest.epoch_start(LAST))
    assert other.proposed(LAST + 1).head == first.digest, "it was there as the epoch began"


def test_the_newest_version_with_weights_here_is_final():
    view, chain = View(held=2), versions(3)
    view.take(*chain, epoch=5)
    assert view.proposed().head == chain[1].digest
    view.held = 0
    assert view.proposed().head == GENESIS.digest
    view.held = 7
    assert view.proposed().head == chain[2].digest, "weights may come before the version"


def test_a_member_approves_only_a_later_version_that_it_holds():
    view, chain = View(held=2, head=GENESIS.digest), versions(3)
    view.take(*chain, epoch=5)
    assert [view.approves(head=one.digest) for one in chain] == [True, True, False]
    assert view.approves(), "that of the parent stands"
    assert not view.approves(head=b"")
    assert not view.approves(head=digest(b"unknown"))
    later = View(held=3, head=chain[1].digest)
    later.hear(*chain, epoch=5)
    approved = [one for one in (GENESIS, *chain) if later.approves(head=one.digest)]
    assert approved == chain[1:]


def test_a_member_that_lacks_the_final_version_names_no_other():
    view, chain = View(held=3, head=versions(2)[-1].digest), versions(3)
    view.hear(chain[0], WORLD.checkpoint(chain[0], index_bytes=99), epoch=5)
    view.target.restore(chain[0].envelope)
    assert view.target.ledger.chain.version == 1
    assert view.proposed().head == chain[1].digest
    assert not view.approves(head=chain[0].digest)
    assert view.approves()


def test_no_version_of_a_former_leader_becomes_final_in_a_term_that_has_begun():
    """The page that began it is not final yet, so this node still holds that version."""
    old = versions(2)
    view = View(held=2, term=1, head=old[0].digest, begun=LAST)
    view.take(*old, epoch=5)
    assert view.target.lead.term == 0
    assert view.proposed().head == old[0].digest
    assert not view.approves(head=old[1].digest)
    earlier = View(held=2, term=0, head=old[0].digest, begun=LAST)
    earlier.take(*old, epoch=5)
    assert earlier.proposed().head == old[1].digest
    assert earlier.approves(head=old[1].digest)


# A leader that is gone


def test_a_live_leader_stays():
    view = View()
    view.live(0, 1, 2, epoch=LAST)
    assert view.proposed() == Lead(0, GENESIS.digest)
    assert view.approves()
    for term in range(1, 5):
        assert not view.approves(term=term)


def test_the_next_trainer_leads_when_the_record_of_the_leader_has_expired():
    view = View()
    view.live(0, epoch=LAST - RECORD)
    view.live(1, 2, epoch=LAST)
    assert view.term_in(LAST) == 0
    assert view.term_in(LAST + 1) == 1


@pytest.mark.parametrize("how", ["leaving", "role"])
def test_the_next_trainer_leads_when_the_leader_resigns(how):
    view = View()
    view.live(0, epoch=LAST - 1)
    view.live(1, epoch=LAST)
    assert view.term_in(NEXT) == 0
    if how == "leaving":
        view.live(0, epoch=LAST, leaving=True)
    else:
        view.live(0, epoch=LAST, roles=("relay",))
    assert view.term_in(NEXT) == 1


@pytest.mark.parametrize("since", [0, LAST - 2])
def test_a_leader_that_was_never_seen_has_a_record_lifetime_to_appear(since):
    view = View(since=since)
    view.live(1, epoch=since + RECORD - 1)
    assert view.term_in(since + RECORD - 1) == 0
    assert view.term_in(since + RECORD) == 1
    view.live(0, epoch=since + RECORD)
    assert view.term_in(since + RECORD) == 0


def test_trainers_that_are_not_live_are_passed_over():
    view = View()
    assert view.term_in(NEXT) == 0, "nobody is there to lead"
    view.live(2, epoch=LAST)
    assert view.term_in(NEXT) == 2
    view.live(1, epoch=LAST, roles=("relay", "inference"))
    assert view.term_in(NEXT) == 2
    view.live(1, epoch=LAST + 1)
    assert view.term_in(LAST + 1) == 1


def test_turns_go_round():
    view = View(term=5)
    view.live(0, 1, epoch=LAST)
    assert view.term_in(NEXT) == 6, "trainer 0 follows trainer 2"


def test_a_member_approves_the_next_live_trainer_and_no_other():
    view = View()
    view.live(1, epoch=LAST)
    assert [view.approves(term=term) for term in range(1, 6)] == [True, *[False] * 4]
    view.live(2, epoch=LAST)
    assert not view.approves(term=2), "a live trainer is passed over"
    other = View()
    other.live(2, epoch=LAST)
    assert [other.approves(term=term) for term in range(1, 6)] == [False, True, *[False] * 3]


def test_a_member_approves_a_little_sooner_than_it_proposes():
    """Records reach the members at different times."""
    view = View()
    view.live(0, epoch=LAST - RECORD)
    view.live(1, epoch=LAST)
    gone = LAST + 1
    assert view.term_in(gone - 1) == 0
    assert view.approves(gone - PATIENCE_EPOCHS, term=1)
    assert not view.approves(gone - PATIENCE_EPOCHS - 1, term=1)


def test_a_trainer_whose_record_is_about_to_expire_may_be_passed_over():
    view = View()
    view.live(2, epoch=LAST)
    view.live(1, epoch=LAST - RECORD)
    assert view.approves(LAST, term=1)
    assert view.approves(LAST, term=2)
    fresh = View()
    fresh.live(2, epoch=LAST)
    fresh.live(1, epoch=LAST - RECORD + PATIENCE_EPOCHS)
    assert not fresh.approves(LAST, term=2)


def test_a_member_that_lacks_the_final_version_ends_no_term():
    """It cannot know what would be dropped."""
    view = View(head=digest(b"unknown"))
    view.live(1, epoch=LAST)
    assert view.proposed() == Lead(0, digest(b"unknown"))
    assert not view.approves(term=1)
    assert view.approves()


def test_the_second_trainer_begins_a_run_whose_first_one_never_comes():
    view = View(held=-1, head=b"")
    view.target = WORLD.replica(pages_to=0, roster_at=None, genesis=False)
    view.any_batch()
    view.book.show(view.target, LAST)
    view.restart(0)
    view.live(1, epoch=LAST)
    assert view.proposed() == Lead(1, b"")
    assert view.approves(term=1)


# A leader that stalls


def certified(view, count, epoch) -> None:
    """Let some rollouts be certified before an epoch; a step needs two."""
    commits = WORLD.chain(WORLD.workers[0], count)
    for one in commits:
        view.target.restore(one.envelope)
    view.take(*map(WORLD.certificate, commits), epoch=1)
    view.target.advance(WORLD.at(epoch - 1))
    view.target.ledger.batch_since = None
    view.target.advance(WORLD.at(epoch))


def stalled(view, epoch) -> None:
    """Let the rollouts of a step be certified from an epoch on."""
    certified(view, 2, epoch)
    assert view.target.ledger.batch_since == epoch


def test_a_leader_that_publishes_nothing_is_followed_by_the_next():
    view, since = View(), NEXT
    stalled(view, since)
    view.live(0, 1, epoch=since + STALL)
    assert view.term_in(since + STALL - 1) == 0
    assert view.term_in(since + STALL) == 1
    assert view.approves(since + STALL - PATIENCE_EPOCHS, term=1)
    assert not view.approves(since + STALL - PATIENCE_EPOCHS - 1, term=1)


@pytest.mark.parametrize("count", [0, 1])
def test_without_the_rollouts_of_a_step_no_leader_stalls(count):
    view = View()
    certified(view, count, NEXT)
    view.live(0, 1, epoch=30)
    assert view.term_in(30) == 0
    assert not view.approves(30, term=1)


def test_a_version_ends_a_stall():
    view, since = View(), NEXT
    stalled(view, since)
    view.live(0, 1, epoch=since + STALL)
    view.take(*versions(1), epoch=since + STALL - 1)
    view.target.advance(WORLD.at(since + STALL))
    view.held = 1
    assert view.term_in(since + STALL + 1) == 0


@pytest.mark.parametrize("looks", [True, False])
def test_a_new_leader_has_the_time_of_a_stall_from_the_begin_of_its_term(looks):
    """Although the rollouts were there before, and whenever this member proposes."""
    began = 6
    view = View(term=1, begun=began, last=began)
    stalled(view, 4)
    for epoch in range(began + 1, began + STALL + 1):
        view.live(1, 2, epoch=epoch)
        if looks:
            assert view.term_in(epoch) == (2 if epoch == began + STALL else 1)
        elif epoch == began + 1:
            assert view.approves(epoch), "a vote for an ordinary page is enough"
    view.book.show(view.target, began + STALL - 1)
    assert view.target.pages.tip().epoch > began
    assert view.term_in(began + STALL - 1) == 1
    assert view.term_in(began + STALL) == 2


def test_a_member_that_starts_counts_a_stall_from_then():
    view = View(last=8)
    stalled(view, 4)
    view.restart(9)
    view.live(0, 1, epoch=9 + STALL)
    assert view.term_in(9 + STALL - 1) == 0
    assert view.term_in(9 + STALL) == 1


# Weights that nobody can get


def lost(epoch, *, leader=True, held=1, **record) -> View:
    """Return the view of a member that lacks the weights of version 2, announced in an epoch."""
    view, chain = View(held=held), versions(2)
    view.take(chain[0], epoch=3)
    view.take(chain[1], epoch=epoch)
    for trainer in (1, *([0] if leader else [])):
        changes = record if trainer == 0 else {}
        view.live(trainer, epoch=LAST + 1, **changes)
    return view


def test_a_version_is_lost_when_nobody_serves_it_for_a_record_lifetime():
    announced = LAST - 1
    view, first = lost(announced, policy_version=1), versions(1)[0]
    due = announced + RECORD + 1  # it came a second after the epoch had begun
    assert view.proposed(due - 1) == Lead(0, first.digest)
    assert view.proposed(due) == Lead(1, first.digest)
    assert view.approves(due - PATIENCE_EPOCHS, term=1, head=first.digest)
    assert not view.approves(due - PATIENCE_EPOCHS - 1, term=1, head=first.digest)
    view.held = 2
    assert view.proposed(due) == Lead(0, versions(2)[1].digest)
    assert not view.approves(due, term=1, head=first.digest)


@pytest.mark.parametrize(
    ("policy_version", "patience"), [(0, RECORD), (1, RECORD), (2, STALL), (9, STALL)]
)
def test_a_leader_that_says_it_holds_a_version_has_the_time_of_a_stall(policy_version, patience):
    announced = LAST - 4
    view = lost(announced, policy_version=policy_version)
    due = announced + patience + 1
    view.live(1, epoch=due)
    view.live(0, epoch=due, policy_version=policy_version)
    assert view.term_in(due - 1) == 0
    assert view.term_in(due) == 1


def test_after_a_loss_the_same_trainer_may_lead_again():
    """It is the only one, or the only live one."""
    view, chain = View(held=1), versions(2)
    view.take(*chain, epoch=LAST - 1)
    due = LAST + RECORD
    view.live(0, epoch=due, policy_version=1)
    assert view.term_in(due) == 3
    head = chain[0].digest
    approved = [term for term in range(1, 8) if view.approves(due, term=term, head=head)]
    assert approved == [3]
    gone = View()
    gone.live(0, epoch=LAST, roles=("relay",))
    assert not gone.approves(term=3)


def test_a_leader_gains_no_time_by_more_versions_without_weights():
    view, chain = View(held=1), versions(9)
    view.take(chain[0], epoch=3)
    for number, version in enumerate(chain[1:], LAST - 1):
        view.take(version, epoch=number)
        view.live(0, 1, epoch=number, policy_version=1)
    due = LAST - 1 + RECORD + 1
    assert view.proposed(due - 1) == Lead(0, chain[0].digest)
    assert view.proposed(due) == Lead(1, chain[0].digest)


def test_nothing_is_lost_to_a_member_that_has_just_started():
    """Its disk tells of versions, but not since when."""
    view, chain = View(), versions(2)
    for one in chain:
        view.target.restore(one.envelope)
    since = LAST + 2
    view.restart(since)
    view.live(0, 1, epoch=since + RECORD, policy_version=0)
    assert view.term_in(since + RECORD - 1) == 0
    assert view.term_in(since + RECORD) == 1


def test_a_final_version_is_not_lost_because_this_member_has_not_loaded_it():
    view = View(held=0, head=versions(2)[-1].digest)
    view.hear(*versions(2), epoch=5)
    view.live(0, 1, epoch=LAST + RECORD, policy_version=0)
    assert view.proposed(LAST + RECORD) == Lead(0, versions(2)[-1].digest)
    assert not view.approves(LAST + RECORD, term=1)
    later = versions(3)
    view.take(later[-1], epoch=LAST)
    due = LAST + RECORD + 1
    view.live(0, 1, epoch=due, policy_version=2)
    assert view.term_in(due - 1) == 0
    assert view.term_in(due) == 1


# Batches that do not follow the lot


def refused(announced, *, held=3, **record) -> tuple[View, list]:
    """Return the view of a member of three versions, of which the second has no good batch."""
    view, chain = View(held=held), versions(3)
    view.target.batches = Refused(view.target, chain[1].digest)
    view.restart(0)
    view.take(chain[0], epoch=3)
    view.take(*chain[1:], epoch=announced)
    view.live(0, 1, epoch=LAST + 1, **record)
    return view, chain


class Refused(AnyBatch):
    """Refuses the batch of one version, or cannot tell."""

    def __init__(self, target, version, fault: Fault | bool = _FAULT):
        super().__init__(target)
        self._version, self._fault = version, fault

    def judged(self, number):
        made = self._chain.get(number)
        is_refused = made is not None and made.digest == self._version
        return self._fault if is_refused else super().judged(number)


def test_no_member_makes_a_version_final_whose_batch_is_refused():
    """Nor those that follow it."""
    view, chain = refused(LAST - 1)
    assert view.proposed() == Lead(0, chain[0].digest)
    assert [view.approves(head=one.digest) for one in chain] == [True, False, False]
    view.target.batches = Refused(view.target, digest(b"none"))
    view.restart(0)
    assert view.proposed().head == chain[2].digest
    assert all(view.approves(head=one.digest) for one in chain)


def test_a_leader_whose_batch_is_refused_is_followed_by_the_next():
    """Although it serves the weights, and every member has them."""
    announced = LAST - 1
    view, chain = refused(announced, policy_version=3)
    due = announced + RECORD + 1
    assert view.proposed(due - 1) == Lead(0, chain[0].digest)
    assert view.proposed(due) == Lead(1, chain[0].digest)
    assert view.approves(due - PATIENCE_EPOCHS, term=1, head=chain[0].digest)
    assert not view.approves(due - PATIENCE_EPOCHS - 1, term=1, head=chain[0].digest)
    assert not view.approves(due, term=1, head=chain[1].digest)


def test_a_batch_that_a_member_cannot_judge_yet_has_the_time_of_a_stall():
    announced = 4
    view, chain = refused(announced, policy_version=3)
    view.target.batches = Refused(view.target, chain[1].digest, fault=False)
    view.restart(0)
    due = announced + STALL + 1
    view.live(0, 1, epoch=due, policy_version=3)
    assert view.proposed(due - 1) == Lead(0, chain[0].digest)
    assert not view.approves(due - 1, head=chain[1].digest)
    assert view.proposed(due) == Lead(1, chain[0].digest)


def test_a_final_version_is_not_judged_again():
    view, chain = refused(LAST - 1)
    view.target.batches = Refused(view.target, chain[0].digest)
    final = View(held=3, head=chain[0].digest)
    final.target.batches = Refused(final.target, chain[0].digest)
    final.restart(0)
    final.hear(*chain, epoch=5)
    assert final.proposed().head == chain[2].digest
    assert final.approves(head=chain[1].digest)


def test_a_leader_without_batches_leads_no_longer():
    """By the rule itself: its versions learn from nothing."""
    announced = LAST - 1
    view, chain = View(held=2), versions(2)
    view.target.batches = BatchRule(WORLD.manifest, view.target.ledger, view.target.pages)
    view.restart(0)
    view.take(*chain, epoch=announced)
    view.live(0, 1, epoch=LAST + 2, policy_version=2)
    due = announced + RECORD + 1
    assert view.proposed(due - 1) == Lead(0, GENESIS.digest)
    assert view.proposed(due) == Lead(1, GENESIS.digest)


# Versions that a new term would drop


def test_no_term_ends_while_a_new_version_may_still_become_final():
    """It has just been announced, and its leader is gone."""
    announced = LAST - 1
    view, chain = lost(announced, leader=False), versions(2)
    due = announced + RECORD + 1
    assert view.proposed(due - 1) == Lead(0, chain[0].digest)
    assert view.proposed(due) == Lead(1, chain[0].digest)
    early = due - PATIENCE_EPOCHS - 1
    assert not view.approves(early, term=1, head=chain[0].digest)
    assert view.approves(early + 1, term=1, head=chain[0].digest)


def test_no_member_lets_a_term_end_before_a_version_that_it_holds():
    """However long it has held it: the next proposer can name it."""
    view, chain = View(held=2), versions(2)
    view.take(*chain, epoch=3)
    view.live(1, epoch=LAST)
    assert view.proposed() == Lead(1, chain[1].digest)
    assert view.approves(term=1, head=chain[1].digest)
    assert not view.approves(term=1, head=chain[0].digest)
    assert not view.approves(term=1), "it would go back to the final version before"
    view.held = 1
    assert view.approves(term=1, head=chain[0].digest)


def test_a_version_of_this_epoch_holds_the_end_of_a_term_up():
    view, chain = View(held=1), versions(1)
    view.live(1, epoch=LAST)
    view.take(*chain, epoch=LAST)
    assert view.proposed(LAST + 1) == Lead(0, GENESIS.digest)
    assert view.proposed(LAST + 2) == Lead(1, chain[0].digest)


# A leader that signs two branches


def split(epoch, *, held=2) -> tuple[View, list, list]:
    """Return the view of a member that took one of two branches in an epoch, and both."""
    view = View(held=held)
    ours, theirs = versions(2), versions(2, policy=digest(b"another"))
    view.take(*ours, epoch=epoch)
    for one in theirs:
        assert view.target.receive(one.envelope, WORLD.at(epoch)).result is ValidationResult.IGNORE
    for trainer in (0, 1):
        view.live(trainer, epoch=LAST + 2, policy_version=2)
    return view, ours, theirs


def test_a_leader_of_two_branches_is_followed_by_the_next_if_neither_becomes_final():
    """Otherwise two halves of the swarm would train apart for ever."""
    signed = LAST - 1
    view, ours, _ = split(signed)
    due = signed + RECORD + 1
    assert view.proposed(due - 1) == Lead(0, ours[-1].digest), "one of them may win"
    assert view.proposed(due) == Lead(1, GENESIS.digest)
    assert view.approves(due - PATIENCE_EPOCHS, term=1)
    assert not view.approves(due - PATIENCE_EPOCHS - 1, term=1)
    assert not view.approves(due, term=3), "not by the same one"


def test_a_branch_that_is_final_is_not_given_up_for_a_rival_of_it():
    ours = versions(2)
    view = View(held=2, head=ours[-1].digest)
    view.hear(*ours, *versions(2, policy=digest(b"another")), epoch=5)
    view.live(0, 1, epoch=LAST + 2, policy_version=2)
    assert len(view.target.ledger.branches) == 2
    assert view.proposed(LAST + 2) == Lead(0, ours[-1].digest)
    assert not view.approves(LAST + 2, term=1)


def test_without_another_trainer_the_one_that_signed_two_branches_starts_again():
    signed = LAST - 1
    view, ours, _ = split(signed)
    view.live(1, epoch=LAST + 3, roles=("relay",))
    due = signed + RECORD + 1
    assert view.proposed(due - 1) == Lead(0, ours[-1].digest)
    assert view.proposed(due) == Lead(len(WORLD.trainers), GENESIS.digest)


# Pages


def test_leader_and_version_are_proposed_in_every_fourth_epoch():
    """A page that honest views refuse must not stop the pages of two epochs in a row."""
    view, (first,) = View(held=1), versions(1)
    view.take(first, epoch=5)
    judgement = PageContents(view.target, ME.peer_id, 0, lambda: view.held)
    for epoch in range(NEXT, NEXT + 2 * OPEN_EPOCHS):
        for one in WORLD.validators[1:]:
            view.target.pages.heard[one.peer_id] = epoch
        view.live(1, epoch=epoch)
        parent = view.target.pages.tip(epoch)
        stated = judgement.contents(parent, epoch)
        expected = (1, first.digest) if epoch % 4 == 0 else (0, GENESIS.digest)
        assert (stated.term, stated.head) == expected


def test_a_page_that_changes_the_council_repeats_leader_and_version():
    view, (first,) = View(held=1), versions(1)
    view.take(first, epoch=5)
    view.live(1, epoch=LAST)
    parent, silent = view.target.pages.tip(NEXT), WORLD.manifest.council.silent_epochs
    epoch = LAST + silent + OPEN_EPOCHS - (LAST + silent) % OPEN_EPOCHS
    view.live(1, epoch=epoch)
    judgement = PageContents(view.target, ME.peer_id, 0, lambda: view.held)
    stated = judgement.contents(parent, epoch)
    assert stated.removed
    fields = stated.fields(parent)
    assert (fields["term"], fields["head"]) == (0, GENESIS.digest)
    assert view.proposed(epoch) == Lead(1, first.digest), "which it would propose otherwise"


def test_a_page_is_refused_for_its_leader_or_its_version_alone():
    view, (first,) = View(held=0), versions(1)
    view.take(first, epoch=5)
    view.live(0, 1, epoch=LAST, policy_version=1)
    judgement = PageContents(view.target, ME.peer_id, 0, lambda: view.held)
    parent = view.target.pages.tip(NEXT)
    root = view.target.intake.ledger.root(parent.shown_epoch)
    page = view.book.page(LAST).message.model_copy(update={"epoch": NEXT, "ledger": root})
    assert judgement.approves(page, parent)
    assert not judgement.approves(page.model_copy(update={"term": 1}), parent)
    work = view.target.settlement.work(DecidedCommits((), (), ()), parent.head, first.digest)
    other = page.model_copy(update={"head": first.digest, "work": work.digest})
    assert not judgement.approves(other, parent)
    view.held = 1
    assert judgement.approves(other, parent)
    assert not judgement.approves(other.model_copy(update={"work": b""}), parent)
