"""One-digit addition: ``3+4=`` is answered by ``7``; learned by a 0.5M model within minutes."""

from typing_extensions import override

from roles.environments.base import CharacterTask


class Arithmetic(CharacterTask):
    """The sum of two digits: 100 problems, prompts of 4 tokens, answers of 2 or 3."""

    name = "arithmetic"
    characters = "0123456789+="

    @override
    def question(self, seed: int) -> str:
        return "+".join(self.digits(seed, 2)) + "="

    @override
    def answer(self, seed: int) -> str:
        return str(sum(int(digit) for digit in self.digits(seed, 2)))
