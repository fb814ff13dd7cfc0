"""Idle share of a trainer: its waits for rollouts, weights and disk."""

from collections.abc import Sequence

from node.api.status import BusyTimeStatus


def idle_share(steps: Sequence[BusyTimeStatus], until: float) -> float | None:
    """Return the share of the time from the first step to ``until`` outside of steps.

    ``steps`` come from all training processes, of which one leads at a time. None before a step.
    """
    began = [one.began_at for one in steps if one.began_at is not None]
    seconds = until - min(began, default=until)
    if seconds <= 0:
        return None
    return max(0.0, 1 - sum(one.seconds for one in steps) / seconds)
