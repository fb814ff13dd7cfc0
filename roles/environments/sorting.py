"""Task of sorting four digits: the answer to ``s 5204=`` is ``0245``; 10,000 problems."""

from typing_extensions import override

from roles.environments.base import CharacterTask

DIGITS = 4
"""With six digits a testnet stayed at a reward of 0.35 for 60 versions; with four it reaches at
least 0.55 in five seeds."""


class Sorting(CharacterTask):
    """Digits in ascending order: prompts of 7 tokens, answers of 5."""

    name = "sorting"
    characters = "0123456789=s "

    @override
    def question(self, seed: int) -> str:
        return f"s {self.digits(seed, DIGITS)}="

    @override
    def answer(self, seed: int) -> str:
        return "".join(sorted(self.digits(seed, DIGITS)))
