import pytest

from protocol.consensus.reveals import IN_TIME_SHARE, REVEALS_EACH_MAX, Reveals
from tests.protocol.consensus.councils import PEERS, Councils

WORLD = Councils(size=6, revealers=4)
TREE = WORLD.tree()
ROOT = TREE.root
EPOCH = 2
DRAWN = TREE.council.revealers(ROOT.beacon, EPOCH, 4)
OTHERS = [peer for peer in PEERS[:6] if peer not in DRAWN]


def reveals(tree=TREE, world=WORLD) -> Reveals:
    return Reveals(tree, world.output)


def test_the_proofs_stand_in_the_order_of_the_draw():
    heard = reveals()
    assert heard.expected(ROOT, EPOCH) == DRAWN
    assert heard.proofs(ROOT, EPOCH) == (b"",) * 4
    for peer in (DRAWN[2], DRAWN[0]):
        one = WORLD.reveal(peer, ROOT, EPOCH)
        assert heard.offer(one, 0.1) is True
        assert heard.offer(one, 0.05) is False, "known"
    every = WORLD.proofs(ROOT, EPOCH)
    assert heard.proofs(ROOT, EPOCH) == (every[0], b"", every[2], b"")
    assert heard.proofs(ROOT, EPOCH + 1) == (b"",) * 4


def test_real_proofs():
    world = Councils(size=4, is_real=True)
    tree = world.tree()
    heard = reveals(tree, world)
    for peer in world.genesis:
        assert heard.offer(world.reveal(peer, tree.root, 0), 0.1) is True
    page = world.page(tree.root, 0, reveals=heard.proofs(tree.root, 0))
    assert tree.offer_page(page) is True
    assert tree.offer_page(page) is False


@pytest.mark.parametrize(
    ("reveal", "code"),
    [
        (WORLD.reveal(OTHERS[0], ROOT, EPOCH), "bad-reveal"),
        (WORLD.reveal(PEERS[9], ROOT, EPOCH), "bad-reveal"),
        (WORLD.reveal(DRAWN[0], ROOT, EPOCH, proof=bytes(80)), "bad-reveal"),
        (
            WORLD.reveal(DRAWN[0], ROOT, EPOCH, proof=WORLD.proofs(ROOT, EPOCH)[1]),
            "bad-reveal",
        ),
    ],
)
def test_a_reveal_of_no_drawn_member_or_with_another_proof_is_refused(reveal, code):
    heard = reveals()
    assert heard.offer(reveal, 0.1).code == code
    assert heard.proofs(ROOT, EPOCH) == (b"",) * 4


def test_a_reveal_needs_a_notarised_parent_of_an_earlier_epoch():
    tree = WORLD.tree()
    heard = reveals(tree)
    node = WORLD.extend(tree, 5, voters=PEERS[:2])
    drawn = tree.council.revealers(node.beacon, 6, 4)
    assert heard.offer(WORLD.reveal(drawn[0], node, 6), 0.1) is False
    assert heard.offer(WORLD.reveal(drawn[0], node, 6, parent=bytes(32)), 0.1) is False
    node = WORLD.extend(tree, 7, tree.root)
    drawn = tree.council.revealers(node.beacon, 8, 4)
    assert heard.offer(WORLD.reveal(drawn[0], node, 8), 0.1) is True
    old = tree.council.revealers(node.beacon, 7, 4)
    assert heard.offer(WORLD.reveal(old[0], node, 7), 0.1).code == "wrong-epoch"


def test_nobody_reveals_after_a_change_of_the_council():
    tree = WORLD.tree()
    seating = WORLD.extend(tree, 0, joined=PEERS[6:7])
    heard = reveals(tree)
    assert heard.expected(seating, 1) == ()
    assert heard.proofs(seating, 1) == ()
    for peer in PEERS[:6]:
        assert heard.offer(WORLD.reveal(peer, seating, 1), 0.1) is False
    assert heard.are_in_time(seating, WORLD.page(seating, 1).message)


@pytest.mark.parametrize("share", [0.0, 0.1, IN_TIME_SHARE, IN_TIME_SHARE + 0.01, 0.9])
def test_a_page_must_have_the_reveals_that_arrived_in_time(share):
    heard = reveals()
    heard.offer(WORLD.reveal(DRAWN[1], ROOT, EPOCH), share)
    every = WORLD.proofs(ROOT, EPOCH)
    without = tuple(b"" if place == 1 else proof for place, proof in enumerate(every))
    alone = tuple(proof if place == 1 else b"" for place, proof in enumerate(every))
    for proofs, complete in (
        (every, True),
        (alone, True),
        (without, share > IN_TIME_SHARE),
        ((b"",) * 4, share > IN_TIME_SHARE),
    ):
        page = WORLD.page(ROOT, EPOCH, reveals=proofs).message
        assert heard.are_in_time(ROOT, page) is complete
    assert heard.are_in_time(ROOT, WORLD.page(ROOT, EPOCH + 1, silent=4).message)


def test_a_member_that_reveals_for_many_epochs_evicts_only_its_own():
    heard = reveals()
    peer, other = DRAWN[:2]
    assert heard.offer(WORLD.reveal(other, ROOT, EPOCH), 0.1) is True
    assert heard.offer(WORLD.reveal(peer, ROOT, EPOCH), 0.1) is True
    offered = 0
    for epoch in range(EPOCH + 1, 500):
        if peer in TREE.council.revealers(ROOT.beacon, epoch, 4):
            assert heard.offer(WORLD.reveal(peer, ROOT, epoch), 0.1) is True
            offered += 1
    assert offered > REVEALS_EACH_MAX
    proofs = WORLD.proofs(ROOT, EPOCH)
    assert heard.proofs(ROOT, EPOCH) == (b"", proofs[1], b"", b"")
