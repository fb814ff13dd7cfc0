"""What built-in tasks share: the registry, a character tokenizer, and seeded digits."""

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
"""Tokens of every character task, so that one tiny model shape serves them all."""

ENVIRONMENTS = {
    "arithmetic": "roles.environments.arithmetic:Arithmetic",
    "sorting": "roles.environments.sorting:Sorting",
}
"""Name in the manifest -> ``module:class``, imported when first asked for: tasks may be heavy."""


class SolvedTask(Protocol):
    """A task whose right completions are known, for the cold start of a run alone."""

    @property
    def name(self) -> str:
        """The name that manifests use."""

    def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        """Return the prompt tokens of problem ``seed`` (64 bits)."""

    def solution(self, seed: int) -> tuple[int, ...]:
        """Return a completion of problem ``seed`` that scores 1, the end token included."""


def environment(name: str) -> BlockingTask:
    """Return the task called ``name``; raises ``ValueError`` that lists the names for another."""
    if name not in ENVIRONMENTS:
        known = ", ".join(sorted(ENVIRONMENTS))
        raise ValueError(f"no environment {name!r}; over characters there are {known}")
    module, _, attribute = ENVIRONMENTS[name].partition(":")
    return cast("BlockingTask", getattr(import_module(module), attribute)())


def solved(task: BlockingTask) -> SolvedTask:
    """Return ``task`` as one that knows its solutions; raises ``ValueError`` when it does not."""
    if not hasattr(task, "solution"):
        raise ValueError(f"environment {task.name!r} knows no solutions to learn from")
    return cast("SolvedTask", task)


class CharacterTask(BlockingTask, ABC):
    """A task over single characters: token ``i + 2`` is ``characters[i]``.

    Its one right answer, followed by the end token, earns the reward 1, and nothing else does. Its
    characters hold the digits and ``=``: a length target stands before the question, ``12=3+4=``,
    where INTELLECT-2 writes "Think for 12 tokens before giving a response".
    """

    name: str
    characters: str

    vocabulary_size = VOCABULARY_SIZE

    @property
    def vocabulary(self) -> Sequence[str]:
        """The characters of the tokens; 0 is padding, 1 is the end token."""
        used = ("<pad>", "<end>", *self.characters)
        return used + tuple(f"<unused{index}>" for index in range(len(used), VOCABULARY_SIZE))

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the tokens of ``text``; raises ``ValueError`` for a character we do not have."""
        return tuple(self.characters.index(character) + 2 for character in text)

    @abstractmethod
    def question(self, seed: int) -> str:
        """Return the prompt of problem ``seed``."""

    @abstractmethod
    def answer(self, seed: int) -> str:
        """Return the one right answer of problem ``seed``."""

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
        """Return ``count`` decimal digits, uniform but for a bias under 10**count / 2**256."""
        value = int.from_bytes(digest(f"{self.name}/{seed}".encode()), "big")
        return f"{value % 10**count:0{count}d}"
