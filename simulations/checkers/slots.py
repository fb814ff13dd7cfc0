"""Slot rule: a worker takes its slots in order, without gaps or second commits.

It may leave out one slot after a long silence: its machine failed on that slot again and again.
"""

from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened
from simulations.runtime.trace import Event

SILENT_EPOCHS = 15
"""Time without a commit after which one slot may be left out: six tries, and the pauses between
them."""

_Sequence = tuple[str, bytes]
"""Worker, and the checkpoint that its evaluation slots evaluate; empty for training slots."""


class Slots:
    """The commits of each worker by slot.

    Rollouts of an honest worker are checked when it makes them, others when they are certified.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._slots: dict[_Sequence, dict[int, Opened]] = {}
        self._certified: dict[tuple[_Sequence, int], bytes] = {}
        watch.on_message("rollout-commit", self._on_commit)
        watch.on_message("certificate", self._on_certificate)
        watch.on_forget(self._forget)

    def _on_commit(self, event: Event, member: TracedNode, commit: Opened) -> None:
        slots = self._slots.setdefault(_sequence(commit), {})
        if commit.stores > 1:
            return
        if member.honest and member.peer == commit.signer:
            self._check_next(event, member, commit, slots)
            self._check_evaluation(event, member, commit)
        slots.setdefault(commit.fields["slot"], commit)

    def _check_next(
        self, event: Event, member: TracedNode, commit: Opened, slots: dict[int, Opened]
    ) -> None:
        lost_at, slot = member.state_lost_at, commit.fields["slot"]
        remembered = [slot for slot, other in slots.items() if other.first_at > lost_at]
        expected = max(remembered, default=-1) + 1
        # Its earlier commits are lost; it leaves out slots that it may have used.
        leaves_out = lost_at > float("-inf") and slot >= expected
        leaves_out |= slot == expected + 1 and self._was_silent(event, slots)
        if slot != expected and not leaves_out:
            what = f"{member.name} committed to slot {slot}, not {expected}"
            self._watch.report("slots-in-order", event.node, what, (commit.digest,))

    def _was_silent(self, event: Event, slots: dict[int, Opened]) -> bool:
        newest_at = max((one.first_at for one in slots.values()), default=event.at)
        return event.at - newest_at >= SILENT_EPOCHS * self._watch.rules.epoch_seconds

    def _check_evaluation(self, event: Event, member: TracedNode, commit: Opened) -> None:
        rule, version, slot = (
            self._watch.rules.evaluation,
            commit.fields["version"],
            commit.fields["slot"],
        )
        if not commit.fields["evaluation"]:
            return
        if rule is None or version % rule[0] or slot >= rule[1]:
            what = f"{member.name} evaluates version {version} in slot {slot}"
            self._watch.report("slots-in-order", event.node, what, (commit.digest,))

    def _on_certificate(self, event: Event, member: TracedNode, certificate: Opened) -> None:
        digest: bytes = certificate.fields["commit"]
        commit = self._watch.wire.message(digest)
        if commit is None or commit.kind != "rollout-commit":
            return
        own = certificate.signer == member.peer
        if own or not certificate.fields["accepted"] or not member.honest:
            return
        slot = commit.fields["slot"]
        first = self._certified.setdefault((_sequence(commit), slot), digest)
        if first != digest:
            what = f"two rollouts are certified for slot {slot}"
            self._watch.report("slots-in-order", event.node, what, (first, digest))

    def _forget(self, oldest: float) -> None:
        for sequence, slots in self._slots.items():
            last = max(slots, default=0)
            kept = {n: one for n, one in slots.items() if one.first_at >= oldest or n == last}
            self._slots[sequence] = kept
        wire = self._watch.wire  # it has dropped older messages
        self._certified = {key: one for key, one in self._certified.items() if wire.message(one)}


def _sequence(commit: Opened) -> _Sequence:
    """Return the worker and the evaluated checkpoint of the slot of a commit."""
    return commit.signer, commit.fields["checkpoint"] if commit.fields["evaluation"] else b""
