"""Blocking tasks, and an adapter that runs them outside of the event loop."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from typing_extensions import override

from roles.ports.background import Background
from roles.ports.engines import Answer, EngineError, Environment, Score

T = TypeVar("T")


class BlockingTask(Protocol):
    """Task as blocking functions; see ``Environment``."""

    @property
    def name(self) -> str:
        """Name in manifests."""

    @property
    def vocabulary_size(self) -> int:
        """Number of tokens; ids are below it."""

    def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        """Return the prompt tokens of problem ``seed`` (64 bits)."""

    def score(self, seed: int, completion: Sequence[int]) -> float:
        """Return the score of completion tokens for problem ``seed``."""

    def text(self, tokens: Sequence[int]) -> str:
        """Decode tokens for people; unknown tokens are harmless."""


class InBackground(Environment):
    """Adapter of a ``BlockingTask`` to ``Environment``: its exceptions become ``EngineError``."""

    def __init__(self, task: BlockingTask, background: Background) -> None:
        self._task = task
        self._background = background

    @property
    @override
    def name(self) -> str:
        return self._task.name

    @override
    async def open(self) -> None:
        pass  # it needs no files

    @override
    async def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        return await in_background(self._background, lambda: self._task.prompt(seed, length_target))

    @override
    async def score_batch(self, answers: Sequence[Answer]) -> list[Score]:
        def scores() -> list[Score]:
            return [self._task.score(answer.seed, answer.tokens) for answer in answers]

        return await in_background(self._background, scores)

    @override
    async def texts(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        return await in_background(self._background, lambda: [*map(self._task.text, sequences)])


async def in_background(background: Background, function: Callable[[], T]) -> T:
    """Return the result of third-party code; raises ``EngineError`` for any of its exceptions."""

    def guarded() -> T:
        try:
            return function()
        except KeyboardInterrupt:  # from the user, if the background is the loop's own thread
            raise
        except BaseException as error:  # noqa: BLE001 - even ``exit()`` must end only this call
            raise EngineError.of(error) from None

    return await background.run(guarded)
