"""A recipe with outer steps: `run create`, its summary, its needs, and settings without a bound."""

import json
import math

import pytest
from rich.console import Console

from node.cli.main import main
from node.founding.needs import estimate, needs_of
from node.founding.recipes import read_recipe
from node.founding.summary import describe, version_seconds, workers_to_wait_for
from node.founding.trial import Cost, Trial
from node.local.run_words import run_words
from protocol.core.crypto import verify
from protocol.run.manifest import load_signed_manifest
from protocol.run.sections import OuterSection
from tests.roles.engines.huggingface import write_directory
from tests.worlds.messages import RECIPE, run_manifest

OUTER = '[grpo.outer]\ntrainers = 3\ninner_steps = 4\nmomentum = 0.5\nencoding = "float32"\n'


def recipe_with(directory, outer=OUTER, **changes):
    text = RECIPE.read_text()
    for old, new in changes.items():
        line = next(one for one in text.splitlines() if one.startswith(f"{old} = "))
        text = text.replace(line, f"{old} = {new}")
    path = directory / "outer.toml"
    path.write_text(f"{text}\n{outer}")
    return path


def create(directory, recipe, *options):
    model = write_directory(directory / "tiny")
    named = {"--model": model, "--recipe": recipe, "--out": directory / "run"}
    arguments = [str(one) for pair in named.items() for one in pair]
    return main(["run", "create", *arguments, *options])


def test_a_run_with_outer_steps_is_founded_and_described(tmp_path, capsys):
    recipe = recipe_with(tmp_path)
    assert create(tmp_path, recipe, "--uncalibrated", "--no-trial", "--trainers", "2") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "each from 4 steps of each of up to 3 trainers, each from 4 rollouts" in printed
    assert "Outer steps: " in printed
    path = tmp_path / "run" / "run.toml"
    manifest = load_signed_manifest(path.read_text(), verify).manifest
    expected = OuterSection(trainers=3, inner_steps=4, momentum=0.5, encoding="float32")
    assert manifest.grpo.outer == expected
    assert main(["run", "show", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["needs"]["round_bytes"] == shown["needs"]["difference_bytes"] > 0


def test_a_trial_makes_a_round(tmp_path, capsys):
    """Two steps in rounds of one step each: a third one would be refused in a single round.

    The mantissas of so small a model differ by more than the recipe allows on some CPUs.
    """
    outer = "[grpo.outer]\ntrainers = 2\ninner_steps = 1\n"
    wide = {"mantissa_error_mean_max": "1e6", "mantissa_error_median_max": "1e6"}
    recipe = recipe_with(tmp_path, outer, **wide)
    assert create(tmp_path, recipe, "--uncalibrated", "--json") == 0
    assert "trial" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        ({"adam_betas": "[0.9, 0.8]"}, "lower the first of grpo.adam_betas, or raise the second"),
        (
            {"weight_decay": "1.0", "learning_rate": "1e-2"},
            "grpo.updates_per_version, or inner_steps, learning_rate or momentum of grpo.outer",
        ),
    ],
)
def test_a_recipe_without_a_bound_is_refused_with_the_keys_to_change(
    tmp_path, capsys, changes, advice
):
    recipe = recipe_with(tmp_path, **changes)
    assert create(tmp_path, recipe) == 78
    error = capsys.readouterr().err.splitlines()[-1]
    assert f"{recipe}: grpo.outer: nodes have no bound on the movement of a weight" in error
    assert error.endswith(advice)
    assert not (tmp_path / "run").exists()


def test_a_round_of_too_many_rollouts_is_refused(tmp_path, capsys):
    outer = "[grpo.outer]\ntrainers = 8\ninner_steps = 9\n"  # 4 rollouts each
    assert create(tmp_path, recipe_with(tmp_path, outer)) == 78
    assert "a round takes at most 256 rollouts: lower" in capsys.readouterr().err


def run_with(trainers=4, **outer):
    grpo = {"outer": {"trainers": 3} | outer, "weight_decay": 0.0, "rollouts_per_step": 5}
    return run_manifest(trainers=trainers, grpo=grpo | {"rollouts_ahead": 3})


def test_needs_of_outer_steps():
    """Computed by hand for a model of a million weights and three trainers at the same time."""
    weights = 10**6
    run = run_with(inner_steps=2)
    plain = run.model_copy(update={"grpo": run.grpo.model_copy(update={"outer": None})})
    base, found = needs_of(plain, weights), needs_of(run, weights)
    file_bytes = weights + 4 * math.ceil(weights / 256)
    assert found.difference_bytes == pytest.approx(file_bytes, abs=4)
    assert found.round_bytes == 2 * found.difference_bytes
    assert found.host_bytes == 16 * weights + 3 * found.difference_bytes
    assert found.trainer_bytes == base.trainer_bytes, "of the device"
    differences = 3 * 3 * found.difference_bytes  # three rounds of three trainers
    assert found.trainer_disk_bytes - base.trainer_disk_bytes == 2 * (differences + 2 * 4 * weights)
    assert found.trainer_blob_bytes - base.trainer_blob_bytes == differences + 2 * 4 * weights
    assert (found.disk_bytes, found.blob_bytes) == (base.disk_bytes, base.blob_bytes)
    assert (found.step_flop, found.step_tokens) == (2 * base.step_flop, 2 * base.step_tokens)
    assert (base.host_bytes, base.difference_bytes, base.round_bytes) == (0, 0, 0)
    wide = needs_of(run_with(encoding="float32"), weights)
    assert wide.difference_bytes == 4 * weights
    assert needs_of(run_with(trainers=2), weights).round_bytes == found.difference_bytes


def shown(run):
    console = Console(width=300)
    with console.capture() as capture:
        console.print(describe(run, estimate(run)))
    return capture.get()


def test_only_a_run_with_outer_steps_shows_them():
    assert "Outer steps: " in shown(run_with())
    assert "Outer steps: " not in shown(run_manifest())
    assert "steps of each" not in dict(run_words(run_manifest()))["training"]


def test_a_version_takes_the_rollouts_of_all_trainers():
    cost = Cost(10.0, 0)
    trial = Trial(
        samples=1,
        reward_mean=0.5,
        cut_share=0.0,
        answer_tokens_mean=1.0,
        groups=1,
        groups_that_teach=1,
        rejected=(),
        unscored=(),
        worker=cost,
        validator=Cost(0.0, 0),
        trainer=Cost(20.0, 0),
        patch_bytes=1,
    )
    run = run_with(inner_steps=2)
    assert version_seconds(run, trial, 1) == 5 * 2 * 3 * 10
    assert workers_to_wait_for(run, trial) == 15
    assert version_seconds(run_with(trainers=2), trial, 1) == 5 * 2 * 2 * 10
    assert version_seconds(run_manifest(grpo={"rollouts_per_step": 5}), trial, 1) == 50


def test_packaged_recipes_have_one_trainer():
    assert read_recipe("testnet").grpo.outer is None
