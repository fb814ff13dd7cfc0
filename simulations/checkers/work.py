"""Work of final pages, derived from traced messages: decided rollouts and versions.

A page names the commits that it decides, the members whose verdicts decided each one as bits over
its larger committee, and the newest final version. It states the digest of the receipts and steps
that follow. A certificate names the page that draws the committee. Two nodes may hold different
certificates of a commit, and dishonest validators may sign several reasons. So a commit may have
several possible receipts, and the stated digest must be that of one of them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import NamedTuple

import msgpack

from simulations.checkers.pages import Pages, TracedPage
from simulations.checkers.quorum import Quorum
from simulations.checkers.reexamination import Overturns, TracedDecision
from simulations.checkers.swarm import TracedNode
from simulations.checkers.watch import Watch
from simulations.checkers.wire import Opened, blake3_digest, key_of, short
from simulations.runtime.trace import Event

ACCEPTED = "accepted"

CHOICES_MAX = 256
"""Maximum combinations of receipts that are tried for a page. Honest validators leave one."""


class TracedReceipt(NamedTuple):
    """One decided rollout, as a page encodes it; keys instead of peer ids."""

    commit: bytes
    worker: bytes
    version: int
    slot: int
    evaluation: bool
    tokens: int
    reason: str
    checkers: tuple[bytes, ...]


class TracedStep(NamedTuple):
    """One version that became final, as a page encodes it."""

    version: int
    manifest: bytes
    trainer: bytes
    learned: tuple[tuple[bytes, int, int], ...]
    """Workers with the rollouts and tokens that the version learned from."""
    omitted: int
    """Final rollouts that its trainer names as left out."""
    partners: tuple[bytes, ...] = ()
    """Other trainers whose differences its round took; the encoding ends before if there are none.
    """


class TracedReversal(NamedTuple):
    """An outcome that a page overturns, as the page encodes it."""

    receipt: TracedReceipt
    reason: str


@dataclass(frozen=True, slots=True)
class TracedWork:
    """All work of a page."""

    receipts: tuple[TracedReceipt, ...] = ()
    steps: tuple[TracedStep, ...] = ()
    overturned: tuple[TracedReversal, ...] = ()

    @property
    def digest(self) -> bytes:
        """Digest that the page states; empty for no work."""
        if not (self.overturned or self.receipts or self.steps):
            return b""
        steps = [one if one.partners else one[:-1] for one in self.steps]
        parts = {"overturned": self.overturned, "receipts": self.receipts, "steps": steps}
        return blake3_digest(msgpack.packb(parts))


@dataclass(slots=True)
class _Cast:
    """Verdicts and certificates of one commit."""

    reasons: dict[tuple[bytes, bool, str], dict[str, None]]
    """Reasons that a validator has signed for a page and an outcome."""
    pages: dict[bool, dict[bytes, None]]
    """Pages that draw the committees of valid certificates, by outcome."""


class WorkTrace:
    """Derives the work of a page from everything that any node has stored.

    Authors store verdicts and certificates before they send them. So the verdicts that a member
    holds when it votes are in the trace.
    """

    def __init__(self, watch: Watch, pages: Pages, quorum: Quorum, overturns: Overturns) -> None:
        self._watch, self._pages, self._quorum = watch, pages, quorum
        self._overturns = overturns
        self._counted: dict[bytes, tuple[TracedPage, TracedReceipt]] = {}
        """Receipts of the commits that counted pages decide."""
        self._cast: dict[bytes, _Cast] = {}
        watch.on_message("verdict", self._on_verdict)
        watch.on_message("certificate", self._on_certificate)
        watch.on_forget(self._forget)

    def of(self, page: TracedPage) -> TracedWork | str:
        """Return the work of a final page, or the reason why the trace has no such work."""
        fields = page.message.fields
        count = len(fields["certified"])
        receipts: list[list[TracedReceipt]] = []
        decided = (*fields["certified"], *fields["rejected"])
        for place, (commit, bits) in enumerate(zip(decided, fields["checkers"], strict=True)):
            possible = self._receipts(commit, bits, accepted=place < count)
            if isinstance(possible, str):
                return possible
            receipts.append(possible)
        steps = self._steps(page.before.lead.head, fields["head"])
        if isinstance(steps, str):
            return steps
        reversals = [self._reversals(commit, page) for commit in fields["overturned"]]
        if not all(reversals):
            return "no valid overturn of a commit that it overturns"
        for chosen in islice(product(*receipts, *reversals), CHOICES_MAX):
            work = TracedWork(
                tuple(one for one in chosen if isinstance(one, TracedReceipt)),
                steps,
                tuple(one for one in chosen if isinstance(one, TracedReversal)),
            )
            if work.digest == fields["work"]:
                return work
        return "it states another digest of its work"

    def note(self, page: TracedPage, work: TracedWork) -> None:
        """Note the work of a counted page."""
        self._counted |= {one.commit: (page, one) for one in work.receipts}
        for receipt, reason in work.overturned:
            decision = self._decision(receipt.commit)
            if decision is not None:
                self._overturns.note(receipt.commit, decision, reason, page.epoch)

    def _decision(self, commit: bytes) -> TracedDecision | None:
        if commit not in self._counted:
            return None
        page, receipt = self._counted[commit]
        return TracedDecision(page, receipt.worker, receipt.reason, receipt.checkers)

    def _reversals(self, commit: bytes, page: TracedPage) -> list[TracedReversal]:
        """Return what a page may undo of a commit, for each reason with a valid overturn."""
        decision = self._decision(commit)
        if decision is None:
            return []
        receipt = self._counted[commit][1]
        reasons = self._overturns.reasons(commit, decision, page)
        return [TracedReversal(receipt, reason) for reason in reasons]

    # Rollouts

    def _receipts(self, commit: bytes, bits: int, *, accepted: bool) -> list[TracedReceipt] | str:
        """Return the possible receipts of a decided commit, or why there is none."""
        outcome = "acceptance" if accepted else "rejection"
        message, cast = self._watch.wire.message(commit), self._cast.get(commit)
        if message is None or message.kind != "rollout-commit":
            return f"it decides {short(commit)}, which no node has stored"
        if cast is None or not cast.pages[accepted]:
            return f"no certificate shows the {outcome} of {short(commit)}"
        found: list[TracedReceipt] = []
        flaw = ""
        for page in cast.pages[accepted]:
            ranking = self._pages.committee(message, page)
            checkers = ranking if isinstance(ranking, str) else self._named(ranking, bits)
            if isinstance(checkers, str):
                flaw = checkers
                continue
            unsigned = [one for one in checkers if (page, accepted, one) not in cast.reasons]
            if unsigned:
                name = self._watch.swarm.name(unsigned[0])
                flaw = f"{name} has signed no {outcome}"
            elif not self._decide(checkers, ranking, accepted=accepted):
                flaw = f"{len(checkers)} members do not suffice"
            else:
                given = [list(cast.reasons[page, accepted, one]) for one in checkers]
                found += _receipts(message, checkers, given, accepted=accepted)
        return found or f"its checkers do not show the {outcome} of {short(commit)}: {flaw}"

    def _named(self, ranking: Sequence[str], bits: int) -> list[str] | str:
        """Return the members of a larger committee that bits name, the first place lowest."""
        members = list(dict.fromkeys(ranking[: self._watch.rules.escalated_size]))
        if bits >= 1 << len(members):
            return f"its larger committee has {len(members)} members"
        return [one for place, one in enumerate(members) if bits & 1 << place]

    def _decide(self, checkers: list[str], ranking: Sequence[str], *, accepted: bool) -> bool:
        """Return whether members are the first committee, or have two thirds of the larger one."""
        rules = self._watch.rules
        if accepted and set(checkers) == set(ranking[: rules.committee_size]):
            return True
        seats = ranking[: rules.escalated_size]
        return 3 * sum(one in checkers for one in seats) >= 2 * len(seats)

    # Versions

    def _steps(self, before: bytes, after: bytes) -> tuple[TracedStep, ...] | str:
        """Return the versions from ``before`` to ``after``, or why there are no such versions.

        The genesis names version 0, so it is the work of no trainer.
        """
        steps: list[TracedStep] = []
        digest = after
        while digest != before:
            manifest = self._watch.wire.message(digest)
            if manifest is None or manifest.kind != "checkpoint-manifest":
                return f"{short(after)} does not descend from {short(before) or 'any version'}"
            step = self._step(manifest)
            if isinstance(step, str):
                return step
            if step.version:
                steps.append(step)
            digest = manifest.fields["parent"]
        return tuple(steps[::-1])

    def _step(self, manifest: Opened) -> TracedStep | str:
        learned: dict[bytes, list[int]] = {}
        for commit in manifest.fields["batch"]:
            message = self._watch.wire.message(commit)
            if message is None:
                return f"version {short(manifest.digest)} learned from {short(commit)}, unknown"
            sums = learned.setdefault(key_of(message.signer), [0, 0])
            sums[0] += 1
            sums[1] += message.fields["tokens"]
        shares = tuple((key, rollouts, tokens) for key, (rollouts, tokens) in learned.items())
        number, trainer = manifest.fields["version"], key_of(manifest.signer)
        omitted = len(manifest.fields["omitted"])
        made, trainers = manifest.fields.get("round"), self._watch.rules.trainers
        results = made["contributions"] if made else ()
        partners = {key_of(trainers[one["trainer"]]) for one in results} - {trainer}
        shares = tuple(sorted(shares))
        return TracedStep(
            number, manifest.digest, trainer, shares, omitted, tuple(sorted(partners))
        )

    # Messages

    def _on_verdict(self, _event: Event, _member: TracedNode, verdict: Opened) -> None:
        if verdict.stores == 1 and verdict.well_signed:
            self._see(verdict)

    def _on_certificate(self, _event: Event, _member: TracedNode, certificate: Opened) -> None:
        fields = certificate.fields
        if certificate.stores > 1 or self._quorum.flaw(certificate):
            return
        for verdict in (*self._quorum.verdicts(certificate), *self._quorum.dissents(certificate)):
            self._see(verdict)
        self._of(fields["commit"]).pages[fields["accepted"]][fields["page"]] = None

    def _see(self, verdict: Opened) -> None:
        fields = verdict.fields
        key = fields["page"], fields["accept"], verdict.signer
        reasons = self._of(fields["commit"]).reasons.setdefault(key, {})
        reasons[fields["reason"]] = None

    def _of(self, commit: bytes) -> _Cast:
        return self._cast.setdefault(commit, _Cast({}, {True: {}, False: {}}))

    def _forget(self, _oldest: float) -> None:
        wire = self._watch.wire  # it has dropped older messages
        self._cast = {commit: cast for commit, cast in self._cast.items() if wire.message(commit)}
        self._counted = {one: was for one, was in self._counted.items() if wire.message(one)}


def _receipts(
    commit: Opened, checkers: list[str], given: list[list[str]], *, accepted: bool
) -> Iterator[TracedReceipt]:
    """Yield the receipts of a commit for all reasons on which its checkers may have agreed.

    Each checker has given one reason, or several if it is dishonest.
    """
    reasons = {_most_common(chosen) for chosen in islice(product(*given), CHOICES_MAX)}
    names = ("version", "slot", "evaluation", "tokens")
    version, slot, evaluation, tokens = (commit.fields[name] for name in names)
    worker, keys = key_of(commit.signer), tuple(sorted(map(key_of, checkers)))
    for reason in [ACCEPTED] if accepted else sorted(reasons):
        place = version, slot, evaluation
        yield TracedReceipt(commit.digest, worker, *place, tokens, reason, keys)


def _most_common(reasons: Sequence[str]) -> str:
    """Return the reason that occurs most often, of several the first in the alphabet."""
    return min(reasons, key=lambda reason: (-reasons.count(reason), reason))
