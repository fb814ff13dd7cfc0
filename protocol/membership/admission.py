"""Which keys have been admitted to a run, and since when: what decides whose commits count.

What a worker must compute follows from checkpoint and key, so whoever may make a key after it has
seen the checkpoint makes keys until one has easy problems. A key therefore counts from the first
version on that is made ``probation_epochs`` after its admission. The date in a proof says when the
key was made at the latest, if the proof was heard of by then: whoever hears of it later, and cannot
know when it was made, counts from when it heard. So nobody gains by dating back, and all who heard
in time agree.
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
"""In which a first record reaches everyone: clocks, and five hops of a slow heartbeat; a guess."""

EPOCHS_AHEAD_MAX = 2
"""Of a proof's date, as of a commit's: clock skew, not a choice."""

KEYS_MAX = 2 * MEMBERS_MAX
"""Admissions that are remembered, the last used: some 200 B each, also of who has left."""

CHECKED_KIB_PER_SECOND = 50 * 1024
"""Hashed to check others' work, 20 to 70 ms of each second; as much again may come at once."""

REFUSED_MAX = 1024
REFUSED_SECONDS = 10.0
"""For so long no other proof is looked at of a key whose proof was wrong."""

Number = tuple[PeerId, int]
"""Who invited, and which of its invites it is."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What is known of a key that has been admitted."""

    proof: bytes
    since: int
    """Epoch by the end of which the key had been made and heard of."""
    until: int | None = None
    """The last epoch in which its invite counts; None: no end."""
    number: Number | None = None


class AdmittedKeys:
    """The keys that this node has seen admitted; ``changes`` are those that are not stored yet."""

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
        """Invites that were given to two keys: neither counts, or a number would admit many."""
        self._refused = BoundedDict[PeerId, float](REFUSED_MAX)
        self._budget = _Budget(self._rules.work_kib * self._rules.work_passes)
        self.changes: dict[PeerId, Admission | None] = {}

    def needs_proof(self, peer: PeerId) -> bool:
        """Return whether ``peer`` must prove something to take part."""
        return self._asks_proof and not self._manifest.is_exempt(peer)

    def can_check(self, now: float) -> bool:
        """Return whether another proof of work may be checked now."""
        return self._budget.has_room(now)

    def offer(self, peer: PeerId, proof: bytes, now: float) -> Fault | bool:
        """Take the proof in a record of ``peer``; False when it cannot be checked now."""
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
        """Take back an admission that was found good before a restart."""
        self._take(peer, admission)
        self.changes.pop(peer, None)

    def _take(self, peer: PeerId, found: Admission) -> Fault | bool:
        if found.number is not None and self._holders.setdefault(found.number, peer) != peer:
            if found.number in self._void and peer not in self._known:
                return Fault(FaultCode.INVITED_TWICE)
            self._void[found.number] = None  # this key's records travel, so that all learn of it
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
            return Fault(FaultCode.NOT_ADMITTED, "the work is not done")
        return Admission(proof, date)

    def _invited(self, peer: PeerId, proof: bytes) -> Admission | Fault:
        signed = open_envelope(proof, Invite, self._run_id, self._verify)
        if isinstance(signed, Fault):
            return Fault(FaultCode.NOT_ADMITTED, f"no invite: {signed}")
        invite, inviter = signed.message, signed.signer
        quota = self._rules.inviters.get(inviter, 0)
        if inviter != self._manifest.genesis.creator and invite.number >= quota:
            return Fault(FaultCode.NOT_ADMITTED, "who invited it may not, or not so many")
        if invite.key != public_key_from_peer_id(peer):
            return Fault(FaultCode.NOT_ADMITTED, "the invite is another key's")
        return Admission(proof, invite.epoch, invite.until, (inviter, invite.number))

    # Questions

    def get(self, peer: PeerId) -> Admission | None:
        """Return what is known of a key; None also for one that needs no proof."""
        return self._known.get(peer)

    def knows(self, peer: PeerId) -> bool:
        """Return whether ``peer`` has been admitted, or need not be."""
        return not self.needs_proof(peer) or peer in self._known

    def counts(self, peer: PeerId, made: int, epoch: int, *, judged: bool = False) -> bool:
        """Return whether what ``peer`` does in ``epoch`` for a version of epoch ``made`` counts.

        ``judged``: others have found that its probation was over before that version.
        """
        if not self.needs_proof(peer):
            return True
        known = self._known.get(peer)
        if known is None or known.number in self._void:
            return False
        if known.until is not None and epoch > known.until:
            return False
        if judged or not self._rules.probation_epochs:
            return True
        age, age_then = epoch - known.since, made - known.since
        return age_then >= self._rules.probation_epochs or age >= self._rules.settled_epochs


class _Budget:
    """How many checks of a cost may be made: a bucket that holds those of a second."""

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
        """Take the room for a check if there is some."""
        room = self.has_room(now)
        self._left -= room
        return room
