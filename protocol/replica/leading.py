"""The trainer that leads, and the newest final version, in a member's view.

A version becomes final once the council has it: members state only versions whose weights they
hold, whose batches follow the lot (``protocol.replica.batch_rule``), and which the trainers that
repeat the steps do not dispute (``protocol.replica.shadows``). The next trainer that is live leads
once the leader is gone, publishes nothing for ``stall_epochs`` although the rollouts of a step are
certified, has announced a version whose weights nobody can get, whose batch does not follow the
lot, or which is disputed, or has signed two branches. It goes on from the version that the same
page makes final.
"""

import math
from collections.abc import Callable

from protocol.consensus.page_node import PageNode
from protocol.core.faults import Fault
from protocol.core.types import PeerId, Role
from protocol.ledger.chain import Lead
from protocol.ledger.receipts import STEPS_MAX
from protocol.messages import Page
from protocol.replica.replica import Replica

PATIENCE_EPOCHS = 2
"""Epochs by which another member may have heard a silent node later than this one."""


class Leading:
    """Judgement of a member that has watched the trainers since an epoch.

    ``held`` returns the newest version whose weights it holds.
    """

    def __init__(self, replica: Replica, since_epoch: int, held: Callable[[], int]) -> None:
        self._replica, self._since, self._held = replica, since_epoch, held
        self._chain, self._manifest = replica.ledger.chain, replica.manifest
        self._batches, self._epochs = replica.batches, replica.manifest.epochs
        self._shadows = replica.shadows
        self._term, self._term_since = -1, since_epoch

    def proposed(self, parent: PageNode, epoch: int) -> Lead:
        """Return the leader and the final version that a child of ``parent`` should state."""
        self._note(parent)
        head = self._newest(parent, epoch)
        last = parent.head if self._is_split(parent) else head
        if self._may_end_with(last, parent, epoch):
            for term in self._next_terms(parent, epoch):
                if self._is_live(self._manifest.leader(term), epoch):
                    return Lead(term, last)
        return Lead(parent.term, head)

    def approves(self, page: Page, parent: PageNode) -> bool:
        """Return whether this node's view supports the leader and the final version of a page."""
        self._note(parent)
        return self._approves_head(page, parent) and self._approves_term(page, parent)

    def _note(self, parent: PageNode) -> None:
        """Note when a term began: its leader has ``stall_epochs`` from then on."""
        if parent.term != self._term:
            self._term, self._term_since = parent.term, max(parent.epoch, self._since)

    def _approves_head(self, page: Page, parent: PageNode) -> bool:
        if page.head == parent.head:
            return True
        before, version = self._chain.place(parent.head), self._chain.place(page.head)
        if before is None or version is None or not before < version <= self._sound(before):
            return False
        later = self._manifest.epoch_start(page.epoch + PATIENCE_EPOCHS)
        if version > self._compared(before, version, later):
            return False
        return self._chain.checkpoints[version].manifest.message.term == parent.term

    def _approves_term(self, page: Page, parent: PageNode) -> bool:
        if page.term == parent.term:
            return True
        later = page.epoch + PATIENCE_EPOCHS
        skipped = map(self._manifest.leader, range(parent.term + 1, page.term))
        return (
            page.term in self._next_terms(parent, later)
            and self._may_end_with(page.head, parent, later)
            and self._is_live(self._manifest.leader(page.term), page.epoch)
            and not any(self._is_live(one, later) for one in skipped)
        )

    def _sound(self, final: int) -> int:
        """Return the newest version whose weights are here and, after ``final``, all steps good.

        Their batches follow the lot, and their policies are not disputed. At least ``final``: the
        council has had it.
        """
        good = min(self._batches.conforming(final), self._shadows.undisputed(final))
        return max(final, min(self._held(), good))

    def _compared(self, final: int, last: int, now: float, until: float = math.inf) -> int:
        """Return the newest version up to ``last`` for which no report is awaited any more.

        Later reports than ``until`` do not count.
        """
        since = self._manifest.epoch_start(self._since)
        awaited = (
            version
            for version in range(final + 1, last + 1)
            if self._shadows.awaiting(version, now, since, until)
        )
        return next(awaited, last + 1) - 1

    def _newest(self, parent: PageNode, epoch: int) -> bytes:
        """Return the newest sound version that this node holds, and the others too by now.

        It is of the term of ``parent``: those that a former leader published after the final
        version are dropped once the page that began the term is final.
        """
        final = self._chain.place(parent.head)
        if final is None:
            return parent.head
        before, now = self._manifest.epoch_start(epoch - 1), self._manifest.epoch_start(epoch)
        last = self._compared(final, min(self._sound(final), final + STEPS_MAX), now, before)
        settled = [
            entry.manifest
            for entry in self._chain.checkpoints[final + 1 : last + 1]
            if entry.taken_at <= before and entry.manifest.message.term == parent.term
        ]
        return settled[-1].digest if settled else parent.head

    def _may_end_with(self, head: bytes, parent: PageNode, epoch: int) -> bool:
        """Return whether a term may end with this final version: later ones are dropped.

        They may still become final, if the next one is sound or this node has not known it for
        long.
        """
        final = self._chain.place(head)
        if final is None or final == self._chain.version:
            return final is not None
        is_sound = self._sound(final) > final and not self._is_split(parent)
        return not is_sound and self._later_epochs(final, epoch) >= self._epochs.record_epochs

    def _next_terms(self, parent: PageNode, epoch: int) -> range:
        """Return the terms that may follow; none while the leader stays."""
        first, trainers = parent.term + 1, len(self._manifest.genesis.trainers)
        leader = self._manifest.leader(parent.term)
        if self._is_lost(parent, leader, epoch) or self._is_split(parent):
            return range(first, first + trainers)  # the same one may start again
        ends = self._is_gone(leader, epoch) or self._is_stalled(epoch)
        return range(first, first + trainers - 1) if ends else range(0)

    def _is_lost(self, parent: PageNode, leader: PeerId, epoch: int) -> bool:
        """Return whether a version has not been sound for too long.

        Its leader has more time if it serves the weights, and nothing is wrong with the step.
        """
        final, epochs = self._chain.place(parent.head), self._epochs
        sound = self._held() if final is None else self._sound(final)
        member = self._replica.roster.get(leader)
        is_served = member is not None and member.record.message.policy_version > sound
        is_refused = final is not None and self._is_refused(sound + 1)
        patience_epochs = epochs.record_epochs
        if is_served and not is_refused:
            patience_epochs = epochs.stall_epochs
        return self._later_epochs(sound, epoch) >= patience_epochs

    def _is_refused(self, version: int) -> bool:
        """Return whether the batch of a version is bad, or its policy is disputed."""
        is_bad = isinstance(self._batches.judged(version), Fault)
        return is_bad or self._shadows.is_disputed(version)

    def _is_split(self, parent: PageNode) -> bool:
        """Return whether the leader has signed two branches after the final version."""
        final, branches = self._chain.place(parent.head), self._replica.ledger.branches
        return final is not None and branches.has_rival(parent.term, final)

    def _later_epochs(self, version: int, epoch: int) -> float:
        """Return for how many epochs the version after this one has been here; 0 without one.

        The oldest one counts: a leader that publishes again and again gains no time.
        """
        later = self._chain.checkpoints[version + 1 : version + 2]
        if not later:
            return 0.0
        watched_from = self._manifest.epoch_start(self._since)
        known_at = max(later[0].taken_at, watched_from)
        return (self._manifest.epoch_start(epoch) - known_at) / self._epochs.seconds

    def _is_stalled(self, epoch: int) -> bool:
        since = self._replica.ledger.batch_since
        began = None if since is None else max(since, self._term_since)
        return began is not None and epoch - began >= self._epochs.stall_epochs

    def _is_gone(self, trainer: PeerId, epoch: int) -> bool:
        if self._replica.roster.get(trainer) is None:
            return epoch - self._since >= self._epochs.record_epochs
        return not self._is_live(trainer, epoch)

    def _is_live(self, trainer: PeerId, epoch: int) -> bool:
        member = self._replica.roster.get(trainer)
        if member is None or Role.TRAINER not in member.record.message.roles:
            return False
        return self._replica.roster.is_live(trainer, self._manifest.epoch_start(epoch))
