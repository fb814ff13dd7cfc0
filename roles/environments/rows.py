"""Rows of a data set in a parquet file."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from typing_extensions import override

from roles.ports.text import Rows

ROW_BYTES_MAX = 1 << 20
"""A question and its tests; a guess, ten times what published sets of programs have in a row."""

GROUP_BYTES_MAX = 256 << 20
"""Rows are read by the group that they were written in."""

PASS_RATE = "pass_rate"  # noqa: S105 - no password
"""The column that tells how often some model solved a row."""


class ParquetRows(Rows):
    """Text columns of a parquet file; the group of rows that was read last is kept.

    With two ``pass_rates``, both ends included, only rows count whose pass rate is within: others
    are too easy or too hard to learn from (the offline filter of INTELLECT-2). Raises
    ``ValueError`` for a file that is not what it should be, or leaves no row.
    """

    def __init__(
        self, path: Path, columns: Sequence[str], pass_rates: Sequence[float] = ()
    ) -> None:
        from pyarrow import ArrowException  # noqa: PLC0415 - only where a run has a data set
        from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - as above

        self._columns = list(columns)
        try:
            self._file = ParquetFile(path)
            self._check(path, [*columns, *([PASS_RATE] if pass_rates else [])])
            self._admitted = self._filtered(pass_rates)
        except (ArrowException, OSError) as error:
            raise ValueError(f"{path} is no data set: {error}") from None
        if not self.count:
            within = (
                f" with a pass rate from {pass_rates[0]} to {pass_rates[1]}" if pass_rates else ""
            )
            raise ValueError(f"{path} has no row{within}")
        metadata = self._file.metadata
        sizes = (metadata.row_group(n).num_rows for n in range(metadata.num_row_groups))
        self._ends = list(accumulate(sizes))
        self._group: tuple[int, Any] | None = None

    def _check(self, path: Path, columns: Sequence[str]) -> None:
        missing = [name for name in columns if name not in self._file.schema_arrow.names]
        if missing:
            raise ValueError(f"{path} has no column {', '.join(missing)}")
        metadata = self._file.metadata
        groups = (metadata.row_group(n).total_byte_size for n in range(metadata.num_row_groups))
        if max(groups, default=0) > GROUP_BYTES_MAX:
            raise ValueError(f"{path} has a row group of more than {GROUP_BYTES_MAX} bytes")

    def _filtered(self, pass_rates: Sequence[float]) -> Sequence[int]:
        if not pass_rates:
            return range(self._file.metadata.num_rows)
        low, high = pass_rates
        rates = self._file.read([PASS_RATE]).column(0).to_pylist()
        return [n for n, rate in enumerate(rates) if rate is not None and low <= rate <= high]

    @property
    @override
    def count(self) -> int:
        return len(self._admitted)

    @override
    def row(self, index: int) -> Mapping[str, str]:
        place = self._admitted[index]
        group = bisect_right(self._ends, place)
        if self._group is None or self._group[0] != group:
            self._group = None  # or two of them would be in memory
            self._group = group, self._file.read_row_group(group, columns=self._columns)
        offset = place - (self._ends[group - 1] if group else 0)
        one = self._group[1].slice(offset, 1)
        if one.nbytes > ROW_BYTES_MAX:
            raise ValueError(f"row {place} has more than {ROW_BYTES_MAX} bytes")
        values = one.to_pylist()[0]
        if not all(isinstance(value, str) for value in values.values()):
            raise ValueError(f"row {place} has a column that is no text")
        return dict(values)
