from hypothesis import given
from hypothesis import strategies as st

from node.testnet.curve import draw_curve


def test_a_rising_line_goes_from_the_lower_left_to_the_upper_right():
    lines = draw_curve([(0, 0.0), (10, 1.0)], width=10, height=4, x_max=10)
    assert lines[-1][0] != " "
    assert lines[0][-1] != " "
    assert lines[0][0] == lines[-1][-1] == " "


def test_a_flat_line_at_the_top_is_one_row_of_top_dots():
    assert draw_curve([(0, 1.0), (3, 1.0)], width=4, height=2, x_max=3) == ["⠉⠉⠉⠉", "    "]


def test_no_points_draw_nothing_and_one_point_draws_one_dot():
    assert draw_curve([], width=3, height=2, x_max=5) == ["   ", "   "]
    (line,) = draw_curve([(5, 0.0)], width=3, height=1, x_max=5)
    assert line == "  ⢀"


@given(
    ys=st.lists(st.floats(-1, 2), max_size=30),
    width=st.integers(1, 50),
    height=st.integers(1, 10),
)
def test_every_drawing_has_its_size(ys, width, height):
    points = [(float(x), y) for x, y in enumerate(ys)]
    lines = draw_curve(points, width=width, height=height, x_max=20)
    assert [len(line) for line in lines] == [width] * height
