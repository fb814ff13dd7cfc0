"""Held-out rows of a data set, which training never draws: one per block of rows, by hash.

Blocks, rather than a hash per row, fix the number of rows on both sides without reading all of
them, and sample a sorted data set evenly.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import override

from protocol.core.crypto import digest
from protocol.rollout.assignment import HELD_OUT_SEED
from roles.ports.text import Rows


def row_of(name: str, seed: int, count: int) -> int:
    """Return the row of problem ``seed`` in task ``name``, uniform up to a bias below 2**-192."""
    return int.from_bytes(digest(f"{name}/row/{seed}".encode()), "big") % count


@dataclass(frozen=True, slots=True)
class HoldOut:
    """Split of ``count`` rows into held-out and training rows."""

    name: str
    rows_per_held_out_row: int
    count: int

    def __post_init__(self) -> None:
        """Raise ``ValueError`` if no row would be held out."""
        if not self.held_out_count:
            raise ValueError(
                f"{self.name} has {self.count:,} rows and none can be held out: set "
                f"evaluation.rows_per_held_out_row to at most {self.count:,}"
            )

    @property
    def held_out_count(self) -> int:
        """Number of held-out rows, one per whole block."""
        return self.count // self.rows_per_held_out_row

    @property
    def training_count(self) -> int:
        """Number of training rows."""
        return self.count - self.held_out_count

    def held_out(self, block: int) -> int:
        """Return the held-out row of a block."""
        drawn = digest(f"{self.name}/held-out/{block}".encode())
        size = self.rows_per_held_out_row
        return block * size + int.from_bytes(drawn, "big") % size

    def training(self, place: int) -> int:
        """Return the training row at index ``place``."""
        block, offset = divmod(place, self.rows_per_held_out_row - 1)
        if block >= self.held_out_count:  # the rows after the last whole block
            return place + self.held_out_count
        row = block * self.rows_per_held_out_row + offset
        return row + (row >= self.held_out(block))

    def row_of(self, seed: int) -> int:
        """Return the row of a problem: a held-out one if training never uses its seed."""
        if seed >= HELD_OUT_SEED:
            return self.held_out(row_of(self.name, seed, self.held_out_count))
        return self.training(row_of(self.name, seed, self.training_count))


class TrainingRows(Rows):
    """Training rows."""

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
    """Held-out rows."""

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
    """Training and held-out rows of a data set."""

    training: Rows
    held_out: Rows
