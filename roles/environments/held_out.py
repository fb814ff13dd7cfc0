"""Rows of a data set that training never draws: one, by a hash, of each block of rows.

Blocks rather than a hash of each row: the number of rows on both sides is known without a look at
all of them, and a sorted data set is held out evenly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import override

from protocol.core.crypto import digest
from protocol.rollout.assignment import HELD_OUT_SEED
from roles.ports.text import Rows


def row_of(name: str, seed: int, count: int) -> int:
    """Return the row of problem ``seed`` in the task ``name``, uniform but for under 2**-192."""
    return int.from_bytes(digest(f"{name}/row/{seed}".encode()), "big") % count


@dataclass(frozen=True, slots=True)
class HoldOut:
    """Which of ``count`` rows are held out; raises ``ValueError`` where no row would be."""

    name: str
    rows_per_held_out_row: int
    count: int

    def __post_init__(self) -> None:
        """Check that there is a block."""
        if not self.held_out_count:
            raise ValueError(
                f"{self.name} has {self.count:,} rows and none can be held out: set "
                f"evaluation.rows_per_held_out_row to at most {self.count:,}"
            )

    @property
    def held_out_count(self) -> int:
        """Rows that are held out: as many as there are whole blocks."""
        return self.count // self.rows_per_held_out_row

    @property
    def training_count(self) -> int:
        """Rows that training draws from."""
        return self.count - self.held_out_count

    def held_out(self, block: int) -> int:
        """Return the row of a block that is held out."""
        drawn = digest(f"{self.name}/held-out/{block}".encode())
        size = self.rows_per_held_out_row
        return block * size + int.from_bytes(drawn, "big") % size

    def training(self, place: int) -> int:
        """Return the row at ``place`` of those that training draws from, in their order."""
        block, offset = divmod(place, self.rows_per_held_out_row - 1)
        if block >= self.held_out_count:  # the rows after the last whole block
            return place + self.held_out_count
        row = block * self.rows_per_held_out_row + offset
        return row + (row >= self.held_out(block))

    def row_of(self, seed: int) -> int:
        """Return the row of a problem: one that is held out if its seed is of none that trains."""
        if seed >= HELD_OUT_SEED:
            return self.held_out(row_of(self.name, seed, self.held_out_count))
        return self.training(row_of(self.name, seed, self.training_count))


class TrainingRows(Rows):
    """The rows that training draws from."""

    def __init__(self, rows: Rows, split: HoldOut) -> None:
        self._rows = rows
        self._split = split

    @property
    @override
    def count(self) -> int:
        return self._split.training_count

    @override
    def row(self, index: int) -> Mapping[str, str]:
        return self._rows.row(self._split.training(index))


class HeldOutRows(Rows):
    """The rows that are held out."""

    def __init__(self, rows: Rows, split: HoldOut) -> None:
        self._rows = rows
        self._split = split

    @property
    @override
    def count(self) -> int:
        return self._split.held_out_count

    @override
    def row(self, index: int) -> Mapping[str, str]:
        return self._rows.row(self._split.held_out(index))


@dataclass(frozen=True, slots=True)
class SplitRows:
    """Both sides of a data set."""

    training: Rows
    held_out: Rows
