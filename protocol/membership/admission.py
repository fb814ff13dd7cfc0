"""Admission of keys to a run, and the probation that decides from when their commits count.

A worker's assignment follows from checkpoint and key. A worker that may make a key after it has
seen the checkpoint tries keys until one has easy problems. A key therefore counts from the first
version that is made ``probation_epochs`` after its admission.

The date in a proof bounds the age of the key only if the proof was received by then. A node that
receives it later counts from its arrival. So backdating gains nothing, and all nodes that received
it on time agree.
"""

import math
from dataclasses import dataclass

from protocol.core.containers import BoundedDict
from protocol.core.crypto import Verifier, public_key_from_peer_id
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import MEMBERS_MAX, PeerId
from protocol.membership.proof_of_work import is_solved, work_epoch
from protocol.messages import Invite, open_envelope
from protocol.run.manifest import RunManifest

SPREAD_SECONDS = 20.0
"""Time in which a first record reaches every node: clock skew, and five slow heartbeats; a
guess."""

EPOCHS_AHEAD_MAX = 2
"""Maximum lead of a proof's epoch over ours, as of a commit's, for clock skew."""

KEYS_MAX = 2 * MEMBERS_MAX
"""Remembered admissions, also of members that left; LRU, about 200 B each."""

CHECKED_KIB_PER_SECOND = 50 * 1024
"""Limit of proof-of-work checks: 20 to 70 ms of each second, with bursts of one second's worth."""

REFUSED_MAX = 1024
REFUSED_SECONDS = 10.0
"""Time after an invalid proof in which the key's other proofs are ignored."""

Number = tuple[PeerId, int]
"""Inviter and serial number of an invite."""


@dataclass(frozen=True, slots=True)
class Admission:
    """An admitted key."""

    proof: bytes
    since: int
    """Epoch by the end of which the key existed and its proof had spread."""
    until: int | None = None
    """Last epoch in which its invite is valid; None: no end."""
    number: Number | None = None


class AdmittedKeys:
    """The keys that this node has seen admitted; ``changes`` are those not stored yet."""

    def __init__(self, manifest: RunManifest, verify: Verifier) -> None:
        self._manifest = manifest
        self._rules = manifest.admission
        self._run_id = manifest.run_id
        self._verify = verify
        self._asks_proof = self._rules.asks_proof
        self._window_epochs = 1 + math.ceil(SPREAD_SECONDS / manifest.epochs.seconds)
        self._known: dict[PeerId, Admission] = {}
        """By peer, the last used one last."""
        self._holders: dict[Number, PeerId] = {}
        self._void: dict[Number, None] = {}
        """Invite numbers given to two keys: neither is valid, or one number would admit many."""
        self._refused = BoundedDict[PeerId, float](REFUSED_MAX)
        self._budget = _Budget(self._rules.work_kib * self._rules.work_passes)
        self.changes: dict[PeerId, Admission | None] = {}

    def needs_proof(self, peer: PeerId) -> bool:
        """Return whether ``peer`` needs an admission proof to take part."""
        return self._asks_proof and not self._manifest.is_exempt(peer)

    def can_check(self, now: float) -> bool:
        """Return whether another proof of work may be checked now."""
        return self._budget.has_room(now)

    def offer(self, peer: PeerId, proof: bytes, now: float) -> Fault | bool:
        """Check the proof in a record of ``peer``; False if it cannot be checked now."""
        if not self.needs_proof(peer):
            return True
        epoch = self._manifest.epoch_at(now)
        known = self._known.get(peer)
        found = known if known is not None and known.proof == proof else None
        if found is None:
            examined = self._examine(peer, proof, epoch, now)
            if not isinstance(examined, Admission):
                return examined
            found = examined
        if found.until is not None and found.until < epoch:
            return Fault(FaultCode.OLD_DATE, f"invited until epoch {found.until}")
        return self._take(peer, found)

    def admit(self, peer: PeerId, admission: Admission) -> None:
        """Restore an admission that was valid before a restart."""
        self._take(peer, admission)
        self.changes.pop(peer, None)

    def _take(self, peer: PeerId, found: Admission) -> Fault | bool:
        if found.number is not None and self._holders.setdefault(found.number, peer) != peer:
            if found.number in self._void and peer not in self._known:
                return Fault(FaultCode.INVITED_TWICE)
            self._void[found.number] = None  # forwarded, so that all nodes learn of it
        known = self._known.pop(peer, None)
        if known is not None and known.since < found.since:
            found = Admission(found.proof, known.since, found.until, found.number)
        self._known[peer] = found
        if found != known:
            self.changes[peer] = found
        if len(self._known) > KEYS_MAX:
            oldest = next(iter(self._known))
            del self._known[oldest]
            self.changes[oldest] = None
        return True

    def _examine(
        self, peer: PeerId, proof: bytes, epoch: int, now: float
    ) -> Admission | Fault | bool:
        if now < self._refused.get(peer, -math.inf) + REFUSED_SECONDS:
            return False
        invited = self._rules.rule == "invite"
        found = self._invited(peer, proof) if invited else self._worked(peer, proof, epoch, now)
        if isinstance(found, Fault):
            self._refused.set_newest(peer, now)
        if not isinstance(found, Admission):
            return found
        if found.since > epoch + EPOCHS_AHEAD_MAX:
            return Fault(FaultCode.FUTURE_EPOCH)
        since = max(found.since + self._window_epochs, epoch)
        return Admission(proof, since, found.until, found.number)

    def _worked(
        self, peer: PeerId, proof: bytes, epoch: int, now: float
    ) -> Admission | Fault | bool:
        date = work_epoch(proof)
        if date is None:
            return Fault(FaultCode.NOT_ADMITTED, "no proof of work")
        if date > epoch + EPOCHS_AHEAD_MAX:
            return Fault(FaultCode.FUTURE_EPOCH)
        if not self._budget.take(now):
            return False
        if not is_solved(self._rules, self._run_id, peer, proof):
            return Fault(FaultCode.NOT_ADMITTED, "the proof does not solve the work")
        return Admission(proof, date)

    def _invited(self, peer: PeerId, proof: bytes) -> Admission | Fault:
        signed = open_envelope(proof, Invite, self._run_id, self._verify)
        if isinstance(signed, Fault):
            return Fault(FaultCode.NOT_ADMITTED, f"no invite: {signed}")
        invite, inviter = signed.message, signed.signer
        quota = self._rules.inviters.get(inviter, 0)
        if inviter != self._manifest.genesis.creator and invite.number >= quota:
            return Fault(FaultCode.NOT_ADMITTED, "no right to invite, or above the quota")
        if invite.key != public_key_from_peer_id(peer):
            return Fault(FaultCode.NOT_ADMITTED, "the invite is for another key")
        return Admission(proof, invite.epoch, invite.until, (inviter, invite.number))

    # Queries

    def get(self, peer: PeerId) -> Admission | None:
        """Return the admission of a key; None if unknown or if the key needs no proof."""
        return self._known.get(peer)

    def knows(self, peer: PeerId) -> bool:
        """Return whether ``peer`` is admitted or needs no proof."""
        return not self.needs_proof(peer) or peer in self._known

    def counts(self, peer: PeerId, made: int, epoch: int, *, judged: bool = False) -> bool:
        """Return whether work of ``peer`` in ``epoch`` for a version made in epoch ``made`` counts.

        ``judged``: a committee has found that its probation ended before that version.
        """
        if not self.needs_proof(peer):
            return True
        known = self._known.get(peer)
        if known is None or (known.until is not None and epoch > known.until):
            return False
        if known.number in self._void and not judged:
            return False  # an invite that a committee has relied on stands
        if judged or not self._rules.probation_epochs:
            return True
        age, age_then = epoch - known.since, made - known.since
        return age_then >= self._rules.probation_epochs or age >= self._rules.settled_epochs


class _Budget:
    """Token bucket for proof-of-work checks; its capacity is one second's worth."""

    def __init__(self, kib: int) -> None:
        self._per_second = CHECKED_KIB_PER_SECOND / kib
        self._left = self._per_second
        self._at = -math.inf

    def has_room(self, now: float) -> bool:
        """Return whether a check may be made now."""
        passed_seconds = min(1.0, max(0.0, now - self._at))  # clocks may be set back
        self._at = now
        self._left = min(self._per_second, self._left + passed_seconds * self._per_second)
        return self._left >= 1

    def take(self, now: float) -> bool:
        """Take a token if there is one, and tell whether there was."""
        room = self.has_room(now)
        self._left -= room
        return room
