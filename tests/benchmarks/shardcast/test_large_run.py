"""``benchmarks/shardcast/large_run.py``: the simulated run matches its stated assumptions."""

from argparse import Namespace

import pytest
import tomlkit

from benchmarks.shardcast import large_run
from protocol.run.toml import load_recipe
from simulations.runtime.trace import Event
from simulations.scenario.scenario import parse_scenario

OPTIONS = Namespace(versions=4, state_gigabytes=372.0, seed=1)


@pytest.mark.parametrize("lines", large_run.LINES)
def test_the_scenario_is_the_recipes_run(lines):
    scenario = parse_scenario(tomlkit.dumps(large_run.scenario(lines, 1.0, OPTIONS)))
    recipe, theirs = scenario.recipe(), load_recipe(large_run.RECIPE.read_text())
    for section in ("sampling", "grpo", "committee", "epochs", "shardcast"):
        assert getattr(recipe, section) == getattr(theirs, section)
    worker, checker, learner = scenario.compute
    step_tokens = learner.train_tokens_per_second * 22 * 60
    assert step_tokens == pytest.approx(128 * 32 * 13)  # rollouts, sequences, tokens with the end
    assert 100 * worker.generate_tokens_per_second > learner.train_tokens_per_second
    assert checker.check_tokens_per_second * 20 == pytest.approx(step_tokens / 128)
    assert learner.weights_seconds(scenario.workload.weights_bytes) == 62
    assert learner.weights_seconds(scenario.workload.state_bytes) == 372
    # Time for the requested steps, and for the trainer's write after each.
    assert scenario.seconds > 4 * (22 * 60 + 62 + 372)
    home = next(line for line in scenario.lines if "inference" in line.roles)
    assert (home.upload_mbit, home.download_mbit) in {(590, 590), (40, 100)}


def test_a_pause_is_what_lies_between_two_steps():
    history = large_run.History()
    for at, seconds in ((100.0, 40.0), (160.0, 50.0), (240.0, 40.0)):
        history.see(Event(at, "trainer-0", "trained", {"seconds": seconds}))
    assert history.pauses == [10.0, 40.0]
