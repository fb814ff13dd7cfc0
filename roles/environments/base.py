"""Base of the built-in tasks: their registry, a character tokenizer, and seeded digits."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol, cast

from typing_extensions import override

from protocol.core.crypto import digest
from roles.environments.threaded import BlockingTask

PADDING = 0
END = 1

VOCABULARY_SIZE = 32
"""Vocabulary size of every character task, so that one tiny model shape fits all."""

ENVIRONMENTS = {
    "arithmetic": "roles.environments.arithmetic:Arithmetic",
    "sorting": "roles.environments.sorting:Sorting",
}
"""Name in the manifest -> ``module:class``, imported on first use: tasks may be heavy."""


class SolvedTask(Protocol):
    """Task with known solutions, used only for the cold start of a run."""

    @property
    def name(self) -> str:
        """Name in manifests."""

    def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        """Return the prompt tokens of problem ``seed`` (64 bits)."""

    def solution(self, seed: int) -> tuple[int, ...]:
        """Return a completion of problem ``seed`` that scores 1, with the end token."""


def environment(name: str) -> BlockingTask:
    """Return the task ``name``; raises ``ValueError`` listing the known names otherwise."""
    if name not in ENVIRONMENTS:
        known = ", ".join(sorted(ENVIRONMENTS))
        raise ValueError(f"unknown environment {name!r}; character tasks: {known}")
    module, _, attribute = ENVIRONMENTS[name].partition(":")
    return cast("BlockingTask", getattr(import_module(module), attribute)())


def solved(task: BlockingTask) -> SolvedTask:
    """Return ``task`` as a ``SolvedTask``; raises ``ValueError`` when it has no solutions."""
    if not hasattr(task, "solution"):
        raise ValueError(f"environment {task.name!r} has no known solutions to learn from")
    return cast("SolvedTask", task)


class CharacterTask(BlockingTask, ABC):
    """Task over single characters: token ``i + 2`` is ``characters[i]``.

    The one correct answer, followed by the end token, has the reward 1, all others 0. The
    characters include the digits and ``=``: a length target precedes the question, ``12=3+4=``,
    where INTELLECT-2 writes "Think for 12 tokens before giving a response".
    """

    name: str
    characters: str

    vocabulary_size = VOCABULARY_SIZE

    @property
    def vocabulary(self) -> Sequence[str]:
        """Text of each token; 0 is padding, 1 is the end token."""
        used = ("<pad>", "<end>", *self.characters)
        return used + tuple(f"<unused{index}>" for index in range(len(used), VOCABULARY_SIZE))

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of ``text``; raises ``ValueError`` for an unknown character."""
        return tuple(self.characters.index(character) + 2 for character in text)

    @abstractmethod
    def question(self, seed: int) -> str:
        """Return the prompt of problem ``seed``."""

    @abstractmethod
    def answer(self, seed: int) -> str:
        """Return the one correct answer of problem ``seed``."""

    @override
    def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        instruction = "" if length_target is None else f"{length_target}="
        return self.encode(instruction + self.question(seed))

    @override
    def text(self, tokens: Sequence[int]) -> str:
        vocabulary = self.vocabulary
        return "".join(
            vocabulary[token] if 0 <= token < VOCABULARY_SIZE else "<unknown>" for token in tokens
        )

    def solution(self, seed: int) -> tuple[int, ...]:
        """Return the one completion that scores 1."""
        return (*self.encode(self.answer(seed)), END)

    @override
    def score(self, seed: int, completion: Sequence[int]) -> float:
        return 1.0 if tuple(completion) == self.solution(seed) else 0.0

    def digits(self, seed: int, count: int) -> str:
        """Return ``count`` decimal digits, uniform up to a bias below 10**count / 2**256."""
        value = int.from_bytes(digest(f"{self.name}/{seed}".encode()), "big")
        return f"{value % 10**count:0{count}d}"
