"""Line chart of braille characters, each with two by four dots."""

from collections.abc import Sequence

_BRAILLE = 0x2800
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
"""Unicode bits of the dots by column, rows from the top."""

_COLUMNS, _ROWS = 2, 4


def draw_curve(
    points: Sequence[tuple[float, float]], *, width: int, height: int, x_max: float
) -> list[str]:
    """Return ``height`` lines of ``width`` characters with a line through ``points``.

    Points are (x, y) in ascending x, x from 0 to ``x_max``, y from 0 at the bottom to 1 at the top.
    Cells without a dot are spaces.
    """
    columns, rows = width * _COLUMNS, height * _ROWS
    cells = [[0] * width for _ in range(height)]
    dots = [
        (
            _clamped(round(x / max(x_max, 1e-9) * (columns - 1)), columns),
            _clamped(round((1 - y) * (rows - 1)), rows),
        )
        for x, y in points
    ]
    for start, end in zip(dots, dots[1:] or dots, strict=False):
        for column, row in _line(start, end):
            bit = _DOTS[column % _COLUMNS][row % _ROWS]
            cells[row // _ROWS][column // _COLUMNS] |= bit
    return ["".join(chr(_BRAILLE + cell) if cell else " " for cell in row) for row in cells]


def _line(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line, both ends included."""
    length = max(abs(end[0] - start[0]), abs(end[1] - start[1]), 1)
    return [
        (
            start[0] + round((end[0] - start[0]) * step / length),
            start[1] + round((end[1] - start[1]) * step / length),
        )
        for step in range(length + 1)
    ]


def _clamped(position: int, count: int) -> int:
    return min(max(position, 0), count - 1)
