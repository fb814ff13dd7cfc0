"""Who checks which rollout, and what their verdicts add up to.

The committee of a commit made in epoch *e* is drawn with the beacon of *e + 1*: validators ranked
by ``H(beacon, commit, validator)``, without the worker. The first ``size`` of them decide if they
all accept. Anything else, a reject, a split or silence, brings in the first ``escalated_size`` of
the same ranking, where two thirds decide either way.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from protocol.consensus.electorate import LocalElectorate
from protocol.core.crypto import digest
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.messages import Certificate, RolloutCommit, Signed, Verdict
from protocol.run.manifest import RunManifest

VIEW_SLACK = 1
"""Ranks by which two nodes' rankings may differ while rosters are views and not certified."""

RANKINGS_MAX = 1024
"""Remembered: as many as there are commits without an outcome, each asked for at every look."""


@dataclass(frozen=True, slots=True)
class Committee:
    """Everybody who may be asked about a commit, in rank order, and how many decide."""

    ranking: tuple[PeerId, ...]
    first_size: int
    escalated_size: int
    worker: PeerId
    lot: bytes
    """Beacon and commit: with a validator's id, what ranks it."""
    excluded: tuple[PeerId, ...] = ()
    """Validators that have equivocated: their verdicts count for nothing."""

    @property
    def first(self) -> tuple[PeerId, ...]:
        """The members that check first and must agree."""
        return self.ranking[: self.first_size]

    @property
    def escalated(self) -> tuple[PeerId, ...]:
        """The members of the larger committee; the first ones are among them."""
        return self.ranking[: self.escalated_size]

    @property
    def quorum(self) -> int:
        """How many of the larger committee decide: two thirds, rounded up."""
        return -(-2 * self.escalated_size // 3)

    def ranking_with(self, others: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """Return the ranking as it is when ``others`` are live too.

        The worker never is in it, nor is who has equivocated.
        """
        known = (*self.ranking, self.worker, *self.excluded)
        missing = tuple(peer for peer in others if peer not in known)
        return _by_lot(self.lot, self.ranking + missing) if missing else self.ranking


def draw(
    manifest: RunManifest,
    electorate: LocalElectorate,
    commit: Signed[RolloutCommit],
    candidates: tuple[PeerId, ...] | None = None,
) -> Committee | None:
    """Return the committee of a commit, or None while too few validators are live.

    ``candidates`` replaces the validators of the commit's time, of whom no records are left.
    """
    epoch = commit.message.epoch + 1
    validators = electorate.validators(epoch) if candidates is None else candidates
    if commit.signer in validators:
        validators = tuple(peer for peer in validators if peer != commit.signer)
    rules = manifest.committee
    if len(validators) < rules.roster_min:
        return None
    count = len(validators)
    lot = electorate.beacon(epoch) + commit.digest
    first_size, escalated_size = min(rules.size, count), min(rules.escalated_size, count)
    ranking, excluded = _by_lot(lot, validators), electorate.excluded(epoch)
    return Committee(ranking, first_size, escalated_size, commit.signer, lot, excluded)


@lru_cache(maxsize=RANKINGS_MAX)
def _by_lot(lot: bytes, validators: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    return tuple(sorted(validators, key=lambda peer: digest(lot + peer.encode())))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a committee decided, with the verdicts that show it."""

    accepted: bool
    escalated: bool
    verdicts: tuple[Signed[Verdict], ...]

    def certificate(self, commit: Digest) -> Certificate:
        """Return the message that proves this outcome."""
        return Certificate(
            commit=commit,
            escalated=self.escalated,
            accepted=self.accepted,
            verdicts=tuple(verdict.envelope for verdict in self.verdicts),
        )


class VerdictPool:
    """The verdicts on one commit that a node holds."""

    def __init__(self) -> None:
        self.verdicts: dict[PeerId, Signed[Verdict]] = {}
        self.equivocations: dict[PeerId, tuple[Signed[Verdict], Signed[Verdict]]] = {}
        """The first two signed verdicts with which a validator contradicts itself."""

    def add(self, verdict: Signed[Verdict]) -> Fault | bool:
        """Take a signed verdict; False when it is known, a fault when it contradicts its author."""
        known = self.verdicts.get(verdict.signer)
        if known is None:
            self.verdicts[verdict.signer] = verdict
            return True
        if known.message.accept != verdict.message.accept:
            self.equivocations.setdefault(verdict.signer, (known, verdict))
            return Fault(FaultCode.EQUIVOCATION, f"{verdict.signer} signed two verdicts")
        return False

    def outcome(self, committee: Committee) -> Outcome | None:
        """Return what the verdicts decide, or None while they do not."""
        first = [self.verdicts[peer] for peer in committee.first if peer in self.verdicts]
        if len(first) == committee.first_size and all(item.message.accept for item in first):
            return Outcome(accepted=True, escalated=False, verdicts=tuple(first))
        heard = [self.verdicts[peer] for peer in committee.escalated if peer in self.verdicts]
        for accepted in (True, False):
            agreeing = [item for item in heard if item.message.accept is accepted]
            if len(agreeing) >= committee.quorum:
                return Outcome(accepted=accepted, escalated=True, verdicts=tuple(agreeing))
        return None

    def disputed(self, committee: Committee) -> bool:
        """Return whether a first member rejected, so that the larger committee must look."""
        return any(
            not self.verdicts[peer].message.accept
            for peer in committee.first
            if peer in self.verdicts
        )


def check_certificate(
    certificate: Certificate, verdicts: Sequence[Signed[Verdict]], committee: Committee | None
) -> Fault | None:
    """Check opened verdicts against the committee that this node draws for their commit, if any.

    A ``bad-certificate`` is wrong for everyone; ``other-committee`` may be our own view's fault.
    Signers that we do not see on the roster of that epoch were on somebody's: they count, at the
    ranks that they have, so that a validator's later absence makes nothing of what it signed.
    """
    signers = [verdict.signer for verdict in verdicts]
    if len(set(signers)) != len(signers):
        return Fault(FaultCode.BAD_CERTIFICATE, "a validator is counted twice")
    if any(verdict.message.commit != certificate.commit for verdict in verdicts):
        return Fault(FaultCode.BAD_CERTIFICATE, "a verdict is about another commit")
    if any(verdict.message.accept is not certificate.accepted for verdict in verdicts):
        return Fault(FaultCode.BAD_CERTIFICATE, "a verdict says otherwise")
    if not certificate.escalated and not certificate.accepted:
        return Fault(FaultCode.BAD_CERTIFICATE, "only the larger committee can reject")
    if committee is None:
        return Fault(FaultCode.OTHER_COMMITTEE, "we can draw none yet")
    if certificate.escalated:
        members, needed = committee.escalated_size, committee.quorum
    else:
        members, needed = committee.first_size, committee.first_size
    eligible = committee.ranking_with(signers)[: members + VIEW_SLACK]
    if sum(signer in eligible for signer in signers) < needed:
        return Fault(FaultCode.OTHER_COMMITTEE, "too few of its signers are of the one we draw")
    return None
