"""A worker that uses all slack of the audit for tokens that raise its reward.

For every answer below the maximum reward it samples candidates with noise of its own. It measures
each as if sampled with the assigned noise, and applies the audit itself to the whole rollout and to
its last rollouts. It claims the better candidates that pass. States, proofs and log-probabilities
are those of the claimed tokens: only the choice of tokens is dishonest.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from protocol.core.containers import BoundedDict
from protocol.core.rng import Rng
from protocol.rollout.audit import Past, decide
from protocol.rollout.statistics import Measurement, Sums, of_rollout
from protocol.run.manifest import RunManifest
from roles.ports.engines import (
    Answer,
    Engines,
    Environment,
    Generation,
    GenerationEngine,
    GenerationRequest,
    Policy,
    Unscorable,
    VerificationEngine,
    claims_of,
)
from simulations.adversaries.passthrough import (
    OtherEngines,
    PassingEnvironment,
    PassingGeneration,
)

CANDIDATES = 8
"""Candidates per answer that could be better."""

PROBLEMS_MAX = 100_000
"""Remembered prompts."""


class RememberedProblems(PassingEnvironment):
    """A task that remembers the problem of each prompt."""

    def __init__(self, honest: Environment) -> None:
        super().__init__(honest)
        self.problems = BoundedDict[tuple[int, ...], int](PROBLEMS_MAX)

    @override
    async def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        prompt = await super().prompt(seed, length_target)
        self.problems[prompt] = seed
        return prompt


@dataclass(frozen=True, slots=True)
class _Choice:
    """A better answer to one request."""

    place: int
    gain: float
    cost: float
    generation: Generation
    measurement: Measurement


class AdaptiveGeneration(PassingGeneration):
    """Chooses among several answers; ``plans`` tries the cheapest gains first."""

    def __init__(
        self,
        honest: GenerationEngine,
        verification: VerificationEngine,
        task: RememberedProblems,
        manifest: RunManifest,
        rng: Rng,
        *,
        plans: bool = True,
    ) -> None:
        super().__init__(honest)
        self._verification = verification
        self._task = task
        self._manifest = manifest
        self._rng = rng
        self._plans = plans
        self._policy: Policy | None = None
        self._history = deque[Sums](maxlen=manifest.toploc.history_rollouts)

    @override
    async def load(self, policy: Policy) -> None:
        await super().load(policy)
        await self._verification.load(policy)
        self._policy = policy

    @override
    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        made = await super().generate(requests, temperature)
        if self._policy is None:
            return made
        found = await self._measured(requests, made, temperature)
        claims = [one.claim for one in claims_of(requests, made)]
        past = Past.of(self._history)
        for choice in await self._choices(requests, made, temperature):
            tried, told = [*found], [*claims]
            tried[choice.place] = choice.measurement
            told[choice.place] = requests[choice.place].prompt, choice.generation.tokens
            if decide(self._manifest, tried, told, past).accept:
                found, claims, made[choice.place] = tried, told, choice.generation
        self._history.append(of_rollout(found, claims))
        return made

    async def _choices(
        self, requests: Sequence[GenerationRequest], made: Sequence[Generation], temperature: float
    ) -> list[_Choice]:
        """Return better answers in the order of trial."""
        scores = await self._scores(requests, made)
        places = [place for place, score in enumerate(scores) if score < 1] * CANDIDATES
        other = [replace(requests[place], seed=self._rng.bits64()) for place in places]
        if not other:
            return []
        drawn = await super().generate(other, temperature)
        earned = await self._scores(other, drawn)
        better = [
            (place, score - scores[place], item)
            for place, item, score in zip(places, drawn, earned, strict=True)
            if score > scores[place]
        ]
        claimed = [requests[place] for place, *_ in better]
        measured = await self._measured(claimed, [item for *_, item in better], temperature)
        choices = [
            _Choice(place, gain, self._cost(own), item, own)
            for (place, gain, item), own in zip(better, measured, strict=True)
        ]
        order = (lambda one: one.cost / one.gain) if self._plans else (lambda one: one.place)
        return sorted(choices, key=order)

    def _cost(self, measurement: Measurement) -> float:
        """Return the largest share of a rollout's bound that a sequence uses."""
        rules = self._manifest.toploc
        return max(
            measurement.extremes.sampling_gap_max / rules.sampling_gap_max,
            measurement.extremes.logprob_error_max / rules.logprob_error_max,
        )

    async def _scores(
        self, requests: Sequence[GenerationRequest], made: Sequence[Generation]
    ) -> list[float]:
        """Return the scores of the task; none for a sequence that it cannot score."""
        answers = [
            Answer(self._task.problems[one.prompt], item.tokens)
            for one, item in zip(requests, made, strict=True)
        ]
        scores = await self._task.score_batch(answers)
        return [0.0 if isinstance(score, Unscorable) else score for score in scores]

    async def _measured(
        self, requests: Sequence[GenerationRequest], made: Sequence[Generation], temperature: float
    ) -> list[Measurement]:
        assert self._policy is not None
        return await self._verification.measure(
            self._policy.version, claims_of(requests, made), temperature
        )


def adaptive_choice(honest: Engines, _copies: object, rng: Rng) -> Engines:
    """Choose tokens that raise the reward as far as the audit accepts."""
    tasks: dict[str, RememberedProblems] = {}

    def remembering(task: Environment, manifest: RunManifest) -> RememberedProblems:
        return tasks.setdefault(manifest.environment.name, RememberedProblems(task))

    def choosing(engine: GenerationEngine, manifest: RunManifest) -> GenerationEngine:
        task = remembering(honest.environment(manifest), manifest)
        return AdaptiveGeneration(engine, honest.verification(manifest), task, manifest, rng)

    return OtherEngines(honest, generation=choosing, environment=remembering)
