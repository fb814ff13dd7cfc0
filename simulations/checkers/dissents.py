"""Rule of lazy validators: each is found within 64 verdicts, and no honest one is ever accused.

A validator is found once it has more dissents than allowed among its last verdicts in the
certificates of the run, or once there is evidence against it.
"""

from collections import deque

from simulations.checkers.quorum import Quorum
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened
from simulations.runtime.trace import Event

VERDICTS_COUNTED = 64
DISSENTS_MAX = 5

LAZY = ("accept-everything", "copied-verdicts", "skipped-replay")
"""Behaviours of validators that skip a part of the work."""


class Dissents:
    """Counts the verdicts in valid certificates, in the order in which they were first stored."""

    def __init__(self, watch: Watch, quorum: Quorum) -> None:
        self._watch, self._quorum = watch, quorum
        self._last: dict[str, deque[bool]] = {}
        """By validator: whether each of its last verdicts is a dissent."""
        self._counted: dict[str, int] = {}
        self.found_after: dict[str, int] = {}
        """By validator: its verdicts in certificates before it was found."""
        watch.on_message("certificate", self._on_certificate)
        watch.on_message("evidence", self._on_evidence)

    def _on_certificate(self, event: Event, _member: TracedNode, certificate: Opened) -> None:
        if certificate.stores != 1 or self._quorum.flaw(certificate):
            return
        for verdict in self._quorum.verdicts(certificate):
            self._count(event, verdict.signer, is_dissent=False)
        for verdict in self._quorum.dissents(certificate):
            self._count(event, verdict.signer, is_dissent=True)

    def _count(self, event: Event, validator: str, *, is_dissent: bool) -> None:
        last = self._last.setdefault(validator, deque(maxlen=VERDICTS_COUNTED))
        last.append(is_dissent)
        self._counted[validator] = self._counted.get(validator, 0) + 1
        if sum(last) > DISSENTS_MAX:
            self._find(event, validator, f"{sum(last)} of its last {len(last)} verdicts dissent")
        member = self._watch.swarm.by_peer.get(validator)
        is_lazy = member is not None and member.behaviour in LAZY
        if is_lazy and validator not in self.found_after and len(last) == VERDICTS_COUNTED:
            what = f"{self._watch.swarm.name(validator)} is not found after {len(last)} verdicts"
            self._watch.report("lazy-found", event.node, what)

    def _on_evidence(self, event: Event, member: TracedNode, evidence: Opened) -> None:
        statement = self._watch.wire.open(evidence.fields["first"], event.at)
        if member.honest and statement is not None:
            self._find(event, statement.signer, "there is evidence against it")

    def _find(self, event: Event, validator: str, why: str) -> None:
        self.found_after.setdefault(validator, self._counted.get(validator, 0))
        member = self._watch.swarm.by_peer.get(validator)
        if member is not None and member.honest:
            what = f"{member.name} is honest, and {why}"
            self._watch.report("no-honest-accused", event.node, what)
