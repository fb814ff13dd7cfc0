import asyncio
from dataclasses import replace
from itertools import count

import pytest
from structlog.testing import capture_logs

from protocol.consensus.era import drawn_seats
from protocol.core.crypto import public_key_from_peer_id
from protocol.ledger.commits import COMMITS_IN_FLIGHT_MAX as IN_FLIGHT
from protocol.ledger.commits import CommitState
from protocol.messages import Certificate, NodeRecord, Page, PageVote, Reveal
from protocol.replica.page_contents import PageContents
from roles.ports.storage import StorageFullError
from roles.validator.council import CouncilFlow
from tests.worlds.council_world import CouncilWorld
from tests.worlds.flow_world import FlowWorld

pytestmark = pytest.mark.virtual


def seats(world):
    """Return the council of each member that runs."""
    return {member.replica.pages.council.members for member in world.members if member.is_up}


def removals(world):
    """Return the epochs and keys of the pages that remove members, of those that all may see."""
    found = {}
    for one in world.sent:
        if type(one.message) is Page and one.message.removed:
            found.setdefault(one.message.removed, one.message.epoch)
    return found


async def test_every_epoch_has_a_page_that_draws_and_is_final_two_epochs_later():
    world = CouncilWorld()
    world.start()
    await world.run(10.9)
    assert sorted(world.notarised) == list(range(11))
    assert world.drawing == world.notarised
    assert {member.replica.pages.root.epoch for member in world.members} == {9}
    for member in world.members:
        assert [vote.epoch for vote in world.of(PageVote, member)] == list(range(11))
        assert [reveal.epoch for reveal in world.of(Reveal, member)] == list(range(11))
    assert len({one.signer for one in world.sent if type(one.message) is Page}) > 1
    await world.stop()


async def test_lost_messages_delay_final_pages_and_cause_no_conflict():
    world = CouncilWorld(loss=0.15)
    world.start()
    await world.run(30)
    assert min(member.replica.pages.root.epoch for member in world.members) >= 10
    assert len(world.notarised) >= 12
    assert world.doubled(PageVote) == []
    await world.stop()


@pytest.mark.parametrize("share", [0.008, 0.1, 0.6])
async def test_a_member_that_restarts_signs_no_second_vote_and_no_second_page(share):
    world = CouncilWorld(latency_seconds=(0.2, 1.5))
    world.start()
    await world.run(share)
    for number in range(20):
        member = world.members[number % 4]
        await member.stop()
        member.start()
        await world.run(1)
    assert world.doubled(PageVote) == []
    assert world.doubled(Page) == []
    assert max(world.final) >= 15
    await world.stop()


async def test_a_member_that_has_voted_and_restarts_has_no_vote_for_another_page():
    """Own votes are stored at once, and what others sent may be lost by a crash."""
    world = CouncilWorld()
    world.start()
    await world.run(3.5)
    (page,) = (one for one in world.sent if type(one.message) is Page and one.message.epoch == 3)
    proposer = world.world.by_peer[page.signer]
    victim = next(member for member in world.members if member.peer_id != page.signer)
    await victim.stop()
    own = [one.envelope for one in world.sent if one.signer == victim.peer_id]
    newer = [one.envelope for one in world.sent if one.message.epoch == 3]
    victim.disk = [one for one in victim.disk if one in own or one not in newer]
    victim.start()
    author = next(member for member in world.members if member.peer_id == page.signer)
    (proof,) = (one.proof for one in world.of(Reveal, author) if one.epoch == 3)
    reveals = tuple(b"" if one == proof else one for one in page.message.reveals)
    other = page.message.model_copy(update={"reveals": reveals})
    victim.receive(world.world.sealed(other, proposer).envelope)
    await world.run(0.3)
    assert len(victim.replica.pages.pages_of(3)) == 1, "it has only the other page"
    assert [vote.epoch for vote in world.of(PageVote, victim)] == [0, 1, 2, 3]
    await world.run(2)
    assert [vote.epoch for vote in world.of(PageVote, victim)] == [0, 1, 2, 3, 4, 5]
    await world.stop()


async def test_a_vote_that_is_not_stored_is_neither_sent_nor_repeated_in_its_epoch():
    world = CouncilWorld()
    world.start()
    await world.run(3.9)
    poor = world.members[0]
    poor.errors[PageVote] = [StorageFullError("no room")]
    await world.run(1)
    assert [vote.epoch for vote in world.of(PageVote, poor)] == [0, 1, 2, 3]
    assert poor.errors[PageVote] == []
    assert "disk full: no room" in str(poor.context.conditions)
    await world.run(1)
    assert [vote.epoch for vote in world.of(PageVote, poor)] == [0, 1, 2, 3, 5]
    assert str(poor.context.conditions) == ""
    assert 4 in world.notarised, "the others suffice"
    await world.stop()


async def test_a_page_that_arrives_early_without_reveals_gets_no_votes():
    """A coalition of the proposer and some revealers would know the beacon in advance."""
    world = CouncilWorld(epoch_seconds=2.0)
    hasty = world.members[0]
    hasty.clock.offset = 1.4  # it waits for 1.0 s
    world.start()
    await world.run(20)
    own = [one for one in world.sent if type(one.message) is Page and one.signer == hasty.peer_id]
    early = {one.digest for one in own if not all(one.message.reveals)}
    assert early, "another seed is needed: it never proposes first"
    assert not early & set(world.notarised.values())
    assert world.drawing == world.notarised
    assert len(world.notarised) >= 19, "the second proposer makes a page"
    await world.stop()


async def test_a_member_with_a_slow_clock_keeps_its_seat():
    """Proposers do not wait for its reveals."""
    world = CouncilWorld(validators=7, epoch_seconds=2.0)
    slow = world.members[0]
    slow.clock.offset = -1.0
    world.start()
    await world.run(20)
    assert removals(world) == {}
    assert len(world.of(PageVote, slow)) >= 17
    assert len(world.notarised) >= 19
    await world.stop()


async def test_a_silent_member_is_removed_and_seated_again_when_it_returns():
    world = CouncilWorld()
    world.start()
    await world.run(3.9)
    gone, others = world.members[3], world.members[:3]
    await gone.stop()
    silent_epochs = world.manifest.council.silent_epochs
    await world.run(silent_epochs - 1)
    assert removals(world) == {}
    await world.run(8)
    ((keys, epoch),) = removals(world).items()
    assert keys == (public_key_from_peer_id(gone.peer_id),)
    assert 3 + silent_epochs <= epoch <= 3 + silent_epochs + 4
    assert seats(world) == {tuple(sorted(one.peer_id for one in others))}
    before = len(world.notarised)
    await world.run(5)
    assert len(world.notarised) == before + 5, "three votes of three"
    gone.start()
    await world.run(8)
    assert seats(world) == {tuple(sorted(one.peer_id for one in world.members))}
    assert world.of(PageVote, gone)[-1].epoch == world.epoch()
    assert world.doubled(PageVote) == []
    await world.stop()


async def test_two_of_three_remove_the_third_by_a_recovery():
    world = CouncilWorld(validators=3)
    world.start()
    await world.run(3.9)
    await world.members[0].stop()
    recovery_epochs = world.manifest.council.recovery_epochs
    await world.run(recovery_epochs - 2)
    assert max(world.final) == 2, "two votes of three notarise nothing"
    await world.run(8)
    assert seats(world) == {tuple(sorted(one.peer_id for one in world.members[1:]))}
    assert max(world.final) >= world.epoch() - 2
    await world.stop()


async def test_a_key_of_a_lost_disk_votes_only_in_later_epochs():
    """It may have signed a vote that nobody here has received."""
    world = CouncilWorld()
    world.members[0].born_epoch = 4
    world.start()
    await world.run(6.9)
    assert [vote.epoch for vote in world.of(PageVote, world.members[0])] == [4, 5, 6]
    assert [reveal.epoch for reveal in world.of(Reveal, world.members[0])] == [4, 5, 6]
    assert {page.epoch for page in world.of(Page, world.members[0])} <= {4, 5, 6}
    await world.stop()


# Commits and eras

ERA, SEATS = 32, 48
SHORT_ERAS = {"era_epochs": ERA, "seats_max": SEATS, "silent_epochs": 8, "recovery_epochs": 20}


async def test_commits_are_listed_drawn_certified_and_final():
    world = CouncilWorld(workers=1)
    *council, worker = world.members
    worker.roles = ("inference",)
    world.start()
    await world.run(2.5)
    (commit,) = world.commit(worker)
    await world.run(8)
    listed, certified = (
        [page for page in pages_of(world) if commit.digest in getattr(page, field)]
        for field in ("commits", "certified")
    )
    assert [page.epoch for page in listed] == [3], "the page of its own epoch was made before it"
    drawing = council[0].replica.pages.drawing(commit.digest)
    assert drawing.epoch == 4
    assert world.certificates[commit.digest].message.page == drawing.digest
    assert len(certified) == 1
    for member in council:
        entry = member.replica.ledger.commits.entries[commit.digest]
        assert entry.state is CommitState.CERTIFIED
        assert entry.final is True
        accounts = member.replica.intake.accounts
        assert accounts.tokens([0]) == {worker.peer_id: commit.message.tokens}
    await world.stop()


def pages_of(world):
    """Return the notarised pages by epoch."""
    found = {one.digest: one.message for one in world.sent if type(one.message) is Page}
    return [found[digest] for _, digest in sorted(world.notarised.items())]


async def eras(workers=1, works=lambda _worker, _era: 4, **council) -> CouncilWorld:
    """Return a world shortly before the first draw; the first pages are of epoch 12.

    ``works``: how many rollouts a worker commits to in an era.
    """
    world = CouncilWorld(workers=workers, council=SHORT_ERAS | council)
    for worker in world.members[world.validators :]:
        worker.roles = ("inference", "validator")
    await asyncio.sleep(12 * world.epoch_seconds)
    world.start()
    for era in range(2):
        await world.run(1.5)
        for number, worker in enumerate(world.members[world.validators :]):
            world.commit(worker, works(number, era))
        await world.run(8)
    left_seconds = world.manifest.epoch_start(2 * ERA) - world.now()
    await world.run(left_seconds / world.epoch_seconds - 0.1)
    return world


def peers(members):
    return tuple(sorted(member.peer_id for member in members))


def drawn_pages(world):
    return [page for page in pages_of(world) if page.drawn]


def seats_by_peer(council):
    return dict(zip(council.members, council.seats, strict=True))


def genesis_seats(world, council):
    return council.seats_of(world.manifest.genesis.validators)


def due(world, era, tokens):
    """Return the seats of an era if the only worker has some tokens."""
    worker = world.members[-1]
    beacon = worker.replica.intake.accounts.beacon(era)
    genesis = world.manifest.genesis.validators
    return drawn_seats({worker.peer_id: tokens}, genesis, era, beacon, SEATS)


async def test_a_worker_with_work_in_two_eras_gets_seats_and_the_swarm_goes_on():
    world = await eras()
    *council, worker = world.members
    assert world.of(PageVote, worker) == []
    await world.run(12)
    (page,) = drawn_pages(world)
    assert page.epoch == 2 * ERA
    assert seats(world) == {peers(world.members)}
    for member in world.members:
        council = member.replica.pages.council
        assert (council.era, council.seats_total) == (2, SEATS)
    assert seats_by_peer(council) == due(world, 2, tokens=80)
    before = genesis_seats(world, council)
    assert 0.5 < before / SEATS < 0.85, "two thirds"
    assert world.of(PageVote, worker)[-1].epoch == world.epoch()
    epochs = {page.epoch for page in pages_of(world)}
    assert epochs == {*range(12, world.epoch() + 1)} - {2 * ERA + 1}, (
        "that page ends the old council"
    )
    assert world.doubled(PageVote) == []
    (commit,) = world.commit(worker)
    await world.run(3 * ERA - world.epoch() + 4)
    assert commit.digest in world.certificates
    _, page = drawn_pages(world)
    assert page.epoch == 3 * ERA
    councils = {member.replica.pages.council for member in world.members}
    (council,) = councils
    assert seats_by_peer(council) == due(world, 3, tokens=50)
    assert 0.3 < genesis_seats(world, council) / SEATS < 0.7, "half of them"
    assert world.of(PageVote, worker)[-1].epoch == world.epoch()
    await world.stop()


async def test_a_worker_that_is_no_validator_gets_no_seat():
    world = await eras(workers=2)
    *council, idle, worker = world.members
    idle.roles = ("inference",)
    assert drawn_pages(world) == []
    # Its record with the other role is of the epoch before.
    await world.run(12)
    (page,) = drawn_pages(world)
    assert seats(world) == {peers([*council, worker])}
    assert sum(page.seats) < SEATS, "its seats stay empty"
    assert world.of(PageVote, idle) == []
    await world.stop()


async def test_a_member_that_lacks_the_record_of_one_validator_agrees_with_the_others():
    world = await eras(workers=2, works=lambda number, _era: (9, 1)[number])
    *council, _, small = world.members
    for member in council[:2]:
        member.misses = lambda one: type(one.message) is NodeRecord and one.signer == small.peer_id
    seconds = world.manifest.epochs.record_epochs + 1
    await world.run(seconds)
    views = {is_live(member, small) for member in council}
    assert views == {True, False}
    await world.run(10)
    (page,) = drawn_pages(world)
    assert page.epoch <= 2 * ERA + seconds
    assert len(seats(world)) == 1
    await world.stop()


def is_live(member, other):
    return member.replica.roster.is_live(other.peer_id, member.clock.now())


async def test_a_proposer_that_seats_its_friend_beyond_its_due_is_refused(monkeypatch):
    due = PageContents.contents
    for recovery_epochs in count(60):  # another run, until a greedy member proposes first
        world = await eras(recovery_epochs=recovery_epochs)
        *council, worker = world.members
        honest = council[0].peer_id

        def greedy(self, parent, epoch, friend=worker.peer_id, honest=honest):
            contents = due(self, parent, epoch)
            if self._me == honest or contents is None or not contents.drawn:
                return contents
            place = contents.drawn.index(public_key_from_peer_id(friend))
            more = list(contents.seats)
            more[place] += 1
            more[place - 1] -= 1
            return replace(contents, seats=tuple(more))

        with monkeypatch.context() as patch:
            patch.setattr(PageContents, "contents", greedy)
            await world.run(30)
        proposed = [one for one in world.sent if type(one.message) is Page and one.message.drawn]
        if len({one.signer for one in proposed}) > 1:
            break
        await world.stop()
    (page,) = drawn_pages(world)
    (signed,) = (one for one in proposed if one.digest == world.notarised[page.epoch])
    assert signed.signer == honest
    assert seats(world) == {peers(world.members)}
    await world.stop()


async def test_a_member_without_the_work_of_final_pages_stops_until_another_one_sends_it():
    """It lacks a certificate: it could state no root of the accounts, and confirm none."""
    world = CouncilWorld(workers=1)
    other, poor, *_, worker = world.members
    worker.roles = ("inference",)
    poor.misses = lambda one: type(one.message) is Certificate
    poor.walks_back = False
    world.start()
    await world.run(2.5)
    (commit,) = world.commit(worker)
    await world.run(12.4)
    (page,) = [page for page in pages_of(world) if commit.digest in page.certified]
    assert poor.replica.pages.root.epoch == max(world.final) > page.epoch, "it has the pages"
    assert poor.replica.intake.accounts.header.epoch == page.epoch - 1
    assert poor.replica.behind
    assert max(world.notarised) == world.epoch(), "three of four go on"
    assert world.of(PageVote, poor)[-1].epoch == world.epoch(), "a vote for what is notarised"
    await other.stop()
    stops = world.epoch() + 1
    await world.run(4)
    assert max(world.notarised) < stops, "two votes of four"
    assert not [one for one in world.of(Page, poor) if one.epoch > page.epoch + 3]
    poor.walks_back = True
    await world.run(6)  # some of them without a peer that is there
    assert max(world.notarised) >= world.epoch() - 2 > stops
    assert len({one.replica.intake.accounts.root for one in world.members if one.is_up}) == 1
    totals = poor.replica.intake.accounts.totals
    assert (totals.rollouts, totals.tokens) == (1, commit.message.tokens)
    await world.stop()


async def test_a_worker_that_sends_each_member_other_commits_stops_no_page():
    """Each member holds as many of a worker as fit, and votes only for lists that it holds."""
    world = CouncilWorld(workers=1, council={"silent_epochs": 30, "recovery_epochs": 60})
    *members, worker = world.members
    worker.roles = ("inference",)
    world.start()
    await world.run(3.5)
    for number, member in enumerate(members):
        for slot in range(number * IN_FLIGHT, (number + 1) * IN_FLIGHT):
            commit = world.world.commit(worker.signer, slot, epoch=world.epoch())
            member.receive(commit.envelope)
    held = [frozenset(member.replica.ledger.commits.entries) for member in members]
    assert len(set(held)) == len(members)
    for member in members:
        for other in members:
            for entry in list(other.replica.ledger.commits.entries.values()):
                member.receive(entry.commit.envelope)
    await world.run(8)
    assert max(world.final) >= world.epoch() - 3
    assert max(len(member.replica.ledger.commits.entries) for member in members) > IN_FLIGHT
    await world.stop()


async def test_a_version_whose_batch_is_refused_is_logged_once(tmp_path):
    world = FlowWorld(tmp_path, "validator 0")
    with capture_logs() as logs:
        world.run(CouncilFlow(world.context))
        await world.rest(5)
        version = world.version()
        await world.rest(30)
        await world.stop()
    told = [one for one in logs if one["event"] == "version_refused"]
    assert [one["version"] for one in told] == [1]
    assert told[0]["trainer"] == version.signer
    assert told[0]["reason"] == "batch-size: 0 rollouts instead of 2 to 2"
