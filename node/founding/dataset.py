"""Preparation of a run's data set: check every row of a file, write the usable ones as parquet."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from node.founding.dataset_answers import AnswerCheck
from node.founding.dataset_files import Format, Row, RowLocation, format_of, read_rows
from node.founding.dataset_rows import pass_rate, run_row
from protocol.run.recipe import Recipe
from roles.engines.files.tokenizer import HuggingFaceTokenizer
from roles.environments.held_out import HoldOut
from roles.environments.preamble import primed
from roles.environments.registry import COLUMNS
from roles.environments.rows import OPTIONAL_COLUMNS, PASS_RATE, UnusableRowError
from roles.environments.usable_rows import PromptRoom, RowRule
from roles.ports.engines import EngineError

BAD_ROWS_NAMED = 5

_GROUP_ROWS = 128
"""Rows per row group, in which nodes read them: at most 128 MiB."""

_ROWS_PER_LINE = 5_000
_ANSWERS_PER_LINE = 250
"""Scored answers per progress line, some seconds."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """Row that the run cannot use."""

    place: RowLocation
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


@dataclass(slots=True)
class DatasetReport:
    """Report on the rows of a data set."""

    path: str
    format: Format
    rows: int = 0
    rows_kept: int = 0
    rows_outside: int = 0
    """Rows outside of the recipe's pass rates; they are not checked further."""
    rows_bad: int = 0
    bad_rows: list[BadRow] = field(default_factory=list)
    """First bad rows of the file."""
    prompt_tokens_max: int = 0
    answers_scored: int = 0
    """Number of different answers that were scored against themselves."""
    bytes_kept: int = 0

    def add_bad(self, place: RowLocation, reason: str) -> None:
        """Count a row that cannot be used."""
        self.rows_bad += 1
        # Scoring follows the other checks, so bad rows are not reported in file order.
        line = "".join(sign if sign.isprintable() else "?" for sign in " ".join(reason.split()))
        named = [*self.bad_rows, BadRow(place, line[:200])]
        self.bad_rows = sorted(named, key=lambda bad: bad.place.number)[:BAD_ROWS_NAMED]


class DatasetError(ValueError):
    """Data set with rows that a run cannot use."""

    def __init__(self, message: str, report: DatasetReport) -> None:
        super().__init__(message)
        self.report = report


def prepare_dataset(
    source: Path,
    target: Path,
    recipe: Recipe,
    tokenizer: HuggingFaceTokenizer,
    *,
    skip_bad_rows: bool = False,
    say: Callable[[str], None],
) -> DatasetReport:
    """Write the usable rows of ``source`` to ``target``, in the format that nodes read.

    ``say`` gets progress lines, and one line for each of the first bad rows. Raises ``ValueError``
    for a file that is not a data set of the recipe's task. Raises ``DatasetError`` without usable
    rows, for a bad row unless ``skip_bad_rows``, or with too few rows to hold one out for
    evaluations. Runs an event loop.
    """
    report = DatasetReport(str(source), format_of(source))
    try:
        asyncio.run(_copy(source, target, recipe, tokenizer, report, say))
    except EngineError as error:
        raise ValueError(f"the answers of {source} cannot be scored here: {error}") from None
    report.bytes_kept = target.stat().st_size
    for bad in report.bad_rows:
        say(f"{source}, {bad}")
    if report.rows_bad > len(report.bad_rows):
        say(f"{source}: {report.rows_bad - len(report.bad_rows):,} more rows cannot be used")
    if fault := _fault(report, recipe, skip_bad_rows=skip_bad_rows):
        raise DatasetError(fault, report)
    say(_summary(report))
    return report


def _fault(report: DatasetReport, recipe: Recipe, *, skip_bad_rows: bool) -> str | None:
    name, bad = report.path, report.rows_bad
    first = report.bad_rows[0] if bad else ""
    if not report.rows_kept and not bad:
        rates = recipe.environment.pass_rates
        within = f" with a pass rate from {rates[0]} to {rates[1]}" if rates else ""
        return f"{name} has no row{within}"
    if not report.rows_kept:
        return f"{name} has no row that can be used, of {bad:,}; the first is {first}"
    if bad and not skip_bad_rows:
        return (
            f"{name}: {bad:,} of {report.rows:,} rows cannot be used, the first is {first}; "
            "repair them, or leave them out with --skip-bad-rows"
        )
    if recipe.evaluation is not None:
        try:
            HoldOut(name, recipe.evaluation.rows_per_held_out_row, report.rows_kept)
        except ValueError as error:
            return str(error)
    return None


def _summary(report: DatasetReport) -> str:
    parts = [f"{report.rows_kept:,} of {report.rows:,} rows kept ({report.bytes_kept:,} bytes)"]
    if report.rows_outside:
        parts.append(f"{report.rows_outside:,} are outside of the pass rates")
    if report.rows_bad:
        parts.append(f"{report.rows_bad:,} cannot be used and are left out")
    parts.append(f"the longest prompt has {report.prompt_tokens_max:,} tokens")
    if report.answers_scored:
        parts.append(f"different answers scored against themselves: {report.answers_scored:,}")
    return f"{report.path}: {', '.join(parts)}"


async def _copy(
    source: Path,
    target: Path,
    recipe: Recipe,
    tokenizer: HuggingFaceTokenizer,
    report: DatasetReport,
    say: Callable[[str], None],
) -> None:
    """Check all rows, and write the usable ones."""
    section = recipe.environment
    family = section.name.partition("/")[0]
    rates = (PASS_RATE,) if section.pass_rates else ()
    asked = primed(tokenizer, recipe.environment)
    rule = RowRule(family, PromptRoom.of(recipe), asked)
    rows = read_rows(source, report.format, (*COLUMNS[family], *rates), OPTIONAL_COLUMNS)
    usable = _usable(rows, rule, section.pass_rates, report)
    async with AsyncExitStack() as stack:
        check = None
        if family == "math":
            check = await stack.enter_async_context(AnswerCheck(recipe, tokenizer))
        writer = stack.enter_context(_writer(target, family, rated=bool(rates)))
        told = (0, 0)
        while group := list(islice(usable, _GROUP_ROWS)):
            if check is not None:
                group = await _right(group, check, report)
                report.answers_scored = check.count
            _write(writer, group)
            report.rows_kept += len(group)
            reached = report.rows // _ROWS_PER_LINE, report.answers_scored // _ANSWERS_PER_LINE
            if reached != told:
                told = reached
                scored = f", {report.answers_scored:,} different answers scored" if check else ""
                say(f"{source}: {report.rows:,} rows read{scored}, {report.rows_bad:,} bad")


_Group = list[tuple[RowLocation, dict[str, Any]]]


def _usable(
    rows: Iterator[tuple[RowLocation, Row]],
    rule: RowRule,
    pass_rates: Sequence[float],
    report: DatasetReport,
) -> Iterator[tuple[RowLocation, dict[str, Any]]]:
    """Yield the rows that pass every check except scoring."""
    for place, raw in rows:
        report.rows += 1
        try:
            row = _columns(raw, rule.family, pass_rates)
            tokens = 0 if row is None else rule.check(row)
        except UnusableRowError as error:
            report.add_bad(place, str(error))
            continue
        report.prompt_tokens_max = max(report.prompt_tokens_max, tokens)
        if row is None:
            report.rows_outside += 1
        else:
            yield place, row


def _columns(raw: Row, family: str, pass_rates: Sequence[float]) -> dict[str, Any] | None:
    """Return a row in the format to write, None if it is outside of the pass rates."""
    if isinstance(raw, str):
        raise UnusableRowError(raw)
    if not pass_rates:
        return {**run_row(raw, family)}
    rate = pass_rate(raw)
    if rate is None or not pass_rates[0] <= rate <= pass_rates[1]:
        return None
    return {**run_row(raw, family), PASS_RATE: rate}


async def _right(group: _Group, check: AnswerCheck, report: DatasetReport) -> _Group:
    """Return the rows whose answers score 1 against themselves."""
    faults = await check.faults([row["answer"] for _, row in group])
    for (place, _), fault in zip(group, faults, strict=True):
        if fault is not None:
            report.add_bad(place, fault)
    return [one for one, fault in zip(group, faults, strict=True) if fault is None]


def _writer(target: Path, family: str, *, rated: bool) -> Any:
    import pyarrow as pa  # noqa: PLC0415 - only where a run has a data set
    from pyarrow.parquet import ParquetWriter  # noqa: PLC0415 - as above

    columns = [(name, pa.string()) for name in (*COLUMNS[family], *OPTIONAL_COLUMNS)]
    columns += [(PASS_RATE, pa.float64())] if rated else []
    return ParquetWriter(target, pa.schema(columns), compression="zstd")


def _write(writer: Any, group: _Group) -> None:
    import pyarrow as pa  # noqa: PLC0415 - as above

    if group:
        rows = [row for _, row in group]
        writer.write_table(pa.Table.from_pylist(rows, schema=writer.schema))
