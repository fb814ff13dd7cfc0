"""Batches by lot: what a version must learn from, and what its trainer may leave out."""

import random
from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.consensus.member import Contents
from protocol.core.crypto import digest
from protocol.core.faults import Fault
from protocol.core.types import ValidationResult
from protocol.messages import OMITTED_MAX, CheckpointManifest
from protocol.replica.batch_rule import (
    BASIS_EPOCHS_MAX,
    PUBLISH_BYTES_PER_SECOND,
    PUBLISH_SECONDS,
    WINDOW_LIFETIMES,
    Draft,
    omitted_max,
)
from tests.worlds.messages import World, run_manifest
from tests.worlds.page_book import PageBook

pytestmark = pytest.mark.xdist_group("batch rule")  # one worker makes the replica

STEP, BATCH_MAX, ASYNC = 4, 12, 2
WORLD = World(
    run_manifest(
        trainers=2,
        grpo={
            "rollouts_per_step": STEP,
            "refill_max": BATCH_MAX - STEP,
            "rollouts_ahead": 9,
            "async_level": ASYNC,
        },
        evaluation={"every_versions": 2, "rollouts_per_worker": 1},
    )
)
WINDOW = WINDOW_LIFETIMES * WORLD.manifest.committee.expire_after_epochs
NEWEST = 4
"""Newest version of the chain; drafts are of this version, after those before it."""
LAST = 40
FINAL = LAST - 1
"""Epoch of the newest final page."""


def made_chain(batch=()):
    """Return versions 0 to ``NEWEST - 1``; version 2 learns from ``batch``."""
    chain = [WORLD.genesis()]
    for number in range(1, NEWEST):
        learned = tuple(one.digest for one in batch) if number == 2 else ()
        chain.append(WORLD.checkpoint(chain[-1], batch=learned, reward_mean=number))
    return chain


def rollouts(worker, version, checkpoint, count=8):
    """Return an evaluation of an even version, and training rollouts."""
    fields = {"version": version, "checkpoint": checkpoint}
    first = 0 if version % 2 == 0 else 8 * version
    return [
        WORLD.commit(WORLD.workers[worker], first, evaluation=version % 2 == 0, **fields),
        *(WORLD.commit(WORLD.workers[worker], 8 * version + n, **fields) for n in range(1, count)),
    ]


PLAIN = made_chain()
COMMITS = {
    (version, worker, slot): commit
    for version in range(2)
    for worker in range(3)
    for slot, commit in enumerate(rollouts(worker, version, PLAIN[version].digest))
}
OLD_ONES = [COMMITS[0, worker, 1] for worker in range(3)]
CHAIN = made_chain(OLD_ONES)
for version_ in range(2, NEWEST):
    for worker_ in range(3):
        signed_ = rollouts(worker_, version_, CHAIN[version_].digest)
        COMMITS |= {(version_, worker_, slot): one for slot, one in enumerate(signed_)}
STRAY = rollouts(0, 3, digest(b"another branch"), 3)
BY_DIGEST = {one.digest: one for one in (*COMMITS.values(), *STRAY)}
PLACES = {one.digest: key for key, one in COMMITS.items()}

ACCEPTED: dict[int, tuple[bytes, ...]] = {}
"""Epoch of a page to the commits that it accepts."""
_shuffled = sorted(BY_DIGEST, key=lambda one: digest(b"order" + one))
for number_, commit_ in enumerate(_shuffled):
    epoch_ = 10 + number_ % 25
    ACCEPTED[epoch_] = (*ACCEPTED.get(epoch_, ()), commit_)
BOOK = PageBook(
    WORLD.manifest,
    WORLD.validators,
    {epoch: Contents(certified=some) for epoch, some in ACCEPTED.items()},
)


def knowing(last=LAST, *, without=(), chain=CHAIN):
    """Return a replica that has the pages up to an epoch, the versions, and all other commits."""
    target = WORLD.replica(pages_to=0)
    BOOK.show(target, last)
    for version in chain:
        target.restore(version.envelope)
    for commit in BY_DIGEST.values():
        if commit.digest not in without:
            target.restore(commit.envelope)
    return target


@cache
def complete():
    """Return the replica that has everything; tests do not change it."""
    return knowing()


def accepted_at(page_epoch: int) -> list[bytes]:
    """Return the lot at the page of an epoch by definition, in its order."""
    beacon = complete().pages.page(BOOK.page(page_epoch).digest).beacon
    found = [
        one
        for epoch, some in ACCEPTED.items()
        for one in some
        if page_epoch - WINDOW < epoch <= page_epoch and BY_DIGEST[one] not in OLD_ONES
    ]
    return sorted(found, key=lambda one: digest(beacon + one))


def is_usable(commit: bytes) -> bool:
    """Return whether version ``NEWEST`` may learn from a commit."""
    if commit not in PLACES:
        return False  # of another branch
    version, _, slot = PLACES[commit]
    return version >= NEWEST - 1 - ASYNC and not (version % 2 == 0 and slot == 0)


def draft(batch, omitted=(), epoch=FINAL, **changes) -> Draft:
    page = BOOK.page(epoch).digest if epoch else b""
    return Draft(NEWEST, 0, page, tuple(batch), tuple(omitted), 1)._replace(**changes)


def fault(stated, target=None, before=b"", oldest_epoch=-1):
    """Return the text of the fault; True or False as the rule returns it."""
    found = (complete() if target is None else target).batches.fault(stated, before, oldest_epoch)
    return str(found) if isinstance(found, Fault) else found


def lot(epoch=FINAL) -> list[bytes]:
    """Return the usable commits of the lot."""
    return [one for one in accepted_at(epoch) if is_usable(one)]


# The rule by its definition


def conforms(stated: Draft) -> bool:
    """Return whether a draft follows the rule, by sets instead of by places."""
    epoch = next(n for n in range(1, LAST + 1) if BOOK.page(n).digest == stated.page)
    ranked = accepted_at(epoch)
    rank = {one: number for number, one in enumerate(ranked)}
    batch, omitted = set(stated.batch), set(stated.omitted)
    if not STEP <= len(stated.batch) <= BATCH_MAX or len(omitted) > max(2, len(batch) // 4):
        return False
    last = max(rank.get(one, len(ranked)) for one in batch)
    due = {one for one in ranked if rank[one] < last} - batch
    in_order = list(stated.omitted) == sorted(omitted, key=lambda one: rank.get(one, -1))
    return in_order and omitted <= due and not any(map(is_usable, due - omitted))


@st.composite
def drafts(draw) -> Draft:
    """Return batches that follow the lot, of which half have a mistake or two."""
    epoch, rng = draw(st.integers(8, FINAL)), random.Random(draw(st.integers(0, 2**32)))
    mistakes = ["size", "skip", "stray", "hide", "order", "other"]
    has = draw(st.lists(st.sampled_from(mistakes), max_size=2))
    smallest, largest = (0, BATCH_MAX + 1) if "size" in has else (STEP, BATCH_MAX)
    ranked, size = lot(epoch), rng.randint(smallest, largest)
    skipped = rng.sample(range(12), 6 if "skip" in has else rng.randint(0, omitted_max(size)))
    batch = [one for place, one in enumerate(ranked) if place not in skipped][:size]
    strays = [one for one in BY_DIGEST if one not in ranked and BY_DIGEST[one] not in OLD_ONES]
    missing = max(0, STEP - len(batch)) if "size" not in has else 0
    batch += rng.sample(strays, min(len(strays), missing + ("stray" in has)))
    omitted = complete().batches.omitted(NEWEST, accepted_at(epoch), batch)
    if "hide" in has:
        omitted = omitted[1:]
    if "order" in has:
        rng.shuffle(omitted)
    if "other" in has:
        omitted.append(rng.choice([*batch, *strays]))
    return draft(batch, omitted, epoch)


@pytest.mark.parametrize("expected", [True, False])
def test_the_rule_is_its_definition(expected):
    @given(drafts().filter(lambda stated: conforms(stated) is expected))
    def check(stated):
        assert (fault(stated) is True) is expected

    check()


@given(drafts())
def test_a_node_that_lacks_commits_contradicts_nobody(stated):
    """It answers the same or nothing."""
    lost = {one for one in BY_DIGEST if digest(bytes(stated.page) + one)[0] < 40}
    target = knowing(without=lost)  # about a sixth
    assert fault(stated, target) is False or (fault(stated, target) is True) is (
        fault(stated) is True
    )


def test_a_hidden_rollout_that_is_not_here_decides_nothing_yet():
    others = draft(lot()[1 : 1 + STEP])
    assert fault(others, knowing(without=lot()[:1])) is False
    assert fault(others, knowing(without=lot()[1 : 1 + STEP])) == fault(others)


# Batches


def test_a_batch_is_the_beginning_of_the_lot():
    for size in range(STEP, BATCH_MAX + 1):
        assert fault(draft(lot()[:size])) is True
        assert fault(draft(lot()[:size][::-1])) is True, "in any order"


@pytest.mark.parametrize("size", [0, STEP - 1, BATCH_MAX + 1])
def test_a_batch_has_the_rollouts_of_a_step(size):
    assert fault(draft(lot()[:size])) == f"batch-size: {size} rollouts instead of 4 to 12"


@pytest.mark.parametrize("steps", [2, 6])
def test_the_batch_of_a_round_has_the_rollouts_of_all_its_steps(steps):
    enough = [*lot(), *(digest(b"fresh %d" % number) for number in range(80))]
    for size, expected in {
        steps * STEP - 1: False,
        steps * STEP: True,
        steps * BATCH_MAX: True,
        steps * BATCH_MAX + 1: False,
    }.items():
        found = fault(draft(enough[:size], steps=steps))
        assert (found is True) is expected, found
    assert f"{steps * STEP} to {steps * BATCH_MAX}" in fault(draft((), steps=steps))


def test_the_first_version_that_learns_needs_a_batch_too():
    assert fault(draft((), version=1)) == "batch-size: 0 rollouts instead of 4 to 12"


@pytest.mark.parametrize("place", [0, 2, STEP - 1])
def test_a_trainer_that_hides_a_rollout_is_refused(place):
    hidden = lot()[place]
    others = [one for one in lot() if one != hidden][:STEP]
    found = fault(draft(others))
    worker = BY_DIGEST[hidden].signer
    assert found == f"batch-omitted: it hides 1 final rollout (1 of …{worker[-6:]})"
    assert fault(draft(others, [hidden])) is True


def test_a_trainer_that_leaves_out_a_worker_is_refused():
    first = Counter(BY_DIGEST[one].signer for one in lot()[:8])
    ((shunned, _),) = first.most_common(1)
    others = [one for one in lot() if BY_DIGEST[one].signer != shunned][:8]
    due = complete().batches.omitted(NEWEST, accepted_at(FINAL), others)
    assert {BY_DIGEST[one].signer for one in due} == {shunned}
    count = len(due)
    assert count > 2 == omitted_max(8)
    named = f"{count} final rollouts ({count} of …{shunned[-6:]})"
    assert fault(draft(others)) == f"batch-omitted: it hides {named}"
    expected = f"batch-omitted: it leaves out {named}; at most 2 are allowed"
    assert fault(draft(others, due)) == expected


@pytest.mark.parametrize(("size", "limit"), [(1, 2), (11, 2), (12, 3), (16, 4), (400, OMITTED_MAX)])
def test_a_trainer_leaves_out_a_quarter_of_a_batch_or_two(size, limit):
    assert omitted_max(size) == limit


def test_a_trainer_leaves_out_few():
    for count, expected in ((2, True), (3, False)):
        ranked = lot()
        stated = draft(ranked[count : count + STEP], ranked[:count])
        assert (fault(stated) is True) is expected


def test_only_rollouts_that_the_lot_drew_are_left_out():
    ranked = lot()
    for wrong in (ranked[1], ranked[STEP + 1], OLD_ONES[0].digest, digest(b"never")):
        named = "batch-omitted: it names rollouts that the lot did not draw"
        assert fault(draft(ranked[1 : 1 + STEP], [ranked[0], wrong])) == named
    assert fault(draft(ranked[2 : 2 + STEP], ranked[:2])) is True
    assert fault(draft(ranked[2 : 2 + STEP], ranked[1::-1])) == named, "in another order"
    assert fault(draft(ranked[1 : 1 + STEP], ranked[:1] * 2)) == named


def test_rollouts_that_are_not_final_come_after_the_whole_lot():
    """A trainer may choose among them, so it may choose only if the lot does not suffice."""
    early = next(epoch for epoch in range(1, FINAL) if 2 <= len(lot(epoch)) < STEP)
    ranked = lot(early)
    fresh = [one for one in lot() if one not in ranked]
    assert fault(draft([*ranked, *fresh[:3]], epoch=early)) is True
    assert fault(draft([*ranked, *fresh[5:8]], epoch=early)) is True
    assert "it hides" in fault(draft([*ranked[1:], *fresh[:4]], epoch=early))
    assert fault(draft([*ranked[1:], *fresh[:4]], ranked[:1], epoch=early)) is True
    assert "it hides" in fault(draft([*lot()[: BATCH_MAX - 1], digest(b"not final")]))


def test_before_the_first_final_page_a_trainer_takes_any_certified_rollouts():
    assert fault(draft(lot()[5:9], epoch=0)) is True
    assert "batch-page" in fault(draft(lot()[5:9], epoch=0), oldest_epoch=1)


def test_commits_in_use_are_not_in_the_lot():
    """A trainer draws the next batch while its last version is on its way."""
    page, ranked = BOOK.page(FINAL).digest, accepted_at(FINAL)
    assert complete().batches.lot(page, NEWEST) == ranked
    assert complete().batches.lot(page, NEWEST, ranked[:5]) == ranked[5:]
    stated = draft(lot()[STEP : 2 * STEP])
    assert complete().batches.fault(stated, b"", -1, lot()[:STEP]) is True


def test_what_a_later_version_learned_from_is_still_in_the_lot():
    later = WORLD.checkpoint(CHAIN[-1], batch=tuple(lot()[:STEP]))
    target = knowing(chain=[*CHAIN, later])
    assert fault(draft(lot()[:STEP]), target) is True
    assert "it hides" in fault(draft(lot()[STEP : 2 * STEP]), target)
    after = draft(lot()[STEP : 2 * STEP], version=NEWEST + 1)
    assert "it hides" not in str(fault(after, target))


# Pages


def test_a_batch_of_another_term_than_its_page_is_refused():
    assert fault(draft(lot()[:STEP], term=1)) == "batch-page: of term 0 instead of 1"


def test_a_page_is_not_older_than_that_of_the_version_before():
    before = BOOK.page(FINAL - 3).digest
    for epoch, expected in ((FINAL - 4, False), (FINAL - 3, True), (FINAL, True)):
        found = fault(draft(lot(epoch)[:STEP], epoch=epoch), before=before)
        assert (found is True) is expected
    assert fault(draft(lot()[:STEP]), before=digest(b"older than all")) is True


def test_a_page_is_not_too_old():
    assert fault(draft(lot()[:STEP]), oldest_epoch=FINAL) is True
    found = fault(draft(lot()[:STEP]), oldest_epoch=FINAL + 1)
    assert found == "batch-page: of epoch 39, which is too old"


def test_a_page_that_is_not_here_decides_nothing_yet():
    assert fault(draft(lot()[:STEP], page=digest(b"some page"))) is False


def test_a_page_that_is_not_final_yet_decides_nothing_yet():
    early = knowing(FINAL)
    assert early.pages.root.epoch == FINAL - 1
    assert fault(draft(lot()[:STEP]), early) is False
    assert fault(draft(lot()[:STEP])) is True


def test_a_page_of_another_branch_is_refused():
    target = knowing()
    (other,) = BOOK.extended(complete().pages.page(BOOK.page(FINAL - 5).digest), Contents())
    target.pages.offer_chain([other.proof])
    assert target.pages.page(other.digest) is not None
    found = fault(draft(lot()[:STEP], page=other.digest), target)
    assert found == f"batch-page: the page of epoch {FINAL - 4} is not final"


def test_a_node_without_older_pages_decides_nothing():
    target = knowing(0)
    assert target.pages.offer_chain(BOOK.chain(FINAL - 5, LAST)) is True
    assert target.pages.root.epoch == FINAL
    assert fault(draft(lot()[:STEP]), target) is False


def test_older_acceptances_leave_the_lot():
    """Otherwise rollouts that nobody can use would stop every trainer."""
    before = {one for epoch in range(10, FINAL - WINDOW + 1) for one in ACCEPTED.get(epoch, ())}
    page = BOOK.page(FINAL).digest
    assert before and not before & set(complete().batches.lot(page, NEWEST))
    edge = ACCEPTED[FINAL - WINDOW + 1]
    assert set(edge) & set(complete().batches.lot(page, NEWEST))


# Versions of the chain


def checkpoint(parent=CHAIN[-1], epoch=FINAL, batch=None, **changes):
    batch = lot(epoch)[:STEP] if batch is None else batch
    page = BOOK.page(epoch).digest if epoch else b""
    return WORLD.checkpoint(parent, page=page, batch=tuple(batch), **changes)


def test_versions_are_judged_up_to_the_first_that_does_not_conform():
    good = checkpoint()
    empty = checkpoint(good, batch=())
    after = checkpoint(empty, batch=lot()[STEP : 2 * STEP])
    target = knowing(chain=[*CHAIN, good, empty, after])
    rule = target.batches
    assert rule.judged(0) is rule.judged(NEWEST) is True
    assert rule.conforming(NEWEST - 1) == NEWEST
    assert rule.refusal(NEWEST - 1).manifest == empty
    assert rule.refusal(NEWEST - 1).fault.code == "batch-size"
    assert rule.conforming(NEWEST + 1) == NEWEST + 2, "what is final is not judged again"
    assert rule.refusal(NEWEST + 1) is None
    assert rule.judged(NEWEST + 3) is False


def test_a_version_is_judged_again_once_the_page_is_here():
    target = knowing(FINAL, chain=[*CHAIN, checkpoint()])
    assert target.batches.conforming(NEWEST - 1) == NEWEST - 1
    assert target.batches.refusal(NEWEST - 1) is None
    BOOK.show(target, LAST, first=LAST)
    assert target.batches.conforming(NEWEST - 1) == NEWEST


def test_a_judgement_stands():
    """Commits that it needed may be forgotten."""
    first = checkpoint(omitted=tuple(lot()[:1]), batch=lot()[1 : 1 + STEP])
    recent = [one for one in lot()[1 + STEP :] if PLACES[one][0] >= NEWEST - ASYNC]
    second = checkpoint(first, batch=[lot()[0], *recent[1:7]])
    target = knowing(chain=[*CHAIN, first, second])
    judged = [target.batches.judged(NEWEST), target.batches.judged(NEWEST + 1)]
    assert judged[0] is True
    assert "it hides" in judged[1].detail
    target.ledger.commits.entries.clear()
    assert [target.batches.judged(NEWEST), target.batches.judged(NEWEST + 1)] == judged


def accepted_version(final_epoch, total_bytes=100):
    """Return a replica that accepted a version of the leader at a final page."""
    target = knowing(0)
    before = WORLD.checkpoint(CHAIN[-1], total_bytes=total_bytes, batch=())
    BOOK.show(target, final_epoch + 1)
    assert target.pages.root.epoch == final_epoch
    received = target.receive(before.envelope, WORLD.at(final_epoch))
    assert received.result is ValidationResult.ACCEPT
    return target, before


@pytest.mark.parametrize(("total_bytes", "more"), [(100, 0), (100 * PUBLISH_BYTES_PER_SECOND, 10)])
def test_a_page_may_be_as_old_as_the_publication_of_the_version_before_takes(total_bytes, more):
    lag = BASIS_EPOCHS_MAX + PUBLISH_SECONDS // 10 + more + (total_bytes == 100)
    target, before = accepted_version(30, total_bytes)
    assert target.batches.oldest_epoch(NEWEST) == 30 - lag
    assert target.batches.oldest_epoch(NEWEST - 1) == -1, "restored"
    assert target.batches.oldest_epoch(NEWEST + 1) == -1, "not here"
    BOOK.show(target, LAST)
    for epoch, expected in ((30 - lag - 1, False), (30 - lag, True)):
        version = checkpoint(before, epoch, batch=lot()[:STEP])
        again = replace_newest(target, version)
        found = again.judged(NEWEST + 1)
        assert (isinstance(found, Fault) and "too old" in found.detail) is not expected


def replace_newest(target, version):
    """Return the rule of a replica whose newest version is another one."""
    target.ledger.chain.drop_from(version.message.version)
    target.restore(version.envelope)
    return target.batches


def test_version_0_states_no_batch():
    for changes in ({"page": BOOK.page(5).digest}, {"omitted": (digest(b"one"),)}):
        target = WORLD.replica(genesis=False)
        fields = WORLD.genesis().message.model_dump() | changes
        wrong = WORLD.sealed(CheckpointManifest(**fields), WORLD.trainers[0])
        received = target.receive(wrong.envelope, WORLD.at(1))
        assert received.fault.code == "wrong-genesis"
