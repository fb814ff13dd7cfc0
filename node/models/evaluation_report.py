"""Report of an evaluation: JSON values for programs, and a table for people."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from node.models.evaluation import EvaluationResult
from protocol.rollout.evaluation import Estimate

if TYPE_CHECKING:
    from rich.table import Table


def values_of(results: Sequence[EvaluationResult]) -> list[dict[str, Any]]:
    """Return the results as JSON values."""
    return [
        {
            "task": one.task.name,
            "problems_from": one.task.problems,
            "held_out": one.held_out,
            "model": one.subject.name,
            "version": one.subject.version,
            "digest": one.subject.digest,
            "temperature": one.decoding.temperature,
            "samples": one.decoding.samples,
            "problems": len(one.passes),
            "pass_at_1": one.pass_at_1.value,
            "interval": [one.pass_at_1.low, one.pass_at_1.high],
            "score_mean": one.score_mean,
            "tokens_mean": one.tokens_mean,
            "cut_share": one.cut_share,
            "unscored": one.unscored,
            "difference": None if one.versus is None else one.versus.value,
            "difference_interval": one.versus and [one.versus.low, one.versus.high],
        }
        for one in results
    ]


def table_of(results: Sequence[EvaluationResult]) -> "Table":
    """Return the results as a table."""
    from rich.table import Table  # noqa: PLC0415 - slow to import

    first = results[0].subject.name
    table = Table(box=None, header_style="bold")
    compared = any(one.versus for one in results)
    scored = any(abs(one.score_mean - one.pass_at_1.value) > 5e-4 for one in results)
    for header in ("task", "answers", "model"):
        table.add_column(header)
    for header, shown in (
        ("pass@1 [95 %]", True),
        (f"less {first} [95 %]", compared),
        ("score", scored),
        ("tokens", True),
    ):
        if shown:
            table.add_column(header, no_wrap=True)
    for one in results:
        row = [one.task.name, one.decoding.name, one.subject.name, _text(one.pass_at_1)]
        row += ["" if one.versus is None else _text(one.versus, sign="+")] if compared else []
        row += [f"{one.score_mean:.3f}"] if scored else []
        table.add_row(*row, f"{one.tokens_mean:.0f}")
    return table


def notes_of(results: Sequence[EvaluationResult]) -> list[str]:
    """Return notes on the results, one per line."""
    lines = []
    tasks = {id(one.task): one for one in results}
    for one in tasks.values():
        held_out = "held out" if one.held_out else "not held out"
        if one.task.held_out and not one.held_out:
            held_out += ": the task has so few problems that seeds repeat them"
        lines.append(
            f"{one.task.name}: {len(one.passes):,} problems of {one.task.problems}, {held_out}"
        )
    for one in results:
        where = f"{one.subject.name}, {one.task.name}, {one.decoding.name}"
        if one.cut_share >= 0.1:
            lines.append(
                f"{where}: {100 * one.cut_share:.0f} % of the answers reached the limit of tokens"
            )
        if one.unscored:
            lines.append(f"{where}: {one.unscored:,} answers have no score and count as wrong")
    return lines


def _text(one: Estimate, sign: str = "") -> str:
    return f"{one.value:{sign}.3f} [{one.low:{sign}.3f}, {one.high:{sign}.3f}]"
