"""Reader of data set files in parquet, JSON lines or csv, detected by content."""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, Literal

RAW_ROW_BYTES_MAX = 64 << 20
"""Largest source row: programming data sets include solutions, which a run does not need."""

_BATCH_ROWS = 64
_HEAD_BYTES = 64 << 10
_BOM = b"\xef\xbb\xbf"
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"PK\x03\x04", b"BZh", b"\xfd7zXZ")
"""First bytes of files of gzip, zstd, zip, bzip2 and xz."""

_FORMS = "a data set is a parquet file, JSON lines, or csv with a header"

Format = Literal["parquet", "JSON lines", "csv"]

Row = Mapping[str, Any] | str
"""Columns of a row, or the reason why it is invalid."""


@dataclass(frozen=True, slots=True)
class RowLocation:
    """Position of a row in its file."""

    unit: Literal["row", "line"]
    """Parquet rows count from 0, text lines from 1 as in editors."""
    number: int

    def __str__(self) -> str:
        return f"{self.unit} {self.number}"


def format_of(path: Path) -> Format:
    """Detect the format of a file by its first bytes; raises ``ValueError`` for another format."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError as error:
        raise ValueError(f"cannot read the data set {path}: {error.strerror}") from None
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(_COMPRESSED):
        raise ValueError(f"{path} is compressed: unpack it first")
    if b"\0" in head:
        raise ValueError(
            f"{path} is not a data set: it is neither text in UTF-8 nor parquet; {_FORMS}"
        )
    first = head.removeprefix(_BOM).lstrip()[:1]
    if not first:
        raise ValueError(f"{path} is empty; {_FORMS}")
    if first == b"[":
        raise ValueError(
            f"{path} is one JSON array: write a row a line, such as with "
            f"jq -c '.[]' {path} > rows.jsonl"
        )
    return "JSON lines" if first == b"{" else "csv"


def read_rows(
    path: Path, format_: Format, required: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[RowLocation, Row]]:
    """Yield the rows of a data set with their positions, a few of them in memory.

    Raises ``ValueError`` for an invalid file or one that lacks a ``required`` column.
    """
    try:
        match format_:
            case "parquet":
                yield from _parquet(path, required, optional)
            case "JSON lines":
                yield from _json_lines(path)
            case "csv":
                yield from _csv(path, required)
    except OSError as error:
        raise ValueError(f"cannot read the data set {path}: {error}") from None


def _require(path: Path, required: Sequence[str], names: Sequence[str]) -> None:
    has = f"it has {', '.join(names)[:200]}"
    if missing := [name for name in required if name not in names]:
        raise ValueError(f"{path} has no column {', '.join(missing)}; {has}: rename what it is")
    if twice := [name for name in required if list(names).count(name) > 1]:
        raise ValueError(f"{path} has the column {twice[0]} twice; {has}")


def _parquet(
    path: Path, required: Sequence[str], optional: Sequence[str]
) -> Iterator[tuple[RowLocation, Row]]:
    from pyarrow import ArrowException  # noqa: PLC0415 - only where a run has a data set
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415 - as above

    number = 0
    try:
        with ParquetFile(path, pre_buffer=False, buffer_size=1 << 20) as file:
            names = file.schema_arrow.names
            _require(path, required, names)
            columns = [*required, *(name for name in optional if name in names)]
            for batch in file.iter_batches(_BATCH_ROWS, columns=columns, use_threads=False):
                for offset in range(batch.num_rows):
                    yield RowLocation("row", number), _values(batch.slice(offset, 1))
                    number += 1
    except ArrowException as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} is not a complete parquet file, row {number}: {reason}") from None


def _values(one: Any) -> Row:
    """Return the values of a batch of one row."""
    from pyarrow import types  # noqa: PLC0415 - as above

    if one.nbytes > RAW_ROW_BYTES_MAX:
        return f"more than {RAW_ROW_BYTES_MAX:,} bytes as it comes"
    try:
        values: dict[str, Any] = one.to_pylist()[0]
    except ValueError:
        return "text that is not UTF-8, or a value that Python does not have"
    for name, kind in zip(one.schema.names, one.schema.types, strict=True):
        if types.is_floating(kind) and values[name] is not None:
            # The shortest decimal that is exact in the column's own precision.
            values[name] = float(one.column(name).cast("string")[0].as_py())
    return values


def _json_lines(path: Path) -> Iterator[tuple[RowLocation, Row]]:
    with path.open("rb") as file:
        for number, line in enumerate(_lines(file), 1):
            text = line.removeprefix(_BOM) if number == 1 else line
            if not text.strip():
                continue
            yield RowLocation("line", number), _object(text)


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield lines, truncated one byte above the size limit of a row."""
    while line := file.readline(RAW_ROW_BYTES_MAX + 1):
        rest = line
        while len(rest) > RAW_ROW_BYTES_MAX and not rest.endswith(b"\n"):
            rest = file.readline(RAW_ROW_BYTES_MAX + 1)
        yield line


def _object(line: bytes) -> Row:
    if len(line) > RAW_ROW_BYTES_MAX:
        return f"more than {RAW_ROW_BYTES_MAX:,} bytes as it comes"
    try:
        row = json.loads(line.decode(), parse_float=Decimal)
    except UnicodeDecodeError:
        return "text that is not UTF-8"
    except (ValueError, ArithmeticError, RecursionError) as error:
        return f"not JSON: {' '.join(str(error).split())[:80]}"
    return row if isinstance(row, dict) else "not a JSON object"


def _csv(path: Path, required: Sequence[str]) -> Iterator[tuple[RowLocation, Row]]:
    with (
        path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file,
        _long_fields(),
    ):
        reader = csv.reader(file, strict=True)
        try:
            names = next((fields for fields in reader if fields), [])
            _require(path, required, names)
            before = reader.line_num
            for fields in reader:
                place, before = RowLocation("line", before + 1), reader.line_num
                if len(fields) == len(names):
                    yield place, dict(zip(names, fields, strict=True))
                elif fields:
                    yield place, f"{len(fields)} fields where the header has {len(names)}"
        except csv.Error as error:
            raise ValueError(f"{path} is not valid csv, line {reader.line_num}: {error}") from None


@contextmanager
def _long_fields() -> Iterator[None]:
    """Raise the csv module's global field limit to the size limit of a row."""
    limit = csv.field_size_limit(RAW_ROW_BYTES_MAX)
    try:
        yield
    finally:
        csv.field_size_limit(limit)
