"""The answer to ``why``: what the daemon tells at ``/why``, typed for whoever reads it."""

from dataclasses import dataclass
from typing import Literal

from node.api.status import State


@dataclass(frozen=True, slots=True)
class MeasuredMargin:
    """A quantity that a validator measured, and its limit."""

    value: float
    limit: float


@dataclass(frozen=True, slots=True)
class VerdictFinding:
    """One signed verdict; ``evidence`` is its digest, hexadecimal, ``validator`` its signer."""

    validator: str
    accept: bool
    reason: str
    detail: str
    evidence: str
    margins: dict[str, MeasuredMargin]


@dataclass(frozen=True, slots=True)
class FailedRollout:
    """One of our commits that was not certified; digests are hexadecimal."""

    commit: str
    version: int
    slot: int
    epoch: int
    state: Literal["rejected", "expired"]
    reason: str
    certificate: str | None
    verdicts: tuple[VerdictFinding, ...]

    def is_named(self, which: str) -> bool:
        """Tell whether ``which`` is its reason, its state or how its digest begins."""
        wanted = which.lower()
        return wanted in {self.reason.lower(), self.state} or self.commit.startswith(wanted)


@dataclass(frozen=True, slots=True)
class Why:
    """Why the node is in its state, and which of its rollouts failed, oldest first."""

    state: State
    reason: str
    slashed: bool
    rollouts: tuple[FailedRollout, ...]
