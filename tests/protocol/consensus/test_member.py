from dataclasses import dataclass, field

import pytest

from protocol.consensus.member import LATER_VOTE_SHARE, PROPOSE_SHARES, Contents, CouncilMember
from protocol.consensus.pages import PageTree
from protocol.consensus.reveals import IN_TIME_SHARE, Reveals
from protocol.core.crypto import digest
from protocol.messages import Page, PageVote, Reveal
from tests.protocol.consensus.councils import (
    PEERS,
    Approving,
    Councils,
    commit,
    drawn_council,
    key_of,
    sealed,
    vote_on,
)

WORLD = Councils(size=4)


@dataclass
class Member:
    """One member with its own tree; ``said`` are its messages."""

    me: str
    world: Councils = field(default_factory=lambda: WORLD)
    judgement: object = field(default_factory=Approving)
    tree: PageTree = field(init=False)

    def __post_init__(self):
        self.tree = self.world.tree()
        self.restart()

    def restart(self) -> None:
        """Forget all but the tree."""
        self.reveals = Reveals(self.tree, self.world.output)
        self.member = CouncilMember(
            self.tree,
            self.reveals,
            self.me,
            lambda alpha: self.world.proof(self.me, alpha),
            self.judgement,
        )

    def act(self, epoch, share=0.5) -> list:
        signed = [sealed(self.me, message) for message in self.member.act(epoch, share)]
        for one in signed:
            self.receive(one, share)
        return signed

    def receive(self, signed, share=0.1):
        match signed.message:
            case Reveal():
                return self.reveals.offer(signed, share)
            case Page():
                return self.tree.offer_page(signed)
            case _:
                return self.tree.offer_vote(signed)

    def votes(self, epoch, share=0.5) -> list[bytes]:
        return [
            one.message.page for one in self.act(epoch, share) if isinstance(one.message, PageVote)
        ]


def swarm(world=WORLD, **judgements) -> list[Member]:
    return [Member(peer, world, **judgements) for peer in PEERS[: world.council_max]]


def run(members, epochs, shares=(0.05, 0.2, 0.5, 0.6)) -> None:
    """Let all members act, and deliver everything at once."""
    for epoch in epochs:
        for share in shares:
            for one in members:
                for signed in one.act(epoch, share):
                    for other in members:
                        if other is not one:
                            other.receive(signed, share)


@pytest.mark.parametrize("is_real", [False, True])
def test_members_make_every_epoch_final_without_faults(is_real):
    judgement = Approving({epoch: Contents(commits=(commit(epoch),)) for epoch in range(6)})
    members = swarm(Councils(size=4, is_real=is_real, council_max=4), judgement=judgement)
    run(members, range(6))
    assert {one.tree.root.epoch for one in members} == {4}
    assert len({one.tree.root.digest for one in members}) == 1
    for epoch in range(5):
        assert {one.tree.drawing(commit(epoch)).epoch for one in members} == {epoch + 1}
    assert {one.tree.drawing(commit(5)) for one in members} == {None}
    assert all(one.tree.equivocations == {} for one in members)


def test_members_go_on_without_a_third():
    judgement = Approving({epoch: Contents(commits=(commit(8),)) for epoch in range(8, 20)})
    members = swarm(Councils(size=7, council_max=7), judgement=judgement)[:5]
    run(members, range(40), (0.05, 0.5, *PROPOSE_SHARES[1:], LATER_VOTE_SHARE))
    assert len({one.tree.root.digest for one in members}) == 1
    assert members[0].tree.root.epoch == 38, "one of three proposers is there in every epoch"
    assert len({one.tree.drawing(commit(8)).digest for one in members}) == 1


def test_a_turnover_of_the_whole_council():
    changes = Contents(tuple(map(key_of, PEERS[4:8])), tuple(map(key_of, PEERS[:4])))
    judgement = Approving({4: changes})
    members = swarm(Councils(size=4, council_max=8), judgement=judgement)
    run(members, range(5))
    assert {one.tree.council.number for one in members} == {0}
    run(members, range(5, 9))
    assert {one.tree.council.number for one in members} == {1}
    assert {one.tree.council.members for one in members} == {tuple(PEERS[4:8])}
    assert {one.tree.root.epoch for one in members} == {7}
    assert all(one.act(9) == [] for one in members[:4])


def test_a_drawn_council_goes_on_with_its_seats():
    world = Councils(size=4, council_max=8, era_epochs=4)
    seats = {PEERS[4]: 1, PEERS[5]: 4, PEERS[6]: 2}
    judgement = Approving({4: Contents(**drawn_council(seats)), 5: Contents(commits=(commit(1),))})
    members = swarm(world, judgement=judgement)
    run(members, range(6))
    council = members[0].tree.council
    assert (council.members, council.seats, council.era) == (tuple(PEERS[4:7]), (1, 4, 2), 1)
    run(members[4:7], range(6, 12))
    assert {one.tree.root.epoch for one in members[4:7]} == {10}
    drawing = members[5].tree.drawing(commit(1))
    assert (drawing.epoch, drawing.council) == (6, council), "the new council judges"
    run(members[5:7], range(12, 30))
    assert members[5].tree.root.epoch > 14, "six seats of seven"
    final = members[4].tree.root.epoch
    run([members[4], members[6]], range(30, 50))
    assert members[4].tree.root.epoch == final, "three seats of seven"


def only(kind, signed) -> list:
    return [one for one in signed if isinstance(one.message, kind)]


def test_a_member_reveals_once_an_epoch_for_the_page_it_extends():
    world = Councils(size=4, revealers=2)
    for peer in PEERS[:4]:
        one = Member(peer, world)
        root = one.tree.root
        for epoch in range(10):
            drawn = one.tree.council.revealers(root.beacon, epoch, 2)
            revealed = only(Reveal, one.act(epoch, 0.0))
            assert len(revealed) == (peer in drawn)
            assert only(Reveal, one.act(epoch, 0.0)) == []
    one = Member(PEERS[0])
    assert len(only(Reveal, one.act(3, 0.0))) == 1
    tip = WORLD.extend(one.tree, 2)
    again = only(Reveal, one.act(3, 0.0))
    assert [reveal.message.parent for reveal in again] == [tip.digest]


def proposer_of(world, epoch, **fields) -> Member:
    tree = world.tree()
    return Member(tree.council.proposer(tree.root.beacon, epoch), world, **fields)


def test_the_proposer_waits_for_the_reveals_until_a_share_of_the_epoch():
    one = proposer_of(WORLD, 0)
    root = one.tree.root
    drawn = one.reveals.expected(root, 0)
    assert only(Page, one.act(0, 0.1)) == []
    for peer in drawn:
        assert only(Page, one.act(0, 0.2)) == []
        one.receive(WORLD.reveal(peer, root, 0))
    (page,) = only(Page, one.act(0, 0.2))
    assert page.message.reveals == WORLD.proofs(root, 0)
    assert only(Page, one.act(0, 0.9)) == []
    late = proposer_of(WORLD, 0)
    assert only(Page, late.act(0, PROPOSE_SHARES[0] - 0.01)) == []
    (page,) = only(Page, late.act(0, PROPOSE_SHARES[0]))
    assert sum(map(bool, page.message.reveals)) == 1, "its own"


def test_only_the_drawn_proposers_propose_each_at_its_share_of_the_epoch():
    for epoch in range(12):
        tree = WORLD.tree()
        proposers = tree.council.proposers(tree.root.beacon, epoch)
        for number, share in enumerate(PROPOSE_SHARES):
            for moment, signers in ((share - 0.01, number), (share, number + 1)):
                acts = [Member(peer).act(epoch, moment) for peer in PEERS[:4]]
                pages = [page for signed in acts for page in only(Page, signed)]
                assert {page.signer for page in pages} == set(proposers[:signers])
        assert all(tree.offer_page(page) is True for page in pages)
        assert len(pages) == 3


def later(place, world=WORLD, **judgements) -> tuple[Member, list]:
    """Return a proposer of epoch 0, and the page of each proposer."""
    tree = world.tree()
    proposers = tree.council.proposers(tree.root.beacon, 0)
    pages = [world.page(tree.root, 0, signer=peer) for peer in proposers]
    return Member(proposers[place], world, **judgements), pages


def outsider_of(pages) -> str:
    """Return the member that may not propose."""
    signers = {page.signer for page in pages}
    return next(peer for peer in PEERS[:4] if peer not in signers)


def test_a_later_proposer_waits_also_if_all_reveals_are_here():
    second, _ = later(1)
    for peer in PEERS[:4]:
        second.receive(WORLD.reveal(peer, second.tree.root, 0))
    assert only(Page, second.act(0, PROPOSE_SHARES[1] - 0.01)) == []
    (page,) = only(Page, second.act(0, PROPOSE_SHARES[1]))
    assert all(page.message.reveals)


def test_a_later_proposer_makes_no_page_if_one_of_those_before_it_has():
    for place, earlier, count in ((1, 0, 0), (2, 0, 0), (2, 1, 0), (1, 2, 1)):
        one, pages = later(place)
        assert one.receive(pages[earlier]) is True
        assert len(only(Page, one.act(0, 0.9))) == count, (place, earlier)


class Refusing(Approving):
    """Judgement that refuses one commit."""

    def approves(self, page, _parent):
        return commit(9) not in page.commits


def test_a_later_proposer_makes_a_page_if_it_refuses_the_earlier_one():
    for place in (1, 2):
        one, pages = later(place, judgement=Refusing())
        refused = WORLD.page(one.tree.root, 0, commits=(commit(9),))
        assert one.receive(refused) is True
        (page,) = only(Page, one.act(0, PROPOSE_SHARES[place]))
        assert one.votes(0, 0.9) == [page.digest]
        assert refused.signer == pages[0].signer


def test_a_page_after_another_parent_stops_no_later_proposer():
    source = WORLD.tree()
    tip = WORLD.extend(source, 0)
    for epoch in range(2, 12):
        second = Member(source.council.proposers(tip.beacon, epoch)[1])
        WORLD.extend(second.tree, 0)
        other = WORLD.page(second.tree.root, epoch)
        if other.signer == second.me:
            continue
        assert second.receive(other) is True
        (page,) = only(Page, second.act(epoch, 0.9))
        assert page.message.parent == tip.digest


def test_a_member_votes_for_the_page_of_a_later_proposer_late_in_the_epoch():
    """Also the member that made it: that of the first one may arrive later than it waited."""
    for place in (1, 2):
        one, pages = later(place)
        other = Member(outsider_of(pages))
        (page,) = only(Page, one.act(0, PROPOSE_SHARES[place]))
        other.receive(page)
        for voter in (one, other):
            assert voter.votes(0, LATER_VOTE_SHARE - 0.01) == []
        other.receive(pages[0])
        assert one.votes(0, LATER_VOTE_SHARE) == [page.digest]
        assert other.votes(0, LATER_VOTE_SHARE) == [pages[0].digest]


def test_a_member_prefers_the_page_of_the_first_proposer_that_it_supports():
    for order in ((0, 1, 2), (2, 1, 0), (1, 2, 0)):
        _, pages = later(0)
        voter = Member(outsider_of(pages))
        for place in order:
            voter.receive(pages[place])
        assert voter.votes(0, 0.9) == [pages[0].digest]
        voter = Member(outsider_of(pages), judgement=Refusing())
        refused = WORLD.page(voter.tree.root, 0, commits=(commit(9),))
        for page in [refused, *(pages[place] for place in order if place)]:
            assert voter.receive(page) is True
        assert voter.votes(0, 0.5) == [], "it waits"
        assert voter.votes(0, 0.9) == [pages[1].digest]


def test_a_member_votes_at_once_for_a_notarised_page_of_a_later_proposer():
    _, pages = later(0)
    voter = Member(outsider_of(pages))
    voter.receive(pages[2])
    for peer in [one.signer for one in pages]:
        voter.receive(vote_on(peer, pages[2]))
    assert voter.votes(0, 0.3) == [pages[2].digest]


def test_a_member_whose_clock_is_slow_does_not_vote_for_the_page_that_seats_it():
    """Its council did not vote on that page."""
    seated = PEERS[5:9]
    for peer in seated:
        one = Member(peer)
        WORLD.run(one.tree, [0])
        seating = WORLD.extend(one.tree, 1, joined=seated, removed=PEERS[:3])
        WORLD.run(one.tree, [2, 3])
        assert one.tree.root.digest == seating.digest
        assert [message for message in one.act(1, 0.9) if message.message.kind != "reveal"] == []


def test_a_proposer_proposes_once_an_epoch_also_after_a_restart():
    one = proposer_of(WORLD, 0)
    assert len(only(Page, one.act(0))) == 1
    one.restart()
    one.receive(WORLD.reveal(PEERS[1], one.tree.root, 0))
    assert only(Page, one.act(0)) == []


def test_a_proposer_after_a_change_waits_for_nobody_and_decides_nothing():
    changes = Contents((key_of(PEERS[6]),), commits=(commit(0),), certified=(commit(1),))
    tree = WORLD.tree()
    seating = WORLD.extend(tree, 0, joined=PEERS[5:6])
    one = Member(tree.council.proposer(seating.beacon, 1), judgement=Approving({1: changes}))
    WORLD.extend(one.tree, 0, joined=PEERS[5:6])
    (page,) = one.act(1, 0.0)
    assert page.message.reveals == page.message.joined == ()
    assert page.message.commits == page.message.certified == ()
    assert tree.offer_page(page) is True


def test_a_proposer_proposes_all_that_its_view_supports():
    world = Councils(size=4, era_epochs=2)
    for contents in (
        Contents((key_of(PEERS[5]),), (key_of(PEERS[0]),)),
        Contents(
            commits=(commit(0), commit(1)),
            certified=(commit(2),),
            rejected=(commit(3),),
            checkers=(7, 3),
            work=commit(4),
            ledger=commit(5),
        ),
        Contents(**drawn_council({PEERS[2]: 3, PEERS[6]: 1})),
    ):
        one = Member(
            world.tree().council.proposer(world.tree().root.beacon, 2),
            world,
            Approving({2: contents}),
        )
        (page,) = only(Page, one.act(2))
        wanted = contents.fields(world.tree().root)
        assert {name: getattr(page.message, name) for name in wanted} == wanted


class Unsure(Approving):
    """Cannot tell what a page should decide while ``is_unsure``."""

    is_unsure = True

    def contents(self, _parent, _epoch):
        return None if self.is_unsure else Contents()


def test_a_proposer_that_cannot_tell_proposes_once_it_can():
    one = proposer_of(WORLD, 0, judgement=Unsure())
    assert only(Page, one.act(0)) == []
    one.judgement.is_unsure = False
    assert len(only(Page, one.act(0))) == 1


def test_a_proposer_that_cannot_tell_still_proposes_after_a_change():
    """Such a page decides nothing."""
    tree = WORLD.tree()
    seating = WORLD.extend(tree, 0, joined=PEERS[5:6])
    one = Member(tree.council.proposer(seating.beacon, 1), judgement=Unsure())
    WORLD.extend(one.tree, 0, joined=PEERS[5:6])
    assert len(only(Page, one.act(1, 0.0))) == 1


def test_a_member_votes_once_an_epoch():
    root = WORLD.tree().root
    page, second = (WORLD.page(root, 5, silent=number) for number in (1, 2))
    one = Member(next(peer for peer in PEERS[:4] if peer != page.signer))
    one.receive(page)
    assert one.votes(4) == one.votes(6) == [], "of another epoch"
    assert one.votes(5) == [page.digest]
    for peer in PEERS[:2]:
        one.receive(vote_on(peer, second))
    one.receive(second)
    assert one.tree.get(second.digest) is not None
    assert one.votes(5) == []
    assert one.votes(4) == []


def test_a_member_votes_only_for_a_child_of_a_longest_chain():
    one = Member(PEERS[0])
    first = WORLD.extend(one.tree, 0)
    WORLD.extend(one.tree, 1, first)
    short = WORLD.page(one.tree.root, 2)
    shorter = WORLD.page(first, 3)
    child = WORLD.page(one.tree.tip(), 4)
    for page, epoch, votes in ((short, 2, []), (shorter, 3, []), (child, 4, [child.digest])):
        assert one.receive(page) is True
        assert one.votes(epoch, 0.2) == votes


def test_a_member_votes_for_a_child_of_each_of_two_longest_chains():
    for number in range(2):
        one = Member(PEERS[0])
        first = WORLD.extend(one.tree, 0)
        tips = [WORLD.extend(one.tree, 1, first), WORLD.extend(one.tree, 2, first)]
        page = WORLD.page(tips[number], 3)
        one.receive(page)
        assert one.votes(3, 0.2) == [page.digest]


def test_a_member_does_not_vote_for_a_page_without_a_reveal_that_it_had_in_time():
    for share, votes in ((IN_TIME_SHARE, 0), (IN_TIME_SHARE + 0.05, 1)):
        one = Member(PEERS[0])
        root = one.tree.root
        drawn = one.reveals.expected(root, 2)
        assert one.receive(WORLD.reveal(drawn[-1], root, 2), share) is True
        page = WORLD.page(root, 2, reveals=(*WORLD.proofs(root, 2)[:-1], b""))
        assert one.receive(page) is True
        assert len(one.votes(2, 0.4)) == votes


def test_a_member_does_not_vote_for_changes_that_it_does_not_approve():
    class Refusing(Approving):
        def approves(self, page, parent):
            assert parent.epoch == -1
            return not page.removed

    removing = WORLD.page(WORLD.tree().root, 2, removed=PEERS[1:2])
    one = Member(PEERS[0], judgement=Refusing())
    one.receive(removing)
    assert one.votes(2, 0.2) == []
    joining = WORLD.page(one.tree.root, 3, joined=PEERS[5:6])
    one.receive(joining)
    assert one.votes(3, 0.2) == [joining.digest]


def test_a_key_without_a_seat_does_nothing():
    one = Member(PEERS[5])
    one.receive(WORLD.page(one.tree.root, 0))
    for share in (0.0, 0.5, 1.0):
        assert one.act(0, share) == []
    WORLD.extend(one.tree, 1, joined=PEERS[5:6])
    WORLD.run(one.tree, [2, 3])
    assert one.tree.council.number == 1
    assert len(only(Reveal, one.act(4, 0.0))) == 1


# After a restart


def test_a_restored_vote_is_not_cast_again():
    one = Member(PEERS[0])
    page = WORLD.page(one.tree.root, 5)
    one.receive(page)
    (vote,) = only(PageVote, one.act(5, 0.2))
    one.restart()
    one.member.restore_vote(vote_on(PEERS[0], page, epoch=3))
    one.member.restore_vote(vote)
    one.member.restore_vote(vote_on(PEERS[0], page, epoch=4))
    other = WORLD.page(one.tree.root, 4)
    one.receive(other)
    assert one.votes(4) == one.votes(5) == []
    later = WORLD.page(one.tree.root, 6)
    one.receive(later)
    assert one.votes(6, 0.2) == [later.digest]


def test_a_member_that_lost_the_chain_of_its_vote_does_not_vote_for_a_shorter_one():
    """It voted for a child of B; another of A would let two chains become final."""
    source = WORLD.tree()
    first, second = WORLD.run(source, [0, 1])
    one = Member(PEERS[0])
    one.member.restore_vote(vote_on(PEERS[0], WORLD.page(second, 2)))
    one.tree.offer_chain([first.proof])
    for epoch in (3, 4):
        one.receive(WORLD.page(first, epoch))
        assert one.votes(epoch, 0.2) == []
        one.receive(second.page)  # without the votes on it
    one.tree.offer_chain([second.proof])
    again = WORLD.page(second, 5)
    one.receive(again)
    assert one.votes(5, 0.2) == [again.digest]


def test_a_member_votes_again_once_its_old_vote_is_before_the_final_page():
    source = WORLD.tree()
    nodes = WORLD.run(source, range(6))
    one = Member(PEERS[0])
    for epoch, votes in ((5, 0), (4, 1), (2, 1)):
        one.restart()
        lost = vote_on(PEERS[0], nodes[0].page, epoch=epoch, parent=digest(b"lost"))
        one.member.restore_vote(lost)
        one.tree.offer_chain(source.newest)
        page = WORLD.page(one.tree.tip(), 10 + epoch)
        one.receive(page)
        assert len(one.votes(10 + epoch, 0.2)) == votes


def test_a_vote_in_a_later_council_waits_for_that_council():
    source = WORLD.tree()
    nodes = WORLD.run(source, [0], joined=PEERS[5:6])
    nodes += WORLD.run(source, [1, 2])
    assert source.council.number == 1
    first = WORLD.page(source.root, 3)
    one = Member(PEERS[0])
    one.member.restore_vote(vote_on(PEERS[0], first))
    page = WORLD.page(one.tree.root, 4)
    one.receive(page)
    assert one.votes(4, 0.2) == []
    one.tree.offer_chain(source.handovers[0])
    later = WORLD.page(one.tree.root, 5)
    one.receive(later)
    assert one.votes(5, 0.2) == [later.digest]


def test_a_vote_in_a_former_council_binds_no_more():
    source = WORLD.tree()
    WORLD.run(source, [0], joined=PEERS[5:6])
    WORLD.run(source, [1, 2])
    one = Member(PEERS[0])
    one.member.restore_vote(vote_on(PEERS[0], source.root.page, epoch=3, parent=digest(b"lost")))
    one.tree.offer_chain(source.handovers[0])
    page = WORLD.page(one.tree.root, 4)
    one.receive(page)
    assert one.votes(4, 0.2) == [page.digest]
