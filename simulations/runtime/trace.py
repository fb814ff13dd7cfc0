"""The trace: a stream of events with one digest.

Every action of a simulated port is an event. The digest is BLAKE3 over the canonical lines: the
same for a scenario and seed on every machine, under any ``PYTHONHASHSEED``.
"""

from collections.abc import Callable
from typing import NamedTuple

from blake3 import blake3

Value = int | float | str | bytes | bool | None


class Event(NamedTuple):
    """One event: virtual unix seconds, node, kind, and facts."""

    at: float
    node: str
    kind: str
    facts: dict[str, Value]


Listener = Callable[[Event], None]

Emit = Callable[..., None]
"""``emit(kind, **facts)`` into the trace of one node."""


class Trace:
    """Numbers events, feeds the digest, and passes each event to its listeners."""

    def __init__(self) -> None:
        self._hasher = blake3()
        self._listeners: list[Listener] = []
        self.events = 0

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with every event from now on, in order."""
        self._listeners.append(listener)

    def emit(self, at: float, node: str, kind: str, **facts: Value) -> None:
        """Record an event."""
        self.events += 1
        told = [
            f"{key}={value.hex() if isinstance(value, bytes) else value}"
            for key, value in sorted(facts.items())
        ]
        self._hasher.update(f"{at:.6f} {node} {kind} {' '.join(told)}\n".encode())
        if self._listeners:
            event = Event(at, node, kind, facts)
            for listener in self._listeners:
                listener(event)

    @property
    def digest(self) -> str:
        """The digest of everything so far, in hexadecimal."""
        return self._hasher.hexdigest()
