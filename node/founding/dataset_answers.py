"""Check that each expected answer of a data set scores 1 against itself in the run's task."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Self, TypeVar

from typing_extensions import override

from node.local.config import runtime_directories
from protocol.core.crypto import digest
from protocol.run.recipe import Recipe
from roles.engines.files.tokenizer import HuggingFaceTokenizer
from roles.environments.jail import NoJailError
from roles.environments.registry import math_checker, math_task, scoring_interpreter
from roles.ports.background import Background
from roles.ports.engines import Answer, Unscorable
from roles.ports.text import Rows

T = TypeVar("T")


class AnswerCheck:
    r"""Score ``\boxed{answer}`` against ``answer`` with the run's task and tokenizer.

    Each different answer is scored once, in the jails of one checker.
    """

    def __init__(self, recipe: Recipe, tokenizer: HuggingFaceTokenizer) -> None:
        """Raise ``ValueError`` if this machine cannot score answers."""
        try:
            runtimes = runtime_directories(os.environ)
            self._checker = math_checker(scoring_interpreter(recipe.environment, runtimes))
        except NoJailError as error:
            raise ValueError(f"{error}: answers are scored in a jail, so fix this first") from None
        self._recipe = recipe
        self._tokenizer = tokenizer
        self._faults: dict[bytes, str | None] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._checker.close()

    @property
    def count(self) -> int:
        """Number of different answers that were scored."""
        return len(self._faults)

    async def faults(self, answers: Sequence[str]) -> list[str | None]:
        """Return the fault of each answer, None for one that scores 1."""
        keys = [digest(answer.encode()) for answer in answers]
        new = {key: one for key, one in zip(keys, answers, strict=True) if key not in self._faults}
        found = await asyncio.gather(*(self._fault(answer) for answer in new.values()))
        self._faults.update(zip(new, found, strict=True))
        return [self._faults[key] for key in keys]

    async def _fault(self, answer: str) -> str | None:
        tokens = len(self._tokenizer.encode(answer))
        if tokens > (most := self._recipe.sampling.tokens_max):
            return f"the answer takes {tokens} tokens, sampling.tokens_max is {most}"
        boxed = f"\\boxed{{{answer}}}"
        row = {"prompt": "?", "answer": answer}
        task = math_task(
            self._recipe.environment,
            lambda: _OneRow(row),
            lambda: self._tokenizer,
            _Here(),
            self._checker,
        )
        await task.open()
        [score] = await task.score_batch([Answer(0, self._tokenizer.encode(boxed))])
        if isinstance(score, Unscorable):
            return f"{boxed[:60]} has no score against its own answer: {score.reason}"
        return None if score == 1 else f"{boxed[:60]} scores {score:g} against its own answer"


class _OneRow(Rows):
    def __init__(self, row: Mapping[str, str]) -> None:
        self._row = row

    @property
    @override
    def count(self) -> int:
        return 1

    @override
    def row(self, index: int) -> Mapping[str, str]:
        return self._row


class _Here(Background):
    """Runs functions directly: nothing else uses this event loop."""

    @override
    async def run(self, function: Callable[[], T]) -> T:
        return function()
