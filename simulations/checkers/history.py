"""What a violation was caused by: for each commit and version, the events that mention it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from simulations.checkers.wire import Opened, shown
from simulations.runtime.trace import Event

Subject = bytes | int
"""The digest of a commit, or the number of a version."""

STORES_KEPT = 3
"""A thousand nodes store each message; the first few say who knew it when."""

LINES_MAX = 48
WORLD_LINES_MAX = 24
SUBJECTS_MAX = 20_000
"""Guesses that keep a history readable and the memory of a large run within some 100 MB."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that did not hold: where and when (virtual seconds since the start), and why."""

    rule: str
    at: float
    node: str
    what: str
    causes: tuple[str, ...]

    def __str__(self) -> str:
        """Say it on one line."""
        return f"{self.rule}: {self.what} ({self.node}, {self.at:.3f} s)"


_TOLD_ELSEWHERE = ("peer", "upload", "download")

_Line = tuple[float, str, str | Opened]


class History:
    """Bounded causal histories; what happens to nodes and the network belongs to all of them."""

    def __init__(self, name: Callable[[str], str]) -> None:
        self._name = name
        self._subjects: dict[Subject, list[_Line]] = {}
        self._world: deque[_Line] = deque(maxlen=WORLD_LINES_MAX)

    def note_world(self, event: Event) -> None:
        """Remember something that happened to a node or to the network."""
        facts = (
            f"{key}={shown(value)}"
            for key, value in event.facts.items()
            if value and key not in _TOLD_ELSEWHERE
        )
        self._world.append((event.at, event.node, " ".join((event.kind, *facts))))

    def note(self, subject: Subject, event: Event, what: str) -> None:
        """Remember an event that mentions ``subject``."""
        self._add(subject, (event.at, event.node, what))

    def note_message(self, event: Event, opened: Opened) -> None:
        """Remember a stored message under what it is about, for the first few who store it."""
        if opened.stores > STORES_KEPT:
            return
        line = (event.at, event.node, opened)
        if opened.kind == "checkpoint-manifest":
            self._add(opened.fields["version"], line)
        elif opened.commit is not None:
            self._add(opened.commit, line)

    def causes(self, subjects: tuple[Subject, ...], start: float) -> tuple[str, ...]:
        """Return the lines of ``subjects`` and of the world, in order of time."""
        lines = [*self._world]
        for subject in dict.fromkeys(subjects):
            lines += self._subjects.get(subject, [])
        return tuple(
            f"{at - start:10.3f}  {node:<14} "
            + (f"stored {what.describe(self._name)}" if isinstance(what, Opened) else what)
            for at, node, what in sorted(lines, key=lambda line: line[0])
        )

    def _add(self, subject: Subject, line: _Line) -> None:
        lines = self._subjects.get(subject)
        if lines is None:
            lines = self._subjects[subject] = []
            if len(self._subjects) > SUBJECTS_MAX:
                del self._subjects[next(iter(self._subjects))]
        if len(lines) < LINES_MAX:
            lines.append(line)
