"""Choice of the slots to begin: of which policy, which slot, and how many at once.

All of it follows from the replica and the slots in progress. A reason to wait is reported as a
condition of the role.
"""

from itertools import count

from protocol.core.types import Digest, Role, Version
from protocol.rollout.assignment import is_evaluation
from roles.inference.slots import RolloutPipeline, RolloutTask
from roles.ports.engines import Policy
from roles.runtime.context import RoleContext

UNSETTLED_MIN = 2
"""Own commits that may always be without an outcome: one in verification while the next is
generated. A worker with more concurrent rollouts and enough credit may have more."""


class SlotChoice:
    """The policy and the slots of one worker; ``making`` are the slots in progress."""

    def __init__(self, context: RoleContext, making: RolloutPipeline) -> None:
        self._context = context
        self._making = making
        self._unscorable: tuple[Digest, int, str] | None = None
        """Checkpoint, own first slot with an answer without a score, and the reason."""

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
            and self._slots_are_known(policy.version)
            and self._has_scores(checkpoint.digest, policy.version)
            and self._counts_for(policy.version)
        )
        return policy if usable else None

    def is_wanted(self, slot: int, checkpoint: Digest, version: Version) -> bool:
        """Return whether a slot should be begun now, if the engine has room for it."""
        if any(one.checkpoint == checkpoint and one.slot > slot for one in self._making):
            return True  # it failed before, and later slots wait for it
        ledger, me = self._context.replica.ledger, self._context.peer_id
        uncommitted, unsettled = len(self._making), ledger.commits.in_flight(me)
        limit = self._making.concurrency.limit
        if uncommitted + unsettled >= self.unsettled_max() + limit - 1:
            return False  # skip ``wanted``, an expensive scan of all pending commits
        if is_evaluation(self._context.manifest, version, slot):
            return True  # no version waits for it, and the last version is evaluated too
        # ``wanted`` counts own unsettled commits only up to the credit; here all of them count.
        wanted = ledger.backpressure.wanted(ledger.epoch) - max(0, unsettled - self._credit())
        return wanted > 0 and (not uncommitted or uncommitted + 1 <= self._share() * wanted)

    def next_slot(self, checkpoint: Digest, version: Version) -> int:
        """Return the first own slot that is neither used nor in progress."""
        first, _ = self._context.replica.ledger.commits.next_slot(self._context.peer_id, version)
        begun = {making.slot for making in self._making if making.checkpoint == checkpoint}
        return next(slot for slot in count(first) if slot not in begun)

    def waits(self, making: RolloutTask) -> bool:
        """Return whether an earlier slot is neither used nor in progress."""
        return self.next_slot(making.checkpoint, making.version) < making.slot

    def end_at(self, making: RolloutTask, reason: str) -> None:
        """Begin no slot of this checkpoint from here on: the answer has no score."""
        self._unscorable = making.checkpoint, making.slot, reason

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

    def _slots_are_known(self, version: Version) -> bool:
        """Return whether the ledger has all own slots of a version: reusing one is slashable."""
        if not self._context.network.may_have_used(version):
            return True
        self._context.conditions.set("inference", "the disk was lost; waiting for a newer version")
        return False

    def _has_scores(self, checkpoint: Digest, version: Version) -> bool:
        """Return whether the next own slot of a checkpoint is before the first one without a score.

        A retry would fail again: problem and noise follow from the slot. Slots are used in order,
        else workers could skip slots at will, and a commit without a score would only expire. So
        the worker waits for a newer version and loses its later slots of this one.
        """
        if self._unscorable is None or self._unscorable[0] != checkpoint:
            return True
        _, first, why = self._unscorable
        if self.next_slot(checkpoint, version) < first:
            return True
        reason = f"no score for slot {first}, {why}; waiting for a newer version"
        self._context.conditions.set("inference", reason)
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
