"""Tasks whose problems and scores are both what a checker says."""

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
    """A checker that knows problems: with ``answers`` to one it gives a list of their scores."""

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
        """Return what the checker is asked about problem ``seed``."""

    @override
    async def grade_all(self, seeds: Sequence[int], answers: Sequence[str]) -> list[Score]:
        """Ask about all answers to a problem at once, which takes as long as about one.

        Together they must stay below the limits of one; else each is asked about alone, so that
        none costs another one its score.
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
