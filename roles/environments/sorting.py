"""Sorting six digits: ``s 520419=`` is answered by ``012459``; a million problems."""

from roles.environments.base import CharacterTask


class Sorting(CharacterTask):
    """Digits in ascending order: prompts of 9 tokens, answers of 7."""

    name = "sorting"
    characters = "0123456789=s "

    def question(self, seed: int) -> str:
        """Return for example ``s 520419=``."""
        return f"s {self.digits(seed, 6)}="

    def answer(self, seed: int) -> str:
        """Return the digits in ascending order."""
        return "".join(sorted(self.digits(seed, 6)))
