"""Query parameters with bounds; an invalid one gives a one-line error."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

QUERY_CHARACTERS_MAX = 512
"""Limit of a query string; the longest of the dashboard has about 200 characters."""

LIMIT_MAX = 200
TEXT_CHARACTERS_MAX = 64

_Query = TypeVar("_Query")
_Item = TypeVar("_Item")


class QueryError(ValueError):
    """An invalid parameter; the message goes to the client."""


@dataclass(frozen=True, slots=True)
class RolloutQuery:
    """Filter of rollouts; the page begins after the commit ``after``."""

    state: str = ""
    worker: str = ""
    version: int = -1
    reason: str = ""
    after: str = ""
    limit: int = 50

    def takes(self, state: str, worker: str, version: int, reason: str) -> bool:
        """Return whether a rollout matches."""
        return (
            (not self.state or state == self.state)
            and (not self.worker or worker.endswith(self.worker) or worker.startswith(self.worker))
            and self.version in (-1, version)
            and (not self.reason or reason == self.reason)
        )

    def page(self, found: Sequence[_Item], commits: Sequence[str]) -> tuple[list[_Item], str]:
        """Return a page of ``found`` with these commits, and the next page's ``after``."""
        start = commits.index(self.after) + 1 if self.after in commits else 0
        end = start + self.limit
        return list(found[start:end]), commits[end - 1] if end < len(commits) else ""


@dataclass(frozen=True, slots=True)
class PeerQuery:
    """Filter and order of peers."""

    role: str = ""
    reputation: str = ""
    text: str = ""
    sort: str = "role"
    offset: int = 0
    limit: int = 100


@dataclass(frozen=True, slots=True)
class WeightsQuery:
    """Version of the forest; -1 is the newest."""

    version: int = -1


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Filter of events."""

    kind: str = ""
    limit: int = 100


def parse(shape: type[_Query], given: Mapping[str, str]) -> _Query:
    """Return the query; raises ``QueryError`` for an unknown parameter or one out of bounds."""
    known = {field.name: field.default for field in fields(shape)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name == "node":
            continue  # the testnet's proxy selects the node by it
        if name not in known:
            raise QueryError(f"unknown parameter {name!r}; known are: {', '.join(known)}")
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
        raise QueryError(f"{name} is not between {least} and {most}")
    return number
