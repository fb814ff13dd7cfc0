"""A member's judgement of a draw: the seats of an era, and the views of two members."""

from protocol.consensus.era import drawn_seats
from protocol.consensus.member import Contents
from protocol.core.crypto import peer_id_from_public_key
from protocol.core.types import ValidationResult
from protocol.replica.page_contents import DOUBT_SHARE, PageContents
from protocol.replica.replica import Replica
from tests.worlds.messages import World, run_manifest
from tests.worlds.page_book import PageBook, fast_output, fast_verify

ERA, SEATS = 32, 24
DRAWS_IN = 2 * ERA
"""First epoch of the first era for which there is a draw."""
WORLD = World(
    run_manifest(
        council={"era_epochs": ERA, "seats_max": SEATS, "silent_epochs": 90, "recovery_epochs": 90}
    )
)
ME = WORLD.validators[0]
WORKER, ROOKIE, SLACKER = WORLD.workers
WORK = {20: (WORKER, SLACKER), 30: (WORKER, SLACKER, ROOKIE)}
"""Workers whose commits are final by the page of an epoch: 20 is of era 0, 30 of era 1."""
DONE = {
    epoch: tuple(WORLD.commit(one, slot=epoch) for one in workers)
    for epoch, workers in WORK.items()
}


def digests(*messages) -> tuple[bytes, ...]:
    return tuple(one.digest for one in messages)


BOOK = PageBook(
    WORLD.manifest,
    WORLD.validators,
    {epoch: Contents(certified=digests(*done)) for epoch, done in DONE.items()},
    first=min(WORK),
)


def contents(target, epoch) -> Contents:
    """Return what a member would propose for a page of an epoch."""
    return PageContents(target, ME.peer_id, 0, held=lambda: -1).contents(
        target.pages.tip(epoch), epoch
    )


def at_the_draw(*, idle=(), with_work=True, to_epoch=DRAWS_IN - 1) -> Replica:
    """Return a member's replica before a draw; all have the role validator but ``idle`` ones.

    ``with_work``: it has the work of all final pages.
    """
    target = Replica(WORLD.manifest, fast_verify, fast_output)
    BOOK.show(target, to_epoch, with_work=with_work)
    target.count_final()
    for one in (*WORLD.validators, *WORLD.workers):
        roles = ("inference",) if one in idle else ("inference", "validator")
        record = WORLD.record(one, roles, DRAWS_IN - 1)
        received = target.receive(record.envelope, WORLD.at(DRAWS_IN - 1))
        assert received.result is ValidationResult.ACCEPT
    return target


def due_seats() -> dict:
    """Return the seats that the beacon gives to each key."""
    first = next(epoch for epoch in range(ERA, DRAWS_IN) if (epoch + 8) // ERA == 2)
    (page,) = BOOK.chain(first, first)
    target = at_the_draw()
    beacon = target.intake.tree.page(page.page.digest).beacon
    tokens = {one.peer_id: 20 for one in (WORKER, SLACKER)}
    return drawn_seats(tokens, sorted(one.peer_id for one in WORLD.validators), 2, beacon, SEATS)


def seated(drawn: Contents) -> dict:
    return dict(zip(map(peer_id_from_public_key, drawn.drawn), drawn.seats, strict=True))


def would_seat(target, seats, epoch=DRAWS_IN) -> bool:
    """Return whether a member would vote for a page that draws a council."""
    keys = {identity_of(peer).public_key: count for peer, count in seats.items()}
    fields = {"drawn": tuple(sorted(keys)), "seats": tuple(keys[one] for one in sorted(keys))}
    fields["ledger"] = target.intake.ledger.root(target.pages.tip(epoch).shown_epoch)
    page = BOOK.page(DRAWS_IN).message.model_copy(update={"epoch": epoch, **fields})
    judgement = PageContents(target, ME.peer_id, 0, held=lambda: -1)
    return judgement.approves(page, target.pages.tip(epoch))


def identity_of(peer):
    return WORLD.by_peer[peer]


def test_a_worker_with_work_in_two_eras_gets_the_seats_that_the_beacon_gives_it():
    drawn = contents(at_the_draw(), DRAWS_IN)
    assert seated(drawn) == due_seats()
    assert sum(drawn.seats) == SEATS
    assert WORKER.peer_id in seated(drawn)
    assert ROOKIE.peer_id not in seated(drawn), "one era of work"
    assert (drawn.joined, drawn.removed, drawn.commits, drawn.certified) == ((), (), (), ())
    assert would_seat(at_the_draw(), seated(drawn))


def test_a_draw_is_due_in_its_era_when_the_work_before_is_final():
    early = at_the_draw(to_epoch=DRAWS_IN - 2)
    assert contents(early, DRAWS_IN - 1).drawn == ()
    assert not would_seat(early, due_seats(), DRAWS_IN - 1)
    # The first page of the work of the third era is of epoch 56: its beacon draws.
    behind, complete = at_the_draw(to_epoch=56), at_the_draw(to_epoch=57)
    assert contents(behind, DRAWS_IN).drawn == ()
    assert not would_seat(behind, due_seats())
    assert seated(contents(complete, DRAWS_IN)) == due_seats()
    assert would_seat(complete, due_seats())


def test_a_draw_is_proposed_in_every_eighth_epoch_and_approved_in_any():
    """A draw that honest views refuse must not stop the pages of two epochs in a row."""
    target, due = at_the_draw(), due_seats()
    for epoch in range(DRAWS_IN, DRAWS_IN + 17):
        for one in (*WORLD.validators, *WORLD.workers):
            record = WORLD.record(one, ("inference", "validator"), epoch)
            target.receive(record.envelope, WORLD.at(epoch))
        proposed = contents(target, epoch)
        assert seated(proposed) == (due if epoch % 8 == 0 else {})
        assert would_seat(target, due, epoch)


def test_a_key_that_is_no_validator_gets_no_seat_and_the_others_no_more():
    due = due_seats()
    drawn = seated(contents(at_the_draw(idle=[SLACKER]), DRAWS_IN))
    assert due[SLACKER.peer_id] > 0
    assert drawn == {peer: seats for peer, seats in due.items() if peer != SLACKER.peer_id}
    assert would_seat(at_the_draw(idle=[SLACKER]), drawn)


def without(due, *peers) -> dict:
    return {peer: seats for peer, seats in due.items() if peer not in peers}


def test_two_views_of_the_live_validators_may_differ_by_a_few_seats():
    due, all_here = due_seats(), at_the_draw()
    few = min(due, key=due.get)
    assert due[few] <= DOUBT_SHARE * (SEATS - due[few])
    assert would_seat(all_here, without(due, few)), "the proposer lacks its record"
    assert would_seat(at_the_draw(idle=[identity_of(few)]), due), "this node lacks its record"
    many = max(due, key=due.get)
    assert due[many] > DOUBT_SHARE * SEATS
    assert not would_seat(all_here, without(due, many))
    assert not would_seat(at_the_draw(idle=[identity_of(many)]), due)


def test_nobody_gets_another_number_of_seats_than_the_beacon_gives():
    due, target = due_seats(), at_the_draw()
    friend = WORKER.peer_id
    assert not would_seat(target, {**due, friend: due[friend] + 1})
    assert not would_seat(target, {**due, friend: due[friend] - 1})
    assert not would_seat(target, {**due, ROOKIE.peer_id: 1})
    assert would_seat(target, due)


def test_a_member_that_does_not_know_all_work_neither_draws_nor_votes_for_a_draw():
    """It waits: other members draw, and it draws as they do once it has the work."""
    target = at_the_draw(with_work=False)
    page, parent = BOOK.page(DRAWS_IN).message, target.pages.tip(DRAWS_IN)
    judgement = PageContents(target, ME.peer_id, 0, held=lambda: -1)
    assert judgement.contents(parent, DRAWS_IN) is None
    assert not would_seat(target, due_seats())
    assert not judgement.approves(page, parent), "the page states accounts that it does not know"
    BOOK.count(target)
    assert seated(contents(target, DRAWS_IN)) == due_seats()
    assert would_seat(target, due_seats())


def test_a_node_that_adopted_a_snapshot_draws_as_the_others_do():
    """The accounts hold the tokens of the recent eras and the beacons of their first pages."""
    target, always = at_the_draw(with_work=False), at_the_draw()
    ledger, statement = target.intake.ledger, target.intake.statement
    state = always.intake.ledger.state(statement.final_epoch)
    assert ledger.adopt(state.leaves, statement) is None
    BOOK.count(target)
    assert target.intake.accounts.root == always.intake.accounts.root
    assert seated(contents(target, DRAWS_IN)) == due_seats()


def test_nobody_returns_after_the_first_draw():
    drawn = contents(at_the_draw(), DRAWS_IN)
    gone = next(one for one in WORLD.validators[1:] if one.peer_id in seated(drawn))
    left = without(seated(drawn), gone.peer_id)
    keys = {identity_of(peer).public_key: count for peer, count in left.items()}
    seating = Contents(drawn=tuple(sorted(keys)), seats=tuple(keys[one] for one in sorted(keys)))
    everyone = [*WORLD.validators, *WORLD.workers]
    work = {epoch: Contents(certified=digests(*done)) for epoch, done in DONE.items()}
    book = PageBook(WORLD.manifest, everyone, {**work, DRAWS_IN: seating}, first=min(WORK))
    target = at_the_draw()
    book.show(target, DRAWS_IN + 4, first=DRAWS_IN)
    assert target.pages.council.era == 2
    assert set(target.pages.council.members) == left.keys()
    live_again = WORLD.record(gone, ("validator",), DRAWS_IN + 4)
    target.receive(live_again.envelope, WORLD.at(DRAWS_IN + 4))
    assert contents(target, DRAWS_IN + 5).joined == ()
