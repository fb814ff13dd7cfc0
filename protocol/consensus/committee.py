"""Committees of commits: ranking, quorums, verdicts and certificates.

A page lists a commit, and the next page that draws committees draws its committee
(``protocol.consensus.pages``): the seats of that page's council, ranked by ``H(beacon, commit,
member, seat)``, without the worker's. The members of the first ``size`` seats decide if all of them
accept. A reject, a split or a missing verdict enlarges the committee to the first
``escalated_size`` seats, where two thirds of the seats decide either way.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass

from protocol.consensus.page_node import PageNode
from protocol.consensus.pages import PageTree
from protocol.core.crypto import digest
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.messages import Certificate, Evidence, RolloutCommit, Signed, Verdict
from protocol.run.manifest import RunManifest


@dataclass(frozen=True, slots=True)
class Committee:
    """Ranked seats of a commit, and the sizes of its two committees."""

    seats: tuple[PeerId, ...]
    """Member of each seat."""
    first_size: int
    escalated_size: int
    page: PageNode
    """The page whose beacon drew it."""

    @property
    def first(self) -> tuple[PeerId, ...]:
        """Members that check first and must be unanimous."""
        return tuple(dict.fromkeys(self.seats[: self.first_size]))

    @property
    def escalated(self) -> tuple[PeerId, ...]:
        """Members of the larger committee, which includes the first ones."""
        return tuple(dict.fromkeys(self.seats[: self.escalated_size]))

    @property
    def ranking(self) -> tuple[PeerId, ...]:
        """All members in the order of their first seats."""
        return tuple(dict.fromkeys(self.seats))

    @property
    def quorum(self) -> int:
        """Seats of the larger committee that decide: two thirds, rounded up."""
        return -(-2 * self.escalated_size // 3)

    def is_quorum(self, peers: Container[PeerId]) -> bool:
        """Return whether some members decide as the larger committee."""
        return sum(peer in peers for peer in self.seats[: self.escalated_size]) >= self.quorum


def draw(manifest: RunManifest, page: PageNode, commit: Signed[RolloutCommit]) -> Committee | None:
    """Return the committee that a page draws for a commit; None if only its worker has a seat."""
    seats = page.council.ranked_seats(page.beacon + commit.digest, commit.signer)
    if not seats:
        return None
    rules, count = manifest.committee, len(seats)
    return Committee(seats, min(rules.size, count), min(rules.escalated_size, count), page)


def outcome_rank(
    certificate: Certificate, verdicts: Sequence[Signed[Verdict]], committee: Committee
) -> bytes:
    """Return the rank of a valid certificate: of two on one commit the lower one wins.

    A committee of an earlier page wins. Of one page, an acceptance by the first committee has the
    rank of its last signer, a rejection by the larger one that of its first signer. So a rejection
    wins only with a signer that ranks among the first committee: no coalition overturns a
    certificate by an escalation that was not due. An acceptance by the larger committee loses to
    both. At equality the rejection wins, and then the verdicts' digests decide. The rank follows
    from certificate and page alone: it is the same on every node.
    """
    ranking = committee.ranking
    places = [ranking.index(verdict.signer) for verdict in verdicts]
    place = max(places) if certificate.accepted else min(places)
    if certificate.accepted and certificate.escalated:
        place = len(ranking)
    content = digest(b"".join(sorted(verdict.digest for verdict in verdicts)))
    epoch, accepted = committee.page.epoch.to_bytes(8, "big"), bytes([certificate.accepted])
    return epoch + place.to_bytes(2, "big") + accepted + content


@dataclass(frozen=True, slots=True)
class Outcome:
    """A committee's decision with the verdicts that prove it."""

    accepted: bool
    escalated: bool
    verdicts: tuple[Signed[Verdict], ...]

    def certificate(self, commit: Digest, committee: Committee) -> Certificate:
        """Return the certificate of this outcome of a committee."""
        return Certificate(
            commit=commit,
            page=committee.page.digest,
            escalated=self.escalated,
            accepted=self.accepted,
            verdicts=tuple(verdict.envelope for verdict in self.verdicts),
        )


class VerdictPool:
    """The verdicts on one commit that a node holds."""

    def __init__(self) -> None:
        self.verdicts: dict[PeerId, Signed[Verdict]] = {}
        self.equivocations: dict[PeerId, tuple[Signed[Verdict], Signed[Verdict]]] = {}
        """The first two contradicting verdicts of each validator that signed both."""

    def add(self, verdict: Signed[Verdict]) -> Fault | bool:
        """Add a signed verdict; False if known, a fault if it contradicts its author."""
        known = self.verdicts.get(verdict.signer)
        if known is None:
            self.verdicts[verdict.signer] = verdict
            return True
        if known.message.accept != verdict.message.accept:
            self.equivocations.setdefault(verdict.signer, (known, verdict))
            return Fault(FaultCode.EQUIVOCATION, f"{verdict.signer} signed two verdicts")
        return False

    def outcome(self, committee: Committee) -> Outcome | None:
        """Return the decision of the verdicts, or None while they are too few."""
        first = [self.verdicts[peer] for peer in committee.first if peer in self.verdicts]
        if len(first) == len(committee.first) and all(item.message.accept for item in first):
            return Outcome(accepted=True, escalated=False, verdicts=tuple(first))
        heard = [self.verdicts[peer] for peer in committee.escalated if peer in self.verdicts]
        for accepted in (True, False):
            agreeing = [item for item in heard if item.message.accept is accepted]
            if committee.is_quorum({item.signer for item in agreeing}):
                return Outcome(accepted=accepted, escalated=True, verdicts=tuple(agreeing))
        return None

    def disputed(self, committee: Committee) -> bool:
        """Return whether a first member rejected, so that the larger committee must check."""
        return any(
            not self.verdicts[peer].message.accept
            for peer in committee.first
            if peer in self.verdicts
        )


def check_certificate(
    certificate: Certificate, verdicts: Sequence[Signed[Verdict]], committee: Committee | None
) -> Fault | None:
    """Check opened verdicts against the committee that the certificate's page draws."""
    signers = [verdict.signer for verdict in verdicts]
    if len(set(signers)) != len(signers):
        return Fault(FaultCode.BAD_CERTIFICATE, "a validator is counted twice")
    if any(verdict.message.commit != certificate.commit for verdict in verdicts):
        return Fault(FaultCode.BAD_CERTIFICATE, "a verdict is about another commit")
    if any(verdict.message.accept is not certificate.accepted for verdict in verdicts):
        return Fault(FaultCode.BAD_CERTIFICATE, "a verdict contradicts the outcome")
    if not certificate.escalated and not certificate.accepted:
        return Fault(FaultCode.BAD_CERTIFICATE, "only the larger committee can reject")
    if committee is None:
        return Fault(FaultCode.BAD_CERTIFICATE, "its page draws no committee")
    if certificate.escalated:
        members, is_enough = committee.escalated, committee.is_quorum(signers)
    else:
        members, is_enough = committee.first, len(signers) == len(committee.first)
    if not is_enough or not set(signers) <= set(members):
        return Fault(FaultCode.BAD_CERTIFICATE, "its signers are not the committee")
    return None


class VerdictTable:
    """Verdict pools of the known commits, and the committees of commits."""

    def __init__(self, manifest: RunManifest, pages: PageTree) -> None:
        self._manifest, self._pages = manifest, pages
        self.pools: dict[Digest, VerdictPool] = {}
        self._evidence_due: dict[PeerId, Evidence] = {}

    def pool(self, commit: Digest) -> VerdictPool:
        """Return the verdicts on a commit."""
        known = self.pools.get(commit)
        if known is None:
            known = self.pools[commit] = VerdictPool()
        return known

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
        """Check a certificate about ``commit`` that names ``page``, and return its rank."""
        if commit.digest not in page.drawn:
            return Fault(FaultCode.BAD_CERTIFICATE, "its page draws no committee for the commit")
        committee = draw(self._manifest, page, commit)
        fault = check_certificate(certificate, verdicts, committee)
        if fault is not None or committee is None:
            return fault or Fault(FaultCode.BAD_CERTIFICATE)
        return outcome_rank(certificate, verdicts, committee)

    def add(self, verdict: Signed[Verdict], commit: Signed[RolloutCommit]) -> Fault | bool:
        """Add a verdict on ``commit``; an equivocation becomes evidence to publish."""
        pool, validator = self.pool(commit.digest), verdict.signer
        known = validator in pool.equivocations
        result = pool.add(verdict)
        pair = pool.equivocations.get(validator)
        if pair is not None and not known:
            accepting, rejecting = sorted(pair, key=lambda one: not one.message.accept)
            self._evidence_due[validator] = Evidence(
                commit=commit.envelope,
                accepting=accepting.envelope,
                rejecting=rejecting.envelope,
            )
        return result

    def restore(self, verdict: Signed[Verdict]) -> None:
        """Restore a verdict accepted before a restart."""
        self.pool(Digest(verdict.message.commit)).add(verdict)

    def envelopes(self) -> list[bytes]:
        """Return the envelopes of all verdicts."""
        return [one.envelope for pool in self.pools.values() for one in pool.verdicts.values()]

    def evidence_due(self) -> list[Evidence]:
        """Return the equivocations that this node found itself and should sign and gossip."""
        due = list(self._evidence_due.values())
        self._evidence_due.clear()
        return due
