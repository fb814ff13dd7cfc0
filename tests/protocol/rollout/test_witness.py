from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from protocol.messages import WITNESSES
from protocol.rollout.witness import WitnessValue, draw_points, in_draw_order, points_of

SEQUENCES = st.lists(st.lists(st.integers(0, 31), min_size=1, max_size=9), min_size=1, max_size=5)


@given(st.binary(max_size=4), SEQUENCES)
def test_points_lie_in_the_sequences_and_name_other_tokens(lot, sequences):
    points = draw_points(lot, sequences, 32)
    assert len(points) == WITNESSES
    for index, point in points:
        assert 0 <= point.token < 32
        assert point.token != sequences[index][point.position]
        assert 0 <= point.seed < 2**64
    assert draw_points(lot, sequences, 32) == points


def test_the_draw_of_another_page_or_commit_is_another_one():
    sequences = [[7] * 40, [8] * 40]
    drawn = [tuple(draw_points(lot, sequences, 32)) for lot in (b"one", b"other")]
    assert drawn[0] != drawn[1]
    assert len({point.seed for _, point in (*drawn[0], *drawn[1])}) == 2 * WITNESSES


def test_every_token_but_the_body_s_and_every_place_is_drawn_equally_often():
    drawn = [
        one
        for number in range(1500)
        for one in draw_points(bytes([number % 256, number // 256]), [[2, 0], [3]], 4)
    ]
    places = Counter((index, point.position) for index, point in drawn)
    assert all(abs(places[0, at] - 3000) < 250 for at in (0, 1))
    assert abs(places[1, 0] - 6000) < 300
    tokens = Counter(point.token for index, point in drawn if (index, point.position) == (0, 0))
    assert set(tokens) == {0, 1, 3}
    assert all(abs(count - places[0, 0] / 3) < 150 for count in tokens.values())


@given(st.binary(max_size=4), SEQUENCES)
def test_values_return_to_the_order_of_the_draw(lot, sequences):
    points = draw_points(lot, sequences, 32)
    by_sequence = [
        [WitnessValue(float(point.position), point.token) for point in points_of(points, index)]
        for index in range(len(sequences))
    ]
    expected = [WitnessValue(float(point.position), point.token) for _, point in points]
    assert list(in_draw_order(points, by_sequence)) == expected
