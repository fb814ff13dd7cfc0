"""Choice of the slots to begin: of which policy, which slot, and how many at once.

All of it follows from the replica and the slots in progress. A reason to wait is reported as a
condition of the role.
"""

from collections import Counter
from collections.abc import Collection
from itertools import count
from typing import NamedTuple

from protocol.core.types import Digest, Role, Version
from protocol.rollout.assignment import is_evaluation
from roles.inference.slots import RolloutPipeline, Slot
from roles.ports.engines import Policy
from roles.runtime.context import RoleContext

UNSETTLED_MIN = 2
"""Own commits that may always be without an outcome: one in verification while the next is
generated. A worker with more concurrent rollouts and enough credit may have more."""


TRIES_MAX = 6
"""Failures of one slot after which it is left out: a task may fail on one problem always. A guess:
a machine that stays broken leaves out a slot in 48 epochs."""


SKIPS_MAX = 2
"""Slots without a score, in a row and with one version, that are left out. Then the worker waits
for a newer version: a machine that is too slow to score would soon use up its allowance of gaps."""


class Unscored(NamedTuple):
    """Slots without a score since the last commit."""

    version: Version
    slots: int
    reason: str


class SlotChoice:
    """The policy and the slots of one worker; ``making`` are the slots in progress."""

    def __init__(self, context: RoleContext, making: RolloutPipeline) -> None:
        self._context = context
        self._making = making
        self._skipped: dict[Slot, None] = {}
        """Own slots that are left out: no score, or the engine or the task fails on them."""
        self._failures: Counter[Slot] = Counter()
        self._unscored: Unscored | None = None

    def policy_to_use(self) -> Policy | None:
        """Return the newest policy if a rollout of it from this worker could be used."""
        context = self._context
        ledger = context.replica.ledger
        policy = context.policies.newest()
        checkpoint = None if policy is None else ledger.chain.get(policy.version)
        usable = (
            policy is not None
            and checkpoint is not None
            and context.network.synchronised  # else a slot used before a restart could be reused
            and ledger.chain.is_current(policy.version, checkpoint.digest)
            and not ledger.workers.is_slashed(context.peer_id)
            and self._can_be_checked()
            and self._slots_are_known()
            and self._has_scores(policy.version)
            and self._counts_for(policy.version)
        )
        return policy if usable else None

    def is_wanted(self, slot: Slot) -> bool:
        """Return whether a slot should be begun now, if the engine has room for it."""
        others = [one.slot for one in self._making if one.slot.evaluates == slot.evaluates]
        if any(other.number > slot.number for other in others):
            return True  # it failed before, and later slots wait for it
        ledger, me = self._context.replica.ledger, self._context.peer_id
        uncommitted, unsettled = len(self._making), ledger.commits.in_flight(me)
        limit = self._making.concurrency.limit
        if uncommitted + unsettled >= self.unsettled_max() + limit - 1:
            return False  # skip ``wanted``, an expensive scan of all pending commits
        if slot.evaluates is not None:
            return True  # no version waits for it, and the last version is evaluated too
        # ``wanted`` counts own unsettled commits only up to the credit; here all of them count.
        wanted = ledger.backpressure.wanted(ledger.epoch) - max(0, unsettled - self._credit())
        return wanted > 0 and (not uncommitted or uncommitted + 1 <= self._share() * wanted)

    def next_slot(self, checkpoint: Digest, version: Version) -> Slot:
        """Return the first own slot that is neither used nor in progress.

        Slots that evaluate the version come first.
        """
        context = self._context
        begun = {making.slot for making in self._making}
        if not context.network.may_have_evaluated(version):
            slot = self._first(checkpoint, begun)
            if is_evaluation(context.manifest, version, slot.number):
                return slot
        return self._first(None, begun)

    def is_next(self, slot: Slot) -> bool:
        """Return whether a slot is the first unused one: commits are in slot order.

        Otherwise a crash would leave gaps.
        """
        return self._first(slot.evaluates, ()) == slot

    def is_used(self, slot: Slot) -> bool:
        """Return whether a slot, or a later one, is used."""
        return slot.number < self._first_unused(slot.evaluates)

    def note_unscorable(self, slot: Slot, version: Version, reason: str) -> None:
        """Leave out a slot whose answer has no score: a retry would end the same way."""
        before = self._unscored
        earlier = before.slots if before is not None and before.version == version else 0
        if earlier < SKIPS_MAX:
            self._skip(slot)
        self._unscored = Unscored(version, earlier + 1, reason)

    def note_commit(self) -> None:
        """Note that a slot had a score."""
        self._unscored = None

    def _skip(self, slot: Slot) -> None:
        self._skipped = {one: None for one in self._skipped if not self.is_used(one)}
        self._skipped[slot] = None

    def note_failure(self, slot: Slot) -> None:
        """Count a failure of the engine or the task that stopped a slot."""
        self._failures = Counter({slot: self._failures[slot] + 1})
        if self._failures[slot] >= TRIES_MAX:
            self._skip(slot)

    def _first(self, evaluates: Digest | None, begun: Collection[Slot]) -> Slot:
        slots = (Slot(number, evaluates) for number in count(self._first_unused(evaluates)))
        return next(one for one in slots if one not in begun and one not in self._skipped)

    def _first_unused(self, evaluates: Digest | None) -> int:
        replica, me = self._context.replica, self._context.peer_id
        if evaluates is not None:
            return replica.ledger.commits.next_slot(me, evaluates)
        return max(replica.next_slot(me), self._context.network.first_slot or 0)

    def unsettled_max(self) -> int:
        """Return how many own commits may be without an outcome."""
        return max(UNSETTLED_MIN, min(self._credit(), 1 + self._making.concurrency.limit))

    def _credit(self) -> int:
        counts = self._context.replica.ledger.workers.counts.get(self._context.peer_id)
        return 0 if counts is None else counts.credit

    def _share(self) -> float:
        """Return this worker's share of the demand: equal, or its share of past deliveries if more.

        Workers do not see each other's unfinished slots, so each would begin all of the demand.
        """
        context = self._context
        workers = context.replica.roster.live(context.clock.now(), Role.INFERENCE)
        return max(1 / max(1, len(workers)), context.replica.ledger.commits.share(context.peer_id))

    def _counts_for(self, version: Version) -> bool:
        """Tell whether validators judge this worker's rollouts of a version: not for a new key."""
        context = self._context
        if context.replica.counts(context.peer_id, version, context.epoch()):
            return True
        reason = f"this key is too new for version {version}; waiting for a newer one"
        context.conditions.set("inference", reason)
        return False

    def _slots_are_known(self) -> bool:
        """Return whether all own slots that are used are known: reusing one is slashable."""
        if self._context.network.first_slot is not None:
            return True
        reason = "the disk was lost; collecting what this key has signed before"
        self._context.conditions.set("inference", reason)
        return False

    def _has_scores(self, version: Version) -> bool:
        """Return whether answers of a version had scores lately."""
        known = self._unscored
        if known is None or known.version != version or known.slots < SKIPS_MAX:
            return True
        reason = f"no score for {known.slots} slots in a row, {known.reason}"
        self._context.conditions.set("inference", f"{reason}; waiting for a newer version")
        return False

    def _can_be_checked(self) -> bool:
        """Return whether pages draw committees: without a committee a commit expires."""
        context = self._context
        tip = context.replica.pages.tip()
        assert tip is not None
        silent_epochs = context.epoch() - tip.epoch
        if silent_epochs < context.manifest.committee.escalate_after_epochs:
            context.conditions.clear("pages")
            return True
        reason = (
            f"no page of the council for {silent_epochs} epochs, so no committee can be drawn; "
            "waiting. Check this node's connections and clock; if they are good, more than two "
            "thirds of the council must be on line"
        )
        context.conditions.set("pages", reason)
        return False
