"""Tokenizer of a run, and rows of a data set."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class ChatMessage(NamedTuple):
    """Message of a chat."""

    role: str
    """``system``, ``user`` or ``assistant``."""
    content: str


class Chat(NamedTuple):
    """Question of a user, and the messages before it."""

    question: str
    before: tuple[ChatMessage, ...] = ()


class Tokenizer(Protocol):
    """Encodes and decodes text, identically on every machine."""

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens; ids are below it."""

    def encode_chat(self, question: str, before: Sequence[ChatMessage] = ()) -> tuple[int, ...]:
        """Return the tokens of a chat that ends with ``question`` and the generation prompt."""

    def decode(self, tokens: tuple[int, ...]) -> str:
        """Return the text of tokens, without unknown tokens and those of the chat template."""


class Rows(Protocol):
    """Data set in memory or on disk; methods may block."""

    @property
    def count(self) -> int:
        """Number of rows, at least 1."""

    def row(self, index: int) -> Mapping[str, str]:
        """Return the columns of a row; raises ``ValueError`` for an unusable one."""
