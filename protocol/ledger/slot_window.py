"""Decided training slots of one worker: the next slot, the newest decided slots, and their number.

A worker takes its slots in order, so a slot that stays undecided is a gap: it was left out, or its
rollout expired. Rollouts in flight become final in any order, so the newest slots are a bit each.
An older slot that is not decided stays a gap.
"""

from typing import NamedTuple

WINDOW_SLOTS = 256
"""Newest slots whose decisions are known one by one. A worker has 16 commits in flight at most."""

WINDOW_BYTES = WINDOW_SLOTS // 8

_MASK = (1 << WINDOW_SLOTS) - 1


class SlotWindow(NamedTuple):
    """Decided slots of a worker."""

    next_slot: int = 0
    """Highest decided slot + 1."""
    slots: int = 0
    """Number of decided slots."""
    window: bytes = bytes(WINDOW_BYTES)
    """One bit for each of the newest slots, a big-endian number: the lowest bit is the highest
    decided slot."""

    @property
    def gaps(self) -> int:
        """Slots below ``next_slot`` that are not decided."""
        return self.next_slot - self.slots

    def is_open(self, slot: int) -> bool:
        """Return whether a slot is undecided and not older than the window."""
        age = self.next_slot - 1 - slot
        return age < 0 or (age < WINDOW_SLOTS and not int.from_bytes(self.window, "big") >> age & 1)

    def decide(self, slot: int) -> "SlotWindow":
        """Return the window after the decision of an open slot."""
        bits, ahead = int.from_bytes(self.window, "big"), slot + 1 - self.next_slot
        if ahead <= 0:
            bits |= 1 << -ahead
        else:
            bits = (bits << ahead if ahead < WINDOW_SLOTS else 0) & _MASK | 1
        window = bits.to_bytes(WINDOW_BYTES, "big")
        return SlotWindow(max(self.next_slot, slot + 1), self.slots + 1, window)

    @property
    def is_possible(self) -> bool:
        """Return whether decisions can lead to these numbers, which may come from outside."""
        bits, older = int.from_bytes(self.window, "big"), max(0, self.next_slot - WINDOW_SLOTS)
        fits = bits >> min(self.next_slot, WINDOW_SLOTS) == 0 and bits & 1 == (self.next_slot > 0)
        return fits and 0 <= self.slots - bits.bit_count() <= older
