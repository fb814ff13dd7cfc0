"""A member's judgement of a page: changes of the council, commits, and draws of an era."""

import pytest

from protocol.consensus.council import vote_for
from protocol.consensus.member import Contents
from protocol.core.crypto import digest, peer_id_from_public_key
from protocol.core.types import ValidationResult
from protocol.ledger.commits import CommitState
from protocol.messages import LISTED_MAX, PageVote
from protocol.replica.page_contents import (
    MEMORY,
    OPEN_EPOCHS,
    PATIENCE_EPOCHS,
    SETTLED_EPOCHS,
    PageContents,
)
from protocol.replica.replica import Replica
from protocol.replica.settlement import DecidedCommits
from tests.worlds.messages import World, identity, run_manifest
from tests.worlds.page_book import BookReplica, PageBook, fast_output, fast_verify

SILENT, RECOVERY = 5, 8
WORLD = World(
    run_manifest(validators=7, council={"silent_epochs": SILENT, "recovery_epochs": RECOVERY})
)
ME, OTHER, THIRD, *_ = WORLD.validators
EVERYBODY = {one.peer_id for one in WORLD.validators}
FINAL = 10
"""Epoch of the newest final page."""


def replica(book=WORLD.book, last=FINAL + 1) -> Replica:
    target = BookReplica(WORLD.manifest, fast_verify, fast_output)
    book.show(target, last)
    for one in book.votes(last):  # a chain has no more votes than it needs
        target.pages.offer_vote(one)
    return target


def contents(target, epoch, *, since=0, me=ME) -> Contents:
    """Return what a member would propose for a page of an epoch."""
    judgement = PageContents(target, me.peer_id, since, held=lambda: -1)
    return judgement.contents(target.pages.tip(epoch), epoch)


def judged(target, epoch, **view) -> tuple[set, set]:
    """Return the keys that join and leave by a page of an epoch, as peer ids."""
    changes = contents(target, epoch, **view)
    return tuple(
        set(map(peer_id_from_public_key, keys)) for keys in (changes.joined, changes.removed)
    )


def approves(target, epoch, *, joined=(), removed=(), since=0, me=ME, **fields) -> bool:
    """Return whether a member would vote for a page with these contents."""
    tip = target.pages.tip(epoch)
    page = WORLD.book.page(FINAL + 2).message.model_copy(
        update={
            "epoch": epoch,
            "ledger": target.intake.ledger.root(tip.shown_epoch),
            "joined": tuple(one.public_key for one in joined),
            "removed": tuple(one.public_key for one in removed),
            **fields,
        }
    )
    judgement = PageContents(target, me.peer_id, since, held=lambda: -1)
    return judgement.approves(page, tip)


def vote(signer, epoch, page=b"some page"):
    message = PageVote(
        epoch=epoch, council=b"", page=digest(page), parent=WORLD.book.page(FINAL + 1).digest
    )
    return WORLD.sealed(message, signer)


def heard(target, epoch, *signers):
    """Let a replica receive votes of an epoch."""
    for one in signers:
        received = target.receive(vote(one, epoch).envelope, WORLD.at(epoch))
        assert received.result is ValidationResult.ACCEPT


# Silence


def test_nobody_leaves_a_council_that_votes():
    assert judged(replica(), FINAL + 2) == (set(), set())


def test_members_that_send_nothing_leave_after_some_epochs():
    target = replica()
    for epoch in range(FINAL + 2, FINAL + 9):
        heard(target, epoch, *WORLD.validators[:5])
    gone = {one.peer_id for one in WORLD.validators[5:]}
    newest = FINAL + 1  # all have voted for that page
    assert judged(target, newest + SILENT - 1) == (set(), set())
    assert judged(target, newest + SILENT) == (set(), gone)
    heard(target, newest + SILENT, WORLD.validators[5])
    assert judged(target, newest + SILENT) == (set(), {WORLD.validators[6].peer_id})


@pytest.mark.parametrize("since", [0, FINAL + 1, FINAL + 4])
def test_silence_counts_from_the_start_of_watching(since):
    """A node that has just started has heard nobody."""
    target, me = replica(), ME.peer_id
    begins = max(since, FINAL + 1) + SILENT
    assert judged(target, begins - 1, since=since)[1] == set()
    assert judged(target, begins, since=since)[1] == EVERYBODY - {me}


def test_a_member_never_removes_itself():
    target = replica()
    for me in WORLD.validators:
        assert me.peer_id not in judged(target, FINAL + 50, me=me)[1]
        assert not approves(target, FINAL + 50, removed=[me], me=me)
        assert not approves(target, FINAL + 50, removed=[OTHER, me], me=me)


def test_another_members_view_of_silence_is_approved_a_little_sooner():
    """Votes reach the proposer and the voters at different times."""
    target = replica()
    due = FINAL + 1 + SILENT
    assert judged(target, due - 1)[1] == set()
    assert approves(target, due - PATIENCE_EPOCHS, removed=[OTHER, THIRD])
    assert not approves(target, due - PATIENCE_EPOCHS - 1, removed=[OTHER])
    heard(target, FINAL + 2, OTHER)
    assert not approves(target, due - PATIENCE_EPOCHS, removed=[OTHER])
    assert not approves(target, due - PATIENCE_EPOCHS, removed=[THIRD, OTHER])
    assert approves(target, due - PATIENCE_EPOCHS, removed=[THIRD])
    assert approves(target, due - PATIENCE_EPOCHS), "a page without changes"


# Evidence


def test_two_verdicts_on_one_commit_cost_the_seat():
    target, commit = replica(), WORLD.commit(WORLD.workers[0])
    assert not approves(target, FINAL + 2, removed=[OTHER])
    target.receive(WORLD.evidence(OTHER, commit).envelope, WORLD.at(FINAL))
    assert judged(target, FINAL + 2) == (set(), {OTHER.peer_id})
    assert approves(target, FINAL + 2, removed=[OTHER])
    assert not approves(target, FINAL + 2, removed=[OTHER, THIRD])


def test_two_votes_in_one_epoch_cost_the_seat():
    target, now = replica(), WORLD.at(FINAL + 2)
    for one, page in ((OTHER, b"one"), (OTHER, b"another"), (THIRD, b"one"), (THIRD, b"one")):
        target.receive(vote(one, FINAL + 2, page).envelope, now)
    assert judged(target, FINAL + 2) == (set(), {OTHER.peer_id})
    assert approves(target, FINAL + 2, removed=[OTHER])
    assert not approves(target, FINAL + 2, removed=[THIRD])


# Return of genesis validators

LEAVES = Contents(removed=(OTHER.public_key, THIRD.public_key))
LEAVES_ALONE = Contents(removed=(OTHER.public_key,))
BOOK = PageBook(WORLD.manifest, WORLD.validators, {3: LEAVES})


def without_two() -> Replica:
    """Return a replica whose council lacks two validators of the genesis."""
    target = replica(BOOK)
    assert set(target.pages.council.members) == EVERYBODY - {OTHER.peer_id, THIRD.peer_id}
    return target


def live(target, signer, epoch=FINAL, roles=("validator",)):
    record = WORLD.record(signer, roles, epoch)
    assert target.receive(record.envelope, WORLD.at(epoch)).result is ValidationResult.ACCEPT


def test_a_validator_of_the_genesis_that_is_live_returns():
    target, epoch = without_two(), FINAL + 2
    assert judged(target, epoch) == (set(), set())
    assert not approves(target, epoch, joined=[OTHER])
    live(target, OTHER)
    live(target, THIRD, roles=("relay",))
    live(target, WORLD.workers[0], roles=("inference",))
    assert judged(target, epoch) == ({OTHER.peer_id}, set())
    assert approves(target, epoch, joined=[OTHER])
    for key in (THIRD, WORLD.workers[0], WORLD.validators[4]):
        assert not approves(target, epoch, joined=[key])
        assert not approves(target, epoch, joined=[OTHER, key])
    gone = FINAL + WORLD.manifest.epochs.record_epochs + 1
    assert judged(target, gone, since=gone) == (set(), set())
    assert not approves(target, gone, joined=[OTHER])


@pytest.mark.parametrize(
    ("changes", "returns_from"),
    [
        ({9: LEAVES}, 9 + SILENT),
        ({3: Contents(removed=(THIRD.public_key,)), 11: LEAVES_ALONE}, 11 + SILENT),
        ({3: LEAVES, 7: Contents(joined=LEAVES.removed), 11: LEAVES}, 11 + 2 * SILENT),
    ],
)
def test_a_removed_member_returns_after_a_pause_that_doubles(changes, returns_from):
    """A member that sends records and no votes would stop a small council again and again."""
    last = returns_from - 2
    target = replica(PageBook(WORLD.manifest, WORLD.validators, changes), last)
    assert OTHER.peer_id not in target.pages.council.places
    live(target, OTHER, last)
    assert not approves(target, returns_from - 1, joined=[OTHER], since=last)
    assert approves(target, returns_from, joined=[OTHER], since=last)
    assert judged(target, returns_from - 1, since=last)[0] == set()
    assert judged(target, returns_from, since=last)[0] == {OTHER.peer_id}


@pytest.mark.parametrize("issued", [9, 10])
def test_a_record_from_before_its_removal_does_not_show_a_member_live(issued):
    """The member may have been gone since then."""
    target = replica(PageBook(WORLD.manifest, WORLD.validators, {9: LEAVES}), 12)
    live(target, OTHER, issued)
    returning = {OTHER.peer_id} if issued > 9 else set()
    assert judged(target, 9 + SILENT, since=12)[0] == returning


@pytest.mark.parametrize("between", [MEMORY * SILENT - 1, MEMORY * SILENT])
def test_a_removal_of_long_ago_makes_no_pause_longer(between):
    target = without_two()
    first = target.pages.removals[OTHER.peer_id][0]
    target.pages.removals[OTHER.peer_id].append(first + between)
    returns_from = first + between + SILENT * (2 if between < MEMORY * SILENT else 1)
    live(target, OTHER, returns_from - 2)
    assert judged(target, returns_from - 1, since=returns_from)[0] == set()
    assert judged(target, returns_from, since=returns_from)[0] == {OTHER.peer_id}


def test_a_member_that_evidence_names_does_not_return():
    target = without_two()
    live(target, OTHER)
    evidence = WORLD.evidence(OTHER, WORLD.commit(WORLD.workers[0]))
    target.receive(evidence.envelope, WORLD.at(FINAL))
    assert OTHER.peer_id in target.intake.evidence
    assert judged(target, FINAL + 2) == (set(), set())
    assert not approves(target, FINAL + 2, joined=[OTHER])


def test_no_more_members_join_than_there_are_seats():
    world = World(run_manifest(validators=7, council={"seats_max": 7, "silent_epochs": SILENT}))
    outsider, leaving = world.workers[0], world.validators[1:3]
    changes = Contents((outsider.public_key,), tuple(one.public_key for one in leaving))
    book = PageBook(world.manifest, [*world.validators, outsider], {3: changes})
    target = Replica(world.manifest, fast_verify, fast_output)
    book.show(target, FINAL + 1)
    for one in leaving:
        target.receive(world.record(one, ("validator",), FINAL).envelope, world.at(FINAL))
    assert len(target.pages.council.members) == 6
    changes = contents(target, FINAL + 2)
    assert len(changes.joined) == 1


def test_nobody_joins_in_a_recovery():
    target = without_two()
    shown = target.pages.tip().shown_epoch
    begins = shown + RECOVERY
    live(target, OTHER, begins - 2)
    here = [one for one in WORLD.validators if one not in (OTHER, THIRD)]
    for epoch in range(FINAL + 2, begins + 1):
        for one in here[:-1]:
            council = target.pages.council.seat
            message = vote(one, epoch).message.model_copy(update={"council": council})
            target.receive(WORLD.sealed(message, one).envelope, WORLD.at(epoch))
    silent = {here[-1].peer_id}
    assert judged(target, begins - 1) == ({OTHER.peer_id}, silent)
    assert judged(target, begins) == (set(), silent)
    heard_again = vote(here[-1], begins).message.model_copy(
        update={"council": target.pages.council.seat}
    )
    target.receive(WORLD.sealed(heard_again, here[-1]).envelope, WORLD.at(begins))
    assert judged(target, begins) == ({OTHER.peer_id}, set()), "nobody leaves: no recovery"


def test_a_vote_in_the_book_is_the_vote_for_its_page():
    """The votes above are invented; those of an honest council name page and parent."""
    assert WORLD.book.votes(3)[0].message == vote_for(WORLD.book.page(3))


# Commits


def commits(count, worker=WORLD.workers[0], epoch=FINAL, **changes) -> list:
    return WORLD.chain(worker, count, epoch=epoch, **changes)


def held(*messages, book=WORLD.book) -> Replica:
    """Return a replica that holds some commits."""
    target = replica(book)
    for one in messages:
        target.restore(one.envelope)
    return target


def digests(*messages) -> tuple[bytes, ...]:
    return tuple(one.digest for one in messages)


def test_new_commits_are_listed_the_oldest_first_and_a_page_has_room_for_so_many():
    newer, older = commits(1, epoch=FINAL + 1), commits(2, WORLD.workers[1])
    expected = (*sorted(digests(*older)), *digests(*newer))
    assert contents(held(*newer, *older), FINAL + 2).commits == expected
    workers = [identity(f"worker of many {number}") for number in range(11)]
    many = [one for worker in workers for one in commits(20, worker)]
    target = held(*newer, *many)
    listed = contents(target, FINAL + 2).commits
    assert listed == tuple(sorted(digests(*many)))[:LISTED_MAX]
    assert len(many) > LISTED_MAX == len(listed)
    assert approves(target, FINAL + 2, commits=listed)


def test_a_commit_that_came_too_late_is_not_listed():
    """Its author could have waited for this page."""
    late, timely = commits(1, epoch=0)[0], commits(1, WORLD.workers[1])[0]
    target = held(timely)
    target.receive(WORLD.genesis().envelope, WORLD.at(0))
    target.receive(late.envelope, WORLD.at(FINAL), anti_entropy=True)
    assert not target.ledger.commits.entries[late.digest].timely
    assert contents(target, FINAL + 2).commits == digests(timely)


@pytest.mark.parametrize("epoch", [FINAL - 3, FINAL + 1])
def test_a_commit_is_listed_once(epoch):
    """By a final page, or by one that is not final yet."""
    listed, new = commits(1)[0], commits(1, WORLD.workers[1])[0]
    book = PageBook(WORLD.manifest, WORLD.validators, {epoch: Contents(commits=digests(listed))})
    target = held(listed, new, book=book)
    assert contents(target, FINAL + 2).commits == digests(new)
    assert approves(target, FINAL + 2, commits=digests(new))
    assert not approves(target, FINAL + 2, commits=digests(new, listed))
    assert not approves(target, FINAL + 2, commits=digests(new, new))


def test_a_commit_that_is_not_here_is_no_reason_to_vote():
    known, unknown = commits(1)[0], commits(1, WORLD.workers[1])[0]
    target = held(known)
    assert approves(target, FINAL + 2, commits=digests(known))
    assert not approves(target, FINAL + 2, commits=digests(known, unknown))


def decided(target, commit, epoch, *, accepted=True) -> None:
    """Give a commit its outcome in an epoch."""
    target.ledger.advance(epoch)
    certificate = WORLD.certificate(commit, accepted=accepted, escalated=not accepted)
    target.restore(certificate.envelope)
    assert target.ledger.commits.entries[commit.digest].certificate == certificate


def deciding(target, epoch, certified=(), rejected=()) -> dict:
    """Return the fields of a page that makes outcomes final, with the work that follows."""
    settle, parent = target.settlement, target.pages.tip(epoch)
    commits = (*digests(*certified), *digests(*rejected))
    bits = [settle.decided([one], [one]).checkers or (0,) for one in commits]
    checkers = tuple(one for (one,) in bits)
    outcomes = DecidedCommits(digests(*certified), digests(*rejected), checkers)
    work = settle.work(outcomes, parent.head, parent.head)
    return outcomes._asdict() | {"work": work.digest if work else b""}


def test_outcomes_are_final_when_every_member_has_the_certificate():
    good, bad, open_one = (commits(1, worker, epoch=2)[0] for worker in WORLD.workers)
    target = held(good, bad, open_one)
    decided(target, good, FINAL + 2)
    decided(target, bad, FINAL + 2, accepted=False)
    settles, opens = FINAL + 2 + SETTLED_EPOCHS, FINAL + 6
    assert settles % OPEN_EPOCHS
    assert contents(target, settles - 1).checkers == ()
    proposed = contents(target, settles)
    assert (proposed.certified, proposed.rejected) == (digests(good), ())
    assert proposed.commits == digests(open_one)
    proposed = contents(target, opens, since=opens)
    assert (proposed.certified, proposed.rejected) == (digests(good), digests(bad))
    assert proposed.work == deciding(target, opens, [good], [bad])["work"] != b""
    assert approves(target, settles, **deciding(target, settles, [good]))
    assert approves(target, settles, **deciding(target, settles, [good], [bad]))
    assert approves(target, opens, **deciding(target, opens, [], [bad]))
    for fields in (
        deciding(target, settles, [good, good]),
        deciding(target, settles, [bad, bad]),
        deciding(target, settles, [good], [good]),
        deciding(target, settles, [bad]),
        deciding(target, settles, [], [good]),
    ):
        assert not approves(target, settles, **fields)
    for one in (open_one, commits(2)[1]):
        assert not approves(target, settles, **deciding(target, settles, [one]))
        assert not approves(target, settles, **deciding(target, settles, [good, one]))
        assert not approves(target, settles, **deciding(target, settles, [], [one]))


def test_a_page_decides_a_slot_once():
    first, second = (commits(1, epoch=2, tokens=tokens)[0] for tokens in (7, 8))
    (other,) = commits(1, WORLD.workers[1], epoch=2)
    target, epoch = held(first, second, other), FINAL + 4
    for one in (first, second, other):
        decided(target, one, FINAL + 2)
    proposed = contents(target, epoch)
    assert set(proposed.certified) in ({first.digest, other.digest}, {second.digest, other.digest})
    assert approves(target, epoch, **deciding(target, epoch, [first, other]))
    assert approves(target, epoch, **deciding(target, epoch, [second, other]))
    assert not approves(target, epoch, **deciding(target, epoch, [first, second]))


@pytest.mark.parametrize("epoch", [FINAL - 3, FINAL + 1])
def test_a_slot_that_a_page_has_decided_is_not_decided_again(epoch):
    """By a final page, which the accounts count, or by one that is not final yet."""
    first, second = (commits(1, epoch=2, tokens=tokens)[0] for tokens in (7, 8))
    book = PageBook(WORLD.manifest, WORLD.validators, {epoch: Contents(certified=digests(first))})
    target = BookReplica(WORLD.manifest, fast_verify, fast_output)
    for one in (first, second):
        target.restore(one.envelope)
    book.show(target, FINAL + 1)
    target.count_final()
    assert target.intake.accounts.next_slot(first.signer) == (epoch < FINAL)
    decided(target, second, 4)
    opens = FINAL + 2
    assert contents(target, opens).checkers == ()
    assert not approves(target, opens, **deciding(target, opens, [second]))


def test_a_page_that_states_other_work_or_other_accounts_is_refused():
    (good,) = commits(1, epoch=2)
    target, epoch = held(good), FINAL + 4
    decided(target, good, FINAL + 2)
    fields = deciding(target, epoch, [good])
    assert approves(target, epoch, **fields)
    assert not approves(target, epoch, **fields | {"work": b""})
    assert not approves(target, epoch, **fields | {"work": bytes(32)})
    assert not approves(target, epoch, work=fields["work"]), "of no commit"
    more = fields["checkers"][0] | 1 << 3
    assert not approves(target, epoch, **fields | {"checkers": (more,)}), "it has not checked"
    for root in (b"", bytes(32), target.intake.ledger.root(-1)):
        assert not approves(target, epoch, **fields, ledger=root)


def test_a_member_without_the_work_of_final_pages_neither_proposes_nor_approves():
    """It could state no root, and check none; it goes on once it has the work."""
    (good,) = commits(1, epoch=2)
    book = PageBook(WORLD.manifest, WORLD.validators, {6: Contents(certified=digests(good))})
    target = BookReplica(WORLD.manifest, fast_verify, fast_output)
    book.show(target, FINAL + 1, with_work=False)
    target.count_final()
    assert target.behind
    assert target.intake.accounts.header.epoch == 5, "it counts up to the page before"
    epoch, parent = FINAL + 2, target.pages.tip()
    judgement = PageContents(target, ME.peer_id, FINAL, held=lambda: -1)
    page = book.page(epoch).message
    assert judgement.contents(parent, epoch) is None
    assert not judgement.approves(page, parent)
    book.count(target)
    assert not target.behind
    assert judgement.contents(parent, epoch).ledger == page.ledger == book.roots[FINAL]
    assert judgement.approves(page, parent)


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("epoch", [FINAL - 3, FINAL + 1])
def test_an_outcome_becomes_final_once(epoch, accepted):
    one = commits(1, epoch=2)[0]
    named = Contents(**{"certified" if accepted else "rejected": digests(one)})
    book = PageBook(WORLD.manifest, WORLD.validators, {epoch: named})
    target = BookReplica(WORLD.manifest, fast_verify, fast_output)
    target.restore(one.envelope)
    book.show(target, FINAL + 1)
    decided(target, one, 4, accepted=accepted)
    entry = target.ledger.commits.entries[one.digest]
    assert entry.final is (accepted if epoch < FINAL else None)
    opens = FINAL + 2
    assert opens % OPEN_EPOCHS == 0
    assert contents(target, opens).checkers == ()
    outcome = {"certified": [one]} if accepted else {"rejected": [one]}
    assert not approves(target, opens, **deciding(target, opens, **outcome))


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("is_final", [False, True])
def test_no_certificate_overturns_a_final_outcome(is_final, accepted):
    """A certificate of the other outcome arrives later; a rejection is escalated: it wins."""
    commit = commits(1, epoch=0)[0]
    target = WORLD.replica(pages_to=3)
    certificates = {
        True: WORLD.certificate(commit),
        False: WORLD.certificate(commit, accepted=False, escalated=True),
    }
    for one, epoch in ((commit, 1), (certificates[accepted], 3)):
        assert target.receive(one.envelope, WORLD.at(epoch)).result is ValidationResult.ACCEPT
    entry = target.ledger.commits.entries[commit.digest]
    states = {True: CommitState.CERTIFIED, False: CommitState.REJECTED}
    assert entry.state is states[accepted]
    outcome = {"certified" if accepted else "rejected": digests(commit)}
    named = Contents(**outcome) if is_final else Contents()
    PageBook(WORLD.manifest, WORLD.validators, {4: named}).show(target, 6, first=4)
    received = target.receive(certificates[not accepted].envelope, WORLD.at(6))
    if is_final:
        target.restore(certificates[not accepted].envelope)
    overturned = not is_final and accepted
    assert (received.result is ValidationResult.ACCEPT) is overturned
    assert entry.state is states[accepted is not overturned]
