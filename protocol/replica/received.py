"""Results of received messages, and the kinds of messages of each gossip topic."""

from dataclasses import dataclass
from typing import Any

from protocol.core.faults import Blame, Fault
from protocol.core.types import Topic, ValidationResult
from protocol.messages import (
    Certificate,
    CheckpointManifest,
    Evidence,
    Message,
    NodeRecord,
    Overturn,
    Page,
    PageVote,
    Reveal,
    RolloutCommit,
    RoundPlan,
    RoundResult,
    Signed,
    StepReport,
)

TOPIC_KINDS: dict[Topic, tuple[type[Message], ...]] = {
    Topic.COMMITS: (RolloutCommit,),
    Topic.CERTIFICATES: (Certificate, Overturn),
    Topic.CHECKPOINTS: (CheckpointManifest, RoundPlan, RoundResult, StepReport),
    Topic.ROSTER: (NodeRecord,),
    Topic.EVIDENCE: (Evidence,),
    Topic.PAGES: (Page, PageVote, Reveal),
}


@dataclass(frozen=True, slots=True)
class Received:
    """Result of a message: forwarding decision, fault if any, and the opened message.

    ``settled`` holds the messages accepted with it: versions that waited for it, and the verdicts
    of a certificate that is not accepted itself. A message that is not ``lasting`` must not be
    stored: after a restart its lateness would be unknown.
    """

    result: ValidationResult
    signed: Signed[Any] | None = None
    fault: Fault | None = None
    settled: tuple[Signed[Any], ...] = ()
    lasting: bool = True


def received_as(signed: Signed[Any], result: Fault | bool) -> Received:
    """Return the result of an opened message: accepted, without effect, or a fault."""
    if not isinstance(result, Fault):
        return Received(ValidationResult.ACCEPT if result else ValidationResult.IGNORE, signed)
    blamed = result.code.blame is Blame.SENDER
    return Received(ValidationResult.REJECT if blamed else ValidationResult.IGNORE, signed, result)
