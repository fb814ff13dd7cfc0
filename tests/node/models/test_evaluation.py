import json

import pytest

from node.cli.main import main
from node.local.system import ThreadBackground
from node.models.evaluation import Decoding, Evaluation, EvaluationPlan
from node.models.evaluation_report import notes_of, table_of, values_of
from node.models.subject import EvaluatedModel
from node.models.tasks import own_task, problem_seeds
from protocol.core.types import PeerId
from protocol.rollout.assignment import assign
from roles.environments.base import END
from roles.environments.characters import Arithmetic
from tests.worlds.held_runs import TEXT, held_run
from tests.worlds.messages import run_manifest
from tests.worlds.text import needs_jail, write_rows

SUMS = Arithmetic()


class Calculator:
    """Model that solves the sums in ``knows``; a sample is wrong if its noise is odd."""

    positions = 64

    def __init__(self, knows):
        self._knows = knows

    def has_ended(self, tokens):
        return tokens[-1] == END

    def answers(self, requests, temperature):
        for place in reversed(range(len(requests))):  # in order of completion, not of the requests
            yield place, self._answer(requests[place], temperature)

    def _answer(self, request, temperature):
        one, other = map(int, SUMS.text(request.prompt).rstrip("=").split("+"))
        wrong = not self._knows(one, other) or (temperature and request.seed % 2)
        return (*SUMS.encode(str(one + other + bool(wrong))), END)


def subject(name, knows):
    return EvaluatedModel(name, None, None, RUN, lambda _: Calculator(knows), lambda: None)


RUN = run_manifest()

GREEDY = (Decoding(0.0),)


def evaluated(*subjects, problems=40, decodings=GREEDY, seed=0):
    plan = EvaluationPlan(decodings, problems, tokens_max=8, seed=seed)
    progress = []
    background = ThreadBackground()
    task = own_task(RUN, None)
    evaluation = Evaluation(
        subjects, [task], plan, background, lambda *values: progress.append(values[:2])
    )
    try:
        return evaluation.run(), progress
    finally:
        background.close()


def sums_of(seed, count):
    """Return the distinct problems of an evaluation with this seed."""
    found = {}
    for one in problem_seeds(seed):
        if len(found) == count:
            return list(found)
        left, right = SUMS.question(one).rstrip("=").split("+")
        found[int(left), int(right)] = None
    return []


EVEN = subject("even", lambda one, other: (one + other) % 2 == 0)
SMALL = subject("small", lambda one, other: one + other < 10)


def test_a_share_is_that_of_the_problems_that_a_model_solves():
    results, progress = evaluated(EVEN, SMALL)
    sums = sums_of(0, 40)
    even = [float((one + other) % 2 == 0) for one, other in sums]
    small = [float(one + other < 10) for one, other in sums]
    assert [list(one.passes) for one in results] == [even, small]
    assert [one.pass_at_1.value for one in results] == [sum(even) / 40, sum(small) / 40]
    assert results[0].versus is None
    assert results[1].versus.value == pytest.approx((sum(small) - sum(even)) / 40)
    assert results[1].versus.low < results[1].versus.value < results[1].versus.high
    assert progress[0] == (0, 80) and progress[-1] == (80, 80)


def test_samples_are_scored_each_and_averaged_by_problem():
    [greedy, sampled], _ = evaluated(EVEN, decodings=(Decoding(0.0), Decoding(1.0, samples=6)))
    assert set(greedy.passes) == {0.0, 1.0}
    shares = dict(zip(sums_of(0, 40), sampled.passes, strict=True))
    assert all(not share for (one, other), share in shares.items() if (one + other) % 2)
    assert 0.3 < sum(share for share in shares.values() if share) / sum(greedy.passes) < 0.7
    assert sampled.pass_at_1.value == pytest.approx(sum(sampled.passes) / 40)


def test_the_same_seed_asks_the_same_and_another_one_others():
    decodings = (Decoding(1.0, samples=4),)
    first, again, other = (evaluated(EVEN, decodings=decodings, seed=n)[0] for n in (3, 3, 4))
    assert first[0].passes == again[0].passes != other[0].passes


def test_problems_are_of_no_seed_that_a_run_draws():
    seeds = {next(problem_seeds(n)) for n in range(50)}
    assert len(seeds) == 50 and min(seeds) >= 2**64
    drawn = [assign(RUN, PeerId("worker"), slot) for slot in range(20)]
    assert max(one.problem_seed for slot in drawn for one in slot) < 2**64


def test_a_task_with_few_problems_is_asked_all_of_them_and_not_called_held_out():
    [result], _ = evaluated(EVEN, problems=150)
    assert len(result.passes) == 100  # sums of two digits
    assert not result.held_out
    assert "100 problems of seeds that no run draws, not held out" in notes_of([result])[0]
    [few], _ = evaluated(EVEN, problems=2)
    assert few.held_out


def test_the_report_has_values_and_a_table():
    results, _ = evaluated(EVEN, SMALL)
    first, second = values_of(results)
    assert json.loads(json.dumps(first)) == first
    assert (first["difference"], first["difference_interval"]) == (None, None)
    assert second["difference"] == results[1].versus.value
    table = table_of(results)
    assert [column.header for column in table.columns] == [
        "task", "answers", "model", "pass@1 [95 %]", "less even [95 %]", "tokens",
    ]  # fmt: skip
    assert list(table.columns[2].cells) == ["even", "small"]


# By script


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """Node of a run over characters, whose random models solve nothing."""
    return held_run(tmp_path_factory.mktemp("run"))


def evaluate(*options):
    return main(["eval", *map(str, options)])


def test_versions_of_a_data_directory_side_by_side(held, capsys):
    options = ("--data-dir", held.root, "--versions", "0,3", "--problems", "20", "--samples", "2")
    assert evaluate(*options, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["run_id"] == held.world.run_id.hex()
    found = [(one["version"], one["samples"], one["temperature"]) for one in printed["results"]]
    assert found == [(0, 1, 0.0), (3, 1, 0.0), (0, 2, 1.0), (3, 2, 1.0)]
    assert {one["problems"] for one in printed["results"]} == {20}
    assert {one["digest"] for one in printed["results"]} == {
        held.run.version(n).digest.hex() for n in (0, 3)
    }
    greedy = printed["results"][0]
    assert greedy["pass_at_1"] == 0 and greedy["interval"] == pytest.approx([0, 0.1611], abs=1e-4)
    assert printed["results"][1]["difference"] == 0
    assert evaluate(*options) == 0
    shown = capsys.readouterr()
    assert "less version 0" in shown.out and "arithmetic" in shown.out
    assert "evaluating: 0 of 120 answers" in shown.err


def test_an_exported_directory_is_evaluated_as_the_version_that_it_is(held, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["export", "--data-dir", str(held.root), "--out", str(out)]) == 0
    capsys.readouterr()
    assert evaluate("--model", out, "--problems", "10", "--json") == 0
    [of_directory] = json.loads(capsys.readouterr().out)["results"]
    assert evaluate("--data-dir", held.root, "--problems", "10", "--json") == 0
    [of_version] = json.loads(capsys.readouterr().out)["results"]
    named = {"model", "version", "digest"}
    assert {key: one for key, one in of_directory.items() if key not in named} == {
        key: one for key, one in of_version.items() if key not in named
    }
    assert of_directory["model"] == str(out)


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--versions", "0,1"), 78, "version 1 is not held in"),
        (("--versions", "new"), 2, "--versions new: give numbers, such as 0,12"),
        (("--tasks", "chess"), 2, "no task 'chess': use own, reasoning-gym:NAME, or with"),
        (("--tasks", "math"), 2, "--tasks math needs rows: add --dataset FILE"),
        (("--tasks", "reasoning-gym:chess"), 2, "'chess' is none of"),
        (("--no-greedy",), 2, "--no-greedy needs --samples"),
        (
            ("--dataset", "rows.csv"),
            2,
            "has no tokenizer for rows: the task of its run, arithmetic, is",
        ),
        pytest.param(
            ("--tasks", "reasoning-gym:gcd"),
            78,
            "the run's task arithmetic is over characters",
            marks=needs_jail,
        ),
        (("--model", "{base}"), 2, "belongs to no run: add the --data-dir of a node"),
        (("--model", "/nowhere"), 78, "/nowhere is not a Hugging Face directory"),
    ],
)
def test_refusals(held, capsys, options, code, said):
    options = [one.format(base=held.base) for one in options]
    where = () if "--model" in options else ("--data-dir", held.root)
    assert evaluate(*where, *options) == code
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and said in lines[0]


ROWS = [{"prompt": f"{n} + 1 = ?", "answer": str(n + 1)} for n in range(12)]


@needs_jail
def test_rows_that_the_run_learns_from_are_left_out(tmp_path, capsys):
    own = write_rows(tmp_path / "own.parquet", ROWS[:8])
    held = held_run(tmp_path / "run", dataset=own, environment=TEXT)
    others = write_rows(tmp_path / "others.parquet", ROWS[4:])
    options = ("--data-dir", held.root, "--tokens", "4", "--json")
    assert evaluate(*options) == 0
    [found] = json.loads(capsys.readouterr().out)["results"]
    assert (found["problems"], found["held_out"]) == (8, False)
    assert found["problems_from"] == "rows that the run learns from"
    assert evaluate(*options, "--dataset", others) == 0
    printed = capsys.readouterr()
    [found] = json.loads(printed.out)["results"]
    assert (found["problems"], found["held_out"], found["pass_at_1"]) == (4, True, 0)
    assert f"{others}: 4 rows are left out, the run learns from them" in printed.err
    assert evaluate(*options, "--dataset", own) == 78
    assert "the run learns from all rows of" in capsys.readouterr().err


@needs_jail
def test_a_generator_by_name_is_asked_of_any_model(tmp_path, capsys):
    held = held_run(tmp_path / "run", environment=TEXT | {"name": "reasoning-gym/gcd"})
    options = ("--problems", "3", "--tokens", "4", "--json")
    assert evaluate("--data-dir", held.root, "--dataset", "rows.csv") == 2
    assert "the run's task is reasoning-gym/gcd; add --tasks code or math" in (
        capsys.readouterr().err
    )
    task = ("--tasks", "reasoning-gym:basic_arithmetic")
    assert evaluate("--data-dir", held.root, *task, *options) == 0
    assert evaluate("--model", held.base, *task, *options) == 0
    printed = capsys.readouterr().out
    assert printed.count('"task": "reasoning-gym/basic_arithmetic"') == 2
    assert printed.count('"held_out": true') == 2
