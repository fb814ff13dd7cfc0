"""What a pure function found, kept for when the same argument comes again."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from protocol.faults import Fault

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Remembered(Generic[Key, Value]):
    """The last ``entries_max`` results of a node, or of all that share a process and check alike.

    The least recently used one goes first.
    """

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: OrderedDict[Key, Value] = OrderedDict()

    def recall(self, key: Key, find: Callable[[], Value | Fault]) -> Value | Fault:
        """Return what was found for ``key``, else what ``find`` finds, kept unless a fault."""
        known = self._entries.get(key)
        if known is not None:
            self._entries.move_to_end(key)
            return known
        found = find()
        if not isinstance(found, Fault):
            self._entries[key] = found
            if len(self._entries) > self._entries_max:
                self._entries.popitem(last=False)
        return found
