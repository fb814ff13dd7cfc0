import pytest

from protocol.core.types import Version
from roles.engines.bootstrap.cold_start import cold_start
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.environments.base import environment, solved
from roles.environments.characters import Arithmetic
from roles.ports.engines import GenerationRequest, Policy
from tests.roles.engines.tiny import model, toploc

NARROW = model(initializer_range=0.05)


async def sampled_reward(policy, task, samples):
    engine = TransformersGenerationEngine(NARROW, toploc())
    await engine.load(policy)
    requests = [GenerationRequest(task.prompt(seed, None), seed * 31, 8) for seed in range(samples)]
    generations = await engine.generate(requests, 1.0)
    engine.close()
    return sum(task.score(seed, one.tokens) for seed, one in enumerate(generations)) / samples


@pytest.mark.parametrize("seed", [0, 1])
async def test_version_zero_is_right_a_third_of_the_time(tmp_path, seed):
    task = solved(environment("arithmetic"))
    made = cold_start(task, NARROW, seed, tmp_path / "p", learning_rate=2e-3)
    assert made.accuracy == pytest.approx(0.33, abs=0.005)
    policy = Policy(Version(0), made.digest, tmp_path / "p")
    assert 0.25 < await sampled_reward(policy, task, 1024) < 0.40


def test_a_cold_start_is_a_function_of_its_seed(tmp_path):
    task = solved(environment("arithmetic"))
    made = [
        cold_start(task, NARROW, seed, tmp_path / "p", target_accuracy=0.01) for seed in (5, 5, 6)
    ]
    assert made[0] == made[1] != made[2]


def test_version_zero_has_seen_prompts_like_those_of_the_run(tmp_path, monkeypatch):
    seen, prompt = {}, Arithmetic.prompt

    def noted(task, seed, length_target):
        seen[length_target] = None
        return prompt(task, seed, length_target)

    monkeypatch.setattr(Arithmetic, "prompt", noted)
    task = solved(environment("arithmetic"))
    cold_start(task, NARROW, 0, tmp_path / "p", target_accuracy=0.01, length_targets=(4, 8))
    assert set(seen) == {4, 8}


def test_a_task_that_is_not_learned_in_time_is_an_error(tmp_path):
    task = solved(environment("sorting"))
    with pytest.raises(ValueError, match="sorting was not learned within 4 steps"):
        cold_start(task, NARROW, 0, tmp_path / "p", steps_max=4)
    assert not (tmp_path / "p").exists()
