"""Checks of a machine before a node joins a run, each with a remedy."""

from dataclasses import dataclass
from enum import StrEnum


class FindingLevel(StrEnum):
    """Severity of a finding."""

    OK = "ok"
    WARNING = "warning"
    """The node works, with limits."""
    FAILURE = "failure"
    """The node will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The checked thing, the result, and a remedy (empty if none is needed)."""

    what: str
    level: FindingLevel
    found: str
    advice: str = ""
