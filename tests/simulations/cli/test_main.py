"""Simulation commands, on a very short scenario or on results from a file."""

import dataclasses
import inspect
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from node.cli import loading
from node.cli.main import main
from simulations.checkers import Violation
from simulations.cli import console
from simulations.cli import main as cli
from simulations.cli.comparison import differences, flattened, plan_of, summarise
from simulations.metrics.numbers import (
    GossipNumbers,
    LedgerNumbers,
    RolloutNumbers,
    RunResult,
    WeightsNumbers,
)
from simulations.study import regressions
from simulations.study.study import RunOutcome, RunPlan, resized
from simulations.study.sweep import Sweep


def result(**changes) -> RunResult:
    values = {
        "plan": {"scenario": "quiet-20", "seed": 1},
        "scenario": "quiet-20",
        "seed": 1,
        "nodes": 20,
        "virtual_s": 600.0,
        "wall_s": 2.0,
        "events": 1000,
        "trace_digest": "aa",
        "rollouts": RolloutNumbers(100, 90, 0, 5, 5),
        "certified_false": 0,
        "contradictory_certificates": 0,
        "conflicting_final_pages": 0,
        "final_gap_epochs_p50": 2,
        "final_gap_epochs_p99": 3,
        "ledger": LedgerNumbers(7, 1400, 14, 1, 2),
        "committee_agreement": 1.0,
        "gossip": GossipNumbers(0.2, 0.5, 3.0),
        "weights": WeightsNumbers(10, 1.2, 1.5, 2.0, 9.0, 11, 10_000),
        "trainer_idle_share": 0.05,
        "versions_published": 10,
        "peak_rss_mb": 100,
        "violations": (),
    }
    return RunResult(**(values | changes))


VIOLATION = Violation("one-chain", 12.5, "relay-0", "version 1 exists [twice]", ("0.0 a cause",))


def kept(plan):
    """Return the fields of a plan in the output of ``run --json``."""
    return json.loads(json.dumps(result(plan=dataclasses.asdict(plan)).to_json()))


@pytest.fixture
def prime_node(monkeypatch, capsys, tmp_path):
    """Run ``prime-node simulate …`` in an empty folder; return exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    entry = loading.EntryPoint("simulate", "simulations.cli.main:app", loading.GROUP)
    monkeypatch.setattr(loading, "entry_points", lambda group: [entry] if group else [])
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        code = main(["simulate", *map(str, arguments)])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


@pytest.fixture
def outcomes(monkeypatch):
    """Give every run a prepared outcome; return the plans that were run."""
    asked = SimpleNamespace(plans=[], result=result())

    def run_plan(plan, **_options):
        asked.plans.append(plan)
        return RunOutcome(plan, asked.result, None)

    monkeypatch.setattr(console, "run_plan", run_plan)
    return asked


# Commands


def test_the_scenarios_are_listed(prime_node):
    code, output, _ = prime_node("list")
    assert code == 0
    assert "quiet-20" in output
    code, output, _ = prime_node("list", "--json")
    rows = json.loads(output)
    assert {"name", "nodes", "minutes", "description"} == set(rows[0])
    assert "quiet-20" in [row["name"] for row in rows]


def test_a_run_shows_its_numbers(prime_node, outcomes):
    code, output, _ = prime_node("run", "quiet-20", "--seed", 4, "--nodes", 30, "--minutes", 2)
    assert code == 0
    assert outcomes.plans == [RunPlan("quiet-20", 4, 30, 2.0)]
    assert "rollouts.certified" in output
    assert "all held" in output


def test_a_run_prints_json_and_nothing_else(prime_node, outcomes):
    code, output, _ = prime_node("run", "quiet-20", "--json")
    assert code == 0
    assert json.loads(output) == json.loads(json.dumps(result().to_json()))


def test_a_violation_ends_with_1_and_says_how_to_repeat_it(prime_node, outcomes):
    outcomes.result = result(violations=(VIOLATION,))
    code, _, errors = prime_node("run", "quiet-20", "--seed", 4)
    assert code == 1
    assert "prime-node simulate run quiet-20 --seed 4\n" in errors
    assert "version 1 exists [twice]" in errors
    assert "a cause" in errors
    assert "[[regression]]" in errors  # no checkout here


def test_a_violation_adds_itself_to_the_checkout(prime_node, outcomes, tmp_path):
    file = tmp_path / regressions.FILE
    file.parent.mkdir()
    file.write_text("# seeds\n")
    outcomes.result = result(violations=(VIOLATION,))
    for _ in range(2):
        assert prime_node("run", "quiet-20", "--seed", 4)[0] == 1
    (kept,) = regressions.load_regressions(file)
    assert kept.plan == RunPlan("quiet-20", 4)
    assert kept.rule == "one-chain"
    assert kept.what == VIOLATION.what


def test_a_violation_of_a_scenario_of_ones_own_is_not_kept_for_others(
    prime_node, outcomes, tmp_path
):
    file = tmp_path / regressions.FILE
    file.parent.mkdir()
    file.write_text("# seeds\n")
    own = tmp_path / "own.toml"
    own.write_text('extends = "quiet-20"\nname = "own"\ndescription = "x"\n')
    outcomes.result = result(violations=(VIOLATION,))
    code, _, errors = prime_node("run", own, "--seed", 4)
    assert code == 1
    assert "[[regression]]" in errors
    assert regressions.load_regressions(file) == []


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["run", "no-such"], 78, "no-such"),
        (["run", "no-such.toml"], 78, "no-such.toml"),
        (["run"], 2, "scenario"),
        (["run", "quiet-20", "--nodes", "many"], 2, "--nodes"),
        (["frobnicate"], 2, "frobnicate"),
        (["sweep", "no-such"], 78, "no-such"),
        (["compare", "a.json", "b.json"], 2, "a.json"),
        (["repeat", "a.json"], 2, "a.json"),
        (["repeat", "a.toml"], 2, "a.toml"),
        ([], 2, "list, run, sweep, compare, repeat"),
    ],
)
def test_mistakes_end_with_the_right_code(prime_node, arguments, code, word):
    assert prime_node(*arguments)[0] == code
    _, _, errors = prime_node(*arguments)
    assert word in errors


def test_a_scenario_with_an_unknown_key_names_it(prime_node, tmp_path):
    (tmp_path / "mine.toml").write_text(
        'name = "mine"\ndescription = "x"\nminutes = 1\n[nodes]\nrelais = 1\n'
    )
    code, _, errors = prime_node("run", "mine.toml")
    assert code == 78
    assert "nodes.relais" in errors


def test_a_sweep_runs_every_seed(prime_node, monkeypatch):
    plans = []

    def show_sweep(asked, _processes):
        plans.extend(asked)
        return Sweep(
            tuple(RunOutcome(plan, result(seed=plan.seed), None) for plan in asked),
            interrupted=False,
        )

    monkeypatch.setattr(console, "show_sweep", show_sweep)
    code, output, _ = prime_node("sweep", "quiet-20", "--seeds", 3, "--first-seed", 7, "--json")
    assert code == 0
    assert [plan.seed for plan in plans] == [7, 8, 9]
    values = json.loads(output)
    assert [run["seed"] for run in values["runs"]] == [7, 8, 9]
    assert values["summary"]["rollouts.certified"] == {"median": 90, "min": 90, "max": 90}
    code, output, _ = prime_node("sweep", "quiet-20", "--seeds", 2)
    assert output.count("held") == 2


def test_a_sweep_runs_its_seeds_in_processes_and_keeps_their_order(prime_node):
    options = ("--seeds", 2, "--first-seed", 3, "--nodes", 8, "--minutes", 1, "--processes", 2)
    code, output, _ = prime_node("sweep", "quiet-20", *options, "--json")
    assert code == 0
    runs = json.loads(output)["runs"]
    assert [(run["seed"], run["nodes"], run["virtual_s"]) for run in runs] == [
        (3, 8, 60.0),
        (4, 8, 60.0),
    ]
    code, output, _ = prime_node("run", "quiet-20", "--seed", 4, *options[4:8], "--json")
    assert code == 0
    assert json.loads(output)["trace_digest"] == runs[1]["trace_digest"]


def test_a_sweep_fails_when_a_seed_does(prime_node, monkeypatch):
    def show_sweep(asked, _processes):
        results = (
            result(seed=plan.seed, violations=(VIOLATION,) * (plan.seed == 1)) for plan in asked
        )
        outcomes = (
            RunOutcome(plan, values, None) for plan, values in zip(asked, results, strict=True)
        )
        return Sweep(tuple(outcomes), interrupted=False)

    monkeypatch.setattr(console, "show_sweep", show_sweep)
    code, _, errors = prime_node("sweep", "quiet-20", "--seeds", 3)
    assert code == 1
    assert errors.count("repeat it:") == 1
    assert "--seed 1" in errors


def test_two_results_are_compared(prime_node, tmp_path):
    for name, certified in (("base", 90), ("new", 99)):
        values = result(rollouts=RolloutNumbers(100, certified, 0, 5, 5)).to_json()
        (tmp_path / f"{name}.json").write_text(json.dumps(values))
    code, output, _ = prime_node("compare", "base.json", "new.json")
    assert code == 0
    assert "+10.0%" in output
    _, output, _ = prime_node("compare", "base.json", "new.json", "--json")
    assert json.loads(output)["rollouts.certified"] == {"base": 90, "new": 99}


def test_a_result_is_repeated_and_compared_by_its_trace(prime_node, outcomes, tmp_path):
    file = tmp_path / "result.json"
    file.write_text(json.dumps(kept(RunPlan("quiet-20", 9))))
    code, _, errors = prime_node("repeat", file)
    assert code == 0
    assert "the trace is the same" in errors
    assert outcomes.plans == [RunPlan("quiet-20", 9)]
    file.write_text(json.dumps({**kept(RunPlan("quiet-20", 9)), "trace_digest": "bb"}))
    code, _, errors = prime_node("repeat", file)
    assert code == 1
    assert "the trace differs" in errors


def test_regressions_are_repeated(prime_node, outcomes, tmp_path):
    file = tmp_path / "mine.toml"
    entries = [regressions.Regression(RunPlan("quiet-20", seed), "r", "w") for seed in (3, 5)]
    file.write_text("".join(entry.to_toml() for entry in entries))
    assert prime_node("repeat", file)[0] == 0
    assert [plan.seed for plan in outcomes.plans] == [3, 5]


def test_help_of_every_node_command_does_not_load_the_simulator():
    assert loading.summary(
        loading.EntryPoint("simulate", "simulations.cli.main:app", loading.GROUP)
    ).startswith("Study the protocol")
    code = "import sys, simulations.cli.main; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(cli.__file__).parents[2],
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert not loaded & {"matplotlib", "numpy", "pydantic", "torch", "hivemind", "msgpack"}


# Small parts


def test_a_plan_knows_its_command():
    assert RunPlan("a b.toml", 3).command == "prime-node simulate run 'a b.toml' --seed 3"
    command = RunPlan("quiet-20", 0, 30, 2.5).command
    assert command == "prime-node simulate run quiet-20 --seed 0 --nodes 30 --minutes 2.5"


@pytest.mark.parametrize("total", [8, 20, 100, 1000])
def test_another_size_keeps_the_proportions(total):
    nodes = resized(RunPlan("quiet-20").load().nodes, total)
    assert nodes.total == total
    assert nodes.trainer == 1
    assert nodes.validator >= 4
    loaded = RunPlan("quiet-20", nodes=total, minutes=3).load()
    assert (loaded.nodes, loaded.minutes) == (nodes, 3)


@pytest.mark.parametrize("values", [{}, {"plan": {"seed": 1}}, {"plan": 3}])
def test_a_result_without_a_plan_says_what_it_lacks(values):
    with pytest.raises(ValueError, match="it lacks"):
        plan_of(values)


def full_plan():
    """Return a plan in which every field differs from its default, including future fields."""
    values = {int: 7, int | None: 23, float | None: 0.12345678, str: "sybil-joining"}
    return RunPlan(**{each.name: values[each.type] for each in dataclasses.fields(RunPlan)})


def test_every_option_that_changes_a_run_is_kept_and_repeated(prime_node, outcomes, tmp_path):
    """By the printed command, by a result, and by a regression entry."""
    plan = full_plan()
    parameters = set(inspect.signature(cli.run).parameters) - {"as_json", "report"}
    assert parameters == {each.name for each in dataclasses.fields(RunPlan)}
    assert prime_node(*shlex.split(plan.command)[2:])[0] == 0
    (tmp_path / "result.json").write_text(json.dumps(kept(plan)))
    assert prime_node("repeat", "result.json")[0] == 0
    entry = regressions.Regression(plan, "r", "w").to_toml()
    (tmp_path / "regressions.toml").write_text(entry)
    assert prime_node("repeat", "regressions.toml")[0] == 0
    assert outcomes.plans == [plan] * 3


def test_a_repeated_run_has_the_same_trace(prime_node):
    options = ("--nodes", 8, "--minutes", 0.5, "--worker-speed", 3.7)
    code, output, _ = prime_node("run", "quiet-20", *options, "--json")
    assert code == 0
    Path("result.json").write_text(output)
    code, _, errors = prime_node("repeat", "result.json")
    assert (code, "the trace is the same" in errors) == (0, True)
    plain = prime_node("run", "quiet-20", *options[:4], "--json")[1]
    assert json.loads(plain)["trace_digest"] != json.loads(output)["trace_digest"]


def test_numbers_are_flattened_summarised_and_compared():
    flat = flattened(result().to_json())
    assert flat["gossip.coverage_p50_s"] == 0.2
    assert "violations" not in flat
    results = [result(trainer_idle_share=share).to_json() for share in (0.1, None, 0.5, 0.2)]
    assert summarise(results)["trainer_idle_share"] == {"median": 0.2, "min": 0.1, "max": 0.5}
    assert "trace_digest" not in summarise(results)
    sweep = {"runs": results}
    (idle,) = [row for row in differences(sweep, sweep) if row.name == "trainer_idle_share"]
    assert (idle.base, idle.change) == (0.2, 0.0)
    unknown = differences({"x": None, "y": 0, "z": "text"}, {"x": 1, "y": 1, "z": "text"})
    assert [row.change for row in unknown] == [None, None, None]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (True, "True"), (12345, "12,345"), (0.123456, "0.1235"), ("a" * 64, "a" * 16)],
)
def test_numbers_are_shown_short(value, text):
    assert console.number_text(value) == text


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (125.4, "2:05"), (3725, "1:02:05")])
def test_times_are_shown_as_a_clock(seconds, text):
    assert console.clock_text(seconds) == text


def test_a_report_that_cannot_be_written_is_told_before_the_run(prime_node, outcomes, tmp_path):
    """The run takes minutes, and its result would be lost."""
    (tmp_path / "file").write_text("")
    for directory in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        code, _, errors = prime_node("run", "quiet-20", "--report", directory)
        assert code == 73
        assert f"cannot write to --report {directory}: " in errors
    assert outcomes.plans == []
    assert prime_node("run", "quiet-20", "--report", tmp_path / "new" / "report")[0] == 0
    assert list((tmp_path / "new" / "report").iterdir()) == []
