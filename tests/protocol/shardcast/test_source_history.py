import pytest

from protocol.core.types import PeerId
from protocol.shardcast.source_history import (
    BEGIN_SECONDS_MIN,
    DOUBT_VERSIONS,
    DOUBT_VERSIONS_MAX,
    DOUBTED_MIN,
    UNTRUSTED_BEGIN_SECONDS_MIN,
    SourceReputation,
)

A, B, C, D, ROOT = (PeerId(name) for name in ("a", "b", "c", "d", "root"))


def end(experience, *, late=(), bad=(), delivered=(), members=20):
    experience.ended(late=late, bad=bad, delivered=delivered, root=ROOT, members=members)


def lasts(experience, peer):
    """Return the number of transfers without a peer after which it is trusted again."""
    count = 0
    while experience.is_doubted(peer):
        end(experience)
        count += 1
    return count


def test_sources_without_a_history_are_asked_as_the_forest_says():
    assert SourceReputation().ordered([C, A, ROOT, B]) == (C, A, ROOT, B)


@pytest.mark.parametrize("failure", ["late", "bad"])
def test_who_failed_us_is_asked_after_the_root_for_a_while(failure):
    experience = SourceReputation()
    end(experience, **{failure: [A]})
    assert experience.ordered([A, B, C, ROOT]) == (B, C, ROOT, A)
    assert lasts(experience, A) == DOUBT_VERSIONS
    assert experience.ordered([A, B, ROOT]) == (A, B, ROOT)


def test_who_delivers_is_trusted_again():
    experience = SourceReputation()
    end(experience, late=[A, B])
    end(experience, delivered=[A])
    assert experience.ordered([A, B, ROOT]) == (A, ROOT, B)


def test_bad_bytes_outweigh_good_ones_of_the_same_transfer():
    experience = SourceReputation()
    end(experience, bad=[A], delivered=[A, B])
    assert experience.is_doubted(A)


def test_a_doubt_that_proves_right_lasts_twice_as_long():
    experience = SourceReputation()
    lengths = []
    for _ in range(7):
        end(experience, late=[A])
        lengths.append(lasts(experience, A))
    assert lengths[:3] == [DOUBT_VERSIONS, 2 * DOUBT_VERSIONS, 4 * DOUBT_VERSIONS]
    assert lengths[-1] == DOUBT_VERSIONS_MAX
    end(experience, delivered=[A])
    end(experience, late=[A])
    assert lasts(experience, A) == DOUBT_VERSIONS, "who has delivered begins anew"


def test_who_fails_while_it_is_doubted_is_doubted_from_then_on_and_no_longer():
    experience = SourceReputation()
    end(experience, late=[A])
    end(experience)
    end(experience, late=[A])
    assert lasts(experience, A) == DOUBT_VERSIONS


def test_when_many_are_late_or_the_root_is_nobody_is_blamed():
    experience = SourceReputation()
    end(experience, late=[A, B, C])
    end(experience, late=[A, ROOT])
    assert experience.ordered([A, B, C, ROOT]) == (A, B, C, ROOT)
    end(experience, late=[A, B, C], bad=[D])
    assert experience.ordered([A, D, ROOT]) == (A, ROOT, D), "bad bytes are nobody else's"


@pytest.mark.parametrize(("members", "doubted"), [(5, DOUBTED_MIN), (1000, 125)])
def test_a_share_of_the_members_is_doubted_the_latest_of_them(members, doubted):
    experience = SourceReputation()
    peers = [PeerId(f"p{number}") for number in range(200)]
    end(experience, bad=peers, members=members)
    assert [peer for peer in peers if experience.is_doubted(peer)] == peers[-doubted:]


def test_a_source_has_as_long_to_begin_as_others_took():
    experience = SourceReputation()
    assert experience.begin_seconds(15.0) == 15.0
    for _ in range(50):
        experience.begun(0.3)
    assert experience.begin_seconds(15.0) == BEGIN_SECONDS_MIN
    for seconds in (1.0, 4.0) * 25:
        experience.begun(seconds)
    assert 6.0 < experience.begin_seconds(15.0) < 12.0
    for _ in range(50):
        experience.begun(60.0)
    assert experience.begin_seconds(15.0) == 15.0
    assert experience.begin_seconds(1.0) == 1.0


def test_an_untrusted_source_has_as_long_as_others_usually_took():
    experience = SourceReputation()
    assert experience.untrusted_begin_seconds(15.0) == BEGIN_SECONDS_MIN
    assert experience.untrusted_begin_seconds(3.0) == 3.0
    for _ in range(50):
        experience.begun(0.1)
    assert experience.untrusted_begin_seconds(15.0) == UNTRUSTED_BEGIN_SECONDS_MIN
    for seconds in (1.0, 4.0) * 25:
        experience.begun(seconds)
    assert experience.untrusted_begin_seconds(15.0) == experience.begin_seconds(15.0)
