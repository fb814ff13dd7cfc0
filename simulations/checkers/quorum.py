"""Validity of certificates, recomputed from the run's rules and the nodes that were up.

Nodes draw committees from their own views, which may differ for good reasons. Two rules hold for
every view. Each signer is a genesis validator, counts once, and signs the outcome of the
certificate. The number of signers reaches the smallest committee that a node may draw.

A third rule holds while the network is whole. The signers belong to the committee drawn from all
validators that every node must know, with a slack of ``VIEW_SLACK`` ranks.
"""

from simulations.checkers.watch import Watch
from simulations.checkers.wire import VERDICT_BYTES_MAX, Opened, blake3_digest

VIEW_SLACK = 2
"""One rank that nodes tolerate, and one for a validator that is just leaving."""


class Quorum:
    """Checks each certificate once."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._flaws: dict[bytes, str] = {}
        self._certain: dict[int, tuple[str, ...]] = {}
        watch.on_forget(self._forget)

    def flaw(self, certificate: Opened) -> str:
        """Return the fault of a certificate; empty if it is valid."""
        if certificate.digest not in self._flaws:
            self._flaws[certificate.digest] = self._flaw(certificate)
        return self._flaws[certificate.digest]

    def verdicts(self, certificate: Opened) -> list[Opened]:
        """Return the readable verdicts inside a certificate."""
        envelopes = certificate.fields["verdicts"]
        opened = [self._watch.wire.open(envelope, self._watch.now) for envelope in envelopes]
        return [item for item in opened if item is not None and item.kind == "verdict"]

    def signers(self, certificate: Opened) -> list[str]:
        """Return the signers of the verdicts inside a certificate."""
        return [verdict.signer for verdict in self.verdicts(certificate)]

    def _flaw(self, certificate: Opened) -> str:
        rules, fields = self._watch.rules, certificate.fields
        commit = self._watch.wire.message(fields["commit"])
        if certificate.signer not in rules.validators:
            return "its author is no validator"
        if not certificate.well_signed:
            return "its signature is invalid"
        if commit is None or commit.kind != "rollout-commit":
            return "its commit is unknown"
        verdicts = self.verdicts(certificate)
        if len(verdicts) != len(fields["verdicts"]):
            return "it holds a message that is no verdict"
        if any(verdict.signer == commit.signer for verdict in verdicts):
            return "a worker judges its own rollout"
        return self._flaw_of(verdicts, certificate) or self._too_few(verdicts, certificate, commit)

    def _flaw_of(self, verdicts: list[Opened], certificate: Opened) -> str:
        rules, fields = self._watch.rules, certificate.fields
        for verdict in verdicts:
            if verdict.signer not in rules.validators:
                return "a verdict's author is no validator"
            if not verdict.well_signed:
                return "a verdict's signature is invalid"
            if verdict.length > VERDICT_BYTES_MAX:
                return f"a verdict of {verdict.length} bytes"
            if verdict.fields["commit"] != fields["commit"]:
                return "a verdict is about another commit"
            if verdict.fields["accept"] is not fields["accepted"]:
                return "a verdict contradicts it"
        if len({verdict.signer for verdict in verdicts}) != len(verdicts):
            return "a validator is counted twice"
        return ""

    def _too_few(self, verdicts: list[Opened], certificate: Opened, commit: Opened) -> str:
        rules, fields = self._watch.rules, certificate.fields
        if not fields["accepted"] and not fields["escalated"]:
            return "a first committee cannot reject"
        epoch = commit.fields["epoch"] + 1
        certain = [peer for peer in self._certain_at(epoch) if peer != commit.signer]
        size_max = rules.escalated_size if fields["escalated"] else rules.committee_size
        size_min = min(size_max, max(rules.roster_min, len(certain) - VIEW_SLACK))
        needed = -(-2 * size_min // 3) if fields["escalated"] else size_min
        beacon = rules.beacon(epoch)
        ranks = {
            peer: blake3_digest(beacon + commit.digest + peer.encode())
            for peer in (*certain, *(verdict.signer for verdict in verdicts))
        }
        eligible = sum(
            sum(ranks[peer] < ranks[verdict.signer] for peer in certain) < size_max + VIEW_SLACK
            for verdict in verdicts
        )
        if eligible >= needed:
            return ""
        return (
            f"{eligible} of its {len(verdicts)} signers are of the committee, {needed} are needed"
        )

    # Validators known to every node

    def _certain_at(self, epoch: int) -> tuple[str, ...]:
        """Return the validators in every view of ``epoch``; none while views may differ."""
        if epoch not in self._certain:
            if len(self._certain) > 64:
                self._certain.clear()
            self._certain[epoch] = self._validators_known_by(self._watch.rules.epoch_start(epoch))
        return self._certain[epoch]

    def _validators_known_by(self, start: float) -> tuple[str, ...]:
        rules, swarm = self._watch.rules, self._watch.swarm
        life_seconds = rules.record_epochs * rules.epoch_seconds
        known_from = start - life_seconds
        faulty = swarm.last_fault_at is not None and (
            swarm.calm_since is None or swarm.calm_since > known_from
        )
        if faulty or known_from < self._watch.started_at:
            return ()
        members = [swarm.by_peer.get(peer) for peer in rules.validators]
        return tuple(
            member.peer
            for member in members
            if member is not None and member.steady_since(known_from, self._watch.now)
        )

    def _forget(self, _oldest: float) -> None:
        wire = self._watch.wire  # it has dropped older messages
        self._flaws = {key: flaw for key, flaw in self._flaws.items() if wire.message(key)}
