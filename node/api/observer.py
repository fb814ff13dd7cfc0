"""The components of a running node, its state, and the counters that are cheap to read."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from node.api.status import Snapshot, Stage
from node.context import NodeContext
from node.local.units import duration_text
from node.network.blobs.exchange import BlobExchange
from node.network.blobs.wire import BlobKind
from node.network.connections.manager import ConnectionManager
from node.network.gossip.driver import Gossip
from node.network.relay.circuits import Circuits
from node.replication.anti_entropy import AntiEntropy
from node.replication.inbox import MessageIntake, MessageOrigin
from node.weights.download_progress import DownloadLog
from node.weights.library import PolicyLibrary
from protocol.core.types import PeerId, Role, ValidationResult
from protocol.ledger.accounts import Accounts
from protocol.messages import PROTOCOL_VERSION, Certificate
from protocol.replica.received import Received
from protocol.run.manifest import SignedManifest
from protocol.shardcast.forest import ForestMembers
from roles.ports.engines import Environment


@dataclass(frozen=True, slots=True)
class RosterCounts:
    """Counts over all members and workers in one epoch."""

    epoch: int
    by_role: dict[str, int]
    """A node with two roles counts twice."""
    members: int
    slashed: frozenset[PeerId]


@dataclass(slots=True)
class Observer:
    """The components of a node that its views are read from; it never changes them."""

    manifest: SignedManifest
    context: NodeContext
    roles: tuple[Role, ...]
    peers: ConnectionManager
    gossip: Gossip
    exchange: BlobExchange
    circuits: Circuits
    policies: PolicyLibrary
    downloads: DownloadLog
    inbox: MessageIntake
    addresses: Callable[[], tuple[str, ...]]
    anti_entropy: AntiEntropy
    p2pd_pid: Callable[[], int | None]
    task: Callable[[], Environment | None]
    """The run's task; None before its download."""
    forest: Callable[[], ForestMembers]
    """Members of distribution forests, with their measured capacities."""
    round_trips: Callable[[], Mapping[PeerId, float]]
    started_at: float
    monotonic: Callable[[], float]
    """The clock of download and upload rates."""
    trusted_page: Callable[[], str] = str
    """The page by which the node checks its history; empty without one."""
    first_certificate_at: float | None = None
    restored: bool = False
    """True once the stored state is restored."""
    draining: bool = False
    _counts: RosterCounts = RosterCounts(-1, {}, 0, frozenset())

    def note(self, received: Received, _source: MessageOrigin) -> None:
        """Record the time of the first certificate."""
        if self.first_certificate_at is None and received.result is ValidationResult.ACCEPT:
            signed = received.signed
            if signed is not None and isinstance(signed.message, Certificate):
                self.first_certificate_at = self.context.ports.clock.now()

    def snapshot(self) -> Snapshot:
        """Return the counters that are cheap to read."""
        ledger, gossip = self.context.replica.ledger, self.gossip
        totals = ledger.workers.totals
        return Snapshot(
            state=self.stage().state,
            members=self.roster_counts().members,
            policy_version=self.policies.newest_version(),
            version=ledger.chain.version,
            backlog=ledger.backpressure.backlog(ledger.epoch),
            committed=totals.committed,
            certified=totals.certified,
            rejected=totals.rejected,
            expired=totals.expired,
            gossip_received=gossip.counters.received,
            gossip_duplicates=gossip.counters.duplicates,
            gossip_dropped=gossip.link_counters.frames_dropped,
            weights_received=self.exchange.received[BlobKind.WEIGHTS],
            connected=len(self.peers.connected),
            sizes=self.context.tables.sizes(),
        )

    @property
    def accounts(self) -> Accounts:
        """Accounts of all keys, up to the newest final page that is counted."""
        return self.context.replica.intake.accounts

    def is_slashed(self, peer: PeerId) -> bool:
        """Return whether a final page, or a message that this node holds, proves a fault."""
        return self.context.replica.ledger.workers.is_slashed(peer)

    def roster_counts(self) -> RosterCounts:
        """Return the counts of this epoch: they scan all members and workers."""
        now, replica = self.context.ports.clock.now(), self.context.replica
        epoch, ledger = replica.manifest.epoch_at(now), replica.ledger
        if epoch != self._counts.epoch:
            live = replica.roster.live(now)
            found = Counter(role for member in live for role in member.record.message.roles)
            roles = {str(role): found[role] for role in Role}
            slashed = {peer for peer, one in self.accounts.scan() if one.slashed >= 0}
            slashed.update(filter(ledger.workers.is_slashed, ledger.workers.counts))
            self._counts = RosterCounts(epoch, roles, len(live), frozenset(slashed))
        return self._counts

    def stage(self) -> Stage:
        """Return the state of the node; cheap enough for frequent calls."""
        if self.draining:
            return Stage("draining")
        if not self.restored:
            return Stage("starting", "reading stored messages")
        if not self.peers.connected:
            reason = self.peers.unreachable or self._other_versions() or "looking for peers"
            return Stage("joining", reason)
        if self.is_slashed(self.context.signer.peer_id):
            return Stage("paused", "this node is slashed; see `prime-node why`")
        if wrong := self.context.conditions.wrong:
            return Stage("paused", wrong)
        if not self.anti_entropy.synchronised:
            return self._synchronising()
        if (awaited := self.context.conditions.awaited) is not None:
            return Stage("syncing", awaited.reason, awaited.share)
        if self.policies.newest() is None:
            return self._fetching()
        if preparing := self.context.conditions.preparing:
            return Stage("syncing", preparing)
        return Stage("ready", self._other_versions())

    def _synchronising(self) -> Stage:
        if newer := self._other_versions():
            return Stage("syncing", newer)
        if (page := self.context.replica.intake.awaited) is not None:
            others = len(self.anti_entropy.other_histories)
            shown = f"; {others} show another history" if others else ""
            return Stage("syncing", f"waiting for a peer that shows page {page}{shown}")
        taken, asked = self.anti_entropy.progress
        if not asked:
            return Stage("syncing", "synchronising")
        return Stage("syncing", f"synchronising ({taken} of {asked} messages)", taken / asked)

    def _fetching(self) -> Stage:
        """Return the download progress of the first policy, or of the newest of several."""
        coming = (one for one in self.downloads.under_way if one.label.version >= 0)
        arrival = max(coming, key=lambda one: one.label.version, default=None)
        if arrival is None or not arrival.total_bytes:
            if self.context.replica.ledger.chain.version < 0:
                return Stage("syncing", "waiting for version 0: no trainer has published it yet")
            return Stage("syncing", "fetching weights: waiting for the index")
        share = 1 - arrival.bytes_missing / arrival.total_bytes
        to_go = arrival.seconds_to_go(self.monotonic())
        left = "stalled" if to_go is None else f"{duration_text(to_go)} left"
        return Stage("syncing", f"fetching weights {int(100 * share)} %, {left}", share)

    def _other_versions(self) -> str:
        """Return a hint to upgrade if connected peers use a newer protocol version.

        Records of other peers do not count: an untrusted peer can forge any version for free.
        """
        spoken = (self.inbox.other_versions.get(peer, 0) for peer in self.peers.connected)
        newer = Counter(version for version in spoken if version > PROTOCOL_VERSION)
        if not newer:
            return ""
        version, count = newer.most_common(1)[0]
        peers = "1 peer runs" if count == 1 else f"{count} peers run"
        return (
            f"{peers} protocol version {version}, this node {PROTOCOL_VERSION}: upgrade prime-node"
        )
