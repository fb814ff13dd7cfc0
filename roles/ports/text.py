"""Text: the run's tokenizer, and the rows of a data set."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class ChatMessage(NamedTuple):
    """What somebody says in a chat."""

    role: str
    """``system``, ``user`` or ``assistant``."""
    content: str


class Chat(NamedTuple):
    """What a user asks, and the messages before it."""

    question: str
    before: tuple[ChatMessage, ...] = ()


class Tokenizer(Protocol):
    """Text to tokens and back, the same on every machine."""

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are; ids are below it."""

    def encode_chat(self, question: str, before: Sequence[ChatMessage] = ()) -> tuple[int, ...]:
        """Return a chat in which a user asks ``question`` and the assistant is to begin."""

    def decode(self, tokens: tuple[int, ...]) -> str:
        """Return the text of tokens; unknown ones, and those that frame a chat, are left out."""


class Rows(Protocol):
    """A data set in memory or on disk. May block."""

    @property
    def count(self) -> int:
        """How many rows there are; at least one."""

    def row(self, index: int) -> Mapping[str, str]:
        """Return the columns of a row; raises ``ValueError`` for one that cannot be used."""
