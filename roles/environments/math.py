"""Mathematics tasks: answers equivalent to the expected one, in LaTeX or plain text.

A row has a ``prompt`` and an ``answer``. A checker (``jailed/math.py``) compares it with the text
after the model's thoughts.
"""

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from roles.environments.checker import Checker
from roles.environments.held_out import SplitRows
from roles.environments.text import ANSWER_CHARACTERS_MAX, RowTask
from roles.ports.background import Background
from roles.ports.engines import Score, Unscorable
from roles.ports.text import Rows, Tokenizer

COLUMNS = ("prompt", "answer")

VERSION = "1.3.0"
"""Version of mpmath, which evaluates formulas."""

REQUIRE_BOX = "require_box"
"""Recipe option with which only boxed answers count."""


def require_options(options: Mapping[str, Any]) -> bool:
    """Return True when answers must be boxed; raises ``ValueError`` for other options."""
    if unknown := options.keys() - {REQUIRE_BOX}:
        raise ValueError(
            f"environment.options must not hold {min(unknown)!r}: math has {REQUIRE_BOX!r} alone"
        )
    require_box = options.get(REQUIRE_BOX, False)
    if not isinstance(require_box, bool):
        raise ValueError(f"environment.options.{REQUIRE_BOX} must be true or false")  # noqa: TRY004
    return require_box


class Math(RowTask):
    """Task over rows with answers, scored 0 or 1."""

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        read_rows: Callable[[], Rows | SplitRows],
        read_tokenizer: Callable[[], Tokenizer],
        background: Background,
        checker: Checker,
    ) -> None:
        """Raise ``ValueError`` for unknown options."""
        super().__init__(name, read_rows, read_tokenizer, background)
        self._require_box = require_options(options)
        self._checker = checker

    @override
    async def close(self) -> None:
        await self._checker.close()

    @override
    async def grade(self, seed: int, answer: str) -> Score:
        row = await self.row(seed)
        result = await self._checker.ask(
            {
                "prompt": row["prompt"],
                "expected": row["answer"],
                "answer": answer[-ANSWER_CHARACTERS_MAX:],
                REQUIRE_BOX: self._require_box,
            }
        )
        return result if isinstance(result, Unscorable) else float(result is True)
