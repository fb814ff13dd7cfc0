"""Causal history of a violation: the events that mention its commits and versions."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from simulations.checkers.wire import Opened, shown
from simulations.runtime.trace import Event

Subject = bytes | int
"""The digest of a commit, or the number of a version."""

STORES_KEPT = 3
"""All nodes store each message; the first three times are enough."""

LINES_MAX = 48
WORLD_LINES_MAX = 24
SUBJECTS_MAX = 20_000
"""Guesses: histories stay readable, and a large run needs some 100 MB for them."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A violated rule: place, time (virtual seconds since the start) and reason."""

    rule: str
    at: float
    node: str
    what: str
    causes: tuple[str, ...]

    def __str__(self) -> str:
        """Format the violation on one line."""
        return f"{self.rule}: {self.what} ({self.node}, {self.at:.3f} s)"


_TOLD_ELSEWHERE = ("peer", "upload", "download")

_Line = tuple[float, str, str | Opened]


class History:
    """Bounded causal histories; events of nodes and of the network belong to all of them."""

    def __init__(self, name: Callable[[str], str]) -> None:
        self._name = name
        self._subjects: dict[Subject, list[_Line]] = {}
        self._world: deque[_Line] = deque(maxlen=WORLD_LINES_MAX)

    def note_world(self, event: Event) -> None:
        """Record an event of a node or of the network."""
        facts = (
            f"{key}={shown(value)}"
            for key, value in event.facts.items()
            if value and key not in _TOLD_ELSEWHERE
        )
        self._world.append((event.at, event.node, " ".join((event.kind, *facts))))

    def note(self, subject: Subject, event: Event, what: str) -> None:
        """Record an event that mentions ``subject``."""
        self._add(subject, (event.at, event.node, what))

    def note_message(self, event: Event, opened: Opened) -> None:
        """Record a stored message under its subjects, for the first few nodes that store it."""
        if opened.stores > STORES_KEPT:
            return
        line = (event.at, event.node, opened)
        if opened.kind == "checkpoint-manifest":
            self._add(opened.fields["version"], line)
        elif opened.commit is not None:
            self._add(opened.commit, line)

    def causes(self, subjects: tuple[Subject, ...], start: float) -> tuple[str, ...]:
        """Return the lines of ``subjects`` and of the world, ordered by time."""
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
