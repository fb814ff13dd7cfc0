"""Slot rule: a worker's slots are consecutive, without gaps or second commits."""

from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, short
from simulations.runtime.trace import Event

VERSIONS_KEPT = 64
"""Slots of older versions are forgotten; every recipe rejects rollouts that old."""


class Slots:
    """The commits of each worker and version (two versions may share a number), by slot.

    Rollouts of an honest worker are checked when it makes them, others when they are certified.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._slots: dict[tuple[str, int, bytes], dict[int, Opened]] = {}
        self._certified: dict[tuple[str, int, bytes, int], bytes] = {}
        self._newest = 0
        watch.on_message("rollout-commit", self._on_commit)
        watch.on_message("certificate", self._on_certificate)
        watch.on_forget(self._forget)

    def _on_commit(self, event: Event, member: TracedNode, commit: Opened) -> None:
        fields = commit.fields
        slots = self._slots.setdefault(_chain(commit), {})
        if commit.stores > 1:
            return
        self._newest = max(self._newest, fields["version"])
        if member.honest and member.peer == commit.signer:
            self._check_next(event, member, commit, slots)
        slots.setdefault(fields["slot"], commit)

    def _check_next(
        self, event: Event, member: TracedNode, commit: Opened, slots: dict[int, Opened]
    ) -> None:
        lost_at = member.state_lost_at
        remembered = [slot for slot, other in slots.items() if other.first_at > lost_at]
        if lost_at > float("-inf") and not remembered:
            return  # its earlier commits are lost; it may have received some of them again
        expected = max(remembered, default=-1) + 1
        previous = slots[expected - 1].digest if expected else b""
        slot = commit.fields["slot"]
        if slot != expected or commit.fields["previous"] != previous:
            version = commit.fields["version"]
            what = f"{member.name} committed to slot {slot} of version {version}, not {expected}"
            self._watch.report("slots-in-order", event.node, what, (commit.digest,))

    def _on_certificate(self, event: Event, member: TracedNode, certificate: Opened) -> None:
        digest: bytes = certificate.fields["commit"]
        commit = self._watch.wire.message(digest)
        if commit is None or commit.kind != "rollout-commit":
            return
        own = certificate.signer == member.peer
        if own or not certificate.fields["accepted"] or not member.honest:
            return
        version, slot = commit.fields["version"], commit.fields["slot"]
        first = self._certified.setdefault((*_chain(commit), slot), digest)
        if first != digest:
            what = f"two rollouts are certified for slot {slot} of version {version}"
            self._watch.report("slots-in-order", event.node, what, (first, digest))
        before = self._slots.get(_chain(commit), {}).get(slot - 1)
        if slot and (before is None or before.digest != commit.fields["previous"]):
            what = f"{short(digest)} of slot {slot} is certified, its predecessor does not exist"
            self._watch.report("slots-in-order", event.node, what, (digest,))

    def _forget(self, _oldest: float) -> None:  # slots live as long as their version
        kept_from = self._newest - VERSIONS_KEPT
        self._slots = {key: item for key, item in self._slots.items() if key[1] >= kept_from}
        self._certified = {key: one for key, one in self._certified.items() if key[1] >= kept_from}


def _chain(commit: Opened) -> tuple[str, int, bytes]:
    """Return the worker, version and checkpoint that the slots of a chain share."""
    return commit.signer, commit.fields["version"], commit.fields["checkpoint"]
