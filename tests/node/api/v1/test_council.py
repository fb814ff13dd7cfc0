"""The council in a node's answers, over a replica with real pages, votes and evidence."""

import pytest

from node.api.v1.council import ABSENT_EPOCHS, LATE_EPOCHS, WINDOW_EPOCHS
from node.api.v1.rollouts import NO_PAGE, UNDECIDED
from protocol.consensus.council import vote_for
from protocol.consensus.pages import RECENT_EPOCHS
from protocol.core.crypto import digest, public_key_from_peer_id
from protocol.core.types import Role, ValidationResult
from protocol.ledger.receipts import PageWork, Receipt, Reversal
from protocol.messages import Evidence, Page, PageVote, seal
from protocol.rollout.audit import ACCEPTED
from tests.node.api.test_observer import WORKER, WORLD, reader, synchronising

KEYS = sorted(WORLD.validators, key=lambda one: one.peer_id)
SECONDS = WORLD.manifest.epochs.seconds
RULES = WORLD.manifest.council
EPOCHS = RULES.era_epochs
WORKS = (Role.INFERENCE, Role.VALIDATOR)
NO_ROLE = "this node runs without the role validator; restart with"


class Pages:
    """A node, and the pages that it receives; ``epoch`` is the one that it is in."""

    def __init__(self, me=WORKER, **changes):
        replica = WORLD.replica(pages_to=0)
        self.node = reader(me, started_at=WORLD.at(0), replica=replica, **changes)
        self.tree = replica.pages
        self.epoch = 0
        self.node.observer.context.ports.clock.now = lambda: WORLD.at(self.epoch)

    def write(self, last, *, without=(), votes=None, reveals=True, **changes):
        """Receive the pages up to an epoch, of which absent proposers make none."""
        absent = {one.peer_id for one in without}
        while self.epoch < last:
            self.epoch += 1
            tip = self.tree.tip()
            council, seed = tip.council, tip.beacon
            if council.proposer(seed, self.epoch) not in absent:
                self._page(tip, absent, votes, reveals=reveals, **changes)

    def draw(self, seats):
        """Receive the pages that draw a council in the first epochs of the next era."""
        era = 1 + self.epoch // EPOCHS
        self.epoch = max(era, 2) * EPOCHS - 1
        self.write(self.epoch + 3, drawn=seats)

    def work(self, era, tokens):
        """Count work of the node's key in a final page of an era."""
        epoch, me = era * EPOCHS, self.node.observer.context.signer.peer_id
        receipt = Receipt(digest(b"commit"), me, 0, 0, True, tokens, ACCEPTED, ())
        accounts = self.node.observer.context.replica.intake.accounts
        accounts.apply(digest(b"page"), epoch, digest(b"beacon"), b"", PageWork((receipt,)))

    def _page(
        self,
        tip,
        absent,
        votes,
        *,
        reveals,
        removed=(),
        joined=(),
        drawn=None,
        commits=(),
        term=0,
        head=b"",
    ):
        council, seed, epoch = tip.council, tip.beacon, self.epoch
        alpha = self.tree.rules.alpha(seed, epoch)
        count = 0 if tip.is_closing else self.tree.rules.revealers
        revealers = council.revealers(seed, epoch, count)
        proofs = (WORLD.by_peer[peer].prove(alpha) if reveals else b"" for peer in revealers)
        seats = council.places
        new = {} if tip.is_closing else {key_of(one): count for one, count in (drawn or {}).items()}
        leaving = [] if tip.is_closing else [one for one in removed if one.peer_id in seats]
        coming = [] if tip.is_closing else [one for one in joined if one.peer_id not in seats]
        page = Page(
            epoch=epoch,
            council=council.seat,
            parent=tip.digest,
            seed=seed,
            final_epoch=tip.shown_epoch,
            reveals=tuple(proofs),
            joined=tuple(map(key_of, coming)),
            removed=tuple(map(key_of, leaving)),
            commits=tuple(one for one in commits if not self.tree.is_listed(one, tip)),
            drawn=tuple(sorted(new)),
            seats=tuple(new[key] for key in sorted(new)),
            term=term,
            head=head,
        )
        sealed = seal(page, WORLD.run_id, WORLD.by_peer[council.proposer(seed, epoch)])
        assert self.tree.offer_page(sealed) is True
        vote = vote_for(sealed)
        for peer in [peer for peer in council.members if peer not in absent][:votes]:
            self.tree.offer_vote(seal(vote, WORLD.run_id, WORLD.by_peer[peer]))

    def seen(self):
        return self.node.council.page()

    def row(self, key):
        (row,) = (row for row in self.seen().members if row.peer_id == key.peer_id)
        return row


def key_of(one):
    return public_key_from_peer_id(one.peer_id)


def short(*keys):
    return ", ".join(f"…{one.peer_id[-6:]}" for one in sorted(keys, key=lambda one: one.peer_id))


@pytest.fixture
def pages():
    return Pages()


def test_the_leader_and_the_final_version_are_those_of_the_newest_final_page(pages):
    replica = pages.node.observer.context.replica
    leader, genesis = WORLD.trainers[0], replica.ledger.chain.get(0)
    pages.write(2)
    seen = pages.seen()
    assert (seen.leader, seen.term, seen.final_version) == (leader.peer_id, 0, -1)
    assert not seen.is_leader_live, "its record is not here"
    replica.receive(WORLD.record(leader, ("trainer",), 2).envelope, WORLD.at(2))
    pages.write(5, term=2, head=genesis.digest)
    seen = pages.seen()
    assert (seen.term, seen.final_version, seen.is_leader_live) == (2, 0, True)
    replica.receive(WORLD.record(leader, ("relay",), 3).envelope, WORLD.at(3))
    assert not pages.seen().is_leader_live, "it has withdrawn the role"
    replica.ledger.chain.drop_from(0)
    assert pages.seen().final_version == -1, "it is not on this node"


def test_pages_that_follow_each_other_are_final_one_epoch_later(pages):
    pages.write(10)
    seen = pages.seen()
    assert seen.text == "6 members, final page 11 s ago, all votes"
    assert (seen.fault, seen.seat, seen.number, seen.since_epoch) == ("", "", 0, -1)
    assert (seen.members_count, seen.quorum, seen.recovery_quorum) == (6, 5, 4)
    assert (seen.notarised_epoch, seen.final_epoch, seen.final_votes) == (10, 9, 6)
    assert (seen.final_age_epochs, seen.final_age_seconds) == (1, SECONDS + 1)
    assert (seen.votes_missing, seen.absent_count, seen.recovery_at) == (0, 0, None)
    assert seen.drawn_epoch == 10
    assert (seen.recent_epochs, seen.notarised_share, seen.drawing_share) == (10, 0.9, 0.9)
    assert [row.peer_id for row in seen.members] == [one.peer_id for one in KEYS]
    row = seen.members[0]
    assert (row.me, row.is_genesis, row.since_epoch) == (False, True, -1)
    assert row.since_at == WORLD.manifest.epoch_start(0)
    assert (row.vote_epoch, row.vote_age_seconds, row.is_silent, row.evidence) == (10, 1, False, "")


def test_the_votes_that_the_newest_page_lacks_are_counted(pages):
    pages.write(6)
    pages.write(7, votes=3)
    assert (pages.seen().votes_missing, pages.seen().notarised_epoch) == (2, 6)
    pages.epoch += 1  # a page of the epoch before still lacks them
    assert pages.seen().votes_missing == 2
    pages.write(10)
    assert pages.seen().votes_missing == 0
    pages.write(12, votes=5)
    assert pages.seen().text == "6 members, final page 11 s ago, 5 of 6 votes"


def test_a_member_that_misses_votes_is_named_with_the_time_of_its_removal(pages):
    (gone,) = without = KEYS[:1]
    pages.write(6)
    pages.write(6 + ABSENT_EPOCHS - 1, without=without)
    assert pages.seen().absent_count == 0
    pages.write(12, without=without)
    seen, last = pages.seen(), pages.row(gone).vote_epoch
    left = round((last + RULES.silent_epochs - 12) * SECONDS - 1)
    assert (seen.absent_count, pages.row(gone).is_silent) == (1, False)
    assert [row.is_absent for row in seen.members] == [True] + 5 * [False]
    assert f"no votes of 1 of 6 members ({short(gone)}); the others can remove it in" in seen.text
    assert seen.text.endswith(f"in {left} s")
    pages.write(last + RULES.silent_epochs, without=without)
    assert pages.row(gone).is_silent and pages.seen().text.endswith("can remove it now")


def test_without_a_quorum_nothing_is_final_until_the_recovery(pages):
    without = KEYS[:2]
    pages.write(6)
    pages.write(6 + LATE_EPOCHS + 2, without=without)
    seen, tip = pages.seen(), pages.tree.tip()
    assert (seen.notarised_epoch, seen.absent_count) == (6, 2)
    told = f"no votes of 2 of 6 members ({short(*without)})"
    assert seen.fault.startswith(f"no page for 1 min 21 s, so no committee is drawn: {told}; ")
    due = WORLD.manifest.epoch_start(tip.shown_epoch + RULES.recovery_epochs)
    assert seen.recovery_at == due
    left = round(due - WORLD.at(pages.epoch))
    assert seen.fault.endswith(f"the others can remove them in {left // 60} min {left % 60} s")
    assert seen.text == f"6 members, {seen.fault}"
    assert pages.node.why().council == seen.fault
    assert pages.node.status().council.fault == seen.fault


def test_a_council_without_half_of_its_members_cannot_recover(pages):
    pages.write(6)
    pages.write(30, without=KEYS[:3])
    assert pages.seen().fault.endswith("; the others are too few to remove them")
    pages.write(40, without=KEYS)
    named = ", ".join(f"…{one.peer_id[-6:]}" for one in KEYS[:3])
    assert f"no votes of 6 of 6 members ({named} …)" in pages.seen().fault


def test_a_pause_of_all_members_is_a_fault_after_some_epochs_and_then_their_absence(pages):
    pages.write(6)
    pages.epoch = 5 + LATE_EPOCHS
    assert (pages.seen().fault, pages.seen().absent_count) == ("", 0)
    pages.epoch += 1
    assert pages.seen().fault == "no final page for 1 min 11 s: too few votes in a row"
    pages.epoch = 6 + LATE_EPOCHS + ABSENT_EPOCHS - 1
    assert pages.seen().absent_count == 0
    pages.epoch += 1
    assert pages.seen().absent_count == 6


def test_pages_with_gaps_are_not_final(pages):
    pages.write(6)
    while pages.epoch < 6 + LATE_EPOCHS:
        pages.write(pages.epoch + 1, votes=2)
        pages.write(pages.epoch + 1)
    assert (pages.seen().final_epoch, pages.seen().fault) == (
        5,
        "no final page for 1 min 11 s: too few votes in a row",
    )


def test_pages_without_reveals_draw_no_committee(pages):
    pages.write(4)
    pages.write(4 + LATE_EPOCHS, reveals=False)
    assert pages.seen().fault == ""
    pages.write(5 + LATE_EPOCHS, reveals=False)
    seen = pages.seen()
    assert (seen.final_epoch, seen.drawn_epoch) == (4 + LATE_EPOCHS, 4)
    assert seen.fault.startswith("no committee is drawn for 1 min 11 s: fewer than half")
    assert (seen.notarised_share, seen.drawing_share) == (0.9091, 0.3636)


def test_a_removed_member_that_returns_has_a_seat_since_then():
    gone = KEYS[5]
    pages = Pages(gone, roles=(Role.VALIDATOR,))
    assert pages.seen().is_member and pages.seen().no_seat == ""
    pages.write(4)
    pages.write(8, without=[gone], removed=[gone])
    seen = pages.seen()
    assert (seen.number, seen.since_epoch, seen.members_count) == (1, 5, 5)
    assert seen.seat == pages.tree.council.seat.hex() != ""
    assert (seen.is_member, {row.since_epoch for row in seen.members}) == (False, {-1})
    assert seen.no_seat.startswith("removed for silence at epoch 5; ")
    pages.write(12, joined=[gone])
    assert pages.seen().number == 2 and pages.seen().no_seat == ""
    assert (pages.row(gone).since_epoch, pages.row(KEYS[0]).since_epoch) == (
        pages.seen().since_epoch,
        -1,
    )
    assert pages.row(gone).since_at == WORLD.manifest.epoch_start(pages.seen().since_epoch)
    assert pages.row(gone).me and pages.row(gone).is_genesis


@pytest.mark.parametrize(
    ("me", "changes", "reason"),
    [
        (WORKER, {}, f"{NO_ROLE} --role inference,validator"),
        (KEYS[5], {"roles": (Role.RELAY,)}, f"{NO_ROLE} --role relay,validator"),
        (
            KEYS[5],
            {"anti_entropy": synchronising(done=False)},
            "this node is not synchronised yet",
        ),
    ],
)
def test_a_node_without_a_seat_says_why(me, changes, reason):
    pages = Pages(me, **changes)
    pages.write(4)
    pages.write(8, without=KEYS[5:], removed=KEYS[5:])
    assert pages.seen().no_seat == reason


def test_a_drawn_council_has_seats_and_an_era(pages):
    first, second, third, fourth = KEYS[:4]
    pages.draw({first: 5, second: 3, third: 2, fourth: 2})
    seen = pages.seen()
    assert (seen.era, seen.members_count, seen.seats_total, seen.seats_own) == (2, 4, 12, 0)
    assert (seen.quorum, seen.recovery_quorum) == (9, 7)
    assert [row.seats for row in seen.members] == [5, 3, 2, 2]
    assert (seen.draw_epoch, seen.draw_seconds) == (3 * EPOCHS, (EPOCHS - 2) * SECONDS - 1)
    assert seen.final_votes == 6, "of the six members before it"
    pages.write(pages.epoch + 4)
    assert pages.seen().final_votes == 12
    assert pages.seen().text == "4 members (12 seats, era 2), final page 11 s ago, all votes"
    pages.write(pages.epoch + 1, votes=2)
    assert pages.seen().votes_missing == 1
    pages.write(pages.epoch + 5, without=[third])
    assert "; the others can remove it in" in pages.seen().text
    pages.write(pages.epoch + 9, without=[third, first])
    assert "; the others are too few to remove them" in pages.seen().text
    pages.epoch = 3 * EPOCHS
    assert (pages.seen().draw_epoch, pages.seen().draw_seconds) == (3 * EPOCHS, 0), "it is due"


def test_the_genesis_is_replaced_in_the_third_era(pages):
    assert (pages.seen().era, pages.seen().draw_epoch) == (0, 2 * EPOCHS)
    assert (pages.seen().seats_total, pages.row(KEYS[0]).seats) == (6, 1)
    pages.epoch = 2 * EPOCHS - 1
    assert pages.seen().draw_seconds == SECONDS - 1


def test_a_key_with_a_seat_knows_its_votes():
    pages = Pages(WORKER, roles=WORKS)
    pages.draw({KEYS[0]: 2, KEYS[1]: 2, WORKER: 3})
    seen = pages.seen()
    assert (seen.is_member, seen.seats_own, seen.no_seat) == (True, 3, "")
    assert (pages.row(WORKER).seats, pages.row(WORKER).is_genesis) == (3, False)


def test_a_worker_without_a_seat_sees_the_work_that_it_lacks():
    pages, due = Pages(WORKER, roles=WORKS), f"the next draw is due at epoch {2 * EPOCHS}"
    lacks = "it needs certified work in each of two eras, and has {} in era 0 and {} in era 1; "
    assert pages.seen().no_seat == lacks.format("0 tokens", "0 tokens") + due
    pages.work(0, 70)
    assert pages.seen().no_seat == lacks.format("70 tokens", "0 tokens") + due
    ledger = pages.node.observer.context.replica.intake.ledger
    ledger.follow(WORLD.book.page(5), digest(b"beacon"))
    unseen = "; this node has not counted all final pages yet"
    assert pages.seen().no_seat == lacks.format("70 tokens", "0 tokens") + due + unseen
    pages.work(1, 30)
    assert pages.seen().no_seat == f"no draw has counted its certified work yet; {due}"
    pages.draw({KEYS[0]: 2, KEYS[1]: 2})
    due = f"the next draw is due at epoch {3 * EPOCHS}"
    assert pages.seen().no_seat == f"the draw of era 2 gave it none; {due}"


def test_a_genesis_key_takes_part_in_each_draw():
    pages = Pages(KEYS[5], roles=WORKS)
    pages.draw({KEYS[0]: 2, KEYS[1]: 2, KEYS[5]: 1})
    pages.write(pages.epoch + 24, without=[KEYS[5]], removed=[KEYS[5]])
    removed = pages.tree.council.since
    told = f"removed for silence at epoch {removed}; a later draw may return the seat"
    assert pages.seen().no_seat == told
    pages.draw({KEYS[0]: 2, KEYS[1]: 2})
    due = f"the next draw is due at epoch {4 * EPOCHS}"
    assert pages.seen().no_seat == f"the draw of era 3 gave it none; {due}"


def test_a_slashed_key_gets_no_seat():
    pages = Pages(WORKER, roles=WORKS)
    for tokens in (9, 10):
        commit = WORLD.commit(WORKER, tokens=tokens)
        pages.node.observer.context.replica.receive(commit.envelope, WORLD.at(0))
    assert pages.seen().no_seat == "this key is slashed"


def test_a_node_that_is_not_synchronised_does_not_blame_others(pages):
    pages.node.observer.anti_entropy = synchronising(done=False)
    pages.epoch = 50
    assert pages.seen().text == "6 members, this node is not synchronised yet"


def test_evidence_is_named():
    liar, twice = KEYS[4], KEYS[5]
    pages = Pages(twice)
    pages.write(4)
    for page in (b"one", b"another"):
        vote = PageVote(epoch=5, council=b"", page=digest(page), parent=pages.tree.tip().digest)
        pages.tree.offer_vote(seal(vote, WORLD.run_id, twice))
    assert pages.row(twice).evidence == "two votes in epoch 5"
    pages.write(9, without=[twice], removed=[twice])
    told = "evidence against this key: two votes in epoch 5"
    assert pages.seen().no_seat == told
    commit = WORLD.commit(WORKER)
    accepting, rejecting = (WORLD.verdict(liar, commit, accept=accept) for accept in (True, False))
    proof = Evidence(commit=commit.envelope, first=accepting.envelope, second=rejecting.envelope)
    pages.node.observer.context.replica.receive(
        seal(proof, WORLD.run_id, WORKER).envelope, WORLD.at(9)
    )
    assert pages.row(liar).evidence == "two verdicts on one rollout"
    dissents = pages.node.observer.context.replica.dissents
    for epoch in range(6):
        dissents.count(epoch, commit.digest, [KEYS[0].peer_id], [KEYS[1].peer_id] if epoch else [])
    assert pages.row(KEYS[1]).evidence == ""
    dissents.count(6, commit.digest, [], [KEYS[1].peer_id])
    assert pages.row(KEYS[1]).evidence == "6 of 6 verdicts contradict its committees"
    assert pages.row(KEYS[0]).evidence == ""


def test_an_overturned_verdict_is_named():
    liar = KEYS[4]
    pages = Pages(liar)
    pages.write(4)
    replica = pages.node.observer.context.replica
    commit = WORLD.commit(WORKER)
    lie = Receipt(commit.digest, WORKER.peer_id, 0, 0, False, 10, ACCEPTED, (liar.peer_id,))
    work = PageWork(overturned=(Reversal(lie, "computation"),))
    assert pages.node.council.lie == ""
    replica.intake.accounts.apply(digest(b"page"), 4, digest(b"beacon"), b"", work)
    assert pages.row(liar).evidence == "its verdict on a rollout was overturned"
    told = "this key is out of the council for good: its verdict on a rollout was overturned"
    assert pages.node.council.lie == told
    assert pages.row(KEYS[0]).evidence == ""
    pages.write(24, without=[liar], removed=[liar])
    assert pages.seen().no_seat == told


def test_only_recent_epochs_are_counted(pages):
    pages.write(8)
    pages.write(8 + RECENT_EPOCHS, votes=5)
    seen = pages.seen()
    assert (seen.recent_epochs, seen.notarised_share) == (WINDOW_EPOCHS, 1.0)
    pages.epoch += WINDOW_EPOCHS // 2
    assert pages.seen().notarised_share == pytest.approx(0.5, abs=0.02)
    assert (
        min(pages.tree.notarised_epochs) == 9 and len(pages.tree.notarised_epochs) == RECENT_EPOCHS
    )
    before = dict(pages.tree.notarised_epochs)
    pages.tree.offer_chain(WORLD.book.chain(1, 3))  # of a council long ago
    assert pages.tree.notarised_epochs == before


def test_a_rollout_expires_for_want_of_a_page_or_of_verdicts():
    expire = WORLD.manifest.committee.expire_after_epochs
    for last, reason in ((0, NO_PAGE), (1, NO_PAGE), (3, UNDECIDED)):
        pages = Pages()
        commit = WORLD.commit(WORKER)
        replica = pages.node.observer.context.replica
        replica.receive(commit.envelope, WORLD.at(0))
        pages.write(last, commits=(commit.digest,))
        pages.epoch = expire + 5
        replica.advance(WORLD.at(pages.epoch))
        (rollout,) = pages.node.why().rollouts
        assert (rollout.row.state, rollout.row.reason) == ("expired", reason)
        pages.write(pages.epoch + 1)  # too late for it
        (rollout,) = pages.node.why().rollouts
        assert rollout.row.reason == reason


def test_a_version_whose_batch_is_refused_is_named_with_its_trainer(pages):
    replica, genesis = pages.node.observer.context.replica, WORLD.genesis()
    pages.write(4, head=genesis.digest)
    assert pages.seen().refused == pages.node.why().refused == ""
    empty = WORLD.checkpoint(genesis)
    assert replica.receive(empty.envelope, WORLD.at(4)).result is ValidationResult.ACCEPT
    sizes = f"{WORLD.manifest.grpo.rollouts_per_step} to {WORLD.manifest.grpo.batch_max}"
    expected = f"version 1 of trainer …{empty.signer[-6:]}: 0 rollouts instead of {sizes}"
    assert pages.seen().refused == pages.node.why().refused == expected
