"""Piece map of a file as one line of shaded characters."""

from collections.abc import Sequence

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.text import Text

from node.api.downloads import StripeStatus

SHADES = "·░▒▓█"
"""From no piece of a character's range present to all of them."""

SEPARATED_MIN = 4
"""Minimum characters per stripe for separators between stripes."""


WIDTH_MIN = 4


class PieceBar:
    """A piece map that fills the available width."""

    def __init__(self, stripes: Sequence[Sequence[float]], style: str) -> None:
        self._stripes = stripes
        self._style = style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(piece_bar(self._stripes, options.max_width), self._style, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(min(WIDTH_MIN, options.max_width), options.max_width)


def piece_bar(stripes: Sequence[Sequence[float]], width: int) -> str:
    """Return ``width`` characters for the pieces of each stripe, given their progress from 0 to 1.

    Separators stand between stripes if the width allows. A character is full only if all of its
    pieces are present, and empty only if none is.
    """
    room = width - (len(stripes) - 1)
    if len(stripes) < 2 or room // len(stripes) < SEPARATED_MIN:
        return _cells([share for stripe in stripes for share in stripe], width)
    wide, rest = divmod(room, len(stripes))
    return "│".join(_cells(stripe, wide + (number < rest)) for number, stripe in enumerate(stripes))


def piece_shares(stripe: StripeStatus) -> list[int]:
    """Return 1 for each present piece and 0 for each missing one, in order."""
    bits = f"{int(stripe.map, 16):0{4 * len(stripe.map)}b}"
    return [int(bit) for bit in bits[: stripe.pieces]]


def _cells(shares: Sequence[float], width: int) -> str:
    if not shares:
        return SHADES[0] * width
    cells = []
    for cell in range(width):
        first = cell * len(shares) // width
        last = max(first + 1, (cell + 1) * len(shares) // width)
        cells.append(_shade(sum(shares[first:last]) / (last - first)))
    return "".join(cells)


def _shade(share: float) -> str:
    top = len(SHADES) - 1
    if share in (0, 1):
        return SHADES[round(share) * top]
    return SHADES[min(max(round(share * top), 1), top - 1)]
