"""What a pure function found, kept for when the same argument comes again."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """The last ``entries_max`` results; the least recently used one goes first.

    A node has its own. Nodes that share a process and check alike, as those of a simulation do, may
    share one that is as many times larger.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Key) -> Value | None:
        """Return the result for ``key`` while it is remembered."""
        value = self._entries.get(key)
        if value is not None:
            self._entries.move_to_end(key)
        return value

    def keep(self, key: Key, value: Value) -> None:
        """Remember a result."""
        self._entries[key] = value
        if len(self._entries) > self._entries_max:
            self._entries.popitem(last=False)
