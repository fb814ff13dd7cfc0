"""Chains of pages with votes: the standalone verifier accepts exactly those that a node accepts."""

from dataclasses import dataclass, field, replace

from hypothesis import example, given
from hypothesis import strategies as st

from prime_node import verify_ledger
from protocol.consensus.council import (
    CheckedPage,
    Council,
    NotarisedPage,
    PageRules,
    check_page,
    vote_for,
)
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.core.crypto import digest, verify
from protocol.core.faults import Fault
from protocol.messages import Page, seal
from tests.prime_node.exported_run import COUNCIL, KEPT_EPOCHS, base64_of, manifest_bytes
from tests.protocol.consensus.councils import (
    KEYS,
    PEERS,
    drawn_council,
    fast_output,
    fast_proof,
    first_voters,
    key_of,
)

GENESIS = PEERS[:7]
MANIFEST = manifest_bytes(tuple(GENESIS))
RUN = digest(MANIFEST)
RULES = PageRules(RUN, COUNCIL["recovery_epochs"], 4, COUNCIL["seats_max"], COUNCIL["era_epochs"])
DRAW = {PEERS[0]: 3, PEERS[1]: 2, PEERS[8]: 1}
START = 20
"""Epoch before the chains of the genesis; recoveries take 10."""

LATE = 48
"""Epoch of the draw in the chains that begin with one; eras have 40 epochs."""


@dataclass(frozen=True)
class Spec:
    """Differences of a page from an honest one, and its votes."""

    gap: int = 1
    """Epochs since the page before it."""
    joined: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    draw: dict[str, int] = field(default_factory=dict)
    unsorted: bool = False
    """True: the drawn keys are in another order."""
    final_age: int = 2
    """Epochs between the page and the newest final one that it names."""
    has_wrong_reveals: bool = False
    """True: reveals of a page after a change, or none of another."""
    missing_seats: int = 0
    """Seats below the usual quorum."""
    parent: str = ""
    """``other``: not the page before it."""


def page_after(parent: PageNode, spec: Spec) -> Page:
    epoch = parent.epoch + spec.gap
    revealers = parent.council.revealers(parent.beacon, epoch, RULES.revealers)
    alpha = RULES.alpha(parent.beacon, epoch)
    has_reveals = parent.is_closing == spec.has_wrong_reveals
    fields = drawn_council(spec.draw)
    if spec.unsorted:
        fields = {name: values[::-1] for name, values in fields.items()}
    return Page(
        epoch=epoch,
        council=parent.council.seat,
        parent=digest(b"other") if spec.parent else parent.digest,
        seed=parent.beacon,
        final_epoch=max(-1, epoch - spec.final_age),
        reveals=tuple(fast_proof(one, alpha) for one in revealers) if has_reveals else (),
        joined=tuple(map(key_of, spec.joined)),
        removed=tuple(map(key_of, spec.removed)),
        **fields,
    )


def chain_after(council: Council, since: int, specs) -> list[NotarisedPage]:
    """Return notarised pages after one that no node has."""
    node = PageNode(digest(b"missing"), since, council, digest(b"beacon"), -1)
    chain = []
    for spec in specs:
        message = page_after(node, spec)
        signer = council.proposer(message.seed, message.epoch)
        page = seal(message, RUN, KEYS[signer])
        voters = first_voters(council, max(1, council.quorum - spec.missing_seats))
        votes = [seal(vote_for(page), RUN, KEYS[peer]) for peer in voters]
        chain.append(NotarisedPage.of(page, votes, council))
        checked = check_page(page, council, RULES, fast_output)
        if isinstance(checked, Fault):
            checked = CheckedPage(page, digest(b"of a page that nobody accepts"), draws=False)
        node = node.child(checked, RULES)
    return chain


def line(name: str, chain) -> verify_ledger.Line:
    return verify_ledger.Line(2, {name: [base64_of(page.encoded()) for page in chain]})


def new_verifier() -> verify_ledger.Verifier:
    first = {"format": verify_ledger.FORMAT, "manifest": base64_of(MANIFEST)}
    first |= {"start": None, "start_page": ""}
    return verify_ledger.Verifier(verify_ledger.Line(1, first), None)


def accepts(verifier: verify_ledger.Verifier, one: verify_ledger.Line) -> bool:
    try:
        verifier.read(one)
    except verify_ledger.RefusedError:
        return False
    return True


def compare(specs, *, is_drawn: bool) -> bool:
    """Give a chain to a node and to the verifier; return whether they follow it."""
    tree = PageTree(GENESIS, RULES, verify, fast_output, KEPT_EPOCHS)
    verifier = new_verifier()
    if is_drawn:
        handover = chain_after(tree.council, LATE - 1, [Spec(draw=DRAW), Spec(), Spec()])
        assert tree.offer_chain(handover) is True
        assert accepts(verifier, line("handover", handover))
    number, council = tree.council.number, tree.council
    chain = chain_after(council, council.since + 1 if is_drawn else START, specs)
    tree.offer_chain(chain)
    is_seated = tree.council.number > number
    assert accepts(verifier, line("handover", chain)) == is_seated
    if is_seated:
        found = list(verifier.councils.values())[-1]
        assert found.seat == tree.council.seat
        assert list(found.members) == list(map(key_of, tree.council.members))
        assert list(found.members.values()) == [
            tree.council.seats_of([peer]) for peer in tree.council.members
        ]
        assert (found.since, found.era) == (tree.council.since, tree.council.era)
    else:
        shown = tree.newest if len(chain) == 3 else ()
        assert accepts(verifier, line("newest", chain)) == bool(shown)
        if shown:
            assert verifier.final.id == tree.root.digest
    return is_seated or bool(tree.newest)


PEER_LISTS = st.lists(st.sampled_from(PEERS[:10]), max_size=2).map(tuple)
HONEST = st.just(Spec())
CHANGING = st.one_of(
    st.builds(Spec, joined=PEER_LISTS, removed=PEER_LISTS),
    st.builds(Spec, joined=st.just(PEERS[7:9])),
    st.builds(Spec, removed=st.just(PEERS[5:7]), final_age=st.integers(8, 12)),
    st.builds(Spec, removed=st.sampled_from([(PEERS[1],), GENESIS]), gap=st.sampled_from([1, 12])),
    st.builds(Spec, draw=st.just(DRAW), unsorted=st.booleans(), gap=st.sampled_from([1, 45, 90])),
    st.builds(Spec, draw=st.just({PEERS[3]: 13}), gap=st.just(90)),
    st.builds(Spec, draw=st.just(DRAW), removed=st.just(PEERS[:1]), gap=st.just(90)),
)
ANY = st.builds(
    Spec,
    gap=st.sampled_from([1, 1, 1, 1, 0, 2]),
    final_age=st.sampled_from([2, 2, 0, 1, 9, 10, 11]),
    has_wrong_reveals=st.sampled_from([False] * 5 + [True]),
    missing_seats=st.sampled_from([0, 0, 0, 1, 2]),
    parent=st.sampled_from([""] * 9 + ["other"]),
)


@st.composite
def specs(draw):
    """Draw a chain that is nearly right: a change with pages around it, or none."""
    before = draw(st.lists(HONEST | ANY, max_size=2))
    change = [draw(CHANGING)] * draw(st.sampled_from([0, 1, 1, 1]))
    missing = draw(st.sampled_from([0, 0, 0, 1, 1, 2]))
    change = [replace(one, missing_seats=missing) for one in change]
    after = [
        replace(one, missing_seats=draw(st.sampled_from([0, missing])))
        for one in draw(st.lists(HONEST, min_size=1, max_size=4))
    ]
    if draw(st.integers(0, 3)) == 0:
        after[draw(st.integers(0, len(after) - 1))] = draw(ANY | CHANGING)
    return [*before, *change, *after]


RECOVERY = Spec(removed=tuple(PEERS[5:7]), final_age=10, missing_seats=1)


@given(specs(), st.booleans())
@example(specs=[RECOVERY, Spec(missing_seats=1), Spec(missing_seats=1)], is_drawn=False)
@example(specs=[RECOVERY, Spec(missing_seats=1), Spec(missing_seats=2)], is_drawn=False)
def test_the_verifier_follows_the_chains_that_a_node_follows(specs, is_drawn):
    compare(specs, is_drawn=is_drawn)


def test_the_chains_of_the_property_are_good_and_bad():
    """Named chains, so that the property compares more than refusals."""
    less = Spec(missing_seats=1)
    joins = Spec(joined=(PEERS[7],), removed=(PEERS[0],))
    early = Spec(removed=tuple(PEERS[5:7]), final_age=9, missing_seats=1)
    good = {
        "newest": [Spec(), Spec(), Spec()],
        "a change": [joins, Spec(), Spec()],
        "a change in the middle": [Spec(), joins, Spec()],
        "a change with a gap": [joins, Spec(2), Spec(2), Spec(), Spec()],
        "a recovery": [RECOVERY, less, less],
        "a recovery with the usual quorum": [RECOVERY, Spec(), Spec()],
        "a draw": [Spec(40, draw=DRAW), Spec(), Spec()],
        "a change that is not final yet": [Spec(), Spec(), joins],
    }
    bad = {
        "too few votes": [Spec(), less, Spec()],
        "a change with too few votes": [replace(joins, missing_seats=1), less, less],
        "a recovery that is early": [early, less, less],
        "a recovery with half of the seats": [RECOVERY, less, Spec(missing_seats=2)],
        "pages before a recovery": [less, RECOVERY, less],
        "a recovery that seats members": [
            replace(RECOVERY, joined=(PEERS[7],)),
            Spec(),
            Spec(),
        ],
        "a draw in its own era": [Spec(draw=DRAW), Spec(), Spec()],
        "a gap": [Spec(), Spec(), Spec(2)],
        "two changes": [joins, joins, Spec()],
        "reveals after a change": [joins, Spec(has_wrong_reveals=True), Spec()],
        "no reveals": [Spec(has_wrong_reveals=True)] * 3,
        "another parent": [Spec(), Spec(parent="other"), Spec()],
    }
    assert [name for name in good if not compare(good[name], is_drawn=False)] == []
    assert [name for name in bad if compare(bad[name], is_drawn=False)] == []
    assert compare([Spec(removed=(PEERS[8],)), Spec(), Spec()], is_drawn=True)
    assert not compare([Spec(joined=(PEERS[7],)), Spec(), Spec()], is_drawn=True)
    assert compare([Spec(joined=(PEERS[7],)), Spec(), Spec()], is_drawn=False)


def test_pages_of_a_council_come_after_the_page_that_seats_it():
    tree, verifier = PageTree(GENESIS, RULES, verify, fast_output, KEPT_EPOCHS), new_verifier()
    handover = chain_after(tree.council, LATE - 1, [Spec(draw=DRAW), Spec(), Spec()])
    assert tree.offer_chain(handover) is True
    assert accepts(verifier, line("handover", handover))
    chain = [Spec(), Spec(), Spec()]
    assert not accepts(verifier, line("newest", chain_after(tree.council, LATE - 1, chain)))
    assert accepts(verifier, line("newest", chain_after(tree.council, LATE, chain)))
