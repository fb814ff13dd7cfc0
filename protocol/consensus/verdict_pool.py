"""Verdicts and seals that a node holds, and the outcomes that follow from them.

A pool holds those for one commit and one page that draws its committee. Verdicts decide together
only if they agree (``protocol.rollout.agreement``).
"""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

from protocol.consensus.committee import Committee, check_certificate, draw, outcome_rank
from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.consensus.seals import Statement, is_contradiction, matches, ordered
from protocol.core.containers import BoundedDict
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.messages import (
    COUNCIL_MAX,
    Certificate,
    Evidence,
    RolloutCommit,
    Signed,
    Verdict,
    VerdictSeal,
)
from protocol.run.manifest import RunManifest


@dataclass(frozen=True, slots=True)
class Outcome:
    """A committee's decision with the verdicts that prove it."""

    accepted: bool
    escalated: bool
    verdicts: tuple[Signed[Verdict], ...]
    dissents: tuple[Signed[Verdict], ...] = ()
    """Verdicts of other members of the larger committee that contradict these."""

    def certificate(self, commit: Digest, committee: Committee) -> Certificate:
        """Return the certificate of this outcome of a committee."""
        return Certificate(
            commit=commit,
            page=committee.page.digest,
            escalated=self.escalated,
            accepted=self.accepted,
            verdicts=tuple(verdict.envelope for verdict in self.verdicts),
            dissents=tuple(verdict.envelope for verdict in self.dissents),
        )


class VerdictPool:
    """The verdicts and seals for one commit and page that a node holds."""

    def __init__(self) -> None:
        self.verdicts: dict[PeerId, Signed[Verdict]] = {}
        self.seals: dict[PeerId, Signed[VerdictSeal]] = {}
        self.equivocations: dict[PeerId, tuple[Statement, Statement]] = {}
        """The first two contradicting statements of each validator that signed both."""

    def add(self, statement: Statement) -> Fault | bool:
        """Add a verdict or a seal; False if known, a fault if it contradicts its author."""
        if isinstance(statement.message, Verdict):
            return self._add_verdict(statement)
        return self._add_seal(statement)

    def _add_verdict(self, verdict: Signed[Verdict]) -> Fault | bool:
        seal = self.seals.get(verdict.signer)
        if seal is not None and not matches(seal, verdict):
            return self._equivocation(seal, verdict)
        known = self.verdicts.get(verdict.signer)
        if known is None:
            self.verdicts[verdict.signer] = verdict
            return True
        return self._equivocation(known, verdict) if is_contradiction(known, verdict) else False

    def _add_seal(self, seal: Signed[VerdictSeal]) -> Fault | bool:
        known = self.seals.get(seal.signer)
        verdict = self.verdicts.get(seal.signer)
        if known is not None and known.message != seal.message:
            return self._equivocation(known, seal)
        if verdict is not None and not matches(seal, verdict):
            return self._equivocation(verdict, seal)
        self.seals.setdefault(seal.signer, seal)
        return known is None

    def _equivocation(self, one: Statement, other: Statement) -> Fault:
        self.equivocations.setdefault(one.signer, ordered(one, other))
        return Fault(FaultCode.EQUIVOCATION, f"{one.signer} contradicts itself")

    def outcome(self, committee: Committee) -> Outcome | None:
        """Return the decision of the verdicts, or None while too few agree."""
        first = self._held(committee.first)
        is_whole = len(first) == len(committee.first)
        if is_whole and first[0].message.accept and len(_agreeing(first, committee)) == len(first):
            return Outcome(accepted=True, escalated=False, verdicts=tuple(first))
        held = self._held(committee.escalated)
        chosen = _agreeing(held, committee)
        if not committee.is_quorum({one.signer for one in chosen}):
            return None
        others = (one for one in held if one not in chosen)
        return Outcome(
            accepted=chosen[0].message.accept,
            escalated=True,
            verdicts=tuple(chosen),
            dissents=tuple(one for one in others if committee.is_dissent(one, chosen)),
        )

    def disputed(self, committee: Committee) -> bool:
        """Return whether first members do not agree to accept: the larger committee must check."""
        first = self._held(committee.first)
        accepts = all(one.message.accept for one in first)
        return not accepts or len(_agreeing(first, committee)) < len(first)

    def calls(self, committee: Committee) -> bool:
        """Return whether a first member has sent its seal, which it sends to its own committee.

        A member of the larger committee alone gets one once that member escalates.
        """
        return any(peer in self.seals for peer in committee.first)

    def _held(self, members: Sequence[PeerId]) -> list[Signed[Verdict]]:
        return [self.verdicts[peer] for peer in members if peer in self.verdicts]


def _agreeing(verdicts: Sequence[Signed[Verdict]], committee: Committee) -> list[Signed[Verdict]]:
    """Return the verdicts with the most seats that all agree with the first one among them.

    ``verdicts`` are in the order of the ranking.
    """
    best: list[Signed[Verdict]] = []
    seats = 0
    for place, leading in enumerate(verdicts):
        if committee.seats_of(verdicts[place:]) <= seats:
            break
        agreeing = [one for one in verdicts[place:] if committee.agrees(leading, one)]
        if committee.seats_of(agreeing) > seats:
            best, seats = agreeing, committee.seats_of(agreeing)
    return best


class VerdictTable:
    """Verdict pools of the known commits, and the committees of commits."""

    def __init__(self, manifest: RunManifest, pages: PageTree) -> None:
        self._manifest, self._pages = manifest, pages
        self.pools: dict[Digest, dict[bytes, VerdictPool]] = {}
        """Pools by commit and page."""
        self._evidence_due: dict[PeerId, Evidence] = {}
        self._proven = BoundedDict[PeerId, None](COUNCIL_MAX)
        """Validators whose first equivocation here became evidence."""

    def pool(self, commit: Digest, page: bytes) -> VerdictPool:
        """Return the verdicts on a commit for a page that draws its committee."""
        return self.pools.setdefault(commit, {}).setdefault(page, VerdictPool())

    def held(self, commit: Digest) -> dict[PeerId, Signed[Verdict]]:
        """Return a verdict on a commit of each validator, for the page known last."""
        found: dict[PeerId, Signed[Verdict]] = {}
        for pool in self.pools.get(commit, {}).values():
            found |= pool.verdicts
        return found

    def retain(self, commits: Container[Digest]) -> None:
        """Forget the verdicts on all other commits."""
        for commit in [key for key in self.pools if key not in commits]:
            del self.pools[commit]

    def committee(self, commit: Signed[RolloutCommit]) -> Committee | None:
        """Return the committee of a commit; None before the page that draws it."""
        page = self._pages.drawing(commit.digest)
        return None if page is None else draw(self._manifest, page, commit)

    def rank(
        self,
        certificate: Certificate,
        verdicts: Sequence[Signed[Verdict]],
        commit: Signed[RolloutCommit],
        page: PageNode,
    ) -> bytes | Fault:
        """Check a certificate about ``commit`` that names ``page``, and return its rank.

        ``verdicts`` are its opened verdicts, followed by its opened dissents.
        """
        if commit.digest not in page.drawn:
            return Fault(FaultCode.BAD_CERTIFICATE, "its page draws no committee for the commit")
        committee = draw(self._manifest, page, commit)
        fault = check_certificate(certificate, verdicts, committee)
        if fault is not None or committee is None:
            return fault or Fault(FaultCode.BAD_CERTIFICATE)
        return outcome_rank(certificate, verdicts, committee)

    def add(self, statement: Statement, commit: Signed[RolloutCommit]) -> Fault | bool:
        """Add a verdict or seal about ``commit``; an equivocation becomes evidence to publish."""
        pool, validator = self.pool(commit.digest, statement.message.page), statement.signer
        result = pool.add(statement)
        pair = pool.equivocations.get(validator)
        if pair is not None and validator not in self._proven:
            self._proven[validator] = None
            first, second = pair
            self._evidence_due[validator] = Evidence(
                commit=commit.envelope, first=first.envelope, second=second.envelope
            )
        return result

    def restore(self, verdict: Signed[Verdict]) -> None:
        """Restore a verdict accepted before a restart."""
        self.pool(Digest(verdict.message.commit), verdict.message.page).add(verdict)

    def verdicts(self) -> Iterator[Signed[Verdict]]:
        """Yield all verdicts."""
        for pools in self.pools.values():
            for pool in pools.values():
                yield from pool.verdicts.values()

    def envelopes(self) -> list[bytes]:
        """Return the envelopes of all verdicts."""
        return [verdict.envelope for verdict in self.verdicts()]

    def evidence_due(self) -> list[Evidence]:
        """Return the equivocations that this node found itself and should sign and gossip."""
        due = list(self._evidence_due.values())
        self._evidence_due.clear()
        return due
