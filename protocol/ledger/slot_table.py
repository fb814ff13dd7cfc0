"""First commit seen for each slot of the workers.

A worker has one sequence of training slots for the whole run, and one of evaluation slots for each
checkpoint that it evaluates. Two commits for one slot prove a fault.
"""

from collections.abc import Callable

from protocol.core.types import Digest, PeerId
from protocol.messages import RolloutCommit, Signed

SlotSequence = tuple[PeerId, bytes]
"""Worker, and the checkpoint that its evaluation slots evaluate; empty for training slots."""


def sequence_of(commit: Signed[RolloutCommit]) -> SlotSequence:
    """Return the sequence to which the slot of a commit belongs."""
    message = commit.message
    return commit.signer, message.checkpoint if message.evaluation else b""


def slot_of(commit: Signed[RolloutCommit]) -> tuple[SlotSequence, int]:
    """Return the slot of a commit, which only one commit of its worker may have."""
    return sequence_of(commit), commit.message.slot


class SlotTable:
    """Slots of the commits that are held."""

    def __init__(self) -> None:
        self._used: dict[SlotSequence, dict[int, Digest]] = {}

    def take(self, commit: Signed[RolloutCommit]) -> Digest | None:
        """Record a commit; return the other commit that already uses its slot, if any."""
        slots = self._used.setdefault(sequence_of(commit), {})
        first = slots.setdefault(commit.message.slot, commit.digest)
        return None if first == commit.digest else first

    def is_last(self, commit: Signed[RolloutCommit]) -> bool:
        """Return whether no later slot of its sequence is used."""
        slots = self._used.get(sequence_of(commit), {})
        return slots.get(max(slots, default=0)) == commit.digest

    def after_last(self, sequence: SlotSequence) -> int:
        """Return the slot after the last one that is used."""
        return max(self._used.get(sequence, ()), default=-1) + 1

    def forget(self, is_held: Callable[[Digest], bool]) -> None:
        """Forget the slots of commits that are no longer held."""
        kept: dict[SlotSequence, dict[int, Digest]] = {}
        for sequence, slots in self._used.items():
            if held := {slot: one for slot, one in slots.items() if is_held(one)}:
                kept[sequence] = held
        self._used = kept
