import pytest

from protocol.core.rng import Rng
from protocol.core.types import Digest, Version
from protocol.rollout.statistics import Recomputed, measured
from protocol.toploc import ChunkResult
from roles.environments.characters import Arithmetic
from roles.environments.threaded import InBackground
from roles.ports.engines import Answer, Generation, GenerationRequest, Policy
from simulations.adversaries.adaptive import AdaptiveGeneration, RememberedProblems
from simulations.runtime.loop import SimBackground
from tests.worlds.messages import run_manifest

LIMIT = 1e-3
MANIFEST = run_manifest()
POLICY = Policy(Version(0), Digest(bytes(32)), None)
RIGHT_EVERY = 4
"""One of so many draws is right."""


class Sampler:
    """Answers right or wrong by the seed alone; a wrong answer is one too high."""

    def __init__(self, task):
        self.task = task

    async def load(self, policy):
        pass

    async def generate(self, requests, temperature):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        solution = self.task.solution(self.task.problems[request.prompt])
        right = request.seed % RIGHT_EVERY == 0
        tokens = solution if right else ((solution[0] - 1) % 10 + 2, *solution[1:])
        return Generation(tuple(tokens), (-0.5,) * len(tokens), (b"proof",))


class Verifier:
    """Finds every token but the sampled ones to be off by ``gap``."""

    def __init__(self, sampler, gap):
        self.sampler, self.gap = sampler, gap

    async def load(self, policy):
        pass

    async def measure(self, version, requests, temperature):
        return [self.one(request) for request in requests]

    def one(self, request):
        drawn = self.sampler.answer(request).tokens
        same = drawn == request.tokens
        gaps = [0.0 if same else self.gap, *[0.0] * (len(request.tokens) - 1)]
        own = Recomputed([ChunkResult(0, 1.0, 1.0)], request.logprobs, gaps)
        return measured(MANIFEST.toploc, request.logprobs, own)


class Task(RememberedProblems):
    def solution(self, seed):
        return Arithmetic().solution(seed)


async def played(gap, rollouts, *, plans=True, sequences=64):
    """Return how many answers of each rollout were changed, and how many could have been."""
    task = Task(InBackground(Arithmetic(), SimBackground()))
    sampler = Sampler(task)
    worker = AdaptiveGeneration(
        sampler, Verifier(sampler, gap), task, MANIFEST, Rng(b"adaptive"), plans=plans
    )
    await worker.load(POLICY)
    changed, wrong = [], []
    for rollout in range(rollouts):
        requests = [
            GenerationRequest(await task.prompt(rollout * sequences + seed, None), seed, 8)
            for seed in range(sequences)
        ]
        honest = await sampler.generate(requests, 1.0)
        made = await worker.generate(requests, 1.0)
        changed.append(sum(a != b for a, b in zip(honest, made, strict=True)))
        wrong.append(sum(request.seed % RIGHT_EVERY != 0 for request in requests))
        for request, one, other in zip(requests, honest, made, strict=True):
            if one != other:
                assert other.tokens == task.solution(task.problems[request.prompt])
    return changed, wrong


async def test_where_nothing_is_lost_every_wrong_answer_is_made_right():
    changed, wrong = await played(0.0, 1)
    assert changed[0] > 0.8 * wrong[0]


async def test_what_is_beyond_the_limit_of_one_token_is_never_claimed():
    assert (await played(2 * LIMIT, 2))[0] == [0, 0]


@pytest.mark.parametrize("plans", [True, False])
async def test_a_rollout_leaves_room_for_some_and_a_history_for_fewer(plans):
    changed, wrong = await played(LIMIT / 2, 12, plans=plans)
    assert 0 < changed[0] < wrong[0]
    assert sum(changed[-4:]) < 4 * changed[0]


async def test_a_task_remembers_which_problem_a_prompt_is_of():
    task = RememberedProblems(InBackground(Arithmetic(), SimBackground()))
    prompt = await task.prompt(7, None)
    assert task.problems[prompt] == 7
    assert await task.score_batch([Answer(7, Arithmetic().solution(7))]) == [1]
