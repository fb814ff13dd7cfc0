"""Tasks over single characters, with a character tokenizer and seeded digits."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from typing_extensions import override

from protocol.core.crypto import digest
from roles.environments.base import END, VOCABULARY_SIZE
from roles.environments.threaded import BlockingTask

SORTED_DIGITS = 4
"""With six digits a testnet stayed at a reward of 0.35 for 60 versions; with four it reaches at
least 0.55 in five seeds."""


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


class Arithmetic(CharacterTask):
    """Sum of two digits: ``3+4=`` has the answer ``7``; a 0.5M model learns it in minutes.

    100 problems, prompts of 4 tokens, answers of 2 or 3.
    """

    name = "arithmetic"
    characters = "0123456789+="

    @override
    def question(self, seed: int) -> str:
        return "+".join(self.digits(seed, 2)) + "="

    @override
    def answer(self, seed: int) -> str:
        return str(sum(int(digit) for digit in self.digits(seed, 2)))


class Sorting(CharacterTask):
    """Digits in ascending order: the answer to ``s 5204=`` is ``0245``.

    10,000 problems, prompts of 7 tokens, answers of 5.
    """

    name = "sorting"
    characters = "0123456789=s "

    @override
    def question(self, seed: int) -> str:
        return f"s {self.digits(seed, SORTED_DIGITS)}="

    @override
    def answer(self, seed: int) -> str:
        return "".join(sorted(self.digits(seed, SORTED_DIGITS)))
