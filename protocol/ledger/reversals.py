"""Consequences of overturned outcomes for the accounts of a worker and of its checkers.

A re-examination overturns the outcome that a receipt states (``protocol.consensus.reexamination``).
Everything follows from the receipt and the reason of the objections, in integers.
"""

from fractions import Fraction

from protocol.ledger.account_leaves import Account
from protocol.ledger.receipts import Reversal
from protocol.messages import ACCEPTED
from protocol.rollout.agreement import CERTAIN_REASONS

MISJUDGED_MIN = 8
"""Overturned rewards that prove nothing in a run whose rewards may differ between machines. With
twice the expected number in addition, an honest checker has more once in 200,000 tries."""


def misjudged_max(rate: float, checks: int) -> int:
    """Return the overturned rewards of an honest checker, at most.

    ``rate``: share of honest rollouts whose rewards differ between machines; 0 allows none.
    """
    return int(2 * checks * Fraction(rate)) + MISJUDGED_MIN if rate else 0


def is_lie(reversal: Reversal) -> bool:
    """Return whether the verdicts behind an overturned outcome cannot be honest."""
    decided, reason = reversal.receipt.reason, reversal.reason
    return (decided if reason == ACCEPTED else reason) in CERTAIN_REASONS


def take_rollout(account: Account, tokens: int) -> tuple[int, int]:
    """Take an accepted rollout back; return the rollouts and the tokens that were there.

    The recent eras lose the tokens, the newest first: the draw of a council counts them.
    """
    rollouts, taken = min(1, account.rollouts), min(tokens, account.tokens)
    account.rollouts -= rollouts
    account.tokens -= taken
    worked = sum(count for _, count in account.eras)
    surplus = worked if not account.rollouts else max(taken, worked - account.tokens)
    _take_newest(account.eras, surplus)
    if not account.rollouts:
        account.eras = []
    return rollouts, taken


def take_credit(account: Account, amount: int) -> int:
    """Take credit that is still locked, the newest first; return how much there was."""
    return amount - _take_newest(account.locked, amount)


def _take_newest(entries: list[list[int]], amount: int) -> int:
    """Lower the last of some numbered amounts, and drop those that become 0; return the rest."""
    while entries and amount:
        taken = min(amount, entries[-1][1])
        entries[-1][1] -= taken
        amount -= taken
        if entries[-1][1]:
            break
        entries.pop()
    return amount
