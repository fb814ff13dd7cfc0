"""What one check found."""

from dataclasses import dataclass
from enum import StrEnum


class FindingLevel(StrEnum):
    """How well it is."""

    OK = "ok"
    WARNING = "warning"
    """The node works, less well than it could."""
    FAILURE = "failure"
    """The node will not work."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was looked at, what was found, and what to do about it (empty when nothing)."""

    what: str
    level: FindingLevel
    found: str
    advice: str = ""
