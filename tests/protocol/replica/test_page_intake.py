"""Intake of pages, votes, reveals and chains: windows of epochs, and the tree after a restart."""

from collections import Counter

import pytest

from protocol.consensus.committee import draw
from protocol.consensus.council import decode_chain, encode_chain
from protocol.consensus.member import Contents
from protocol.consensus.reveals import IN_TIME_SHARE
from protocol.core.faults import Fault
from protocol.core.types import ValidationResult
from protocol.ledger.commits import CommitState
from protocol.membership.roster import CLOCK_SKEW_SECONDS_MAX
from protocol.messages import OPENED_MAX, Certificate, Opened, Page, PageVote, Reveal
from protocol.replica.page_intake import PageIntake
from protocol.replica.replica import Replica
from tests.worlds.ledgers import walk_back
from tests.worlds.messages import World, fingerprint, run_manifest
from tests.worlds.page_book import PageBook, fast_output, fast_verify

WORLD = World(
    run_manifest(validators=7, council={"silent_epochs": 3, "recovery_epochs": 6, "era_epochs": 32})
)


def commits_of_epochs(last) -> dict:
    """Return a commit of each epoch, of three workers in turns, slot by slot."""
    commits: dict = {}
    for epoch in range(1, last + 1):
        worker, before = WORLD.workers[epoch % 3], commits.get(epoch - 3)
        slot = before.message.slot + 1 if before else 0
        commits[epoch] = WORLD.commit(worker, slot, epoch=epoch)
    return commits


COMMITS = commits_of_epochs(79)
"""A page lists one, the next one draws its committee, the third after that makes it final."""

CERTIFIED_AFTER = 4
LISTS = {
    epoch: Contents(
        commits=(one.digest,),
        certified=(COMMITS[epoch - CERTIFIED_AFTER].digest,) if epoch > CERTIFIED_AFTER else (),
    )
    for epoch, one in COMMITS.items()
}
WORLD.book = PageBook(WORLD.manifest, WORLD.validators, LISTS)
SECONDS = WORLD.manifest.epochs.seconds
WINDOW = 2
"""Epochs after its own in which a page is accepted; clocks may differ by less than an epoch."""

START = WORLD.manifest.epoch_start


def empty() -> Replica:
    return Replica(WORLD.manifest, fast_verify, fast_output)


def knowing(last) -> Replica:
    """Return a replica with the pages up to an epoch."""
    target = empty()
    WORLD.book.show(target, last)
    return target


def reveal(epoch):
    """Return the first drawn member's reveal for the page of an epoch."""
    return WORLD.book.reveals(epoch)[0]


def said(epoch) -> list:
    """Return what members send in an epoch."""
    return [reveal(epoch), WORLD.book.page(epoch), WORLD.book.votes(epoch)[0]]


# Windows of epochs


@pytest.mark.parametrize("kind", [Reveal, Page, PageVote])
@pytest.mark.parametrize(
    ("now", "result"),
    [
        (START(10) - CLOCK_SKEW_SECONDS_MAX - 0.1, "future-epoch"),
        (START(10) - CLOCK_SKEW_SECONDS_MAX, True),
        (START(10), True),
        (START(11 + WINDOW) - 0.1, True),
        (START(11 + WINDOW), False),
    ],
)
def test_messages_count_in_their_epoch_and_shortly_after(kind, now, result):
    target = knowing(9)
    (signed,) = (one for one in said(10) if isinstance(one.message, kind))
    received = target.receive(signed.envelope, now)
    if result is True:
        assert received.result is ValidationResult.ACCEPT
    else:
        assert received.result is ValidationResult.IGNORE, "a clock may be wrong"
        assert (received.fault.code if received.fault else False) == result
        assert target.receive(signed.envelope, START(10)).result is ValidationResult.ACCEPT


def test_a_reveal_counts_as_in_time_by_its_arrival():
    """Voters may refuse a page without a reveal that came early, and none for another one."""
    page, others = WORLD.book.page(10).message, len(WORLD.book.reveals(10)) - 1
    late = IN_TIME_SHARE + 0.01
    for share, required in ((0.0, True), (IN_TIME_SHARE, True), (late, False), (-0.2, True)):
        target = knowing(9)
        tip = target.pages.tip()
        signed = reveal(10)
        accepted = target.receive(signed.envelope, START(10) + share * SECONDS)
        assert accepted.result is ValidationResult.ACCEPT
        without = page.model_copy(update={"reveals": (b"", *page.reveals[1:])})
        assert target.intake.reveals.are_in_time(tip, without) is not required
        assert target.intake.reveals.are_in_time(tip, page)
        assert target.intake.reveals.proofs(tip, 10) == (page.reveals[0], *[b""] * others)


def test_a_reveal_is_accepted_once_and_never_stored():
    target = knowing(9)
    signed = reveal(10)
    received = target.receive(signed.envelope, START(10))
    assert (received.result, received.lasting) == (ValidationResult.ACCEPT, False)
    assert target.receive(signed.envelope, START(10)).result is ValidationResult.IGNORE
    assert signed.envelope not in target.envelopes()


def test_each_vote_is_stored_until_its_page_is_notarised():
    target = knowing(9)
    page, votes = WORLD.book.page(10), WORLD.book.votes(10)
    quorum = target.pages.council.quorum
    for signed in (*votes[: quorum - 1], page):  # votes may come first
        assert target.receive(signed.envelope, START(10)).result is ValidationResult.ACCEPT
        assert signed.envelope in target.envelopes()
    assert target.receive(votes[-1].envelope, START(10)).result is ValidationResult.ACCEPT
    assert target.envelopes() == [], "the votes are in the chain"
    assert view(WORLD.restarted(target)) == view(target)


def test_pages_that_waited_are_accepted_with_the_last_vote_on_their_parent():
    target = knowing(9)
    parent, child, votes = WORLD.book.page(10), WORLD.book.page(11), WORLD.book.votes(10)
    now = START(11)
    assert target.receive(child.envelope, now).result is ValidationResult.IGNORE
    assert target.behind
    for signed in (parent, *votes[: target.pages.council.quorum - 1]):
        assert target.receive(signed.envelope, now).settled == ()
    assert target.receive(votes[-1].envelope, now).settled == (child,)
    WORLD.book.count(target)
    assert not target.behind


# Chains


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"\x90",
        lambda data: b"\xc1",
        lambda data: data[:-1],
        lambda data: data + b"\x00",
        lambda data: data[:-40] + bytes([data[-40] ^ 1]) + data[-39:],
    ],
)
def test_a_spoilt_chain_changes_nothing(spoil):
    target = empty()
    (data,) = [encode_chain(WORLD.book.chain(1, 1))]
    assert isinstance(target.intake.offer_chain(spoil(data)), Fault)
    assert view(target) == view(empty())
    assert target.intake.offer_chain(data) is True
    assert target.intake.offer_chain(data) is False, "no news"


def test_chains_need_neither_their_ancestors_nor_their_time():
    """A late joiner checks pages of any epoch: their votes are with them."""
    target = empty()
    assert target.intake.offer_chain(encode_chain(WORLD.book.chain(20, 22))) is True
    assert target.pages.root.epoch == 21
    assert target.pages.tip().epoch == 22
    for epoch in (20, 21):
        drawing = target.pages.drawing(COMMITS[epoch].digest)
        assert drawing.digest == WORLD.book.page(epoch + 1).digest
    assert target.pages.drawing(COMMITS[22].digest) is None, "no page after it"


def test_a_chain_reads_as_it_was_written():
    chain = WORLD.book.chain(4, 9)
    data = encode_chain(chain)
    assert decode_chain(data, WORLD.run_id, fast_verify, Opened(OPENED_MAX)) == chain


# Restart


def view(target: Replica) -> tuple:
    """Return what a node concludes from pages, for commits that it may still hold."""
    pages, lifetime_epochs = target.pages, WORLD.manifest.committee.expire_after_epochs
    oldest = pages.root.epoch - 4 * lifetime_epochs
    commits = [one.digest for epoch, one in COMMITS.items() if epoch > oldest]
    known = [node for epoch in range(-1, 80) for node in pages.pages_of(epoch)]
    return (
        pages.root.digest,
        pages.council,
        sorted((node.digest, node.is_notarised, node.shown_epoch) for node in known),
        sorted((n.digest, peer) for n in known if not n.is_notarised for peer in n.votes),
        [node and node.digest for node in map(pages.drawing, commits)],
        [pages.is_listed(one, pages.tip()) for one in commits],
        [[one.page.digest for one in chain] for chain in pages.handovers],
        [one.page.digest for one in pages.newest],
        target.intake.evidence.evidence,
    )


LEFT = WORLD.validators[:3]
KEYS = tuple(one.public_key for one in LEFT)

BOOKS = {
    "one council": WORLD.book,
    "two councils": PageBook(WORLD.manifest, WORLD.validators, LISTS | {9: Contents(removed=KEYS)}),
    "a recovery": PageBook(
        WORLD.manifest,
        WORLD.validators,
        LISTS | dict.fromkeys(range(7, 20), Contents(removed=KEYS)),
        absent=[one.peer_id for one in LEFT],
    ),
}


@pytest.mark.parametrize("name", BOOKS)
def test_a_restarted_node_has_the_same_pages(name):
    book, target, seen = BOOKS[name], empty(), set()
    for epoch in range(1, 61):
        book.show(target, epoch, first=epoch)
        again = WORLD.restarted(target)
        assert view(again) == view(target), epoch
        seen.add(target.pages.council.number)
    assert seen == ({0} if name == "one council" else {0, 1})


def test_a_restarted_node_continues_with_the_votes_that_it_had():
    target = knowing(9)
    page, votes = WORLD.book.page(10), WORLD.book.votes(10)
    for signed in (page, *votes[:2]):
        assert target.receive(signed.envelope, START(10)).result is ValidationResult.ACCEPT
    again = WORLD.restarted(target)
    assert view(again) == view(target)
    for one in votes[:2]:
        assert again.pages.last_vote(one.signer) == one, "it must not vote a second time"
        assert again.receive(one.envelope, START(10)).result is ValidationResult.IGNORE
    for one in votes[2:5]:
        assert again.receive(one.envelope, START(10)).result is ValidationResult.ACCEPT
    assert again.pages.tip().epoch == 10


def test_a_restarted_replica_equals_the_old_one():
    target = knowing(3)
    target.receive(WORLD.genesis().envelope, WORLD.at(0))
    certified, rejected, opened = (COMMITS[epoch] for epoch in (1, 2, 3))
    for epoch, commit in enumerate((certified, rejected, opened), 1):
        target.receive(commit.envelope, WORLD.at(epoch))
    liar = WORLD.validators[6]
    outcomes = (
        WORLD.certificate(certified),
        WORLD.certificate(rejected, accepted=False, escalated=True),
        WORLD.evidence(liar, certified),
    )
    for signed in outcomes:
        assert target.receive(signed.envelope, WORLD.at(3)).result is ValidationResult.ACCEPT
    again = WORLD.restarted(target)
    assert fingerprint(again)[1:] == fingerprint(target)[1:]
    assert view(again) == view(target)
    assert liar.peer_id in again.intake.evidence
    assert again.ledger.commits.entries[certified.digest].state is CommitState.CERTIFIED
    for commit in (certified, rejected):
        committee = target.verdicts.committee(commit)
        assert again.verdicts.committee(commit).ranking == committee.ranking
    assert target.verdicts.committee(opened) is again.verdicts.committee(opened) is None


def test_a_late_joiner_draws_the_same_committees():
    """Open commits of epochs before the newest final page need one as well."""
    old, late = knowing(24), empty()
    for chain in old.chains():
        late.intake.offer_chain(chain)
    for epoch in range(1, 24):
        commit = COMMITS[epoch]
        ranking = old.verdicts.committee(commit).ranking
        assert late.verdicts.committee(commit).ranking == ranking


# Final work


def follow(target, first, last, *, restarted=0, lost=()) -> Replica:
    """Return a replica that received the messages of some epochs, restarted after one of them.

    The commits of epochs ``lost`` and their certificates do not arrive.
    """
    for epoch in range(first, last + 1):
        messages = [] if epoch in lost else [COMMITS[epoch]]
        messages += [WORLD.book.page(epoch), *WORLD.book.votes(epoch)]
        if epoch > 1 and epoch - 1 not in lost:
            messages.append(WORLD.certificate(COMMITS[epoch - 1]))
        for signed in messages:
            target.receive(signed.envelope, WORLD.at(epoch))
        if epoch == restarted:
            target = WORLD.restarted(target)
    return target


def begun() -> Replica:
    target = empty()
    target.receive(WORLD.genesis().envelope, WORLD.at(0))
    return target


def joined(old, now) -> Replica:
    """Return a new node that received the recent pages and commits of another one."""
    late = begun()
    for chain in old.chains():
        late.intake.offer_chain(chain)
    for epoch in range(now - 9, now + 1):
        late.receive(COMMITS[epoch].envelope, WORLD.at(now), anti_entropy=True)
        late.receive(WORLD.certificate(COMMITS[epoch]).envelope, WORLD.at(now))
    late.advance(WORLD.at(now))
    return late


def test_a_node_derives_the_work_that_the_pages_state():
    """Pages of epochs 1 to 23 belong to era 0, and make the commits of epochs 1 to 19 final."""
    target = follow(begun(), 1, 40)
    accounts = target.intake.accounts
    counts = Counter(COMMITS[epoch].signer for epoch in range(1, 20))
    assert accounts.tokens([0]) == {worker: 10 * count for worker, count in counts.items()}
    assert accounts.beacon(1) == target.pages.page(WORLD.book.page(24).digest).beacon
    assert accounts.root == WORLD.book.roots[39]
    assert WORLD.book.page(41).message.ledger == accounts.root
    checks = sum(account.checks for account in accounts.all().values())
    assert checks == 3 * accounts.totals.rollouts == 3 * len(range(1, 36))


@pytest.mark.parametrize("how", ["restarted", "walks back", "adopts", "loses messages"])
def test_every_node_has_the_same_accounts(how):
    """All leaves are equal: of a node that is always on, and of one that was not."""
    always = follow(begun(), 1, 20)
    history = {one.page.digest: one for one in always.intake.ledger.take_counted()}
    if how == "restarted":
        other = follow(begun(), 1, 20, restarted=20)
    elif how == "loses messages":
        other = follow(begun(), 1, 20, lost=range(7, 10))
    else:
        other = joined(always, 20)
    assert other.behind is (how != "restarted")
    if how == "adopts":
        state = always.intake.ledger.state(other.intake.statement.final_epoch)
        assert other.intake.ledger.adopt(state.leaves, other.intake.statement) is None
        history = {one: page for one, page in history.items() if page.page.message.epoch > 17}
    walk_back(other, history)
    for target in (always, other):
        follow(target, 21, 40)
        assert not target.intake.ledger.is_behind
    assert other.intake.accounts.leaves == always.intake.accounts.leaves
    assert other.intake.accounts.root == always.intake.accounts.root == WORLD.book.roots[39]


def test_a_new_node_waits_for_the_work_before_the_pages_that_it_has():
    target = joined(follow(begun(), 1, 20), 20)
    ledger = target.intake.ledger
    assert target.behind
    assert (ledger.has_gap, ledger.is_far_behind) == (True, False)
    assert (ledger.accounts.header.epoch, ledger.newest_epoch) == (-1, 19)
    assert ledger.missing.page == WORLD.book.page(17).digest
    assert ledger.root(17) is None


def test_work_that_arrives_after_the_page_that_names_it_counts():
    """The page of epoch 16 names the commit of epoch 12, which this node does not hold."""
    target = follow(begun(), 1, 20, lost=[12])
    accounts, ledger = target.intake.accounts, target.intake.ledger
    assert target.behind
    assert accounts.header.epoch == 15, "later pages wait, though this node knows their work"
    assert (ledger.missing.page, ledger.missing.pages) == (WORLD.book.page(19).digest, 4)
    target.receive(COMMITS[12].envelope, WORLD.at(20), anti_entropy=True)
    target.receive(WORLD.certificate(COMMITS[12]).envelope, WORLD.at(20))
    target.advance(WORLD.at(20))
    assert not target.behind
    assert accounts.root == follow(begun(), 1, 20).intake.accounts.root


def test_a_restart_overturns_no_final_acceptance():
    """A late certificate of an earlier page in another branch is refused after it as before."""
    commit, final = COMMITS[1], 8
    drawing = WORLD.book.drawing(commit, after=0)
    assert drawing.epoch == 2
    rejection = rejected_by(drawing, commit)
    for last, restarted in ((5, 5), (final, 0), (final, final)):
        target = follow(begun(), 1, last, restarted=restarted)
        target.pages.offer_chain(drawing.to_offer())
        target.receive(rejection.envelope, WORLD.at(last))
        state = target.ledger.commits.entries[commit.digest].state
        is_final = last == final
        assert state is (CommitState.CERTIFIED if is_final else CommitState.REJECTED), restarted


def test_a_new_node_takes_no_rejection_of_what_is_final():
    """It learns of the final page first, and of the commit and both certificates later."""
    commit, late = COMMITS[1], begun()
    for chain in follow(begun(), 1, 8).chains():
        late.intake.offer_chain(chain)
    drawing = WORLD.book.drawing(commit, after=0)
    late.pages.offer_chain(drawing.to_offer())
    rejection = rejected_by(drawing, commit)
    late.receive(commit.envelope, WORLD.at(8), anti_entropy=True)
    assert late.ledger.commits.entries[commit.digest].final is True
    assert late.receive(rejection.envelope, WORLD.at(8)).result is ValidationResult.IGNORE
    late.receive(WORLD.certificate(commit).envelope, WORLD.at(8))
    assert late.ledger.commits.entries[commit.digest].state is CommitState.CERTIFIED


def rejected_by(page, commit):
    """Return a rejection of a commit by the committee that a page draws."""
    committee = draw(WORLD.manifest, page, commit)
    signers = [WORLD.by_peer[peer] for peer in committee.escalated]
    verdicts = tuple(
        WORLD.verdict(one, commit, accept=False, page=page.digest).envelope for one in signers
    )
    message = Certificate(
        commit=commit.digest, page=page.digest, escalated=True, accepted=False, verdicts=verdicts
    )
    return WORLD.sealed(message, signers[0])


def test_the_intake_has_the_rules_of_the_manifest():
    world = World(
        run_manifest(
            council={"seats_max": 9, "revealers": 5, "silent_epochs": 4, "recovery_epochs": 8}
        )
    )
    opened = Opened(OPENED_MAX)
    rules = PageIntake(world.manifest, fast_verify, fast_output, opened).rules
    assert (rules.council_max, rules.revealers, rules.recovery_epochs) == (9, 5, 8)
    assert rules.run_id == world.run_id
