"""The run's task as roles ask it: about many sequences at once, and never on the event loop.

A task is somebody else's code. It may take long, so it runs in the background; it may raise
anything, which is then an ``EngineError``, as when an engine breaks.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from protocol.assignment import SequenceAssignment
from protocol.manifest import RunManifest
from protocol.rollout import reward_of
from roles.flow import RoleContext
from roles.ports.engines import EngineError, Environment

T = TypeVar("T")


class Task:
    """Prompts and rewards of assigned sequences."""

    def __init__(self, context: RoleContext, environment: Environment) -> None:
        self._manifest = context.manifest
        self._background = context.background
        self._environment = environment

    async def prompts(self, assignments: Sequence[SequenceAssignment]) -> list[tuple[int, ...]]:
        """Return a prompt for each; raises ``EngineError`` for one that no model can take."""
        return await self._ask(lambda: [self._prompt(item) for item in assignments])

    def _prompt(self, item: SequenceAssignment) -> tuple[int, ...]:
        prompt = self._environment.prompt(item.problem_seed, item.length_target)
        # A device whose kernel meets a token that does not exist computes nothing more until this
        # process ends, so it is told before.
        if not prompt or not self._exist(prompt):
            raise ValueError(
                f"the prompt of problem {item.problem_seed} has no tokens or unknown ones"
            )
        return prompt

    async def rewards(
        self, assignments: Sequence[SequenceAssignment], answers: Sequence[Sequence[int]]
    ) -> list[int]:
        """Return what each answer earns, in millionths; raises ``EngineError``.

        Nothing for tokens that do not exist: tasks are not asked about them.
        """
        rewarded = partial(reward, self._manifest, self._environment)
        return await self._ask(
            lambda: [
                rewarded(item, tokens) if self._exist(tokens) else 0
                for item, tokens in zip(assignments, answers, strict=True)
            ]
        )

    def _exist(self, tokens: Sequence[int]) -> bool:
        return all(0 <= token < self._manifest.model.vocabulary_size for token in tokens)

    async def _ask(self, question: Callable[[], T]) -> T:
        def guarded() -> T:
            try:
                return question()
            except KeyboardInterrupt:  # a person's, where the background is the loop's own thread
                raise
            except BaseException as error:  # noqa: BLE001 - even ``exit()`` ends only the question
                raise EngineError.of(error) from None

        return await self._background.run(guarded)


def reward(
    manifest: RunManifest,
    environment: Environment,
    assignment: SequenceAssignment,
    tokens: Sequence[int],
) -> int:
    """Return what a sequence earns, in millionths: what the task gives it, less the length's cost.

    A task that gives what it may not (or no number) is held to its bounds: all nodes do the same.
    """
    score = min(1.0, max(0.0, environment.score(assignment.problem_seed, tokens)))
    return reward_of(manifest.sampling, score, len(tokens), assignment.length_target)
