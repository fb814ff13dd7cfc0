"""Mathematics: answers that mean the same as the expected one, in LaTeX or plain numbers.

A row has a ``prompt`` and an ``answer``. What follows the model's thoughts is read by math-verify,
which looks for a boxed answer first.
"""

from collections.abc import Mapping

from typing_extensions import override

from roles.environments.blocking import in_background
from roles.environments.checker import Checker
from roles.environments.text import TextTask, require, row_of
from roles.ports.background import Background
from roles.ports.engines import Score, Unscorable
from roles.ports.text import Rows, Tokenizer

COLUMNS = ("prompt", "answer")

VERSION = "0.9.0"
"""Of math-verify: another one may understand other answers."""

ANSWER_CHARACTERS_MAX = 4000
"""From the end, where an answer stands. What looks for it takes long on more; a guess."""


class Math(TextTask):
    """Rows with answers, scored 0 or 1."""

    def __init__(
        self, name: str, rows: Rows, tokenizer: Tokenizer, background: Background, checker: Checker
    ) -> None:
        """Raise ``ValueError`` when another version of math-verify is installed."""
        super().__init__(name, tokenizer, background)
        require("math-verify", VERSION, name)
        self._rows = rows
        self._checker = checker

    async def _row(self, seed: int) -> Mapping[str, str]:
        index = row_of(self.name, seed, self._rows.count)
        return await in_background(self._background, lambda: self._rows.row(index))

    @override
    async def question(self, seed: int) -> str:
        return (await self._row(seed))["prompt"]

    @override
    async def grade(self, seed: int, answer: str) -> Score:
        row = await self._row(seed)
        result = await self._checker.ask(
            {"expected": row["answer"], "answer": answer[-ANSWER_CHARACTERS_MAX:]}
        )
        return result if isinstance(result, Unscorable) else float(result is True)
