"""Tasks whose problems and scores both come from a checker."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import override

from roles.environments.checker import Checker
from roles.environments.text import ANSWER_CHARACTERS_MAX, TextTask
from roles.ports.background import Background
from roles.ports.engines import Score, Unscorable
from roles.ports.text import Tokenizer


class CheckerTask(TextTask):
    """Task over a checker that generates problems and scores lists of ``answers`` to one."""

    def __init__(
        self,
        name: str,
        read_tokenizer: Callable[[], Tokenizer],
        background: Background,
        checker: Checker,
    ) -> None:
        super().__init__(name, read_tokenizer, background)
        self._checker = checker

    @override
    async def close(self) -> None:
        await self._checker.close()

    @abstractmethod
    def problem(self, seed: int) -> dict[str, Any]:
        """Return the checker's question about problem ``seed``."""

    @override
    async def grade_all(self, seeds: Sequence[int], answers: Sequence[str]) -> list[Score]:
        """Score all answers to a problem in one call, which takes about as long as one answer.

        If the call exceeds the limits of one answer, each answer is scored alone, so that no answer
        costs another one its score.
        """
        by_problem: dict[int, list[int]] = {}
        for place, seed in enumerate(seeds):
            by_problem.setdefault(seed, []).append(place)
        scores: dict[int, Score] = {}
        for seed, places in by_problem.items():
            ends = [answers[place][-ANSWER_CHARACTERS_MAX:] for place in places]
            result = await self._checker.ask({**self.problem(seed), "answers": ends})
            if isinstance(result, list) and len(result) == len(places):
                scores.update(zip(places, map(float, result), strict=True))
            else:
                alone = await super().grade_all([seed] * len(places), ends)
                scores.update(zip(places, alone, strict=True))
        return [scores[place] for place in range(len(answers))]

    @override
    async def grade(self, seed: int, answer: str) -> Score:
        ends = [answer[-ANSWER_CHARACTERS_MAX:]]
        result = await self._checker.ask({**self.problem(seed), "answers": ends})
        if isinstance(result, Unscorable):
            return result
        return float(result[0]) if isinstance(result, list) else 0.0
