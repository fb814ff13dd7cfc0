"""Committees of commits: ranking, quorums, verdicts and certificates.

A page lists a commit, and the next page that draws committees draws its committee
(``protocol.consensus.pages``): the seats of that page's council, ranked by ``H(beacon, commit,
member, seat)``, without the worker's. The members of the first ``size`` seats decide if all of them
accept and their verdicts agree. A reject, a split or a missing verdict enlarges the committee to
the first ``escalated_size`` seats, where two thirds of the seats decide either way.

A certificate of the larger committee also carries its *dissents*: verdicts that contradict it, by
which the council finds members that do not check (``protocol.consensus.dissents``).
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import chain

from protocol.consensus.page_node import PageNode
from protocol.core.crypto import Verifier, digest
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import PeerId, RunId
from protocol.messages import (
    VERDICTS_MAX,
    Certificate,
    Opened,
    RolloutCommit,
    Signed,
    Verdict,
    open_envelope,
)
from protocol.rollout.agreement import Agreement
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
    agreement: Agreement
    """Limits on the differences of honest verdicts."""

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
        return self._seats(peers) >= self.quorum

    def agrees(self, one: Signed[Verdict], other: Signed[Verdict]) -> bool:
        """Return whether two verdicts have the same result and support the same outcome."""
        same = one.message.accept is other.message.accept
        return same and self.agreement.agrees(one.message, other.message)

    def seats_of(self, verdicts: Sequence[Signed[Verdict]]) -> int:
        """Return the number of seats in the larger committee of the signers of verdicts."""
        return self._seats({verdict.signer for verdict in verdicts})

    def is_dissent(self, verdict: Signed[Verdict], deciding: Sequence[Signed[Verdict]]) -> bool:
        """Return whether a verdict contradicts more than half of the deciding seats.

        Less than a third of dishonest seats are at most half of a quorum, so they cannot make an
        honest verdict a dissent with values at the edge of agreement.
        """
        against = [
            one for one in deciding if self.agreement.contradicts(verdict.message, one.message)
        ]
        return 2 * self.seats_of(against) > self.seats_of(deciding)

    def _seats(self, peers: Container[PeerId]) -> int:
        return sum(peer in peers for peer in self.seats[: self.escalated_size])


def draw(manifest: RunManifest, page: PageNode, commit: Signed[RolloutCommit]) -> Committee | None:
    """Return the committee that a page draws for a commit; None if only its worker has a seat."""
    seats = page.council.ranked_seats(page.beacon + commit.digest, commit.signer)
    if not seats:
        return None
    rules, count = manifest.committee, len(seats)
    agreement = Agreement.of(manifest.toploc)
    return Committee(
        seats, min(rules.size, count), min(rules.escalated_size, count), page, agreement
    )


def outcome_rank(
    certificate: Certificate, verdicts: Sequence[Signed[Verdict]], committee: Committee
) -> bytes:
    """Return the rank of a valid certificate: of two on one commit the lower one wins.

    A committee of an earlier page wins. Of one page, an acceptance by the first committee has the
    rank of its last signer, a rejection by the larger one that of its first signer. So a rejection
    wins only with a signer that ranks among the first committee: no coalition overturns a
    certificate by an escalation that was not due. An acceptance by the larger committee loses to
    both. At equality the rejection wins, then the one with more dissents, and then the digests
    decide. The rank follows from certificate and page alone: it is the same on every node.
    ``verdicts`` include the dissents, at the end.
    """
    ranking = committee.ranking
    verdicts, dissents = split(certificate, verdicts)
    places = [ranking.index(verdict.signer) for verdict in verdicts]
    place = max(places) if certificate.accepted else min(places)
    if certificate.accepted and certificate.escalated:
        place = len(ranking)
    digests = (sorted(one.digest for one in part) for part in (verdicts, dissents))
    content = digest(b"".join(chain.from_iterable(digests)))
    epoch = committee.page.epoch.to_bytes(8, "big")
    order = bytes([certificate.accepted, VERDICTS_MAX - len(dissents)])
    return epoch + place.to_bytes(2, "big") + order + content


def open_verdicts(
    certificate: Certificate, run_id: RunId, verify: Verifier, opened: Opened
) -> list[Signed[Verdict]] | None:
    """Return the verdicts of a certificate, then its dissents; None if one is bad."""
    verdicts: list[Signed[Verdict]] = []
    for envelope in (*certificate.verdicts, *certificate.dissents):
        verdict = open_envelope(envelope, Verdict, run_id, verify, opened)
        if isinstance(verdict, Fault):
            return None
        verdicts.append(verdict)
    return verdicts


def split(
    certificate: Certificate, verdicts: Sequence[Signed[Verdict]]
) -> tuple[Sequence[Signed[Verdict]], Sequence[Signed[Verdict]]]:
    """Return the opened deciding verdicts and the opened dissents of a certificate."""
    count = len(certificate.verdicts)
    return verdicts[:count], verdicts[count:]


def check_certificate(
    certificate: Certificate, verdicts: Sequence[Signed[Verdict]], committee: Committee | None
) -> Fault | None:
    """Check opened verdicts against the committee that the certificate's page draws.

    ``verdicts`` include the dissents, at the end.
    """
    signers = [verdict.signer for verdict in verdicts]
    if len(set(signers)) != len(signers):
        return Fault(FaultCode.BAD_CERTIFICATE, "a validator is counted twice")
    subject = certificate.commit, certificate.page
    if any((one.message.commit, one.message.page) != subject for one in verdicts):
        return Fault(FaultCode.BAD_CERTIFICATE, "a verdict is about another commit or page")
    deciding, dissents = split(certificate, verdicts)
    if any(verdict.message.accept is not certificate.accepted for verdict in deciding):
        return Fault(FaultCode.BAD_CERTIFICATE, "a verdict contradicts the outcome")
    if not certificate.escalated and not certificate.accepted:
        return Fault(FaultCode.BAD_CERTIFICATE, "only the larger committee can reject")
    if committee is None:
        return Fault(FaultCode.BAD_CERTIFICATE, "its page draws no committee")
    signers = signers[: len(deciding)]
    if certificate.escalated:
        members, is_enough = committee.escalated, committee.is_quorum(signers)
    else:
        members, is_enough = committee.first, len(signers) == len(committee.first)
    if not is_enough or not set(signers) <= set(members):
        return Fault(FaultCode.BAD_CERTIFICATE, "its signers are not the committee")
    leading = min(deciding, key=lambda one: members.index(one.signer))
    if not all(committee.agrees(leading, one) for one in deciding):
        return Fault(FaultCode.BAD_CERTIFICATE, "its verdicts do not agree")
    return _dissent_fault(certificate, deciding, dissents, committee)


def _dissent_fault(
    certificate: Certificate,
    deciding: Sequence[Signed[Verdict]],
    dissents: Sequence[Signed[Verdict]],
    committee: Committee,
) -> Fault | None:
    if dissents and not certificate.escalated:
        return Fault(FaultCode.BAD_CERTIFICATE, "a first committee has no dissents")
    for one in dissents:
        if one.signer not in committee.escalated or not committee.is_dissent(one, deciding):
            return Fault(FaultCode.BAD_CERTIFICATE, "a dissent that contradicts nothing")
    return None
