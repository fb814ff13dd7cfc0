"""Snapshot of a running node as a ``NodeStatus``; reads the node and never changes it."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from heapq import nlargest

from node.api.arrivals_observer import (
    download_statuses,
    durations_status,
    durations_statuses,
    receiver_statuses,
)
from node.api.forks import forks_told
from node.api.judging import judging_status
from node.api.rollout_counts import counted
from node.api.status import (
    CHECKPOINTS_MAX,
    EVALUATIONS_MAX,
    LISTED_MAX,
    BusyTimeStatus,
    CheckpointStatus,
    CircuitsStatus,
    GossipPeerStatus,
    MemberStatus,
    NodeStatus,
    PolicySwapStatus,
    RolloutCounts,
    Snapshot,
    Stage,
    TrafficStatus,
    TrainingStatus,
)
from node.api.why import FailedRollout, MeasuredValue, TrainedOnRejected, VerdictFinding, Why
from node.context import NodeContext
from node.local.units import duration_text
from node.network.blobs.exchange import BlobExchange
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from node.network.connections.manager import ConnectionManager
from node.network.gossip.driver import Gossip
from node.network.relay.circuits import Circuits
from node.replication.anti_entropy import AntiEntropy
from node.replication.inbox import MessageIntake, MessageOrigin
from node.weights.download_progress import DownloadLog
from node.weights.library import PolicyLibrary
from protocol.core.faults import Fault
from protocol.core.types import Role, ValidationResult
from protocol.ledger.commits import CommitState, Entry
from protocol.ledger.worker_stats import WorkerStats
from protocol.messages import PROTOCOL_VERSION, Certificate, Signed, Verdict, open_envelope
from protocol.replica.replica import Received
from protocol.rollout.statistics import explained
from protocol.run.recipe import ToplocSection


@dataclass(slots=True)
class Observer:
    """The components of a node that its status is read from."""

    context: NodeContext
    roles: tuple[Role, ...]
    peers: ConnectionManager
    gossip: Gossip
    exchange: BlobExchange
    circuits: Circuits
    policies: PolicyLibrary
    arrivals: DownloadLog
    inbox: MessageIntake
    addresses: Callable[[], tuple[str, ...]]
    anti_entropy: AntiEntropy
    p2pd_pid: Callable[[], int | None]
    started_at: float
    monotonic: Callable[[], float]
    """The clock of download and upload rates."""
    first_certificate_at: float | None = None
    restored: bool = False
    """True once the stored state is restored."""
    draining: bool = False
    _counted_in: int = -1
    _members_live: int = 0

    def note(self, received: Received, _source: MessageOrigin) -> None:
        """Record the time of the first certificate."""
        if self.first_certificate_at is None and received.result is ValidationResult.ACCEPT:
            signed = received.signed
            if signed is not None and isinstance(signed.message, Certificate):
                self.first_certificate_at = self.context.ports.clock.now()

    def status(self) -> NodeStatus:
        """Return the snapshot."""
        replica, peer_id = self.context.replica, self.context.signer.peer_id
        now, ledger = self.context.ports.clock.now(), replica.ledger
        monotonic_now = self.monotonic()
        stage = self.stage()
        newest, steps = self.policies.newest(), self.context.durations.steps
        training = self.context.training
        return NodeStatus(
            peer_id=peer_id,
            run_id=replica.run_id.hex(),
            run_name=replica.manifest.name,
            roles=tuple(str(role) for role in self.roles),
            state=stage.state,
            reason=stage.reason,
            share=stage.share,
            started_at=self.started_at,
            epoch=replica.manifest.epoch_at(now),
            addresses=self.addresses(),
            peers_connected=len(self.peers.connected),
            peers_banned=self.peers.banned,
            policy_version=-1 if newest is None else newest.version,
            policy_version_newest=ledger.chain.version,
            policy_lag_max=ledger.commits.policy_lag_max,
            first_certificate_at=self.first_certificate_at,
            members=self._members(now),
            members_count=self._count_members(),
            members_by_role=self._roles_of_members(now),
            rollouts=counted(ledger.workers.totals),
            own_rollouts=counted(ledger.workers.counts.get(peer_id, WorkerStats())),
            judging=judging_status(replica),
            workers=self._workers(),
            checkpoints=self._checkpoints(),
            traffic=self.traffic(),
            p2pd_pid=self.p2pd_pid(),
            dial_failures=self.peers.dial_failures,
            tables=self.context.tables.sizes(),
            table_limits=self.context.tables.limits(),
            arrivals=download_statuses(self.arrivals, monotonic_now, now),
            durations=durations_statuses(self.arrivals),
            receivers=receiver_statuses(self.exchange.sent, monotonic_now),
            policy_swap=self._policy_swap(),
            generations=durations_status(self.context.durations.generations),
            checks=durations_status(self.context.durations.checks),
            steps=BusyTimeStatus(steps.began_at, steps.seconds),
            training=TrainingStatus(training.newest, training.warning),
            evaluation=self.context.evaluated()[-EVALUATIONS_MAX:],
            restored=self.restored,
            circuits=self._circuits(),
            gossip_peers=self._gossip_peers(),
            forks=forks_told(replica),
            clock=self.context.conditions["clock"],
        )

    def snapshot(self) -> Snapshot:
        """Return the counters that are cheap to read."""
        ledger, gossip = self.context.replica.ledger, self.gossip
        totals = ledger.workers.totals
        return Snapshot(
            state=self.stage().state,
            members=self._count_members(),
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

    def reason(self) -> str:
        """Return the reason of the node's state."""
        return self.stage().reason

    def _count_members(self) -> int:
        """Count the live records, once per epoch, since it scans all of them."""
        now, replica = self.context.ports.clock.now(), self.context.replica
        epoch = replica.manifest.epoch_at(now)
        if epoch != self._counted_in:
            self._counted_in, self._members_live = epoch, len(replica.roster.live(now))
        return self._members_live

    def stage(self) -> Stage:
        """Return the state of the node; cheap enough for frequent calls."""
        if self.draining:
            return Stage("draining")
        if not self.restored:
            return Stage("starting", "reading stored messages")
        if not self.peers.connected:
            reason = self.peers.unreachable or self._other_versions() or "looking for peers"
            return Stage("joining", reason)
        if self.context.replica.ledger.workers.is_slashed(self.context.signer.peer_id):
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
        taken, asked = self.anti_entropy.progress
        if not asked:
            return Stage("syncing", "synchronising")
        return Stage("syncing", f"synchronising ({taken} of {asked} messages)", taken / asked)

    def _fetching(self) -> Stage:
        """Return the download progress of the first policy, or of the newest of several."""
        coming = (one for one in self.arrivals.under_way if one.label.version >= 0)
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

    def _roles_of_members(self, now: float) -> dict[str, int]:
        live = self.context.replica.roster.live(now)
        return dict(Counter(role for member in live for role in member.record.message.roles))

    def _workers(self) -> dict[str, RolloutCounts]:
        own, workers = self.context.signer.peer_id, self.context.replica.ledger.workers.counts
        most = nlargest(LISTED_MAX - 1, workers, key=lambda peer: (workers[peer].committed, peer))
        listed = sorted({*most, own} & workers.keys())
        return {peer: counted(workers[peer]) for peer in listed}

    def _members(self, now: float) -> tuple[MemberStatus, ...]:
        replica = self.context.replica
        own, named = self.context.signer.peer_id, replica.manifest.is_of_genesis
        live = sorted(
            replica.roster.live(now),
            key=lambda member: (member.peer != own, not named(member.peer), member.peer),
        )
        return tuple(
            MemberStatus(
                peer_id=member.peer,
                roles=member.record.message.roles,
                policy_version=member.record.message.policy_version,
                age_seconds=max(0.0, round(now - member.seen_at, 1)),
                software=member.record.message.software,
                reputation="slashed" if replica.ledger.workers.is_slashed(member.peer) else "good",
                scoring=member.record.message.scoring.hex(),
            )
            for member in live[:LISTED_MAX]
        )

    def _checkpoints(self) -> tuple[CheckpointStatus, ...]:
        ledger = self.context.replica.ledger
        # This node verified no version that contains a commit without an outcome here.
        rejected = Counter(entry.trained_in for entry in ledger.commits.trained_on_rejected)
        return tuple(
            CheckpointStatus(
                version=entry.manifest.message.version,
                reward_mean=entry.manifest.message.reward_mean / 1e6,
                created_at=entry.manifest.message.created_at / 1000,
                commits=len(entry.manifest.message.batch),
                trained_without_certificate=rejected[entry.manifest.message.version],
            )
            for entry in ledger.chain.checkpoints[-CHECKPOINTS_MAX:]
        )

    def traffic(self) -> TrafficStatus:
        """Return the bytes sent and received since the start."""
        blobs, gossip = self.exchange, self.gossip.link_counters
        return TrafficStatus(
            blobs_sent=blobs.sent.total(),
            blobs_received=blobs.received.total(),
            weights_sent=blobs.sent[BlobKind.WEIGHTS],
            weights_received=blobs.received[BlobKind.WEIGHTS],
            weights_sent_http=blobs.sent.by(BlobKind.WEIGHTS, BlobTransport.HTTP),
            weights_received_http=blobs.received.by(BlobKind.WEIGHTS, BlobTransport.HTTP),
            weights_saved=self.policies.saved_bytes,
            gossip_sent=gossip.bytes_out,
            gossip_received=gossip.bytes_in,
            gossip_dropped=gossip.frames_dropped,
        )

    def _circuits(self) -> CircuitsStatus:
        relays, relay = len(self.circuits.addresses), self.circuits.relay
        if relay is None:
            return CircuitsStatus(relays)
        return CircuitsStatus(relays, relay.reservations, relay.circuits, relay.carried_bytes)

    def _gossip_peers(self) -> tuple[GossipPeerStatus, ...]:
        faults = self.peers.faults()
        peers = (
            GossipPeerStatus(
                peer_id=each.peer,
                score=round(each.score, 3),
                level=each.level,
                chosen=each.chosen,
                mesh=tuple(map(_kind, each.mesh)),
                backoff_seconds={
                    _kind(topic): round(seconds, 1)
                    for topic, seconds in each.backoff_seconds.items()
                },
                first_deliveries=round(each.counts.first_deliveries, 1),
                invalid=round(each.counts.invalid, 1),
                breaches=round(each.counts.breaches, 1),
                faults=faults.get(each.peer, 0),
                neighbours=each.counts.neighbours,
            )
            for each in self.gossip.report()
        )
        return tuple(sorted(peers, key=lambda each: -each.score))

    def _policy_swap(self) -> PolicySwapStatus:
        policy_swaps = self.context.policy_swaps
        newest = {} if policy_swaps.newest is None else asdict(policy_swaps.newest)
        return PolicySwapStatus(
            **newest,
            first_token_seconds_median=policy_swaps.median_seconds,
            counts=tuple(policy_swaps.durations.counts),
            seconds=policy_swaps.durations.seconds,
        )

    def why(self) -> Why:
        """Return the reason of this node's state, and its rollouts that were not certified."""
        stage = self.stage()
        ledger, peer_id = self.context.replica.ledger, self.context.signer.peer_id
        failed = tuple(
            self._explain(entry)
            for entry in ledger.commits.entries.values()
            if entry.commit.signer == peer_id
            and entry.state in (CommitState.REJECTED, CommitState.EXPIRED)
        )
        return Why(
            stage.state,
            stage.reason,
            ledger.workers.is_slashed(peer_id),
            failed,
            self._trained_on_rejected(),
            forks_told(self.context.replica),
            judging_status(self.context.replica).doubts,
        )

    def _explain(self, entry: Entry) -> FailedRollout:
        certificate, run_id = entry.certificate, self.context.replica.run_id
        envelopes = certificate.message.verdicts if certificate is not None else ()
        verdicts = (open_envelope(item, Verdict, run_id, lambda *_: True) for item in envelopes)
        message, rules = entry.commit.message, self.context.replica.manifest.toploc
        return FailedRollout(
            commit=entry.commit.digest.hex(),
            version=message.version,
            slot=message.slot,
            epoch=message.epoch,
            state="rejected" if entry.state is CommitState.REJECTED else "expired",
            reason=entry.reason or "no committee decided in time",
            certificate=certificate.digest.hex() if certificate is not None else None,
            verdicts=tuple(
                _finding(item, rules, message.tokens)
                for item in verdicts
                if not isinstance(item, Fault)
            ),
        )

    def _trained_on_rejected(self) -> tuple[TrainedOnRejected, ...]:
        ledger, commits = self.context.replica.ledger, defaultdict[int | None, list[str]](list)
        for entry in ledger.commits.trained_on_rejected:
            commits[entry.trained_in].append(entry.commit.digest.hex())
        versions = (entry.manifest for entry in ledger.chain.checkpoints)
        return tuple(
            TrainedOnRejected(version, manifest.signer, tuple(commits[version]))
            for manifest in versions
            if (version := manifest.message.version) in commits
        )


def _kind(topic: str) -> str:
    """Return the kind of a topic: its name without the prefix of the run."""
    return topic.rsplit("/", 1)[-1]


def _finding(verdict: Signed[Verdict], rules: ToplocSection, tokens: int) -> VerdictFinding:
    message = verdict.message
    return VerdictFinding(
        validator=verdict.signer,
        accept=message.accept,
        reason=message.reason,
        detail=message.detail,
        evidence=verdict.digest.hex(),
        measured={
            one.name: MeasuredValue(one.value, one.allowed)
            for one in explained(rules, message, tokens)
        },
    )
