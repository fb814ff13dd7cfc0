"""Convergence rule: after the last fault all nodes agree, and new versions keep coming."""

from dataclasses import dataclass

from simulations.checkers.pages import Pages, TracedPage
from simulations.checkers.quorum import Quorum, Rank
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, short
from simulations.runtime.trace import Event

CLOCK_SLACK_EPOCHS = 2
"""A commit this close to its expiry may be too old by another node's clock."""

ROUNDS = 3
"""Synchronisations in the time to converge; the first brings commits to a restarted node."""


@dataclass(slots=True)
class _OpenCertificate:
    """A certified commit, and the nodes that hold a certificate (bit ``n``: member ``n``)."""

    epoch: int
    first_at: float
    accepted: bool
    rank: Rank
    holders: int = 0


class Convergence:
    """Certified sets are equal ``epochs`` after a certificate, or after the end of the faults.

    Of two contradicting certificates the one of the better rank counts.

    The rule covers the nodes that ran without a break since then, if the commit was still young
    enough to be accepted. An older commit expires at the nodes that do not know it.
    """

    def __init__(self, watch: Watch, quorum: Quorum, epochs: int) -> None:
        self._watch = watch
        self._quorum = quorum
        self._epochs = epochs
        self._open: dict[bytes, _OpenCertificate] = {}
        watch.on_message("certificate", self._on_certificate)
        watch.on("node-down", self._on_down)
        watch.on_tick(self._on_tick)

    def _on_certificate(self, event: Event, member: TracedNode, certificate: Opened) -> None:
        digest: bytes = certificate.fields["commit"]
        commit = self._watch.wire.message(digest)
        if commit is None or commit.kind != "rollout-commit" or self._quorum.flaw(certificate):
            return
        outcome, fields = self._open.get(digest), certificate.fields
        rank = self._quorum.rank(certificate)
        outranks = outcome is not None and rank < outcome.rank
        if outcome is None or (outranks and fields["accepted"] is not outcome.accepted):
            if outcome is None and certificate.stores > 1:
                return  # judged before; a node that joined late has just learned of it
            outcome = self._open[digest] = _OpenCertificate(
                commit.fields["epoch"], event.at, fields["accepted"], rank
            )
        if fields["accepted"] is outcome.accepted:
            outcome.rank = min(outcome.rank, rank)
            outcome.holders |= 1 << member.number

    def _on_down(self, event: Event) -> None:
        member = self._watch.swarm.members.get(event.node)
        if member is not None and event.facts.get("how") == "lost":
            for outcome in self._open.values():
                outcome.holders &= ~(1 << member.number)

    def _on_tick(self, now: float) -> None:
        rules, calm_since = self._watch.rules, self._watch.swarm.calm_since
        members = self._watch.swarm.live()
        honest = sum(1 << member.number for member in members if member.honest)
        for digest, outcome in list(self._open.items()):
            since = max(outcome.first_at, now if calm_since is None else calm_since)
            learning_epochs = CLOCK_SLACK_EPOCHS + self._epochs // ROUNDS
            young_until = outcome.epoch + rules.expire_epochs - learning_epochs
            if rules.epoch_at(since) > young_until:
                del self._open[digest]
            elif now >= since + self._epochs * rules.epoch_seconds:
                del self._open[digest]
                missing = honest & ~outcome.holders
                if missing:
                    self._judge(digest, missing, members, since, now)

    def _judge(
        self, digest: bytes, missing: int, members: list[TracedNode], since: float, now: float
    ) -> None:
        lacking = [
            member.name
            for member in members
            if missing >> member.number & 1 and member.steady_since(since, now)
        ]
        if lacking:
            count = len(lacking)
            what = (
                f"{count} live node{'s' * (count > 1)} ({', '.join(lacking[:4])}) "
                f"lack{'s' * (count == 1)} the outcome of {short(digest)} "
                f"{self._epochs} epochs after it was known and the faults had ended"
            )
            self._watch.report("ledgers-converge", lacking[0], what, (digest,))


class Progress:
    """A version above all earlier ones is published at least every ``epochs``.

    Those that a dishonest leader has published, and that its term's end drops, do not count.
    """

    def __init__(self, watch: Watch, pages: Pages, epochs: int) -> None:
        self._watch = watch
        self._pages = pages
        self._epochs = epochs
        self._newest = -1
        self._newest_at = 0.0
        pages.on_lead(self._on_lead)
        watch.on_message("checkpoint-manifest", self._on_manifest)
        watch.on_tick(self._on_tick)

    def _on_lead(self, page: TracedPage) -> None:
        former, lead = self._pages.leads[-2], page.state.lead
        trainers = self._watch.rules.trainers
        is_honest = self._watch.swarm.honest(trainers[former.term % len(trainers)])
        final = self._watch.wire.message(lead.head) if lead.head else None
        if lead.term == former.term or is_honest or final is None:
            return
        if final.fields["version"] < self._newest:
            self._newest, self._newest_at = final.fields["version"], self._watch.now

    def _on_manifest(self, event: Event, member: TracedNode, manifest: Opened) -> None:
        version = manifest.fields["version"]
        # A version counts when another node holds it; one that only its author holds may be lost.
        if version > self._newest and manifest.signer != member.peer:
            self._newest, self._newest_at = version, event.at

    def _on_tick(self, now: float) -> None:
        rules, calm_since = self._watch.rules, self._watch.swarm.calm_since
        if calm_since is None or self._newest >= rules.steps:
            return
        waited_epochs = (now - max(calm_since, self._newest_at)) / rules.epoch_seconds
        if waited_epochs > self._epochs:
            what = f"no version after {self._newest} for {waited_epochs:.0f} epochs without faults"
            self._watch.report("progress", "world", what, (self._newest,))
