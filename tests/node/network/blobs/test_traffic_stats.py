from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.network.blobs.traffic_stats import PARTIES_MAX, WINDOW_SECONDS, SlidingRate, TrafficStats
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind

GAPS = st.floats(0, 2.5 * WINDOW_SECONDS)
MOVES = st.lists(
    st.tuples(
        GAPS,
        st.integers(0, 2 * PARTIES_MAX),
        st.sampled_from(BlobKind),
        st.sampled_from(BlobTransport),
        st.integers(1, 1 << 22),
    ),
    max_size=150,
)


@given(st.lists(st.tuples(GAPS, st.integers(1, 1 << 22))), GAPS, st.floats(0, 1e6))
def test_a_rate_is_what_came_in_the_last_seconds(gaps, quiet_seconds, begin):
    rate, came, now = SlidingRate(), [], begin
    for gap, count in gaps:
        now += gap
        rate.note(count, now)
        came.append((now, count))
    now += quiet_seconds
    begins = int(now) - (WINDOW_SECONDS - 1)
    lately = sum(count for at, count in came if at >= begins)
    if not lately:
        assert rate.at(now) == 0
        return
    span_seconds = max(1.0, now - max(came[0][0], begins))
    assert rate.at(now) == pytest.approx(lately / span_seconds)


@pytest.mark.parametrize("chunk_seconds", [0.01, 0.3, 1.0, 3.0])
def test_a_steady_flow_is_told_as_it_is(chunk_seconds):
    rate, now = SlidingRate(), 1000.25
    for _ in range(round(60 / chunk_seconds)):
        now += chunk_seconds
        rate.note(round(1e6 * chunk_seconds), now)
    # One chunk more or less falls into the window.
    share = chunk_seconds / (WINDOW_SECONDS - 1)
    assert rate.at(now) == pytest.approx(1e6, rel=share + 0.01)
    assert 0 < rate.at(now + WINDOW_SECONDS / 2) < 0.7e6
    assert rate.at(now + WINDOW_SECONDS + 1) == 0


def test_the_first_bytes_are_no_flood():
    rate = SlidingRate()
    rate.note(1000, 7.0)
    assert rate.at(7.0) == rate.at(7.001) == 1000
    assert rate.at(9.0) == 500


def test_an_untrusted_peer_for_each_byte_costs_a_bounded_table():
    tally = TrafficStats()
    for number in range(1000):
        tally.note(f"{number}", BlobKind.BODY, BlobTransport.STREAM, 1, 0.0)
        tally.note("regular", BlobKind.BODY, BlobTransport.STREAM, 1, 0.0)
    assert len(tally.parties) == PARTIES_MAX
    assert tally.parties["regular"].ways[BlobTransport.STREAM] == 1000
    assert tally.total() == 2000


@given(MOVES)
def test_a_tally_adds_up_and_remembers_the_last_ones(moves):
    tally, now = TrafficStats(), 0.0
    by_kind_and_way, by_name, last_at = Counter(), Counter(), {}
    for number, (gap, name, kind, way, count) in enumerate(moves):
        now += gap
        tally.note(f"{name}", kind, way, count, now)
        by_kind_and_way[kind, way] += count
        last_at[f"{name}"] = number
        by_name[f"{name}", way] += count
        remembered = sorted(last_at, key=last_at.get)[-PARTIES_MAX:]
        for lost in set(last_at) - set(remembered):  # it starts from zero if it returns
            del last_at[lost]
            for each in BlobTransport:
                del by_name[lost, each]
        assert list(tally.parties) == remembered
    for kind in BlobKind:
        assert tally[kind] == sum(by_kind_and_way[kind, way] for way in BlobTransport)
        assert [tally.by(kind, way) for way in BlobTransport] == [
            by_kind_and_way[kind, way] for way in BlobTransport
        ]
    assert tally.total() == by_kind_and_way.total()
    for name, party in tally.parties.items():
        assert [party.ways[way] for way in BlobTransport] == [
            by_name[name, way] for way in BlobTransport
        ]
