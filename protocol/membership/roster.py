"""Who is here: signed records, each member's newest, until it is too old.

A record counts while it is younger than ``record_epochs``. The roster that an election of epoch *e*
uses is the set of members that were here before *e* began and had not fallen silent by then, so a
record that arrives during *e* changes nobody's committee.
"""

import bisect
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from protocol.core.containers import SizeGauge
from protocol.core.crypto import Verifier
from protocol.core.faults import Fault, FaultCode
from protocol.core.types import MEMBERS_MAX, Digest, PeerId, Role
from protocol.membership.admission import AdmittedKeys
from protocol.messages import PROTOCOL_VERSION, NodeRecord, Signed
from protocol.run.manifest import RunManifest

CLOCK_SKEW_SECONDS_MAX = 3.0
"""As in hivemind's own bootstrap check."""

_ROLES = frozenset(map(str, Role))

REFRESH_SHARE_MIN = 0.1
"""Records of one member closer than this share of a refresh are no news: each travels to everyone,
and a member could sign one for every millisecond."""


UNCHECKED_MAX = 1024
"""Records of newcomers that wait until the work in them can be checked; about 1 KB each."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member as we know it: its newest record."""

    record: Signed[NodeRecord]
    heard_since: float
    """Unix seconds at which this node heard of it first, without a break."""
    live_until: float
    """Unix seconds: the last moment before it left or counts as silent."""

    @property
    def peer(self) -> PeerId:
        """The member's id."""
        return self.record.signer

    @property
    def seen_at(self) -> float:
        """Unix seconds at which the newest record was issued."""
        return self.record.message.issued_at

    @property
    def since(self) -> float:
        """Unix seconds since when the member says that it has been here.

        Its own word: a member that backdates it is drawn an epoch early and gains nothing, while
        a node that has just come can still tell who was drawn before it came.
        """
        return self.record.message.joined_at / 1000


class Roster:
    """The records that a node holds."""

    def __init__(self, manifest: RunManifest, verify: Verifier) -> None:
        self._manifest = manifest
        self.admitted = AdmittedKeys(manifest, verify)
        self._unchecked: dict[Digest, Signed[NodeRecord]] = {}
        """Records that came faster than proofs can be checked."""
        self._members: dict[PeerId, Member] = {}
        self.unchecked = SizeGauge("unchecked", UNCHECKED_MAX, self._unchecked.__len__)
        self.tables = (SizeGauge("roster", MEMBERS_MAX, self._members.__len__), self.unchecked)
        self._order: list[PeerId] = []
        """The members by peer id, so that nobody sorts them at every look."""
        self._holders: dict[str, list[PeerId]] = {role: [] for role in Role}
        """Who claims a role, by peer id."""
        self._revisions: dict[str, int] = dict.fromkeys(Role, 0)
        """How often a record of somebody with a role has come, changed or gone."""
        self._admits: dict[str, Callable[[PeerId], bool]] = {
            Role.VALIDATOR: manifest.is_validator,
            Role.TRAINER: manifest.is_trainer,
            Role.INFERENCE: manifest.admits_worker,
        }
        self.changes = 0
        """How many records have been taken."""
        self._all_heard_since = -math.inf
        """No record here is older."""
        epochs = manifest.epochs
        self._lifetime_seconds = epochs.record_epochs * epochs.seconds
        self.pause_seconds = REFRESH_SHARE_MIN * epochs.refresh_epochs * epochs.seconds
        """Before a member's next record is news, unless that says that it leaves."""

    def offer(self, record: Signed[NodeRecord], now: float) -> Fault | bool:
        """Take a record whose signature is checked; False when it is not news."""
        fault = self._check(record, now)
        if fault is not None:
            return fault
        peer, issued_at = record.signer, record.message.issued_at
        known = self._members.get(peer)
        welcome = self._room_for(peer) if known is None else self._is_news(record, known)
        if not welcome or issued_at < now - self._lifetime_seconds:
            return False
        admitted = self.admitted.offer(peer, record.message.admission, now)
        if isinstance(admitted, Fault):
            return admitted
        if not admitted:
            if len(self._unchecked) < UNCHECKED_MAX:
                self._unchecked[record.digest] = record
            return False
        heard_since = now if known is None else known.heard_since
        leaves = record.message.leaving
        silent_after = issued_at + self._lifetime_seconds
        live_until = math.nextafter(issued_at, -math.inf) if leaves else silent_after
        self._members[peer] = Member(record, heard_since, live_until)
        self.changes += 1
        self._all_heard_since = min(self._all_heard_since, issued_at)
        if known is None:
            bisect.insort(self._order, peer)
        before = () if known is None else known.record.message.roles
        self._index_roles(peer, before, record.message.roles)
        return True

    def _index_roles(self, peer: PeerId, before: Sequence[str], after: Sequence[str]) -> None:
        for role, holders in self._holders.items():
            if role in before or role in after:
                self._revisions[role] += 1
            if role in before and role not in after:
                _remove(holders, peer)
            elif role in after and role not in before:
                bisect.insort(holders, peer)

    def revision(self, role: Role) -> int:
        """Return a number that changes with every record of a member that holds ``role``."""
        return self._revisions[role]

    def _check(self, record: Signed[NodeRecord], now: float) -> Fault | None:
        message = record.message
        if message.issued_at > now + CLOCK_SKEW_SECONDS_MAX:
            ahead_seconds = message.issued_at - now
            return Fault(FaultCode.CLOCK_SKEW, f"issued {ahead_seconds:.1f} s ahead of our clock")
        if message.protocol_version != PROTOCOL_VERSION:
            return Fault(FaultCode.PROTOCOL_VERSION, str(message.protocol_version))
        if not _ROLES.issuperset(message.roles):
            return Fault(FaultCode.UNKNOWN_ROLE)
        if message.joined_at > message.sequence:
            return Fault(FaultCode.BAD_RECORD, "joined after it was issued")
        for role in message.roles:
            admits = self._admits.get(role)
            if admits is not None and not admits(record.signer):
                return Fault(FaultCode.NOT_ADMITTED, role)
        return None

    def _is_news(self, record: Signed[NodeRecord], known: Member) -> bool:
        """Return whether a member's next record is due, or says that it leaves."""
        leaves = record.message.leaving and not known.record.message.leaving
        pause_seconds = 0.0 if leaves else self.pause_seconds
        newer = record.message.sequence > known.record.message.sequence
        return newer and record.message.issued_at >= known.seen_at + pause_seconds

    def _room_for(self, peer: PeerId) -> bool:
        """Return whether a newcomer fits; keys that the manifest names always do."""
        manifest = self._manifest
        named = manifest.is_of_genesis(peer) or peer in manifest.admission.workers
        return named or len(self._members) < MEMBERS_MAX

    def advance(self, now: float) -> list[Signed[NodeRecord]]:
        """Forget who has been silent for twice a record's life; return what is taken now."""
        self._forget(now)
        taken = []
        for digest in list(self._unchecked):
            if not self.admitted.can_check(now):
                break
            record = self._unchecked.pop(digest)
            if self.offer(record, now) is True:
                taken.append(record)
        return taken

    def is_unchecked(self, digest: Digest) -> bool:
        """Return whether a record is one of those that wait."""
        return digest in self._unchecked

    def _forget(self, now: float) -> None:
        oldest = now - 2 * self._lifetime_seconds
        if self._all_heard_since >= oldest:
            return
        silent = [peer for peer, member in self._members.items() if member.seen_at < oldest]
        for peer in silent:
            roles = self._members.pop(peer).record.message.roles
            _remove(self._order, peer)
            self._index_roles(peer, roles, ())
        seen = (member.seen_at for member in self._members.values())
        self._all_heard_since = min(seen, default=math.inf)

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, peer: PeerId) -> bool:
        """Return whether a record of ``peer`` is held."""
        return peer in self._members

    def get(self, peer: PeerId) -> Member | None:
        """Return a member, also one that has just fallen silent."""
        return self._members.get(peer)

    def records(self) -> list[Signed[NodeRecord]]:
        """Return every record that is held, by peer id."""
        return [self._members[peer].record for peer in self._order]

    def live(self, now: float, role: Role | None = None) -> list[Member]:
        """Return the members (that hold ``role``) whose record is fresh at ``now``, by peer id."""
        peers = self._order if role is None else self._holders[role]
        members = self._members
        return [member for peer in peers if now <= (member := members[peer]).live_until]

    def is_live(self, peer: PeerId, now: float) -> bool:
        """Return whether ``live`` would have ``peer``, without looking at anybody else."""
        member = self._members.get(peer)
        return member is not None and now <= member.live_until

    def peers_from(self, place: int) -> Iterator[PeerId]:
        """Yield every member's id, live or not, from a place in their order on and round."""
        order = self._order
        place %= max(1, len(order))
        return chain(islice(order, place, None), islice(order, place))

    def at_epoch(self, epoch: int, role: Role | None = None) -> list[Member]:
        """Return who (of a role) takes part in the elections of ``epoch``, by peer id."""
        start = self._manifest.epoch_start(epoch)
        return [member for member in self.live(start, role) if member.since <= start]


def _remove(peers: list[PeerId], peer: PeerId) -> None:
    """Take a peer out of a sorted list that holds it."""
    del peers[bisect.bisect_left(peers, peer)]
