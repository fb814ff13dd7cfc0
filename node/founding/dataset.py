"""The data set of a run: every row of a file looked at once, and the usable ones as parquet."""

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
"""Rows are written, and read by nodes, in groups of so many: 128 MiB where all are the largest."""

_ROWS_PER_LINE = 5_000
_ANSWERS_PER_LINE = 250
"""After how much a line tells how far it is: some seconds."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that the run cannot use."""

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
    """All of them."""
    rows_kept: int = 0
    rows_outside: int = 0
    """Outside of the recipe's pass rates; nothing else of them was looked at."""
    rows_bad: int = 0
    bad_rows: list[BadRow] = field(default_factory=list)
    """The first ones of the file."""
    prompt_tokens_max: int = 0
    answers_scored: int = 0
    """Different answers that were scored against themselves."""
    bytes_kept: int = 0

    def add_bad(self, place: RowLocation, reason: str) -> None:
        """Count a row that cannot be used."""
        self.rows_bad += 1
        # Scores come after what is seen at once, and so not in the order of the file.
        line = "".join(sign if sign.isprintable() else "?" for sign in " ".join(reason.split()))
        named = [*self.bad_rows, BadRow(place, line[:200])]
        self.bad_rows = sorted(named, key=lambda bad: bad.place.number)[:BAD_ROWS_NAMED]


class DatasetError(ValueError):
    """A data set with rows that a run cannot use."""

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
    """Write the rows of ``source`` that a run can use to ``target``, as its nodes read them.

    ``say`` gets a line now and then, and one for each of the first bad rows. Raises ``ValueError``
    for a file that is no data set of the recipe's task, and ``DatasetError`` for one without a row
    that can be used, with one that cannot unless ``skip_bad_rows`` leaves those out, or with too
    few to hold one out for evaluations. Runs an event loop.
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
    """Look at all rows, and write those that can be used."""
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
    """Yield the rows that pass every check that scores no answer."""
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
    """Return a row as it is written, None where it is outside of the pass rates."""
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
