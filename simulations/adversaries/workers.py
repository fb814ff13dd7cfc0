"""Dishonest workers over the ports alone, shared by testnets and simulations."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from typing_extensions import override

from protocol.core.rng import Rng
from protocol.run.manifest import RunManifest
from roles.environments.base import END
from roles.ports.engines import (
    Answer,
    Engines,
    Generation,
    GenerationEngine,
    GenerationRequest,
    Policy,
    Score,
    Unscorable,
)
from roles.ports.swarm import RefusedError
from simulations.adversaries.adaptive import adaptive_choice
from simulations.adversaries.passthrough import (
    OtherEngines,
    PassingEnvironment,
    PassingGeneration,
)

_FIRST_CHARACTER = 2
"""Tokens 0 and 1 are padding and end."""

_WORD_BYTES = 2


class PolicyCopies(Protocol):
    """Policies that a dishonest worker keeps or makes, beside those of its node."""

    def keep(self, policy: Policy) -> Policy:
        """Copy a policy: the node deletes its own file when the version is old."""

    def perturb(self, policy: Policy) -> Policy:
        """Make another policy of the same form and almost the same skill."""

    def discard(self, policy: Policy) -> None:
        """Delete a copy."""


WorkerBehaviour = Callable[[Engines, PolicyCopies, Rng], Engines]
"""Replaces engines of an honest worker."""


class StaleWeights(PassingGeneration):
    """Generates with the policy before the claimed one: saves every other download."""

    def __init__(self, honest: GenerationEngine, copies: PolicyCopies) -> None:
        super().__init__(honest)
        self._copies = copies
        self._previous: Policy | None = None

    @override
    async def load(self, policy: Policy) -> None:
        previous = self._previous
        if previous is None or previous.digest != policy.digest:
            self._previous = self._copies.keep(policy)
        if previous is None or previous.digest == policy.digest:
            raise RefusedError(f"no policy before version {policy.version} seen yet")
        await super().load(previous)
        self._copies.discard(previous)


class OtherWeights(PassingGeneration):
    """Generates with almost the claimed weights, as a cheaper copy would."""

    def __init__(self, honest: GenerationEngine, copies: PolicyCopies) -> None:
        super().__init__(honest)
        self._copies = copies

    @override
    async def load(self, policy: Policy) -> None:
        await super().load(self._copies.perturb(policy))


class EditedTokens(PassingGeneration):
    """Contents one token of every answer after generation and keeps the proofs."""

    def __init__(self, honest: GenerationEngine, vocabulary_size: int) -> None:
        super().__init__(honest)
        self._characters = vocabulary_size - _FIRST_CHARACTER

    @override
    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        honest = await super().generate(requests, temperature)
        return [replace(item, tokens=self._edited(item.tokens)) for item in honest]

    def _edited(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        place = next((index for index, token in enumerate(tokens) if token != END), None)
        if place is None:
            return tokens
        other = (tokens[place] - _FIRST_CHARACTER + 1) % self._characters + _FIRST_CHARACTER
        return (*tokens[:place], other, *tokens[place + 1 :])


class ForgedProofs(PassingGeneration):
    """Sends random proofs of the right form: saves keeping the states."""

    def __init__(self, honest: GenerationEngine, rng: Rng) -> None:
        super().__init__(honest)
        self._rng = rng

    @override
    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        honest = await super().generate(requests, temperature)
        return [replace(item, proofs=tuple(map(self._forged, item.proofs))) for item in honest]

    def _forged(self, proof: bytes) -> bytes:
        """Return random coefficients; the modulus and unused ones stay."""
        words = [proof[at : at + _WORD_BYTES] for at in range(0, len(proof), _WORD_BYTES)]
        forged = (self._coefficient() if any(word) else word for word in words[1:])
        return b"".join((*words[:1], *forged))

    def _coefficient(self) -> bytes:
        from protocol.toploc.field import PRIME  # noqa: PLC0415 - numpy, which only this needs

        return (1 + self._rng.below(PRIME - 1)).to_bytes(_WORD_BYTES, "big")


class ForgedRewards(PassingEnvironment):
    """Swaps right and wrong in its claimed rewards."""

    @override
    async def score_batch(self, answers: Sequence[Answer]) -> list[Score]:
        scores = await super().score_batch(answers)
        return [one if isinstance(one, Unscorable) else 1.0 - one for one in scores]


def stale_weights(honest: Engines, copies: PolicyCopies, _rng: Rng) -> Engines:
    """Generate with the policy before the claimed one."""
    return OtherEngines(honest, generation=lambda engine, _: StaleWeights(engine, copies))


def other_weights(honest: Engines, copies: PolicyCopies, _rng: Rng) -> Engines:
    """Generate with other weights than the claimed ones."""
    return OtherEngines(honest, generation=lambda engine, _: OtherWeights(engine, copies))


def edited_tokens(honest: Engines, _copies: PolicyCopies, _rng: Rng) -> Engines:
    """Change a token of each sequence after it was sampled."""

    def editing(engine: GenerationEngine, manifest: RunManifest) -> GenerationEngine:
        return EditedTokens(engine, manifest.model.vocabulary_size)

    return OtherEngines(honest, generation=editing)


def forged_rewards(honest: Engines, _copies: PolicyCopies, _rng: Rng) -> Engines:
    """Claim that right answers are wrong and wrong ones right."""
    return OtherEngines(honest, environment=lambda task, _: ForgedRewards(task))


def forged_proofs(honest: Engines, _copies: PolicyCopies, rng: Rng) -> Engines:
    """Send random numbers as proofs."""
    return OtherEngines(honest, generation=lambda engine, _: ForgedProofs(engine, rng))


WORKER_BEHAVIOURS: dict[str, WorkerBehaviour] = {
    "stale-weights": stale_weights,
    "other-weights": other_weights,
    "edited-tokens": edited_tokens,
    "forged-rewards": forged_rewards,
    "forged-proofs": forged_proofs,
    "adaptive-choice": adaptive_choice,
}
