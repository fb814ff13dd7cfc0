"""Conversion between text and tokens in a chat: questions to prompts, streamed tokens to text."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from typing_extensions import override

from node.local.errors import ExitCode, NodeError
from node.models.subject import EvaluatedModel
from roles.ports.text import ChatMessage, Tokenizer

_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"
"""Output of a tokenizer for an incomplete UTF-8 character."""


class Dialogue(Protocol):
    """Converter between a model's tokens and text."""

    def prompt(self, question: str, before: Sequence[ChatMessage]) -> tuple[int, ...]:
        """Return the tokens of a question after other messages; raises ``ValueError``."""

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of an answer."""


class TextDialogue(Dialogue):
    """Chat in the model's template, after the messages ``opening``."""

    def __init__(self, tokenizer: Tokenizer, opening: Sequence[ChatMessage]) -> None:
        self._tokenizer = tokenizer
        self._opening = tuple(opening)

    @override
    def prompt(self, question: str, before: Sequence[ChatMessage]) -> tuple[int, ...]:
        return self._tokenizer.encode_chat(question, (*self._opening, *before))

    @override
    def text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tuple(tokens))


class CharacterDialogue(Dialogue):
    """Independent questions in the characters of a task."""

    def __init__(self, name: str) -> None:
        from roles.environments.base import END, environment  # noqa: PLC0415 - for characters alone
        from roles.environments.characters import CharacterTask  # noqa: PLC0415 - the same

        task = environment(name)
        assert isinstance(task, CharacterTask)
        self._task, self._end = task, END

    @override
    def prompt(self, question: str, before: Sequence[ChatMessage]) -> tuple[int, ...]:
        unknown = sorted(set(question) - set(self._task.characters))
        if unknown or not question:
            raise ValueError(
                f"the task {self._task.name} is over the characters {self._task.characters} alone; "
                f"ask for example {self._task.question(0)}"
            )
        return self._task.encode(question)

    @override
    def text(self, tokens: Sequence[int]) -> str:
        return self._task.text([token for token in tokens if token != self._end])


def dialogue_of(subject: EvaluatedModel, system: str | None) -> Dialogue:
    """Return the dialogue of a model.

    It opens with the run's messages before each problem, or with ``system`` alone, which may be
    empty. Raises ``NodeError``.
    """
    run = subject.run
    if run is not None and not run.environment.in_text:
        if system is not None:
            raise NodeError("--system is for runs in text; leave it out", ExitCode.USAGE)
        return CharacterDialogue(run.environment.name)
    from roles.environments.preamble import preamble  # noqa: PLC0415 - for text alone

    opening = () if run is None else preamble(run.environment)
    if system is not None:
        opening = (ChatMessage("system", system),) if system else ()
    try:
        return TextDialogue(subject.read_tokenizer(), opening)
    except ValueError as error:
        raise NodeError(f"{subject.name} cannot chat: {error}", ExitCode.CONFIG) from None


def pieces_of(dialogue: Dialogue, tokens: Iterable[int]) -> Iterator[str]:
    """Stream the text of tokens, each piece as soon as later tokens cannot change it."""
    seen: list[int] = []
    shown = ""
    for token in tokens:
        seen.append(token)
        text = dialogue.text(seen).rstrip(_INCOMPLETE)
        if len(text) > len(shown) and text.startswith(shown):
            yield text[len(shown) :]
            shown = text
    whole = dialogue.text(seen)
    if whole.startswith(shown) and whole != shown:
        yield whole[len(shown) :]
