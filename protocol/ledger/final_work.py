"""Certified tokens of each worker by era, as final pages name them.

A page is counted some epochs ahead of its own: the work of an era is complete, and its pages are
final everywhere, when the next era begins.
"""

from collections.abc import Iterable
from typing import NamedTuple

from protocol.core.codec import decode, encode
from protocol.core.types import Digest, PeerId

MARGIN_EPOCHS = 8
"""Epochs before the end of an era whose pages belong to the next one. Pages are final two epochs
after their own when nothing fails; a later one delays the draw. A guess."""

AWAITED_MAX = 4096
"""Commits that may still arrive; more are a gap."""

ERAS_KEPT = 4
"""The present era, the two whose work counts, and one in reserve."""


class FinalTotals(NamedTuple):
    """Certified work of a whole run, by its final pages."""

    rollouts: int
    tokens: int
    is_complete: bool
    """False if some pages or commits are not known: then the numbers are lower bounds."""


class FinalWork:
    """Work of the last eras in the final pages that this node has followed."""

    def __init__(self, era_epochs: int) -> None:
        self._era_epochs = era_epochs
        self._tokens: dict[int, dict[PeerId, int]] = {}
        self._beacons: dict[int, Digest] = {}
        """Beacon of the first final page of each era; empty if that page is not known."""
        self._gaps: dict[int, None] = {}
        """Eras of which this node has not seen all pages."""
        self._awaited: dict[Digest, int] = {}
        """Commits that final pages name and this node does not hold, with their eras."""
        self.epoch, self.page = -1, b""
        """Epoch and digest of the newest page that is counted."""
        self._rollouts = self._tokens_total = 0
        self._has_lost = False
        """True once work has been missed that cannot be counted any more."""

    @property
    def totals(self) -> FinalTotals:
        """Rollouts and tokens of the whole run, up to the newest page that is counted."""
        is_complete = not (self._has_lost or self._awaited)
        return FinalTotals(self._rollouts, self._tokens_total, is_complete)

    def era(self, epoch: int) -> int:
        """Return the era to whose work a page of an epoch belongs."""
        return (epoch + MARGIN_EPOCHS) // self._era_epochs

    def count_page(
        self, page: bytes, epoch: int, beacon: Digest, work: Iterable[tuple[PeerId, int]]
    ) -> None:
        """Count a final page: the workers and tokens of the commits that it names."""
        era = self.era(epoch)
        self.epoch, self.page = epoch, page
        self._beacons.setdefault(era, beacon)
        for worker, count in work:
            self._count(era, worker, count)
        for table in (self._tokens, self._beacons, self._gaps):
            for old in [one for one in table if one <= era - ERAS_KEPT]:
                del table[old]
        awaited = {commit: one for commit, one in self._awaited.items() if one > era - ERAS_KEPT}
        self._has_lost |= len(awaited) < len(self._awaited)
        self._awaited = awaited

    def _count(self, era: int, worker: PeerId, tokens: int) -> None:
        counted = self._tokens.setdefault(era, {})
        counted[worker] = counted.get(worker, 0) + tokens
        self._rollouts += 1
        self._tokens_total += tokens

    def miss(self, first_epoch: int, last_epoch: int) -> None:
        """Note that this node has not seen some pages of these epochs."""
        self._has_lost = True
        last = self.era(last_epoch)
        for era in range(max(self.era(max(0, first_epoch)), last - ERAS_KEPT), last + 1):
            self._gaps[era] = None
            self._beacons.setdefault(era, Digest(b""))

    def miss_commit(self, commit: Digest, epoch: int) -> None:
        """Note that this node does not hold a commit that the page of an epoch names."""
        if len(self._awaited) < AWAITED_MAX:
            self._awaited[commit] = self.era(epoch)
        else:
            self._has_lost = True
            self._gaps[self.era(epoch)] = None

    def is_awaited(self, commit: Digest) -> bool:
        """Return whether a final page names a commit that this node did not hold."""
        return commit in self._awaited

    def count_awaited(self, commit: Digest, worker: PeerId, tokens: int) -> None:
        """Count an awaited commit that has arrived."""
        self._count(self._awaited.pop(commit), worker, tokens)

    def is_known(self, era: int) -> bool:
        """Return whether this node knows all work of an era."""
        return era not in self._gaps and era not in self._awaited.values()

    def tokens(self, eras: Iterable[int]) -> dict[PeerId, int]:
        """Return the tokens of the keys that worked in each of some eras."""
        found = [self._tokens.get(era, {}) for era in eras]
        workers = set.intersection(*map(set, found))
        return {worker: sum(one[worker] for one in found) for worker in workers}

    def beacon(self, era: int) -> Digest | None:
        """Return the beacon of the first final page of an era; None if it is not known."""
        return self._beacons.get(era) or None

    def encoded(self) -> bytes:
        """Return the state as stored."""
        return encode(
            {
                "awaited": [(commit, era) for commit, era in self._awaited.items()],
                "beacons": {str(era): beacon for era, beacon in self._beacons.items()},
                "epoch": self.epoch,
                "gaps": sorted(self._gaps),
                "lost": self._has_lost,
                "page": self.page,
                "tokens": {str(era): dict(tokens) for era, tokens in self._tokens.items()},
                "totals": [self._rollouts, self._tokens_total],
            }
        )

    def restore(self, data: bytes) -> None:
        """Continue from a stored state."""
        match decode(data, bytes_max=len(data)):
            case {
                "awaited": awaited,
                "beacons": beacons,
                "epoch": int(epoch),
                "gaps": gaps,
                "lost": bool(lost),
                "page": bytes(page),
                "tokens": found,
                "totals": (int(rollouts), int(tokens_total)),
            }:
                self._beacons = {int(era): Digest(one) for era, one in beacons.items()}
                self._tokens = {
                    int(era): {PeerId(peer): count for peer, count in tokens.items()}
                    for era, tokens in found.items()
                }
                self._gaps = dict.fromkeys(gaps)
                self._awaited = {Digest(commit): era for commit, era in awaited}
                self.epoch, self.page = epoch, page
                self._rollouts, self._tokens_total = rollouts, tokens_total
                self._has_lost = lost
            case _:
                return  # the pages after it then show a gap
