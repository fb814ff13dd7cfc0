"""Task of one-digit addition: ``3+4=`` has the answer ``7``; a 0.5M model learns it in minutes."""

from typing_extensions import override

from roles.environments.base import CharacterTask


class Arithmetic(CharacterTask):
    """Sum of two digits: 100 problems, prompts of 4 tokens, answers of 2 or 3."""

    name = "arithmetic"
    characters = "0123456789+="

    @override
    def question(self, seed: int) -> str:
        return "+".join(self.digits(seed, 2)) + "="

    @override
    def answer(self, seed: int) -> str:
        return str(sum(int(digit) for digit in self.digits(seed, 2)))
