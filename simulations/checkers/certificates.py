"""Certificate rule: trainers learn from certified rollouts only, and no certificate is wrong.

A certificate is wrong if it accepts a false rollout or rejects an honest one, or if two larger
committees disagree. A first committee of dishonest validators alone may accept anything; a larger
committee must then reject it, with a certificate of a better rank.
"""

from simulations.checkers.quorum import Quorum, Rank
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, short, shown
from simulations.runtime.trace import Event

COLLUDING = ("colluding-acceptance", "colluding-rejection")
"""Behaviours whose certificates only a late re-examination can find: they are counted."""

MARKS_KEPT = 100_000
"""Many times the rollouts that may still be learned from."""

HARMLESS = (
    "flood",
    "graft-flood",
    "ihave-flood",
    "iwant-flood",
    "invalid-signatures",
    "malformed-rpc",
    "slow-rpc",
    "slow-streams",
    "stream-flood",
    "record-spam",
    "false-sync",
    "eclipse",
    "covert-flash",
    "cold-boot",
    "conflicting-records",
    "capacity-liars",
    "sybil-flood",
    "address-reflection",
    "skipped-slots",
    "withheld-body",
)
"""Worker behaviours that disturb the network and still compute honest rollouts."""


class Certificates:
    """Follows every certificate from its author to the nodes that act on it.

    An author stores a certificate before any other node can have it. So a valid one must be in the
    trace before a trainer trains and before a node adopts a version.

    Training engines see no commits. A generation engine therefore records a mark for each rollout
    with its first noise seed, which names the slot of a commit. A training engine records the marks
    that it trained on.
    """

    def __init__(self, watch: Watch, quorum: Quorum) -> None:
        self._watch = watch
        self._quorum = quorum
        self.outcomes: dict[bytes, dict[bool, Opened]] = {}
        """Commit digest to its valid certificates by outcome."""
        self._best: dict[bytes, Rank] = {}
        """Commit digest to the rank of the certificate that counts."""
        self._escalated: dict[bytes, bool] = {}
        """Commit digest to the outcome of its larger committee."""
        self._doubtful: dict[bytes, Opened] = {}
        """False rollouts accepted by dishonest validators only so far, with the commit."""
        self.certified = 0
        """Commits with a valid certificate that accepts them."""
        self.certified_false = 0
        self.rejected_false = 0
        """Honest rollouts that colluders alone have rejected."""
        self.contradictory = 0
        self._made: dict[tuple[str, int], str] = {}
        """(node, first noise seed) to the mark of a rollout, until a commit names it."""
        self._commit_of: dict[str, bytes] = {}
        """Mark to its commit."""
        watch.on("generated", self._on_generated)
        watch.on_message("rollout-commit", self._on_commit)
        watch.on_message("certificate", self._on_certificate)
        watch.on_message("checkpoint-manifest", self._on_checkpoint)
        watch.on("trained", self._on_trained)
        watch.on_tick(self._on_tick)

    def _on_generated(self, event: Event) -> None:
        self._made[event.node, int(event.facts["seed"] or 0)] = shown(event.facts["rollout"])
        if len(self._made) > MARKS_KEPT:
            del self._made[next(iter(self._made))]

    def _on_commit(self, event: Event, member: TracedNode, commit: Opened) -> None:
        if commit.signer != member.peer:
            return
        fields = commit.fields
        evaluates = fields["checkpoint"] if fields["evaluation"] else b""
        seed = self._watch.rules.first_noise_seed(commit.signer, fields["slot"], evaluates)
        mark = self._made.pop((event.node, seed), None)
        if mark is not None:
            self._commit_of[mark] = commit.digest
            if len(self._commit_of) > MARKS_KEPT:
                del self._commit_of[next(iter(self._commit_of))]

    def _on_certificate(self, event: Event, member: TracedNode, certificate: Opened) -> None:
        flaw = self._quorum.flaw(certificate)
        commit: bytes = certificate.fields["commit"]
        if flaw:
            # Its author's replica may have refused it after storing, or the author is dishonest.
            if member.honest and certificate.signer != member.peer:
                self._report(
                    event.node, f"{short(commit)} is accepted with a certificate", flaw, commit
                )
            return
        rank = self._quorum.rank(certificate)
        self._best[commit] = min(rank, self._best.get(commit, rank))
        outcomes = self.outcomes.setdefault(commit, {})
        accepted: bool = certificate.fields["accepted"]
        if accepted not in outcomes:
            outcomes[accepted] = certificate
            self.certified += accepted
            self.contradictory += len(outcomes) > 1
            self._judge(event, certificate)
        escalated: bool = certificate.fields["escalated"]
        if escalated and self._escalated.setdefault(commit, accepted) is not accepted:
            what = f"larger committees accept and reject {short(commit)}"
            self._watch.report("one-outcome", event.node, what, (commit,))

    def _judge(self, event: Event, certificate: Opened) -> None:
        commit: bytes = certificate.fields["commit"]
        true = self._is_true(commit)
        if self._is_by_colluders(certificate):
            self.certified_false += certificate.fields["accepted"] and true is False
            self.rejected_false += not certificate.fields["accepted"] and true is True
            return
        if not certificate.fields["accepted"]:
            if true:
                what = f"{short(commit)} is rejected although it is honest"
                self._watch.report("no-honest-rejected", event.node, what, (commit,))
        elif true is False:
            honest = map(self._watch.swarm.honest, self._quorum.signers(certificate))
            message = self._watch.wire.message(commit)
            is_rejected = False in self.outcomes[commit]
            if message is None or certificate.fields["escalated"] or any(honest):
                if not is_rejected:
                    self._report_false(event.node, commit)
            else:
                self._doubtful[commit] = message

    def _is_by_colluders(self, certificate: Opened) -> bool:
        by_peer = self._watch.swarm.by_peer
        signers = (by_peer.get(peer) for peer in self._quorum.signers(certificate))
        return all(one is not None and one.behaviour in COLLUDING for one in signers)

    def _on_tick(self, now: float) -> None:
        rules = self._watch.rules
        for commit, message in list(self._doubtful.items()):
            if rules.epoch_at(now) > message.fields["epoch"] + rules.expire_epochs:
                del self._doubtful[commit]
                if self.counts_as_accepted(commit):
                    self._report_false("world", commit)

    def counts_as_accepted(self, commit: bytes) -> bool:
        """Return whether the certificate of the best rank accepts a commit that has one."""
        rank = self._best[commit]
        return rank[2]

    def _report_false(self, node: str, commit: bytes) -> None:
        self._doubtful.pop(commit, None)
        self.certified_false += 1
        what = f"{short(commit)} is certified although it is false"
        self._watch.report("no-false-rollout-certified", node, what, (commit,))

    def _is_true(self, commit: bytes) -> bool | None:
        """Return whether a rollout is honest; None if its author is unknown."""
        message = self._watch.wire.message(commit)
        author = None if message is None else self._watch.swarm.by_peer.get(message.signer)
        return None if author is None else author.honest or author.behaviour in HARMLESS

    def _on_trained(self, event: Event) -> None:
        member = self._watch.swarm.members.get(event.node)
        if member is None or not member.honest:
            return
        for mark in shown(event.facts["rollouts"]).split(","):
            commit = self._commit_of.get(mark)
            if commit is None:
                what = f"trained on {mark}, which no node generated and committed to"
                self._watch.report("certified-only", event.node, what)
            else:
                began_at = event.at - float(event.facts["seconds"] or 0.0)
                self._watch.history.note(commit, event, "trained on it")
                self._require(commit, event.node, f"trained on {short(commit)}", before=began_at)

    def _on_checkpoint(self, event: Event, member: TracedNode, manifest: Opened) -> None:
        if not member.honest:
            return
        version = manifest.fields["version"]
        for commit in manifest.fields["batch"]:
            what = f"took version {version}, which learned from {short(commit)}"
            self._require(commit, event.node, what, version, before=event.at)

    def _require(self, commit: bytes, node: str, what: str, *versions: int, before: float) -> None:
        outcomes = self.outcomes.get(commit, {})
        accepting = outcomes.get(True)
        if accepting is None:
            flaw = "a certificate rejects it" if outcomes else "there is none"
        elif accepting.first_at > before:
            flaw = f"it came {accepting.first_at - before:.3f} s too late"
        else:
            return
        self._report(node, what, flaw, commit, *versions)

    def _report(self, node: str, what: str, flaw: str, *subjects: bytes | int) -> None:
        what = f"{what} without a valid certificate: {flaw}"
        self._watch.report("certified-only", node, what, subjects)
