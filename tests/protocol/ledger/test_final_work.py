import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import digest
from protocol.ledger.final_work import AWAITED_MAX, ERAS_KEPT, MARGIN_EPOCHS, FinalWork

ERA = 100


def lot(epoch: int) -> bytes:
    return digest(b"beacon %d" % epoch)


def page(epoch: int) -> bytes:
    return digest(b"page %d" % epoch)


def counted(*epochs, work=None) -> FinalWork:
    """Return the work of the pages of some epochs."""
    table = work or FinalWork(ERA)
    for epoch in epochs:
        table.count_page(page(epoch), epoch, lot(epoch), [("a", epoch), ("b", 1)])
    return table


@pytest.mark.parametrize(
    ("epoch", "era"),
    [(0, 0), (91, 0), (92, 1), (99, 1), (100, 1), (191, 1), (192, 2), (1000, 10)],
)
def test_a_page_counts_for_the_era_of_some_epochs_later(epoch, era):
    assert MARGIN_EPOCHS == 8
    assert FinalWork(ERA).era(epoch) == era


def test_the_tokens_of_each_worker_in_each_era():
    work = FinalWork(ERA)
    work.count_page(page(90), 90, lot(90), [("a", 5), ("b", 7), ("a", 1)])
    work.count_page(page(91), 91, lot(91), [("a", 10), ("c", 2)])
    work.count_page(page(92), 92, lot(92), [("a", 100), ("b", 200), ("d", 300)])
    work.count_page(page(93), 93, lot(93), [])
    assert work.tokens([0]) == {"a": 16, "b": 7, "c": 2}
    assert work.tokens([1]) == {"a": 100, "b": 200, "d": 300}
    assert work.tokens([0, 1]) == {"a": 116, "b": 207}, "keys that worked in both"
    assert work.tokens([1, 2]) == work.tokens([2]) == {}
    assert (work.epoch, work.page) == (93, page(93))


def test_the_beacon_of_an_era_is_that_of_its_first_page():
    work = counted(3, 90, 94, 95, 193)
    assert [work.beacon(era) for era in range(4)] == [lot(3), lot(94), lot(193), None]


def test_old_eras_are_forgotten():
    work = counted(50)
    work.miss(51, 60)
    for era in range(1, ERAS_KEPT):
        counted(era * ERA, work=work)
    assert work.tokens([0]) == {"a": 50, "b": 1}
    assert not work.is_known(0)
    counted(ERAS_KEPT * ERA, work=work)
    assert work.tokens([0]) == {}
    assert work.beacon(0) is None
    assert work.is_known(0), "nobody asks for it"
    assert work.beacon(1) == lot(ERA)
    assert len(work.encoded()) < len(counted(*range(0, ERAS_KEPT * ERA, ERA)).encoded()) + 40


@pytest.mark.parametrize(
    ("first", "last", "unknown"),
    [
        (10, 10, {0}),
        (10, 91, {0}),
        (10, 92, {0, 1}),
        (91, 91, {0}),
        (92, 150, {1}),
        (0, 350, {0, 1, 2, 3}),
        (-1, 0, {0}),
    ],
)
def test_an_era_with_a_gap_is_not_known(first, last, unknown):
    work = FinalWork(ERA)
    assert all(work.is_known(era) for era in range(5))
    work.miss(first, last)
    assert {era for era in range(5) if not work.is_known(era)} == unknown


def test_a_gap_of_years_costs_no_more_than_the_eras_that_are_kept():
    work = FinalWork(ERA)
    work.miss(0, 10**12)
    assert len(work.encoded()) < 1000
    assert not work.is_known(work.era(10**12))


def test_a_commit_that_is_not_here_makes_its_era_unknown_and_no_other():
    work = counted(95)
    commit, other = digest(b"commit"), digest(b"other")
    work.miss_commit(commit, 95)
    work.miss_commit(other, 95)
    assert [work.is_known(era) for era in range(3)] == [True, False, True]
    assert work.beacon(1) == lot(95), "the page is here"
    before = work.tokens([1]).get("a", 0)
    again = FinalWork(ERA)
    again.restore(work.encoded())
    for one in (work, again):
        assert one.is_awaited(commit)
        one.count_awaited(commit, "a", 7)
        assert not one.is_known(1), "another one is awaited"
        one.count_awaited(other, "a", 5)
        assert one.is_known(1)
        assert one.tokens([1])["a"] == before + 12


def test_the_beacon_after_a_gap_is_not_known():
    """The first page of the era may be in the gap: another beacon would draw another council."""
    work = counted(90, 91)
    work.miss(92, 96)
    counted(96, 97, work=work)
    assert work.beacon(1) is None
    assert work.is_known(0)
    inside = counted(90, 94)
    inside.miss(95, 97)
    counted(97, work=inside)
    assert inside.beacon(1) == lot(94), "the gap is after its first page"
    assert not inside.is_known(1)


def test_totals_are_of_all_eras():
    work = counted(*range(1, ERA * (ERAS_KEPT + 2), ERA))
    assert work.tokens([0]) == {}
    epochs = range(1, ERA * (ERAS_KEPT + 2), ERA)
    assert work.totals == (2 * len(epochs), sum(epochs) + len(epochs), True)


def test_totals_are_complete_once_an_awaited_commit_arrives():
    work = counted(5)
    work.miss_commit(page(1), 5)
    assert work.totals == (2, 6, False)
    work.count_awaited(page(1), "c", 10)
    assert work.totals == (3, 16, True)


def lost_pages(work):
    work.miss(6, 7)


def lost_commit(work):
    """Let the era of an awaited commit end long ago."""
    work.miss_commit(page(1), 5)
    counted(ERA * (ERAS_KEPT + 1), work=work)


def lost_room(work):
    for number in range(AWAITED_MAX + 1):
        work.miss_commit(page(number), 5)
    for number in range(AWAITED_MAX):
        work.count_awaited(page(number), "c", 1)


@pytest.mark.parametrize("lose", [lost_pages, lost_commit, lost_room])
def test_totals_without_lost_work_stay_incomplete(lose):
    work = counted(5)
    lose(work)
    assert not work.totals.is_complete
    again = FinalWork(ERA)
    again.restore(work.encoded())
    for one in (work, again):
        counted(ERA * 2 * ERAS_KEPT, work=one)
        assert not one.totals.is_complete


@given(
    st.lists(st.tuples(st.integers(1, 150), st.booleans(), st.integers(0, 2**50)), max_size=15),
    st.integers(1, 40),
)
def test_a_restored_state_continues_as_the_first_one(steps, later):
    work, epoch = FinalWork(ERA), 0
    for gap, is_missed, tokens in steps:
        if is_missed:
            work.miss(epoch + 1, epoch + gap)
        epoch += gap
        work.count_page(page(epoch), epoch, lot(epoch), [("a", tokens), (f"{gap}", 3)])
    again = FinalWork(ERA)
    again.restore(work.encoded())
    for _ in range(2):
        assert again.encoded() == work.encoded()
        assert (again.epoch, again.page) == (work.epoch, work.page)
        assert again.totals == work.totals
        for era in range(work.era(epoch) + 2):
            assert again.tokens([era]) == work.tokens([era])
            assert again.beacon(era) == work.beacon(era)
            assert again.is_known(era) == work.is_known(era)
        epoch += later
        counted(epoch, work=work)
        counted(epoch, work=again)


def test_damaged_bytes_restore_nothing():
    work = FinalWork(ERA)
    for data in (b"", b"x", counted(5).encoded()[:-1]):
        work.restore(data)
        assert (work.epoch, work.page, work.tokens([0])) == (-1, b"", {})
