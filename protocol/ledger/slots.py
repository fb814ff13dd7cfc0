"""Which slots workers have used: for each checkpoint a worker commits to slot 0, 1, 2, … in order.

When a later term supersedes a version, its slots begin again: the assignments are others.
"""

from collections.abc import Callable

from protocol.messages import RolloutCommit, Signed
from protocol.types import Digest, PeerId

_Key = tuple[PeerId, int, bytes]
"""Worker, version and checkpoint."""


def _key(commit: Signed[RolloutCommit]) -> _Key:
    return commit.signer, commit.message.version, commit.message.checkpoint


class Slots:
    """The first commit that was seen for each slot."""

    def __init__(self) -> None:
        self._used: dict[_Key, dict[int, Digest]] = {}

    def take(self, commit: Signed[RolloutCommit]) -> Digest | None:
        """Note a commit; return the other one that had its slot before, if there is one."""
        slots = self._used.setdefault(_key(commit), {})
        first = slots.setdefault(commit.message.slot, commit.digest)
        return None if first == commit.digest else first

    def follows(self, commit: Signed[RolloutCommit]) -> bool:
        """Tell whether the commit of the slot before is here, and is the one that is named."""
        slots, slot = self._used.get(_key(commit), {}), commit.message.slot
        return slot == 0 or slots.get(slot - 1) == commit.message.previous

    def is_last(self, commit: Signed[RolloutCommit]) -> bool:
        """Tell whether no later slot is used."""
        slots = self._used.get(_key(commit), {})
        return slots.get(max(slots, default=0)) == commit.digest

    def after_last(self, worker: PeerId, version: int, checkpoint: bytes) -> tuple[int, bytes]:
        """Return the slot that ``worker`` must use next, and the digest of the one before it."""
        slots = self._used.get((worker, version, checkpoint), {})
        if not slots:
            return 0, b""
        last = max(slots)
        return last + 1, slots[last]

    def forget(self, is_needed: Callable[[PeerId, int, bytes], bool]) -> None:
        """Keep the slots of the checkpoints that are needed by a worker, forget the others."""
        self._used = {key: slots for key, slots in self._used.items() if is_needed(*key)}
