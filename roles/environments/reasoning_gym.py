"""Generated problems of reasoning-gym: question, answer and score follow from the seed.

Another version of the library may generate other problems, so the one version is required.
"""

from collections.abc import Callable, Mapping
from typing import Any

from typing_extensions import override

from protocol.crypto import digest
from roles.environments.checker import Checker
from roles.environments.text import ANSWER_CHARACTERS_MAX, TextTask, require
from roles.ports.background import Background
from roles.ports.engines import Score, Unscorable
from roles.ports.text import Tokenizer

VERSION = "0.1.25"

ADMITTED = (
    "acre",
    "aiw",
    "arc_1d",
    "base_conversion",
    "basic_arithmetic",
    "bf",
    "binary_alternation",
    "caesar_cipher",
    "count_bits",
    "count_primes",
    "course_schedule",
    "gcd",
    "largest_island",
    "lcm",
    "leg_counting",
    "letter_counting",
    "mahjong_puzzle",
    "maze",
    "modulo_grid",
    "number_filtering",
    "number_sequence",
    "rotate_matrix",
    "rotten_oranges",
    "simple_equations",
    "simple_geometry",
    "string_manipulation",
    "string_splitting",
    "string_synthesis",
    "syllogism",
    "word_sequence_reversal",
)
"""Data sets scored by comparing text with the one answer: nothing in an answer is evaluated.

Of the other 76, some evaluate answers as Python (``n_queens``, ``countdown`` and more), which could
then write their own score; some generate what depends on the order of a set; the rest have scores
of their own that nobody has read yet.
"""

INSTRUCTION = "Provide your final answer between <answer> and </answer> tags."


def asked(question: str) -> str:
    """Return what a user asks: a question of the library, and how to answer it."""
    return f"{question}\n\n{INSTRUCTION}"


def generator_seed(name: str, seed: int) -> int:
    """Return what the generator of the task ``name`` draws problem ``seed`` from.

    Some generators take no more than 32 bits.
    """
    return int.from_bytes(digest(f"{name}/{seed}".encode())[:4], "big")


def options_of(dataset: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a generator; raises ``ValueError`` for one that a run cannot choose."""
    if taken := {"seed", "size"} & options.keys():
        raise ValueError(f"the options of {dataset} must not hold {min(taken)!r}")
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in options.items()
    }


class ReasoningGym(TextTask):
    """One data set; its score is from 0 to 1."""

    def __init__(
        self,
        name: str,
        dataset: str,
        options: Mapping[str, Any],
        read_tokenizer: Callable[[], Tokenizer],
        background: Background,
        checker: Checker,
    ) -> None:
        """Raise ``ValueError`` for a data set that is not admitted, or another version."""
        super().__init__(name, read_tokenizer, background)
        if dataset not in ADMITTED:
            raise ValueError(f"{dataset!r} is none of {', '.join(ADMITTED)}")
        require("reasoning-gym", VERSION, name)
        self._dataset = dataset
        self._options = options_of(dataset, options)
        self._checker = checker

    def _problem(self, seed: int) -> dict[str, Any]:
        drawn = generator_seed(self.name, seed)
        return {"dataset": self._dataset, "options": self._options, "seed": drawn}

    @override
    async def question(self, seed: int) -> str:
        question = await self._checker.ask(self._problem(seed))
        if not isinstance(question, str):
            raise ValueError(f"no question {seed} of {self.name}: {question}")  # noqa: TRY004
        return asked(question)

    @override
    async def grade(self, seed: int, answer: str) -> Score:
        claimed = {**self._problem(seed), "answer": answer[-ANSWER_CHARACTERS_MAX:]}
        result = await self._checker.ask(claimed)
        if isinstance(result, Unscorable):
            return result
        return float(result) if isinstance(result, int | float) else 0.0
