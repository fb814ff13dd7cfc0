"""What may be asked: every parameter has a bound, and a wrong one is told in a line."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

QUERY_CHARACTERS_MAX = 512
"""Of a query string; the longest honest one has about 200."""

LIMIT_MAX = 200
TEXT_CHARACTERS_MAX = 64

_Query = TypeVar("_Query")


class QueryError(ValueError):
    """A parameter that is not one; the message is for who asked."""


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Which rollouts; ``after`` is the commit behind which the page begins."""

    state: str = ""
    worker: str = ""
    version: int = -1
    reason: str = ""
    after: str = ""
    limit: int = 50

    def takes(self, state: str, worker: str, version: int, reason: str) -> bool:
        """Return whether a rollout is one of them."""
        return (
            (not self.state or state == self.state)
            and (not self.worker or worker.endswith(self.worker) or worker.startswith(self.worker))
            and self.version in (-1, version)
            and (not self.reason or reason == self.reason)
        )


@dataclass(frozen=True, slots=True)
class PeerQuery:
    """Which peers, and in which order."""

    role: str = ""
    standing: str = ""
    text: str = ""
    sort: str = "role"
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class WeightsQuery:
    """Of which version the forest is wanted; -1 is the newest one."""

    version: int = -1


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Which events."""

    kind: str = ""
    limit: int = 100


def parse(shape: type[_Query], given: Mapping[str, str]) -> _Query:
    """Return the query; raises ``QueryError`` for an unknown parameter or one out of bounds."""
    known = {field.name: field.default for field in fields(shape)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name == "node":
            continue  # which node is asked: whoever passes a question on has read it
        if name not in known:
            raise QueryError(f"there is no parameter {name!r}; there are: {', '.join(known)}")
        values[name] = _value(name, text, known[name])
    return shape(**values)


def _value(name: str, text: str, default: object) -> object:
    if isinstance(default, str):
        if len(text) > TEXT_CHARACTERS_MAX:
            raise QueryError(f"{name} has more than {TEXT_CHARACTERS_MAX} characters")
        return text
    try:
        number = int(text)
    except ValueError:
        raise QueryError(f"{name} is not a number") from None
    least, most = (1, LIMIT_MAX) if name == "limit" else (-1 if name == "version" else 0, 2**53)
    if not least <= number <= most:
        raise QueryError(f"{name} is not from {least} to {most}")
    return number
