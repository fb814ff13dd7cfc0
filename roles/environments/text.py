"""Base of text tasks: a question by seed, an answer to grade, tokens as input and output.

Data sets and model output are untrusted, so each is bounded before use.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

from typing_extensions import override

from protocol.rollout.assignment import HELD_OUT_SEED
from roles.environments.fences import blocks
from roles.environments.held_out import SplitRows, row_of
from roles.environments.rows import chat_of
from roles.environments.threaded import in_background
from roles.ports.background import Background
from roles.ports.engines import Answer, EngineError, Environment, Score
from roles.ports.text import Chat, Rows, Tokenizer

THOUGHT_END = "</think>"
"""Separator of reasoning models between thoughts and answer."""


ANSWER_CHARACTERS_MAX = 4000
"""Length of the tail of a completion that is searched for the answer; longer texts take too long.
A guess."""


class TextTask(Environment, ABC):
    """Task with chats as prompts; ``open`` reads the tokenizer."""

    _tokenizer: Tokenizer

    def __init__(
        self, name: str, read_tokenizer: Callable[[], Tokenizer], background: Background
    ) -> None:
        self._name = name
        self._read_tokenizer = read_tokenizer
        self._background = background

    @property
    @override
    def name(self) -> str:
        return self._name

    @override
    async def open(self) -> None:
        self._tokenizer = await self._background.run(self._read_tokenizer)

    async def close(self) -> None:
        """End the scoring processes; the task cannot be used afterwards."""
        return  # mypy takes a method without a body for abstract

    @abstractmethod
    async def question(self, seed: int) -> str:
        """Return the user's question in problem ``seed``."""

    async def chat(self, seed: int) -> Chat:
        """Return the chat of problem ``seed``."""
        return Chat(await self.question(seed))

    @abstractmethod
    async def grade(self, seed: int, answer: str) -> Score:
        """Return the score of an answer, the text after the model's thoughts."""

    @override
    async def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        chat = await self.chat(seed)
        question = question_of(chat, length_target)
        return await in_background(
            self._background, lambda: self._tokenizer.encode_chat(question, chat.before)
        )

    @override
    async def score_batch(self, answers: Sequence[Answer]) -> list[Score]:
        texts = await in_background(
            self._background, lambda: [self._tokenizer.decode(one.tokens) for one in answers]
        )
        said = [*map(answer_of, texts)]
        try:
            return await self.grade_all([answer.seed for answer in answers], said)
        except ExceptionGroup as errors:
            raise EngineError.of(errors.exceptions[0]) from None

    @override
    async def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return await in_background(
            self._background, lambda: [self._tokenizer.decode(tuple(one)) for one in sequences]
        )

    async def grade_all(self, seeds: Sequence[int], answers: Sequence[str]) -> list[Score]:
        """Return the score of each answer to the problem of its seed, in order."""
        async with asyncio.TaskGroup() as group:
            grades = [
                group.create_task(self.grade(seed, answer))
                for seed, answer in zip(seeds, answers, strict=True)
            ]
        return [grade.result() for grade in grades]


class RowTask(TextTask, ABC):
    """Task over the rows of a data set, which have a ``prompt``."""

    _rows: SplitRows

    def __init__(
        self,
        name: str,
        read_rows: Callable[[], Rows | SplitRows],
        read_tokenizer: Callable[[], Tokenizer],
        background: Background,
    ) -> None:
        super().__init__(name, read_tokenizer, background)
        self._read_rows = read_rows

    @override
    async def open(self) -> None:
        await super().open()
        rows = await self._background.run(self._read_rows)
        self._rows = rows if isinstance(rows, SplitRows) else SplitRows(rows, rows)

    @override
    async def question(self, seed: int) -> str:
        return (await self.row(seed))["prompt"]

    @override
    async def chat(self, seed: int) -> Chat:
        return chat_of(await self.row(seed))

    async def row(self, seed: int) -> Mapping[str, str]:
        """Return the row of problem ``seed``."""
        rows = self._rows.held_out if seed >= HELD_OUT_SEED else self._rows.training
        index = row_of(self.name, seed, rows.count)
        return await in_background(self._background, lambda: rows.row(index))


def question_of(chat: Chat, length_target: int | None) -> str:
    """Return the question of a chat with the length target of the completion."""
    if length_target is None:
        return chat.question
    # As in INTELLECT-2 (arXiv 2505.07291).
    return f"{chat.question}\n\nThink for {length_target} tokens before giving a response."


def answer_of(text: str) -> str:
    """Return the text after a model's thoughts, or a whole text without thoughts.

    Thoughts end at the last ``</think>`` that is not inside a line of fenced code: a program may
    hold one in a string.
    """
    # A mark may precede a fence on its line; replaced by a line end, the fence is still found.
    apart = text.replace(THOUGHT_END, " " * (len(THOUGHT_END) - 1) + "\n")
    fenced = [(block.start, block.end) for block in blocks(apart)]
    end = len(text)
    while (end := text.rfind(THOUGHT_END, 0, end)) >= 0:
        after = end + len(THOUGHT_END)
        before_it = text[:end].rpartition("\n")[2].strip()
        behind_it = text[after:].partition("\n")[0].strip()
        inside = any(start <= end < stop for start, stop in fenced)
        if not (inside and before_it and behind_it):
            return text[after:]
    return text


def require(package: str, required: str, name: str) -> None:
    """Raise ``ValueError`` unless this version is installed: others may score differently."""
    try:
        installed = version(package)
    except PackageNotFoundError:
        installed = "none"
    if installed != required:
        raise ValueError(f"{name} needs {package} {required}, installed: {installed}")
