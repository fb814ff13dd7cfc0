"""Exclusion rule: a validator that signed both verdicts on a commit joins no later committee."""

from simulations.checkers.quorum import Quorum
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, short
from simulations.runtime.trace import Event


class Excluded:
    """Reads evidence from the messages that honest nodes store.

    Evidence counts from the epoch in which its commit can have no outcome any more. It counts at
    the earliest ``epochs`` after it became known: by then every node has it.
    """

    def __init__(self, watch: Watch, quorum: Quorum, epochs: int) -> None:
        self._watch = watch
        self._quorum = quorum
        self._epochs = epochs
        self._excluded_from: dict[str, int] = {}
        """Validator to the first epoch in which it must not be drawn."""
        watch.on_message("evidence", self._on_evidence)
        watch.on_message("certificate", self._on_certificate)

    def _on_evidence(self, event: Event, member: TracedNode, evidence: Opened) -> None:
        wire, rules, fields = self._watch.wire, self._watch.rules, evidence.fields
        opened = [wire.open(fields[key], event.at) for key in ("commit", "accepting", "rejecting")]
        if not member.honest:
            return
        commit, accepting, rejecting = opened
        if commit is None or accepting is None or rejecting is None:
            self._watch.report("excluded", event.node, "accepted undecodable evidence")
            return
        contradict = accepting.fields["accept"] and not rejecting.fields["accept"]
        about = accepting.fields["commit"] == rejecting.fields["commit"] == commit.digest
        signer = accepting.signer
        if not (contradict and about and signer == rejecting.signer in rules.validators):
            what = f"accepted invalid evidence against {self._watch.swarm.name(signer)}"
            self._watch.report("excluded", event.node, what, (commit.digest,))
            return
        follows = commit.fields["epoch"] + rules.expire_epochs + 1
        known = rules.epoch_at(event.at) + self._epochs
        first = max(follows, known)
        self._excluded_from[signer] = min(first, self._excluded_from.get(signer, first))

    def _on_certificate(self, event: Event, member: TracedNode, certificate: Opened) -> None:
        commit = self._watch.wire.message(certificate.fields["commit"])
        if commit is None or commit.kind != "rollout-commit":
            return
        if not member.honest or not self._excluded_from:
            return
        epoch = commit.fields["epoch"] + 1
        for signer in self._quorum.signers(certificate):
            first = self._excluded_from.get(signer)
            if first is not None and first <= epoch:
                what = (
                    f"{self._watch.swarm.name(signer)} decides about {short(commit.digest)} of "
                    f"epoch {epoch - 1}; it is excluded from epoch {first} on"
                )
                self._watch.report("excluded", event.node, what, (commit.digest,))
