"""Mathematics: answers that mean the same as the expected one, in LaTeX or plain numbers.

A row has a ``prompt`` and an ``answer``. What follows the model's thoughts is read by math-verify,
which looks for a boxed answer first.
"""

from collections.abc import Callable

from typing_extensions import override

from roles.environments.checker import Checker
from roles.environments.text import ANSWER_CHARACTERS_MAX, RowTask
from roles.ports.background import Background
from roles.ports.engines import Score, Unscorable
from roles.ports.text import Rows, Tokenizer

COLUMNS = ("prompt", "answer")

VERSION = "0.9.0"
"""Of math-verify: another one may understand other answers."""


class Math(RowTask):
    """Rows with answers, scored 0 or 1."""

    def __init__(
        self,
        name: str,
        read_rows: Callable[[], Rows],
        read_tokenizer: Callable[[], Tokenizer],
        background: Background,
        checker: Checker,
    ) -> None:
        super().__init__(name, read_rows, read_tokenizer, background)
        self._checker = checker

    @override
    async def grade(self, seed: int, answer: str) -> Score:
        row = await self.row(seed)
        result = await self._checker.ask(
            {"expected": row["answer"], "answer": answer[-ANSWER_CHARACTERS_MAX:]}
        )
        return result if isinstance(result, Unscorable) else float(result is True)
