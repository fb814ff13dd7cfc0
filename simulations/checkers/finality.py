"""Finality rule: pages go on becoming final while more than half of the council is there."""

from simulations.checkers.pages import Pages
from simulations.checkers.watch import Watch

MARGIN_EPOCHS = 10
"""Epochs beyond ``recovery_epochs``: to propose the removal of silent members, and to make it
final."""


class Finality:
    """Compares the time of the newest final page with the time that a recovery takes.

    Members with more than half of the seats must be honest and run since that page and the last
    fault. So they can remove the members that are gone for good.
    """

    def __init__(self, watch: Watch, pages: Pages) -> None:
        self._watch = watch
        self._pages = pages
        self._newest = -1
        self._newest_at = 0.0
        watch.on_tick(self._on_tick)

    def _on_tick(self, now: float) -> None:
        rules, swarm = self._watch.rules, self._watch.swarm
        if self._pages.newest_final_epoch > self._newest:
            self._newest, self._newest_at = self._pages.newest_final_epoch, now
        if swarm.calm_since is None:
            return
        since = max(swarm.calm_since, self._newest_at, self._watch.started_at)
        waited_epochs = (now - since) / rules.epoch_seconds
        if waited_epochs <= rules.recovery_epochs + MARGIN_EPOCHS:
            return
        council = self._pages.newest_council
        able = sum(
            seats
            for peer, seats in council.items()
            if (one := swarm.by_peer.get(peer)) and one.honest and one.steady_since(since, now)
        )
        if 2 * able > sum(council.values()):
            what = (
                f"no page after epoch {self._newest} is final for {waited_epochs:.0f} epochs "
                f"although members with {able} of {sum(council.values())} seats are there"
            )
            self._watch.report("final-pages", "world", what)
