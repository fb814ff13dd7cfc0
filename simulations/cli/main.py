"""Study the protocol in virtual time: churn, partitions, adversaries; no GPU."""

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from node.local.errors import ExitCode, NodeError

if TYPE_CHECKING:
    from node.api.contributors import ContributorsPage
    from simulations.cluster.world import Actor
    from simulations.study.study import RunOutcome, RunPlan

app = typer.Typer(add_completion=False, no_args_is_help=True)

VIOLATION = 1
"""Exit code of a run that violated a rule."""


def _scenarios() -> list[str]:
    """Return the scenario names for shell completion."""
    from simulations.scenario.scenario import scenario_names  # noqa: PLC0415 - when it asks

    return scenario_names()


Scenario = Annotated[
    str,
    typer.Argument(help="Name from `simulate list`, or a TOML file.", autocompletion=_scenarios),
]
Nodes = Annotated[int | None, typer.Option(min=3, help="Number of nodes, in the same proportions.")]
Minutes = Annotated[float | None, typer.Option(min=0.1, help="Length in virtual minutes.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.callback()
def simulate() -> None:
    """Study the protocol in virtual time: churn, partitions, adversaries; no GPU."""


@app.command("list")
def list_scenarios(*, as_json: AsJson = False) -> None:
    """Show the scenarios."""
    from simulations.cli.console import scenario_table, stdout  # noqa: PLC0415 - when it is called
    from simulations.scenario.scenario import load_scenario, scenario_names  # noqa: PLC0415 - as above

    scenarios = [load_scenario(name) for name in scenario_names()]
    if as_json:
        rows = [
            {
                "name": item.name,
                "nodes": item.nodes.total,
                "minutes": item.minutes,
                "description": item.description,
            }
            for item in scenarios
        ]
        _print_json(rows)
    else:
        stdout().print(scenario_table(scenarios))


@app.command()
def run(
    scenario: Scenario,
    *,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all randomness.")] = 0,
    nodes: Nodes = None,
    minutes: Minutes = None,
    untrusted_per_node: Annotated[
        float | None,
        typer.Option(
            "--untrusted-per-node", min=0, max=100, help="Additional adversaries per node."
        ),
    ] = None,
    untrusted_after_minutes: Annotated[
        float | None,
        typer.Option(
            "--untrusted-after",
            metavar="MINUTES",
            min=0,
            help="Delay of these adversaries; the run lasts as much longer.",
        ),
    ] = None,
    worker_speed: Annotated[
        float | None,
        typer.Option(metavar="TIMES", min=0.01, max=100, help="Factor on the workers' speed."),
    ] = None,
    as_json: AsJson = False,
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for numbers, plots and a page.")
    ] = None,
) -> None:
    """Run a scenario once."""
    from simulations.study.study import RunPlan  # noqa: PLC0415 - when it is called

    plan = RunPlan(
        scenario,
        seed,
        nodes,
        minutes,
        untrusted_per_node,
        untrusted_after_minutes,
        worker_speed,
    )
    contributors = None
    if report is None:
        outcome = _run(plan)
    else:
        from node.api.v1.recording import write_recording  # noqa: PLC0415 - for reports alone
        from simulations.report.view import ViewRecorder  # noqa: PLC0415 - as above

        _check_writable(report)
        recorder = ViewRecorder()
        outcome = _run(plan, recorder)
        if recorder.recorded is not None:
            report.mkdir(parents=True, exist_ok=True)
            write_recording(report, recorder.recorded)
            contributors = recorder.recorded.contributors
    _show(outcome, as_json=as_json, report=report, contributors=contributors)
    _end(outcome)


@app.command()
def sweep(
    scenario: Scenario,
    *,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds.")] = 20,
    first_seed: Annotated[int, typer.Option(min=0, help="First seed.")] = 0,
    nodes: Nodes = None,
    minutes: Minutes = None,
    processes: Annotated[
        int, typer.Option(min=1, show_default="one per core", help="Number of seeds at once.")
    ] = os.cpu_count() or 1,
    as_json: AsJson = False,
) -> None:
    """Run a scenario with one seed after another."""
    from simulations.cli.comparison import summarise  # noqa: PLC0415 - when it is called
    from simulations.cli.console import show_sweep, stdout, sweep_table  # noqa: PLC0415 - as above
    from simulations.study.study import RunPlan  # noqa: PLC0415 - as above

    plans = [
        RunPlan(scenario, seed, nodes, minutes) for seed in range(first_seed, first_seed + seeds)
    ]
    _check(plans[0])
    swept = show_sweep(plans, processes)
    results = [outcome.result.to_json() for outcome in swept.outcomes]
    if as_json:
        _print_json({"scenario": scenario, "summary": summarise(results), "runs": results})
    elif results:
        stdout().print(sweep_table(swept.outcomes))
    _end(*swept.outcomes)
    if len(results) < seeds:
        _end_early(len(results), seeds, interrupted=swept.interrupted)


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(help="Result of a run or a sweep (--json).")],
    new: Annotated[Path, typer.Argument(help="Result to compare with it.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Show the differences between two results."""
    from simulations.cli.comparison import differences  # noqa: PLC0415 - when it is called
    from simulations.cli.console import comparison_table, stdout  # noqa: PLC0415 - as above

    rows = differences(_read_json(base), _read_json(new))
    if as_json:
        _print_json({row.name: {"base": row.base, "new": row.new} for row in rows})
    else:
        stdout().print(comparison_table(rows))


@app.command()
def repeat(
    file: Annotated[Path, typer.Argument(help="A result (--json), or a regressions.toml.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Repeat a recorded run, and report whether it gives the same trace."""
    if file.suffix == ".toml":
        _repeat_all(file)
        return
    from simulations.cli.comparison import plan_of  # noqa: PLC0415 - when it is called
    from simulations.cli.console import stderr  # noqa: PLC0415 - as above

    known = _read_json(file)
    try:
        plan = plan_of(known)
    except ValueError as error:
        raise NodeError(f"{file}: {error}", ExitCode.USAGE) from None
    outcome = _run(plan)
    _show(outcome, as_json=as_json, report=None)
    same = outcome.result.trace_digest == known["trace_digest"]
    stderr().print("the trace is the same" if same else "the trace differs")
    if not same:
        raise typer.Exit(VIOLATION)
    _end(outcome)


def _repeat_all(file: Path) -> None:
    from simulations.study.regressions import load_regressions  # noqa: PLC0415 - when it is called

    try:
        regressions = load_regressions(file)
    except (OSError, ValueError) as error:
        raise NodeError(str(error), ExitCode.USAGE) from None
    outcomes = [_run(regression.plan) for regression in regressions]
    for outcome in outcomes:
        _show(outcome, as_json=False, report=None)
    _end(*outcomes)


# Shared by the commands


def _run(plan: "RunPlan", *actors: "Actor") -> "RunOutcome":
    from simulations.cli.console import show_run  # noqa: PLC0415 - when a command needs it

    _check(plan)
    return show_run(plan, actors)


def _check(plan: "RunPlan") -> None:
    """End with exit code 78 if the scenario is invalid."""
    from simulations.scenario.scenario import ScenarioError  # noqa: PLC0415 - when a command needs it

    try:
        plan.load()
    except (ScenarioError, OSError, UnicodeDecodeError) as error:
        raise NodeError(f"{plan.scenario}: {error}", ExitCode.CONFIG) from None


def _check_writable(directory: Path) -> None:
    """Make the directory; raises ``NodeError`` if it is not writable."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise NodeError(
            f"cannot write to --report {directory}: {error.strerror}; choose another directory",
            ExitCode.LOCKED,
        ) from None


def _show(
    outcome: "RunOutcome",
    *,
    as_json: bool,
    report: Path | None,
    contributors: "ContributorsPage | None" = None,
) -> None:
    from simulations.cli.console import result_table, stderr, stdout  # noqa: PLC0415 - when needed

    if report is not None and outcome.series is not None:
        from simulations.report.page import write_report  # noqa: PLC0415 - matplotlib, a second

        command = outcome.plan.command
        page = write_report(report, outcome.result, outcome.series, command, contributors)
        stderr().print(f"report: {page}", soft_wrap=True)
    if as_json:
        _print_json(outcome.result.to_json())
    else:
        stdout().print(result_table(outcome))


def _end(*outcomes: "RunOutcome") -> None:
    """Explain failures, add them to the tests, and end with the matching exit code."""
    failed = [outcome for outcome in outcomes if outcome.violation is not None]
    if not failed:
        return
    from simulations.cli.console import show_failure  # noqa: PLC0415 - when something failed

    for outcome in failed:
        show_failure(outcome)
    raise typer.Exit(VIOLATION)


def _end_early(ended: int, seeds: int, *, interrupted: bool) -> NoReturn:
    """Explain why a sweep has fewer results than requested."""
    count = f"{ended} of {seeds} seeds came to an end"
    if interrupted:
        raise NodeError(f"{count}, then the sweep was interrupted", ExitCode.INTERRUPTED)
    raise NodeError(
        f"{count}, the other processes were killed: if memory is short, use fewer --processes",
        ExitCode.RETRY,
    )


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise NodeError(f"{path}: {error}", ExitCode.USAGE) from None
    if not isinstance(values, dict):
        raise NodeError(f"{path}: not the result of a simulation", ExitCode.USAGE)
    return values


def _print_json(values: object) -> None:
    typer.echo(json.dumps(values, indent=2))
