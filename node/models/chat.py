"""Chat with a model, on a terminal or for a script."""

import sys
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.local.errors import ExitCode, NodeError
from node.models.dialogue import dialogue_of, pieces_of
from node.models.subject import EvaluatedModel
from roles.ports.engines import EngineError, GenerationRequest
from roles.ports.text import ChatMessage

if TYPE_CHECKING:
    from roles.engines.local_model import LocalModel

TOKENS_MAX = 512
"""Default length limit of an answer, if the run's own limit is lower and its task is in text."""

_CONTROL = "\N{REPLACEMENT CHARACTER}"
"""Replacement of control characters."""

HELP = "/reset forgets the conversation; /exit or Ctrl-D ends; Ctrl-C stops an answer"


@dataclass(frozen=True, slots=True)
class ChatOptions:
    """Sampling options; a ``temperature`` of 0 is greedy.

    ``tokens_max`` limits the tokens of an answer, None for the default. ``system`` replaces the
    run's messages before a question, unless it is None.
    """

    tokens_max: int | None = None
    temperature: float = 0.0
    seed: int = 0
    system: str | None = None
    device: str = "auto"


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer, as far as it was computed; a ``cut`` answer has no end token."""

    text: str
    tokens: int
    prompt_tokens: int
    cut: bool


class ChatSession:
    """Conversation: each prompt includes all questions and answers before it."""

    def __init__(self, subject: EvaluatedModel, options: ChatOptions) -> None:
        """Load the model; raises ``NodeError``."""
        self._dialogue = dialogue_of(subject, options.system)
        self._model: LocalModel = subject.loaded(options.device)
        self._options = options
        self._tokens_max = options.tokens_max or _tokens_max(subject)
        self._history: list[ChatMessage] = []
        self._seed = options.seed
        self.reply = Reply("", 0, 0, cut=False)

    def reset(self) -> None:
        """Clear the conversation."""
        self._history.clear()

    def ask(self, question: str) -> Iterator[str]:
        """Stream the answer, piece by piece.

        Raises ``ValueError`` for a question that the model's prompt cannot hold.
        """
        prompt = self._dialogue.prompt(question, self._history)
        room = self._model.positions - len(prompt)
        if room < 1:
            raise ValueError(
                f"the conversation takes {len(prompt):,} of the model's "
                f"{self._model.positions:,} positions; /reset forgets it"
            )
        request = GenerationRequest(prompt, self._seed, min(self._tokens_max, room))
        self._seed += 1
        return self._answered(question, request)

    def _answered(self, question: str, request: GenerationRequest) -> Iterator[str]:
        tokens: list[int] = []

        def computed() -> Iterator[int]:
            for token in self._model.stream(request, self._options.temperature):
                tokens.append(token)
                yield token

        try:
            yield from pieces_of(self._dialogue, computed())
        finally:  # also when the answer was interrupted
            cut = not self._model.has_ended(tokens)
            text = self._dialogue.text(tokens)
            self.reply = Reply(text, len(tokens), len(request.prompt), cut)
            self._history += [ChatMessage("user", question), ChatMessage("assistant", text)]


def converse(chat: ChatSession) -> None:
    """Answer typed questions until the input ends; without a terminal, each line is a question."""
    typed = sys.stdin.isatty()
    if typed:
        with suppress(ImportError):
            import readline  # noqa: F401, PLC0415 - gives ``input`` its line editing
        _note(HELP)
    while True:
        try:
            question = input("> " if typed else "").strip()
        except EOFError:
            break
        except KeyboardInterrupt:
            _note(f"\n{HELP}")
            continue
        if question == "/exit":
            return
        if question == "/reset":
            chat.reset()
        elif question.startswith("/"):
            _note(HELP)
        elif question:
            _answer(chat, question)
    if typed:
        sys.stdout.write("\n")


def _answer(chat: ChatSession, question: str) -> None:
    try:
        for piece in chat.ask(question):
            _write(piece)
    except (EngineError, ValueError) as error:
        _note(str(error))
        return
    except KeyboardInterrupt:
        _write("\n")
        _note("stopped")
        return
    _write("\n")
    if chat.reply.cut:
        _note(f"cut after {chat.reply.tokens} tokens; --tokens raises the limit")


def answer_once(chat: ChatSession, question: str, *, shown: bool) -> Reply:
    """Answer one question, streamed to standard output if ``shown``; raises ``NodeError``."""
    try:
        pieces = chat.ask(question)
    except ValueError as error:
        raise NodeError(str(error), ExitCode.USAGE) from None
    try:
        for piece in pieces:
            if shown:
                _write(piece)
    except EngineError as error:
        raise NodeError(f"the answer failed: {error}", ExitCode.CONFIG) from None
    if shown:
        _write("\n")
    return chat.reply


def _tokens_max(subject: EvaluatedModel) -> int:
    run = subject.run
    if run is None:
        return TOKENS_MAX
    own = run.sampling.tokens_max
    return max(own, TOKENS_MAX) if run.environment.in_text else own


def harmless(text: str) -> str:
    """Replace control characters, which could control a terminal."""
    return "".join(
        one if one in "\n\t" or unicodedata.category(one) != "Cc" else _CONTROL for one in text
    )


def _write(text: str) -> None:
    sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _note(line: str) -> None:
    sys.stdout.flush()
    sys.stderr.write(f"{line}\n")
