"""Messages of a run before each problem: a system message and solved examples.

A small model rarely writes the answer tags of a task unprompted; it copies them from an example.
"""

from collections.abc import Sequence

from typing_extensions import override

from protocol.run.recipe import EnvironmentSection
from roles.ports.text import ChatMessage, Tokenizer


def preamble(section: EnvironmentSection) -> tuple[ChatMessage, ...]:
    """Return the messages before each problem of a task, in order."""
    system = (ChatMessage("system", section.system),) if section.system else ()
    turns = (
        message
        for example in section.examples
        for message in (
            ChatMessage("user", example.question),
            ChatMessage("assistant", example.answer),
        )
    )
    return (*system, *turns)


def primed(tokenizer: Tokenizer, section: EnvironmentSection) -> Tokenizer:
    """Return a tokenizer that prepends the messages of a task to each chat."""
    before = preamble(section)
    return PreambleTokenizer(tokenizer, before) if before else tokenizer


class PreambleTokenizer(Tokenizer):
    """Tokenizer that prepends fixed messages to each chat."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[ChatMessage]) -> None:
        self._tokenizer = tokenizer
        self._before = tuple(before)

    @property
    @override
    def vocabulary_size(self) -> int:
        return self._tokenizer.vocabulary_size

    @override
    def encode_chat(self, question: str, before: Sequence[ChatMessage] = ()) -> tuple[int, ...]:
        return self._tokenizer.encode_chat(question, (*self._before, *before))

    @override
    def decode(self, tokens: tuple[int, ...]) -> str:
        return self._tokenizer.decode(tokens)
