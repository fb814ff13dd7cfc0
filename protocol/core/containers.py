"""Bounded containers that report their size and limit, and a decaying sum."""

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from typing_extensions import override

from protocol.core.faults import Fault

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Table(Protocol):
    """Container that remote peers can fill, with its name and limit in metrics."""

    @property
    def name(self) -> str:
        """Label in metrics; the fullest of the tables with one name counts."""

    @property
    def limit(self) -> int:
        """Maximum of ``len``, in entries or, if the name ends so, in bytes."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SizeGauge:
    """``Table`` with its size from a function, for containers that enforce their own limit."""

    name: str
    limit: int
    size: Callable[[], int]

    def __len__(self) -> int:
        return self.size()


def table_sizes(tables: Iterable[Table]) -> dict[str, int]:
    """Return the size of the fullest table of each name."""
    sizes: dict[str, int] = {}
    for table in tables:
        sizes[table.name] = max(len(table), sizes.get(table.name, 0))
    return sizes


class BoundedDict(OrderedDict[Key, Value]):
    """Dict of at most ``limit`` entries: a new key evicts the oldest one.

    The order is that of insertion; assigning to a key that is present does not change it.
    ``OrderedDict`` evicts in constant time; a plain dict of 131,072 entries takes 50 us for each.
    """

    def __init__(self, limit: int, name: str = "") -> None:
        super().__init__()
        self.limit = limit
        self.name = name

    @override
    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        if len(self) > self.limit:
            self.popitem(last=False)

    def set_newest(self, key: Key, value: Value) -> None:
        """Set the value of a key, and make the key the newest."""
        self[key] = value
        self.move_to_end(key)

    def retain(self, keep: Callable[[Key, Value], bool]) -> None:
        """Delete the entries for which ``keep`` returns False."""
        for key in [key for key, value in self.items() if not keep(key, value)]:
            del self[key]


class LruCache(Generic[Key, Value]):
    """The ``limit`` most recently used results of a pure function."""

    def __init__(self, limit: int) -> None:
        self._entries = BoundedDict[Key, Value](limit)

    def get_or_compute(self, key: Key, compute: Callable[[Key], Value | Fault]) -> Value | Fault:
        """Return the cached result, or call ``compute`` and cache its result unless a fault."""
        known = self._entries.get(key)
        if known is not None:
            self._entries.move_to_end(key)
            return known
        result = compute(key)
        if not isinstance(result, Fault):
            self._entries[key] = result
        return result


@dataclass(slots=True)
class DecayingSum:
    """Sum of amounts that halve after each half-life, added in any order.

    Times and half-lives have one unit, which the caller chooses.
    """

    amount: float = 0.0
    at: float = 0.0
    """Time of the newest amount; ``amount`` is the value of the sum then."""

    def value_at(self, now: float, half_life: float) -> float:
        """Return the value of the sum at a time."""
        return self.amount * math.exp2((self.at - now) / half_life)

    def add(self, amount: float, at: float, half_life: float) -> None:
        """Add an amount at a time, which may be earlier than that of others."""
        if at > self.at:
            self.amount, self.at = self.value_at(at, half_life), at
        self.amount += amount * math.exp2((at - self.at) / half_life)
