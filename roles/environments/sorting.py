"""Sorting six digits: ``s 520419=`` is answered by ``012459``; a million problems."""

from typing_extensions import override

from roles.environments.base import CharacterTask


class Sorting(CharacterTask):
    """Digits in ascending order: prompts of 9 tokens, answers of 7."""

    name = "sorting"
    characters = "0123456789=s "

    @override
    def question(self, seed: int) -> str:
        return f"s {self.digits(seed, 6)}="

    @override
    def answer(self, seed: int) -> str:
        return "".join(sorted(self.digits(seed, 6)))
