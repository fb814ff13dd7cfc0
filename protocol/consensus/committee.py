"""Committees of commits: ranking, quorums, verdicts and certificates.

The committee of a commit made in epoch *e* is drawn with the beacon of *e + 1*: validators ranked
by ``H(beacon, commit, validator)``, without the worker. The first ``size`` members decide if all of
them accept. A reject, a split or a missing verdict enlarges the committee to the first
``escalated_size`` of the ranking, where two thirds decide either way.
"""

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache

from protocol.consensus.electorate import LocalElectorate
from protocol.consensus.equivocation import EquivocationTracker
from protocol.core.crypto import Verifier, digest
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import Digest, PeerId
from protocol.membership.roster import Roster
from protocol.messages import Certificate, Evidence, RolloutCommit, Signed, Verdict
from protocol.run.manifest import RunManifest

VIEW_SLACK = 1
"""Tolerated rank difference of two nodes' rankings: rosters are views, not certified."""

RANKINGS_MAX = 1024
"""Cached rankings: one per commit without an outcome, each read on every tick."""


@dataclass(frozen=True, slots=True)
class Committee:
    """Ranked validators of a commit, and the sizes of its two committees."""

    ranking: tuple[PeerId, ...]
    first_size: int
    escalated_size: int
    worker: PeerId
    lot: bytes
    """Beacon and commit: the seed of the ranking."""
    excluded: tuple[PeerId, ...] = ()
    """Validators that have equivocated: their verdicts are ignored."""

    @property
    def first(self) -> tuple[PeerId, ...]:
        """Members that check first and must be unanimous."""
        return self.ranking[: self.first_size]

    @property
    def escalated(self) -> tuple[PeerId, ...]:
        """Members of the larger committee, which includes the first ones."""
        return self.ranking[: self.escalated_size]

    @property
    def quorum(self) -> int:
        """Verdicts of the larger committee that decide: two thirds, rounded up."""
        return -(-2 * self.escalated_size // 3)

    def ranking_with(self, others: Sequence[PeerId]) -> tuple[PeerId, ...]:
        """Return the ranking with ``others`` added, except the worker and equivocators."""
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

    ``candidates`` replaces the validators of the commit's epoch if their records have expired.
    """
    electors = electorate.at_epoch(commit.message.epoch + 1)
    validators = electors.validators if candidates is None else candidates
    if commit.signer in validators:
        validators = tuple(peer for peer in validators if peer != commit.signer)
    rules = manifest.committee
    if len(validators) < rules.roster_min:
        return None
    count = len(validators)
    lot = electors.beacon + commit.digest
    first_size, escalated_size = min(rules.size, count), min(rules.escalated_size, count)
    ranking = _by_lot(lot, validators)
    return Committee(ranking, first_size, escalated_size, commit.signer, lot, electors.excluded)


@lru_cache(maxsize=RANKINGS_MAX)
def _by_lot(lot: bytes, validators: tuple[PeerId, ...]) -> tuple[PeerId, ...]:
    return tuple(sorted(validators, key=lambda peer: digest(lot + peer.encode())))


@dataclass(frozen=True, slots=True)
class Outcome:
    """A committee's decision with the verdicts that prove it."""

    accepted: bool
    escalated: bool
    verdicts: tuple[Signed[Verdict], ...]

    def certificate(self, commit: Digest) -> Certificate:
        """Return the certificate of this outcome."""
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
        if len(first) == committee.first_size and all(item.message.accept for item in first):
            return Outcome(accepted=True, escalated=False, verdicts=tuple(first))
        heard = [self.verdicts[peer] for peer in committee.escalated if peer in self.verdicts]
        for accepted in (True, False):
            agreeing = [item for item in heard if item.message.accept is accepted]
            if len(agreeing) >= committee.quorum:
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
    """Check opened verdicts against the committee that this node draws for the commit, if any.

    ``bad-certificate`` is a fault on every node; ``other-committee`` may come from our own view. A
    signer may be missing from our roster of that epoch and present on others. It counts at its
    rank, so a validator's later absence does not invalidate its verdicts.
    """
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
        return Fault(FaultCode.OTHER_COMMITTEE, "too few validators are live to draw a committee")
    if certificate.escalated:
        members, needed = committee.escalated_size, committee.quorum
    else:
        members, needed = committee.first_size, committee.first_size
    eligible = committee.ranking_with(signers)[: members + VIEW_SLACK]
    if sum(signer in eligible for signer in signers) < needed:
        return Fault(FaultCode.OTHER_COMMITTEE, "too few signers are in our committee")
    return None


class VerdictTable:
    """Verdict pools of the known commits, and the view that draws their committees."""

    def __init__(self, manifest: RunManifest, verify: Verifier, roster: Roster) -> None:
        self._manifest = manifest
        self.equivocators = EquivocationTracker(manifest, verify)
        self.electorate = LocalElectorate(manifest, roster, self.equivocators)
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
        """Draw the committee of a commit from this node's roster."""
        return draw(self._manifest, self.electorate, commit)

    def add(self, verdict: Signed[Verdict], commit: Signed[RolloutCommit]) -> Fault | bool:
        """Add a verdict on ``commit``; an equivocation becomes evidence to publish."""
        pool, validator = self.pool(commit.digest), verdict.signer
        result = pool.add(verdict)
        pair = pool.equivocations.get(validator)
        if pair is not None and self.equivocators.is_news(validator, commit.message.epoch):
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
