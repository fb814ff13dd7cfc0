"""Tasks that compute where they are asked, and how a node asks them beside its event loop."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from typing_extensions import override

from roles.ports.background import Background
from roles.ports.engines import Answer, EngineError, Environment, Score

T = TypeVar("T")


class BlockingTask(Protocol):
    """A task in plain functions; see ``Environment`` for what they mean."""

    @property
    def name(self) -> str:
        """The name that manifests use."""

    @property
    def vocabulary_size(self) -> int:
        """How many tokens it knows; their ids are below it."""

    def prompt(self, seed: int, length_target: int | None) -> tuple[int, ...]:
        """Return the prompt tokens of problem ``seed`` (64 bits)."""

    def score(self, seed: int, completion: Sequence[int]) -> float:
        """Return what the task gives completion tokens for problem ``seed``."""

    def text(self, tokens: Sequence[int]) -> str:
        """Return tokens as people read them; unknown ones harm nothing."""


class InBackground(Environment):
    """A ``BlockingTask`` as an environment: whatever it raises is an ``EngineError``."""

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
    """Return what somebody else's ``function`` returns; ``EngineError`` for whatever it raises."""

    def guarded() -> T:
        try:
            return function()
        except KeyboardInterrupt:  # a person's, where the background is the loop's own thread
            raise
        except BaseException as error:  # noqa: BLE001 - even ``exit()`` ends only the question
            raise EngineError.of(error) from None

    return await background.run(guarded)
