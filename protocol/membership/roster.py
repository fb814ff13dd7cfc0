"""Roster: the newest signed record of each member, until it expires.

A record counts while it is younger than ``record_epochs``. Pages, not records, say who is in the
council and in a committee: nodes hold different records.
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
"""A member's next record is ignored within this share of a refresh: each is sent to every node, and
a member could sign one per millisecond."""


UNCHECKED_MAX = 1024
"""Records of untrusted members that wait for the check of their work; about 1 KB each."""


@dataclass(frozen=True, slots=True)
class Member:
    """A member with its newest record."""

    record: Signed[NodeRecord]
    heard_since: float
    """Unix seconds of its first record at this node, without a break."""
    live_until: float
    """Unix seconds of the last moment before it left or counts as silent."""

    @property
    def peer(self) -> PeerId:
        """The member's id."""
        return self.record.signer

    @property
    def seen_at(self) -> float:
        """Unix seconds at which the newest record was issued."""
        return self.record.message.issued_at


class Roster:
    """The records that a node holds."""

    def __init__(self, manifest: RunManifest, verify: Verifier) -> None:
        self._manifest = manifest
        self.admitted = AdmittedKeys(manifest, verify)
        self._unchecked: dict[Digest, Signed[NodeRecord]] = {}
        """Records that arrived faster than proofs can be checked."""
        self._members: dict[PeerId, Member] = {}
        self.unchecked = SizeGauge("unverified_records", UNCHECKED_MAX, self._unchecked.__len__)
        self.tables = (SizeGauge("roster", MEMBERS_MAX, self._members.__len__), self.unchecked)
        self._order: list[PeerId] = []
        """Members by peer id, kept sorted."""
        self._holders: dict[str, list[PeerId]] = {role: [] for role in Role}
        """Members with each role, by peer id."""
        self._admits: dict[str, Callable[[PeerId], bool]] = {
            Role.TRAINER: manifest.is_trainer,
            Role.INFERENCE: manifest.admits_worker,
        }
        self.changes = 0
        """Number of accepted records."""
        self._all_heard_since = -math.inf
        """Lower bound of all records' issue times."""
        epochs = manifest.epochs
        self._lifetime_seconds = epochs.record_epochs * epochs.seconds
        self.pause_seconds = REFRESH_SHARE_MIN * epochs.refresh_epochs * epochs.seconds
        """Minimum time between two records of a member, unless the second announces its leave."""

    def offer(self, record: Signed[NodeRecord], now: float) -> Fault | bool:
        """Accept a record with a checked signature; False if it is no news."""
        peer, issued_at = record.signer, record.message.issued_at
        fault = self._check(record, issued_at, now)
        if fault is not None:
            return fault
        known = self._members.get(peer)
        welcome = self._room_for(peer) if known is None else self._is_news(record, issued_at, known)
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
            if role in before and role not in after:
                _remove(holders, peer)
            elif role in after and role not in before:
                bisect.insort(holders, peer)

    def _check(self, record: Signed[NodeRecord], issued_at: float, now: float) -> Fault | None:
        if issued_at > now + CLOCK_SKEW_SECONDS_MAX:
            detail = f"issued {issued_at - now:.1f} s ahead of our clock"
            return Fault(FaultCode.CLOCK_SKEW, detail)
        message = record.message
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

    def _is_news(self, record: Signed[NodeRecord], issued_at: float, known: Member) -> bool:
        """Return whether a member's next record is due or announces that it leaves."""
        leaves = record.message.leaving and not known.record.message.leaving
        pause_seconds = 0.0 if leaves else self.pause_seconds
        newer = record.message.sequence > known.record.message.sequence
        return newer and issued_at >= known.seen_at + pause_seconds

    def _room_for(self, peer: PeerId) -> bool:
        """Return whether a new member fits; keys that the manifest names always do."""
        manifest = self._manifest
        named = manifest.is_of_genesis(peer) or peer in manifest.admission.workers
        return named or len(self._members) < MEMBERS_MAX

    def advance(self, now: float) -> list[Signed[NodeRecord]]:
        """Forget members silent for two record lifetimes; return the records accepted now."""
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
        """Return whether a record waits for its check."""
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
        """Return a member, even if it has just become silent."""
        return self._members.get(peer)

    def name_of(self, peer: PeerId) -> str:
        """Return the name in a member's record; empty for a member without one, and for others."""
        member = self._members.get(peer)
        return "" if member is None else member.record.message.name

    def records(self) -> list[Signed[NodeRecord]]:
        """Return every record that is held, by peer id."""
        return [self._members[peer].record for peer in self._order]

    def live(self, now: float, role: Role | None = None) -> list[Member]:
        """Return the members (that hold ``role``) with a fresh record at ``now``, by peer id."""
        peers = self._order if role is None else self._holders[role]
        members = self._members
        return [member for peer in peers if now <= (member := members[peer]).live_until]

    def is_live(self, peer: PeerId, now: float) -> bool:
        """Return whether ``live`` would return ``peer``, in constant time."""
        member = self._members.get(peer)
        return member is not None and now <= member.live_until

    def peers_from(self, place: int) -> Iterator[PeerId]:
        """Yield all member ids, live or not, in order from an index on, wrapping around."""
        order = self._order
        place %= max(1, len(order))
        return chain(islice(order, place, None), islice(order, place))


def _remove(peers: list[PeerId], peer: PeerId) -> None:
    """Remove a peer from a sorted list that holds it."""
    del peers[bisect.bisect_left(peers, peer)]
