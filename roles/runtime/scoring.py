"""Prompts and rewards of the run's task, for all sequences of a rollout at once.

A task is third-party code: every exception it raises becomes an ``EngineError``.
"""

from collections.abc import Sequence

from protocol.rollout.assignment import SequenceAssignment
from protocol.rollout.body import reward_of
from protocol.run.manifest import RunManifest
from roles.ports.engines import Answer, EngineError, Environment, Unscorable


class Task:
    """Prompts and rewards of assigned sequences."""

    def __init__(self, manifest: RunManifest, environment: Environment) -> None:
        self._manifest = manifest
        self._vocabulary_size = manifest.model.vocabulary_size
        self._environment = environment

    async def prompts(self, assignments: Sequence[SequenceAssignment]) -> list[tuple[int, ...]]:
        """Return a prompt for each; raises ``EngineError`` for an empty or invalid prompt."""
        prompts: dict[tuple[int, int | None], tuple[int, ...]] = {}
        try:
            for item in assignments:  # the sequences of a group share one problem
                problem = item.problem_seed, item.length_target
                if problem not in prompts:
                    prompts[problem] = await self._prompt(item)
        except Exception as error:  # noqa: BLE001 - somebody else's code
            raise EngineError.of(error) from None
        return [prompts[item.problem_seed, item.length_target] for item in assignments]

    async def _prompt(self, item: SequenceAssignment) -> tuple[int, ...]:
        prompt = await self._environment.prompt(item.problem_seed, item.length_target)
        # A token outside of the vocabulary breaks a GPU's context until the process ends, so such a
        # prompt never reaches the engine.
        if not prompt or not self._exist(prompt):
            raise ValueError(
                f"the prompt of problem {item.problem_seed} has no tokens or unknown ones"
            )
        return prompt

    async def rewards(
        self, assignments: Sequence[SequenceAssignment], answers: Sequence[Sequence[int]]
    ) -> list[int] | Unscorable:
        """Return the reward of each answer, in millionths; raises ``EngineError``.

        An answer with tokens outside of the vocabulary earns 0 without being scored. One answer
        without a score leaves the rollout without rewards: advantages compare a whole group.
        """
        known = {
            index: Answer(item.problem_seed, tuple(tokens))
            for index, (item, tokens) in enumerate(zip(assignments, answers, strict=True))
            if self._exist(tokens)
        }
        rewards = [0] * len(assignments)
        try:
            scores = await self._environment.score_batch([*known.values()])
            for (index, answer), score in zip(known.items(), scores, strict=True):
                if isinstance(score, Unscorable):
                    return Unscorable(f"sequence {index}: {score.reason}")
                item = assignments[index]
                rewards[index] = reward(self._manifest, score, item, len(answer.tokens))
        except Exception as error:  # noqa: BLE001 - somebody else's code
            raise EngineError.of(error) from None
        return rewards

    def _exist(self, tokens: Sequence[int]) -> bool:
        vocabulary_size = self._vocabulary_size
        return all(0 <= token < vocabulary_size for token in tokens)


def reward(manifest: RunManifest, score: float, assignment: SequenceAssignment, tokens: int) -> int:
    """Return the reward of a sequence, in millionths: its score less the length penalty.

    Every node clamps a score to 0 to 1, so that an invalid score of a task is the same everywhere.
    """
    bounded = min(1.0, max(0.0, score))
    return reward_of(manifest.sampling, bounded, tokens, assignment.length_target)
