"""Peers of a node: the roster with measurements and local observations."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from node.api.observer import Observer
from node.api.v1.answers import PeerPage, PeerRow, ReputationName
from node.api.v1.queries import PeerQuery
from node.local.units import bytes_text
from protocol.core.types import PeerId
from protocol.gossipsub.inspection import PeerReport
from protocol.ledger.reputation import has_reputation
from protocol.membership.roster import Member
from protocol.messages import Hardware

_ROLES = ("trainer", "validator", "inference", "relay")

_ORDERS: dict[str, Callable[[PeerRow], tuple[object, ...]]] = {
    "role": lambda row: (not row.me, _rank(row.roles), row.peer_id),
    "age": lambda row: (row.age_seconds is None, row.age_seconds or 0.0, row.peer_id),
    "version": lambda row: (-row.policy_version, row.peer_id),
    "rejected": lambda row: (-row.rejected, -row.certified, row.peer_id),
    "round-trip": lambda row: (
        row.round_trip_seconds is None,
        row.round_trip_seconds or 0.0,
        row.peer_id,
    ),
}


@dataclass(frozen=True, slots=True)
class PeerReader:
    """Reads the peers of one node."""

    observer: Observer

    def page(self, query: PeerQuery) -> PeerPage:
        """Return the rows that match a query."""
        table, looks = self.observer.peers, self._look()
        others = [peer for peer in table.connected if peer not in looks.live]
        rows = [self._row(peer, looks) for peer in (*looks.live, *others)]
        wanted = selected(rows, query)
        return PeerPage(
            tuple(wanted[query.offset : query.offset + query.limit]),
            len(wanted),
            len(looks.live),
            len(table.connected),
            table.banned,
            dict(Counter(role for row in rows for role in row.roles)),
        )

    def listed(self, members_max: int) -> tuple[tuple[PeerRow, ...], tuple[PeerRow, ...]]:
        """Return some members, this node and genesis keys first, and the peers by gossip score."""
        context, looks = self.observer.context, self._look()
        own, named = context.signer.peer_id, context.replica.manifest.is_of_genesis
        members = sorted(looks.live, key=lambda peer: (peer != own, not named(peer), peer))
        gossip = sorted(
            (self._row(peer, looks) for peer in looks.gossip), key=lambda row: -(row.score or 0.0)
        )
        return tuple(self._row(peer, looks) for peer in members[:members_max]), tuple(gossip)

    def _look(self) -> "_Looks":
        context, table = self.observer.context, self.observer.peers
        live = context.replica.roster.live(context.ports.clock.now())
        return _Looks(
            {member.peer: member for member in live},
            frozenset(table.connected),
            {report.peer: report for report in self.observer.gossip.report()},
            table.faults(),
            {
                one.peer: (one.reachable, one.upload_bytes_per_second)
                for one in self.observer.forest()
            },
            self.observer.round_trips(),
        )

    def _row(self, peer: PeerId, looks: "_Looks") -> PeerRow:
        context, member = self.observer.context, looks.live.get(peer)
        message = None if member is None else member.record.message
        account = self.observer.accounts.account(peer)
        counts = context.replica.ledger.workers.counts.get(peer)
        reachable, upload = looks.witnessed.get(peer, (None, 0))
        now = context.ports.clock.now()
        return PeerRow(
            peer_id=peer,
            me=peer == context.signer.peer_id,
            name="" if message is None else message.name,
            roles=() if message is None else message.roles,
            policy_version=-1 if message is None else message.policy_version,
            age_seconds=None if member is None else max(0.0, round(now - member.seen_at, 1)),
            software="" if message is None else message.software,
            reputation=self._reputation(peer),
            connected=peer in looks.connected,
            round_trip_seconds=looks.round_trips.get(peer),
            reachable=reachable,
            upload_bytes_per_second=upload,
            addresses=() if message is None else message.addresses,
            remote=tuple(self.observer.peers.places.get(peer, ())),
            machine="" if message is None else _machine(message.hardware),
            scoring="" if message is None else message.scoring.hex(),
            **_gossip(looks.gossip.get(peer)),
            faults=looks.faults.get(peer, 0),
            certified=0 if account is None else account.rollouts,
            rejected=max(
                0 if account is None else account.rejected,
                0 if counts is None else counts.rejected,
            ),
        )

    def _reputation(self, peer: PeerId) -> ReputationName:
        replica = self.observer.context.replica
        if self.observer.is_slashed(peer):
            return "slashed"
        if replica.manifest.is_of_genesis(peer):
            return "genesis"
        return "trusted" if has_reputation(peer, replica.manifest, replica.ledger) else "untrusted"


@dataclass(frozen=True, slots=True)
class _Looks:
    """Data looked up once for all rows."""

    live: Mapping[PeerId, Member]
    connected: frozenset[PeerId]
    gossip: Mapping[PeerId, PeerReport]
    faults: Mapping[PeerId, int]
    witnessed: Mapping[PeerId, tuple[bool, int]]
    round_trips: Mapping[PeerId, float]


def _gossip(report: PeerReport | None) -> dict[str, Any]:
    """Return the fields of a row about gossip."""
    if report is None:
        return {}
    return {
        "score": round(report.score, 3),
        "level": str(report.level),
        "outbound": report.chosen,
        "mesh": tuple(map(_kind, report.mesh)),
        "backoff_seconds": {
            _kind(topic): round(seconds, 1) for topic, seconds in report.backoff_seconds.items()
        },
        "first_deliveries": round(report.counts.first_deliveries, 1),
        "invalid": round(report.counts.invalid, 1),
        "breaches": round(report.counts.breaches, 1),
        "neighbours": report.counts.neighbours,
    }


def _kind(topic: str) -> str:
    """Return the kind of a topic: its name without the prefix of the run."""
    return topic.rsplit("/", 1)[-1]


def selected(rows: Iterable[PeerRow], query: PeerQuery) -> list[PeerRow]:
    """Return the rows that match a query, in its order."""
    wanted = [row for row in rows if _is_wanted(row, query)]
    return sorted(wanted, key=_ORDERS.get(query.sort, _ORDERS["role"]))


def _is_wanted(row: PeerRow, query: PeerQuery) -> bool:
    """Return whether a row matches; text is searched in id, name, software, machine, addresses."""
    text = query.text.lower()
    return (
        (not query.role or query.role in row.roles)
        and (not query.reputation or query.reputation == row.reputation)
        and (
            not text
            or any(
                text in one.lower()
                for one in (row.peer_id, row.name, row.software, row.machine, *row.addresses)
            )
        )
    )


def _rank(roles: tuple[str, ...]) -> int:
    return min((_ROLES.index(role) for role in roles if role in _ROLES), default=len(_ROLES))


def _machine(hardware: Hardware) -> str:
    """Return a member's self-reported hardware in one line."""
    parts = []
    if hardware.gpu:
        parts.append(f"{hardware.gpus} x {hardware.gpu}, {bytes_text(hardware.gpu_memory_bytes)}")
    if hardware.cores:
        parts.append(f"{hardware.cores} cores, {bytes_text(hardware.memory_bytes)}")
    return ", ".join(parts)
