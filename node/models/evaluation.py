"""Evaluation of models on the same problems: pass@1 with greedy decoding, sampling, or both."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from node.local.errors import ExitCode, NodeError
from node.models.subject import EvaluatedModel
from node.models.tasks import EvaluationTask, problem_seeds
from protocol.core.rng import Rng
from protocol.rollout.evaluation import Estimate, difference, share
from roles.ports.background import Background
from roles.ports.engines import (
    Answer,
    EngineError,
    Environment,
    GenerationRequest,
    Score,
    Unscorable,
)

if TYPE_CHECKING:
    from roles.engines.local_model import LocalModel

DRAWS_PER_PROBLEM = 16
"""Seeds tried per new problem: a task may have few different ones."""

SCORED_TOGETHER = 64
"""Answers per scoring batch, about as many as in a rollout."""

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, slots=True)
class Decoding:
    """Decoding: ``samples`` per problem, greedy at a temperature of 0."""

    temperature: float
    samples: int = 1

    @property
    def name(self) -> str:
        """Name in tables."""
        if not self.temperature:
            return "greedy"
        return f"{self.samples} at T={self.temperature:g}"


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Size and decodings of an evaluation; ``tokens_max`` limits each answer."""

    decodings: Sequence[Decoding]
    problems: int
    tokens_max: int
    seed: int = 0
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Result of one model on one task in one decoding."""

    task: EvaluationTask
    decoding: Decoding
    subject: EvaluatedModel
    passes: tuple[float, ...]
    """Share of answers that score 1, per problem."""
    pass_at_1: Estimate
    score_mean: float
    tokens_mean: float
    cut_share: float
    """Share of answers without an end token."""
    held_out: bool
    """True if the run learned from none of the problems, as far as known."""
    unscored: int
    """Number of answers on which honest machines may disagree; they do not pass."""
    versus: Estimate | None = None
    """Difference to the first model, for other models."""


class Problem(NamedTuple):
    """Problem of a task: its seed and length target, if any."""

    seed: int
    length_target: int | None


class Problems(NamedTuple):
    """Different problems of a task; ``repeats`` counts the seeds that repeated one."""

    different: list[Problem]
    repeats: int

    def are_held_out(self, task: EvaluationTask) -> bool:
        """Return whether a run trains on none of them: if seeds repeat problems, a run does."""
        return task.held_out and not (task.is_generated and self.repeats)


class Evaluation:
    """Evaluation of models on tasks."""

    def __init__(
        self,
        subjects: Sequence[EvaluatedModel],
        tasks: Sequence[EvaluationTask],
        plan: EvaluationPlan,
        background: Background,
        progress: Progress,
    ) -> None:
        self._subjects = subjects
        self._tasks = tasks
        self._plan = plan
        self._background = background
        self._progress = progress
        self._began_at = 0.0
        self._done = self._total = 0

    def run(self) -> list[EvaluationResult]:
        """Return a result for each task, decoding and model; raises ``NodeError``."""
        try:
            return asyncio.run(self._run())
        except (EngineError, ValueError) as error:
            raise NodeError(f"the evaluation failed: {error}", ExitCode.CONFIG) from None

    async def _run(self) -> list[EvaluationResult]:
        self._began_at = _now()
        problems = [await self._problems(task) for task in self._tasks]
        answers = sum(one.samples for one in self._plan.decodings) * len(self._subjects)
        self._total = answers * sum(len(one.different) for one in problems)
        self._note(0)
        found: dict[tuple[int, int], list[EvaluationResult]] = {}
        for subject in self._subjects:
            for key, result in (await self._results(subject, problems)).items():
                results = found.setdefault(key, [])
                results.append(_compared(result, results))
        return [one for key in sorted(found) for one in found[key]]

    async def _results(
        self, subject: EvaluatedModel, problems: Sequence[Problems]
    ) -> dict[tuple[int, int], EvaluationResult]:
        """Return the results of a model by task and decoding; it is loaded only meanwhile."""
        model = subject.loaded(self._plan.device)
        found = {}
        for place, task in enumerate(self._tasks):
            async with self._opened(task, subject) as environment:
                for order, decoding in enumerate(self._plan.decodings):
                    asking = _Asking(environment, model, self._plan, decoding, self._note)
                    found[place, order] = await asking.result(task, subject, problems[place])
        return found

    @asynccontextmanager
    async def _opened(
        self, task: EvaluationTask, subject: EvaluatedModel
    ) -> AsyncIterator[Environment]:
        """Yield an opened task with a model's tokenizer."""
        from roles.environments.text import TextTask  # noqa: PLC0415 - tasks may be heavy

        environment = task.environment(subject.read_tokenizer, self._background)
        try:
            await environment.open()
            yield environment
        finally:
            if isinstance(environment, TextTask):
                await environment.close()

    async def _problems(self, task: EvaluationTask) -> Problems:
        """Draw different problems: the plan's number, or all if there are fewer."""
        wanted, targets = self._plan.problems, cycle(task.length_targets)
        drawn = 0
        found: dict[tuple[int, ...], Problem] = {}
        async with self._opened(task, self._subjects[0]) as environment:
            for seed in islice(problem_seeds(self._plan.seed), DRAWS_PER_PROBLEM * wanted):
                if len(found) == wanted:
                    break
                problem = Problem(seed, next(targets))
                found.setdefault(await environment.prompt(*problem), problem)
                drawn += 1
        return Problems([*found.values()], drawn - len(found))

    def _note(self, answers: int) -> None:
        self._done += answers
        self._progress(self._done, self._total, _now() - self._began_at)


class _Asking:
    def __init__(
        self,
        environment: Environment,
        model: "LocalModel",
        plan: EvaluationPlan,
        decoding: Decoding,
        note: Callable[[int], None],
    ) -> None:
        self._environment = environment
        self._model = model
        self._plan = plan
        self._decoding = decoding
        self._note = note

    async def result(
        self, task: EvaluationTask, subject: EvaluatedModel, problems: Problems
    ) -> EvaluationResult:
        """Generate and score the answers to all problems."""
        samples = self._decoding.samples
        asked = [one for one in problems.different for _ in range(samples)]
        answers = self._answers(await self._requests(problems.different))
        scores = await self._scores(asked, answers)
        known = [0.0 if isinstance(one, Unscorable) else min(1.0, max(0.0, one)) for one in scores]
        passed = [float(one == 1.0) for one in known]
        passes = tuple(fmean(passed[at : at + samples]) for at in range(0, len(passed), samples))
        return EvaluationResult(
            task,
            self._decoding,
            subject,
            passes,
            pass_at_1=share(passes, samples),
            score_mean=fmean(known),
            tokens_mean=fmean(map(len, answers)),
            cut_share=fmean(not self._model.has_ended(one) for one in answers),
            held_out=problems.are_held_out(task),
            unscored=sum(isinstance(one, Unscorable) for one in scores),
        )

    async def _requests(self, problems: Sequence[Problem]) -> list[GenerationRequest]:
        """Return the generation requests, with the same noise for all models."""
        requests = []
        for place, problem in enumerate(problems):
            prompt = await self._environment.prompt(*problem)
            room = self._model.positions - len(prompt)
            if room < 1:
                raise ValueError(
                    f"a prompt of {self._environment.name} takes {len(prompt):,} of the model's "
                    f"{self._model.positions:,} positions"
                )
            draws = Rng(self._plan.seed.to_bytes(8, "big")).child(f"noise of problem {place}")
            tokens_max = min(self._plan.tokens_max, room)
            requests += [
                GenerationRequest(prompt, draws.bits64(), tokens_max)
                for _ in range(self._decoding.samples)
            ]
        return requests

    def _answers(self, requests: Sequence[GenerationRequest]) -> list[tuple[int, ...]]:
        answers: dict[int, tuple[int, ...]] = {}
        for place, tokens in self._model.answers(requests, self._decoding.temperature):
            answers[place] = tokens
            self._note(1)
        return [answers[place] for place in range(len(requests))]

    async def _scores(
        self, problems: Sequence[Problem], answers: Sequence[tuple[int, ...]]
    ) -> list[Score]:
        told = [Answer(one.seed, tokens) for one, tokens in zip(problems, answers, strict=True)]
        scores: list[Score] = []
        for at in range(0, len(told), SCORED_TOGETHER):
            scores += await self._environment.score_batch(told[at : at + SCORED_TOGETHER])
        return scores


def _compared(result: EvaluationResult, before: Sequence[EvaluationResult]) -> EvaluationResult:
    """Return a result with its difference to the first model's, if there is one."""
    if not before:
        return result
    samples = result.decoding.samples
    return replace(result, versus=difference(before[0].passes, result.passes, samples))


def _now() -> float:
    return asyncio.get_running_loop().time()
