"""Console output of the commands: progress, tables, and advice after a failure."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from simulations.cli.comparison import Difference, flattened
from simulations.cluster.world import Actor
from simulations.scenario.scenario import Scenario, scenario_names
from simulations.study.regressions import Regression, add_regression
from simulations.study.study import RunOutcome, RunPlan, run_plan
from simulations.study.sweep import Sweep, run_sweep

CHANGE_SHOWN_MIN = 0.02
"""Smaller relative differences are shown without emphasis."""


def stdout() -> Console:
    """Return the console of results."""
    return Console()


def stderr() -> Console:
    """Return the console of everything else."""
    return Console(stderr=True)


# Progress


class _VirtualTime(ProgressColumn):
    """Elapsed and total virtual time."""

    def render(self, task: Task) -> Text:
        """Return it as minutes and seconds."""
        return Text(f"virtual {clock_text(task.completed)} / {clock_text(task.total or 0)}")


def _progress(title: str, counted: ProgressColumn) -> Progress:
    """Return a progress bar that appears on terminals only."""
    console = stderr()
    return Progress(
        TextColumn(title),
        BarColumn(),
        counted,
        TextColumn("wall"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def show_run(plan: RunPlan, actors: Sequence[Actor] = ()) -> RunOutcome:
    """Run a plan, with a bar of virtual and wall time on a terminal."""
    with _progress(f"{plan.scenario}, seed {plan.seed}", _VirtualTime()) as bar:
        task = bar.add_task("", total=plan.load().seconds)

        def on_progress(now: float, end: float) -> None:
            bar.update(task, completed=now, total=end)

        return run_plan(plan, clock=time.perf_counter, on_progress=on_progress, actors=actors)


def clock_text(seconds: float) -> str:
    """Return seconds as ``h:mm:ss`` or ``m:ss``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def show_sweep(plans: Sequence[RunPlan], processes: int) -> Sweep:
    """Run plans, up to ``processes`` at once, with a bar on a terminal."""
    with _progress(plans[0].scenario, MofNCompleteColumn()) as bar:
        task = bar.add_task("", total=len(plans))
        return run_sweep(plans, processes, on_end=lambda: bar.advance(task))


# Tables


def scenario_table(scenarios: Sequence[Scenario]) -> Table:
    """Return the list of scenarios."""
    table = _table("scenario", ">nodes", ">minutes", "description")
    for item in scenarios:
        table.add_row(
            f"[bold]{item.name}[/]", str(item.nodes.total), f"{item.minutes:g}", item.description
        )
    return table


def result_table(outcome: RunOutcome) -> Table:
    """Return the numbers of a run, two columns."""
    result = outcome.result
    table = _table("", ">", title=f"{result.scenario}, seed {result.seed}")
    for name, value in flattened(result.to_json()).items():
        if name not in ("scenario", "seed"):
            table.add_row(name, number_text(value))
    held = outcome.violation is None
    table.add_row("checks", "[green]all held[/]" if held else "[red bold]violated[/]")
    return table


def sweep_table(outcomes: Sequence[RunOutcome]) -> Table:
    """Return one line per seed."""
    table = _table(
        ">seed", ">certified", ">lost", ">versions", ">idle", ">gossip p99", ">makespan p99",
        ">agreement", ">wall", "checks", title=outcomes[0].result.scenario,
    )  # fmt: skip
    for outcome in outcomes:
        result, violation = outcome.result, outcome.violation
        table.add_row(
            str(result.seed),
            number_text(result.rollouts.certified),
            number_text(result.rollouts.lost),
            number_text(result.versions_published),
            number_text(result.trainer_idle_share),
            number_text(result.gossip.coverage_p99_s),
            number_text(result.weights.makespan_ratio_p99),
            number_text(result.committee_agreement),
            f"{result.wall_s:.1f} s",
            "[green]held[/]" if violation is None else f"[red]{violation.rule}[/]",
        )
    return table


def comparison_table(rows: Sequence[Difference]) -> Table:
    """Return two results side by side."""
    table = _table("", ">base", ">new", ">change")
    for row in rows:
        change = row.change
        text = "" if change is None else f"{change:+.1%}"
        plain = change is None or abs(change) < CHANGE_SHOWN_MIN
        style = "dim" if row.base == row.new else "" if plain else "bold"
        table.add_row(row.name, number_text(row.base), number_text(row.new), text, style=style)
    return table


def _table(*headers: str, title: str = "") -> Table:
    table = Table(title=title or None, box=None, title_justify="left", pad_edge=False)
    for header in headers:
        right = header.startswith(">")
        table.add_column(header.lstrip(">"), justify="right" if right else "left")
    return table


def number_text(value: float | str | None) -> str:
    """Format a number for people."""
    if isinstance(value, bool) or value is None:
        return "-" if value is None else str(value)
    if isinstance(value, str):
        return value[:16]
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


# Failures


def show_failure(outcome: RunOutcome) -> None:
    """Print the violated rule, its causes and the command that repeats it; add it to the tests."""
    violation, console = outcome.violation, stderr()
    if violation is None:
        return
    console.print(f"[red bold]{violation.rule}[/] at {violation.at:.3f} s, {violation.node}")
    console.print(violation.what, soft_wrap=True, markup=False)
    for line in violation.causes:
        console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)
    console.print(f"repeat it: {outcome.plan.command}", soft_wrap=True, highlight=False)
    regression = Regression(outcome.plan, violation.rule, violation.what)
    ours = outcome.plan.scenario in scenario_names()  # other files exist only here
    path = add_regression(regression, Path.cwd()) if ours else None
    if path is None:
        console.print("not recorded; to record it, add this to simulations/regressions.toml:")
        console.print(regression.to_toml(), soft_wrap=True, markup=False, highlight=False)
    else:
        console.print(f"recorded in {path}", soft_wrap=True)
