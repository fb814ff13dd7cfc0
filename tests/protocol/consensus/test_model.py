"""Schedules of an adversary: no two honest nodes ever hold conflicting final pages.

``tests.protocol.consensus.model`` describes the adversary and has a long mode.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.protocol.consensus.councils import PEERS, Approving, vote_on
from tests.protocol.consensus.model import SETTINGS, ConflictError, Model, Setting, run_many
from tests.protocol.consensus.test_member import Member

A, B, C, D = PEERS[:4]


@settings(max_examples=12)
@given(
    st.integers(0, 2**32),
    st.sampled_from(SETTINGS),
    st.sampled_from([0.0, 0.05, 0.2]),
    st.booleans(),
)
def test_no_schedule_makes_conflicting_pages_final(seed, seats, changes, is_duel):
    model = Model(Setting(seed, *seats, changes))
    if is_duel and not model.gone:
        model.duel()
    else:
        model.run(40)


def test_the_schedules_reach_what_they_should():
    """A model in which nothing becomes final would find no conflict either."""
    counts = run_many(60_000, seed=1000)
    assert counts["final"] > 60
    assert counts["final in duels"] > 3
    assert counts["drawn"] > 1000
    assert counts["heavy seats"] > 0
    for kind in ("handovers", "redraws", "restarts", "lost disks", "attacks", "chains"):
        assert counts[kind] > 3, kind


def test_the_model_notices_conflicting_pages():
    """A dishonest majority makes two chains final."""
    with pytest.raises(ConflictError, match="two final pages"):
        run_all(Model(Setting(seed, size=4, dishonest=2, changes=0.0)) for seed in range(40))


def run_all(models) -> None:
    for model in models:
        model.run(40)


def votes(member: Member, epoch: int, *pages) -> list[bytes]:
    for page in pages:
        assert member.receive(page) is True
    return member.votes(epoch, 0.2)


def show(member: Member, *nodes) -> None:
    for node in nodes:
        member.receive(node.page)
        for vote in node.votes.values():
            member.receive(vote)


def test_the_hidden_certificate_schedule():
    """The votes on X are hidden while A, B and C become notarised; then they are shown.

    X and A are of one length. After B a quorum has seen the votes on A, so at most a dishonest
    third and the one honest member that saw nothing would extend X. With two consecutive pages
    instead of three, A would be final for the node that saw B, and X for the others.
    """
    members = [Member(peer, judgement=Approving()) for peer in (A, B, C)]
    world, source = members[0].world, members[0].world.tree()
    hidden = world.extend(source, 1)
    assert [votes(one, 1, hidden.page) for one in members[:2]] == [[hidden.digest]] * 2
    first = world.extend(source, 2, source.root)
    assert [votes(one, 2, first.page) for one in members] == [[first.digest]] * 3
    victim, *others = members
    show(victim, first)
    second = world.extend(source, 3, first)
    assert votes(victim, 3, second.page) == [second.digest]
    for one in others:
        assert one.receive(second.page) is False, "it has not seen the votes on A"
        assert one.votes(3, 0.2) == []
    show(victim, second)
    assert victim.tree.root.epoch == -1, "A is not final: two pages are too few"
    rival = world.extend(source, 4, hidden)
    for one in members:
        show(one, hidden)
        one.receive(rival.page)
    assert [one.votes(4, 0.2) for one in members] == [[], [rival.digest], [rival.digest]]
    for one in others:
        show(one, rival)
    third = world.page(rival, 5)
    assert [votes(one, 5, third) for one in others] == [[third.digest]] * 2
    assert victim.receive(third) is False


def test_a_hidden_certificate_of_the_last_page_of_an_old_council():
    """One node alone sees that the seating page is final, and continues with the new council.

    The others follow the old council on: its pages lead to the same seating page.
    """
    member = Member(A)
    world, ahead, behind = member.world, member.world.tree(), member.world.tree()
    for tree in (ahead, behind):
        world.run(tree, [0])
        seating = world.extend(tree, 1, joined=PEERS[4:8], removed=PEERS[:4])
    closing = world.extend(ahead, 2)
    assert ahead.council.members == tuple(PEERS[4:8])
    new = world.run(ahead, [3, 4, 5])
    assert ahead.root is new[1]
    behind.offer_page(closing.page)
    for epoch in (3, 5, 6, 7):
        assert behind.council.members == tuple(PEERS[:4])
        world.extend(behind, epoch, behind.tip(epoch))
        if behind.council.number:
            break
    assert behind.root.digest == seating.digest
    for node in new:
        assert behind.offer_chain([world.notarised(node.page, new[0])]) is True
    assert behind.root.digest == ahead.root.digest
    assert behind.councils == ahead.councils
    assert vote_on(A, new[0].page).message.council == seating.digest
