from hypothesis import given
from hypothesis import strategies as st

from node.api.downloads import StripeStatus
from node.cli.render.piece_map import SHADES, piece_bar, piece_shares

STRIPES = st.lists(
    st.lists(st.sampled_from([0.0, 0.001, 0.5, 0.999, 1.0]), max_size=40), max_size=6
)


@given(STRIPES, st.integers(1, 120))
def test_a_bar_is_as_wide_as_it_must_and_never_says_too_much(stripes, width):
    bar = piece_bar(stripes, width)
    assert len(bar) == width
    assert set(bar) <= {*SHADES, "│"}
    shares = [share for stripe in stripes for share in stripe]
    cells = bar.replace("│", "")
    if shares and width >= len(stripes):
        if set(shares) == {1.0} and all(stripes):
            assert set(cells) == {SHADES[-1]}
        if 0.0 in shares and width >= 10 * len(shares):  # each piece has characters of its own
            assert SHADES[0] in cells
    if 1.0 not in shares:
        assert SHADES[-1] not in cells
    if shares and 0.0 not in shares and all(stripes):
        assert SHADES[0] not in cells


def test_one_piece_that_misses_shows():
    pieces = [1.0] * 1000
    pieces[617] = 0.0
    assert piece_bar([pieces], 50) == "█" * 30 + "▓" + "█" * 19
    pieces = [0.0] * 1000
    pieces[999] = 1.0
    assert piece_bar([pieces], 50) == "·" * 49 + "░"


def test_stripes_stand_apart_where_there_is_room():
    stripes = [[1.0, 0.0], [1.0], [0.0], [0.5, 1.0]]
    assert piece_bar(stripes, 20) == "███··│████│····│▒▒██"
    assert piece_bar(stripes, 18) == "███···███···▒▒▒███"
    assert piece_bar([], 5) == "·····"


@given(st.lists(st.booleans(), min_size=1, max_size=70))
def test_a_map_is_read_as_it_is_described(pieces):
    bits = "".join("1" if here else "0" for here in pieces)
    bits = bits.ljust(-(-len(bits) // 4) * 4, "0")
    hexadecimal = "".join(f"{int(bits[at : at + 4], 2):x}" for at in range(0, len(bits), 4))
    stripe = StripeStatus(0, "", len(pieces), sum(pieces), hexadecimal)
    assert piece_shares(stripe) == pieces
