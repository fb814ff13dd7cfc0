"""Generated problems of reasoning-gym: question, answer and score follow from the seed.

Other versions of the library may generate other problems, so exactly one is supported.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from protocol.core.crypto import digest
from protocol.run.recipe import EnvironmentSection
from roles.environments.checker import Checker
from roles.environments.checker_task import CheckerTask
from roles.environments.text import require
from roles.ports.background import Background
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
"""Data sets whose score compares text with the one answer: no answer is executed.

Of the other 76, some evaluate answers as Python (``n_queens``, ``countdown`` and more), so answers
could set their own score; some depend on set order; the scores of the rest are not reviewed yet.
"""

INSTRUCTION = "Provide your final answer between <answer> and </answer> tags."


def asked(question: str) -> str:
    """Return a question of the library with the answer format."""
    return f"{question}\n\n{INSTRUCTION}"


@dataclass(frozen=True, slots=True)
class Solution:
    """Question and an answer that scores 1."""

    question: str
    answer: str


def solution_of(section: EnvironmentSection, seed: int) -> Solution:
    """Return problem ``seed`` with the library's own answer, for the cold start of a run.

    Raises ``ValueError`` for a task of another library.
    """
    from roles.environments.jailed.reasoning import dataset_of  # noqa: PLC0415 - takes seconds

    family, _, dataset = section.name.partition("/")
    if family != "reasoning-gym":
        raise ValueError(f"environment {section.name!r} has no known solutions to learn from")
    drawn = generator_seed(section.name, seed)
    entry = dataset_of({"dataset": dataset, "options": _plain(section.options), "seed": drawn})[0]
    return Solution(asked(entry["question"]), f"<answer>{entry['answer']}</answer>")


def generator_seed(name: str, seed: int) -> int:
    """Return the generator's seed of problem ``seed`` in task ``name``.

    It has 32 bits, the limit of some generators.
    """
    return int.from_bytes(digest(f"{name}/{seed}".encode())[:4], "big")


def require_generator(name: str, dataset: str, options: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` unless the options are allowed and generate a question."""
    _require(dataset, options)
    require("reasoning-gym", VERSION, name)
    from roles.environments.jailed.reasoning import dataset_of  # noqa: PLC0415 - takes seconds

    try:
        dataset_of({"dataset": dataset, "options": _plain(options), "seed": 0})[0]
    except (AssertionError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"environment.options: {reason}") from None


def _require(dataset: str, options: Mapping[str, Any]) -> None:
    if dataset not in ADMITTED:
        raise ValueError(f"{dataset!r} is none of {', '.join(ADMITTED)}")
    if taken := {"seed", "size"} & options.keys():
        raise ValueError(f"environment.options must not hold {min(taken)!r}")


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options in the library's form, with lists."""
    return {
        key: list(value) if isinstance(value, tuple) else value for key, value in options.items()
    }


class ReasoningGym(CheckerTask):
    """Task of one data set, scored from 0 to 1."""

    def __init__(
        self,
        name: str,
        dataset: str,
        options: Mapping[str, Any],
        read_tokenizer: Callable[[], Tokenizer],
        background: Background,
        checker: Checker,
    ) -> None:
        """Raise ``ValueError`` unless the data set is admitted."""
        super().__init__(name, read_tokenizer, background, checker)
        _require(dataset, options)
        self._dataset = dataset
        self._options = _plain(options)

    @override
    def problem(self, seed: int) -> dict[str, Any]:
        drawn = generator_seed(self.name, seed)
        return {"dataset": self._dataset, "options": self._options, "seed": drawn}

    @override
    async def question(self, seed: int) -> str:
        question = await self._checker.ask(self.problem(seed))
        if not isinstance(question, str):
            raise ValueError(f"no question {seed} of {self.name}: {question}")  # noqa: TRY004
        return asked(question)
