"""Agreement of verdicts, recomputed from the run's calibration without ``protocol``.

The limits are those of ``docs/protocol.md``: a sum of differences, and a number of replays that two
honest engines exceed once in 1,000 tries.
"""

from math import comb
from typing import Any

from simulations.checkers.wire import Rules

VALUES = 8
SIGMAS = 8
RATE = 1e-3
CERTAIN = ("format", "termination", "computation")


def differ(rules: Rules, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two verdicts state witness values that no two honest engines find."""
    pairs = zip(one["witness"], other["witness"], strict=True)
    far: int = sum(abs(ours - theirs) for ours, theirs in pairs)
    replays = zip(one["replays"], other["replays"], strict=True)
    changed = sum(ours != theirs for ours, theirs in replays)
    return far > SIGMAS * VALUES * rules.gap_sigma * 1e9 or changed > _most(rules.replay_share)


def agree(rules: Rules, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two verdicts with one result support the same outcome."""
    if one["witness"] and other["witness"]:
        return not differ(rules, one, other)
    return _kind(one["reason"]) == _kind(other["reason"])


def contradict(rules: Rules, one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether one of two verdicts cannot be honest."""
    if one["witness"] and other["witness"] and differ(rules, one, other):
        return True
    rejecting = other if one["accept"] else one
    return one["accept"] is not other["accept"] and rejecting["reason"] in CERTAIN


def _kind(reason: str) -> str:
    return "reward" if reason == "reward-history" else reason


def _most(share: float) -> int:
    """Return the number of differing replays that honest pairs exceed once in 1,000 tries."""
    tail = 1.0
    for count in range(VALUES + 1):
        tail -= comb(VALUES, count) * share**count * (1 - share) ** (VALUES - count)
        if tail <= RATE:
            return count
    return VALUES
