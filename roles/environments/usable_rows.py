"""Usable rows of a data set, and deterministic replacements of unusable ones.

``run create`` checks a data set. Other software may found a run with unusable rows: every node then
replaces such a row with the same other row.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from typing_extensions import override

from protocol.core.crypto import digest
from protocol.run.recipe import Recipe
from roles.environments.code import read_tests
from roles.environments.rows import UnusableRowError, chat_of
from roles.environments.text import question_of
from roles.ports.text import Chat, Rows, Tokenizer

ROWS_TRIED_MAX = 64
"""With half of all rows unusable, 64 unusable draws in a row have a probability of 5e-20."""

_FOUND_MAX = 1 << 16
"""Number of indexes whose usable row is cached."""


@dataclass(frozen=True, slots=True)
class PromptRoom:
    """Token budget of a prompt: the model's positions less the longest answer."""

    tokens_max: int | None
    """None if the model's configuration names no positions."""
    length_targets: tuple[int, ...]

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """Return the prompt budget of a run."""
        positions = recipe.model.config.get("max_position_embeddings")
        room = positions - recipe.sampling.tokens_max if type(positions) is int else None
        return cls(room, recipe.sampling.length_targets)


@dataclass(frozen=True, slots=True)
class RowRule:
    """Rule for the usability of a row, which follows from the row and the manifest alone."""

    family: str
    room: PromptRoom
    tokenizer: Tokenizer

    def check(self, row: Mapping[str, str]) -> int:
        """Return the number of tokens of a row's longest prompt.

        Raises ``UnusableRowError`` for an unusable row.
        """
        if not row["prompt"].strip():
            raise UnusableRowError("prompt is blank")
        if self.family == "math" and not row["answer"].strip():
            raise UnusableRowError("answer is blank")
        if self.family == "code":
            _check_tests(row["tests"])
        chat = chat_of(row)
        tokens = max(self._tokens(chat, target) for target in self.room.length_targets or (None,))
        room = self.room.tokens_max
        if room is not None and tokens > room:
            raise UnusableRowError(
                f"the prompt takes {tokens} tokens, and {max(room, 0)} are left of the model's "
                "positions beside sampling.tokens_max"
            )
        return tokens

    def _tokens(self, chat: Chat, length_target: int | None) -> int:
        question = question_of(chat, length_target)
        try:
            tokens = len(self.tokenizer.encode_chat(question, chat.before))
        except MemoryError:  # a failure of this machine, not of the row
            raise
        except Exception as error:  # noqa: BLE001 - a template may raise anything
            reason = " ".join(str(error).split())[:120]
            raise UnusableRowError(f"the chat template cannot hold the prompt: {reason}") from None
        if not tokens:
            raise UnusableRowError("the prompt has no tokens")
        return tokens


class UsableRows(Rows):
    """Rows of a data set in which usable rows replace unusable ones."""

    def __init__(self, name: str, rows: Rows, rule: RowRule) -> None:
        self._name = name
        self._rows = rows
        self._rule = rule
        self._found: dict[int, int] = {}

    @property
    @override
    def count(self) -> int:
        return self._rows.count

    @override
    def row(self, index: int) -> Mapping[str, str]:
        """Return the row, or its first usable replacement.

        Raises ``ValueError`` when ``ROWS_TRIED_MAX`` rows are unusable.
        """
        if index in self._found:
            return self._rows.row(self._found[index])
        reason: UnusableRowError | None = None
        for attempt in range(ROWS_TRIED_MAX):
            place = replacement(self._name, index, attempt, self.count)
            try:
                row = self._rows.row(place)
                self._rule.check(row)
            except UnusableRowError as error:
                reason = error
                continue
            if len(self._found) == _FOUND_MAX:
                self._found.clear()
            self._found[index] = place
            return row
        raise ValueError(
            f"none of {ROWS_TRIED_MAX} rows of {self._name} can be used, the last because: {reason}"
        )


def replacement(name: str, index: int, attempt: int, count: int) -> int:
    """Return the row to try after ``attempt`` unusable ones, ``index`` itself at first.

    Replacements are drawn by hash: in a sorted data set, unusable rows are adjacent.
    """
    if attempt == 0:
        return index
    return int.from_bytes(digest(f"{name}/row/{index}/{attempt}".encode()), "big") % count


def _check_tests(text: str) -> None:
    try:
        read_tests(text)
        if "\\u" in text:  # JSON can encode lone surrogates, which cannot be a program's input
            json.dumps(json.loads(text), ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UnusableRowError("tests hold half a surrogate pair") from None
    except ValueError as error:
        raise UnusableRowError(f"tests: {' '.join(str(error).split())[:120]}") from None
