"""Reader of a running node: the facts behind ``status``, ``/metrics``, ``why`` and ``/api/v1``."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest

from node.api.downloads import HistogramStatus
from node.api.forks import forks_told
from node.api.judging import judging_status
from node.api.observer import Observer
from node.api.status import (
    LISTED_MAX,
    BusyTimeStatus,
    CircuitsStatus,
    NodeStatus,
    TrafficStatus,
)
from node.api.v1.answers import NodeSummary, RewardPoint, RolloutCounts
from node.api.v1.contributors import ContributorReader
from node.api.v1.council import CouncilReader
from node.api.v1.peers import PeerReader
from node.api.v1.rollouts import RolloutReader
from node.api.v1.samples import ResourceSamples
from node.api.v1.training import POINTS_MAX, reward_points, seconds_to_go
from node.api.v1.weights import WeightsReader
from node.api.why import TrainedOnRejected, Why
from node.local.run_words import predecessor_text
from node.network.blobs.transport_choice import BlobTransport
from node.network.blobs.wire import BlobKind
from protocol.ledger.chain import CheckpointEntry
from protocol.ledger.commits import CommitState
from protocol.ledger.worker_stats import WorkerStats


class NodeReader:
    """Reads one node; ``samples`` holds its recent counters if something takes samples."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.samples = ResourceSamples()
        self.rollouts = RolloutReader(observer.context, observer.task)
        self.peers = PeerReader(observer)
        self.council = CouncilReader(observer)
        self.contributors = ContributorReader(observer)
        self.weights = WeightsReader(observer)
        self._rewards: tuple[bytes, tuple[RewardPoint, ...]] = b"", ()

    def summary(self) -> NodeSummary:
        """Return the summary of the node and of its view of the run."""
        observer, context = self.observer, self.observer.context
        replica, now, stage = context.replica, context.ports.clock.now(), observer.stage()
        manifest, ledger, me = replica.manifest, replica.ledger, context.signer.peer_id
        counts, predecessor = observer.roster_counts(), manifest.genesis.predecessor
        return NodeSummary(
            peer_id=me,
            run_id=replica.run_id.hex(),
            run_name=manifest.name,
            roles=tuple(map(str, observer.roles)),
            state=stage.state,
            reason=stage.reason,
            started_at=observer.started_at,
            succeeds=predecessor_text(predecessor) if predecessor else "",
            now=now,
            name=replica.roster.name_of(me),
            share=stage.share,
            epoch=manifest.epoch_at(now),
            epoch_seconds=manifest.epochs.seconds,
            steps_total=manifest.grpo.steps,
            policy_version=observer.policies.newest_version(),
            policy_version_newest=ledger.chain.version,
            policy_lag_max=ledger.commits.policy_lag_max,
            seconds_to_go=seconds_to_go(ledger.chain.checkpoints, manifest.grpo.steps, now),
            certified_per_minute=self.samples.certified_per_minute,
            trainer_idle_share=self.samples.trainer_idle_share,
            leader=replica.leader,
            council=self.council.summary(),
            members_by_role=counts.by_role,
            members_count=counts.members,
            peers_connected=len(observer.peers.connected),
            backlog=ledger.backpressure.backlog(ledger.epoch),
            slashed=len(counts.slashed),
            rollouts=_counted(ledger.workers.totals),
            yours=self.contributors.own_work(),
            rewards=self._reward_points(ledger.chain.checkpoints),
            training_warning=context.training.warning,
            evaluation=context.evaluated()[-POINTS_MAX:],
        )

    def _reward_points(self, checkpoints: Sequence[CheckpointEntry]) -> tuple[RewardPoint, ...]:
        head = checkpoints[-1].manifest.digest if checkpoints else b""
        if head != self._rewards[0]:
            self._rewards = head, reward_points(checkpoints)
        return self._rewards[1]

    def status(self) -> NodeStatus:
        """Return the summary and the details of every page, within bounds."""
        observer, context = self.observer, self.observer.context
        durations, swaps = context.durations, context.policy_swaps
        members, gossip_peers = self.peers.listed(LISTED_MAX)
        return NodeStatus.of(
            self.summary(),
            addresses=observer.addresses(),
            peers_banned=observer.peers.banned,
            first_certificate_at=observer.first_certificate_at,
            members=members,
            gossip_peers=gossip_peers,
            workers=self._workers(),
            judging=judging_status(context.replica),
            checkpoints=self.weights.versions(LISTED_MAX),
            traffic=self.traffic(),
            p2pd_pid=observer.p2pd_pid(),
            dial_failures=observer.peers.dial_failures,
            tables=context.tables.sizes(),
            table_limits=context.tables.limits(),
            arrivals=self.weights.downloads(),
            durations=self.weights.durations(),
            receivers=self.weights.receivers(),
            policy_swap=swaps.newest,
            policy_swaps=HistogramStatus.of(swaps.durations),
            policy_swap_seconds_median=swaps.median_seconds,
            generations=HistogramStatus.of(durations.generations),
            checks=HistogramStatus.of(durations.checks),
            steps=BusyTimeStatus(durations.steps.began_at, durations.steps.seconds),
            training=context.training.newest,
            shadow=replace(context.shadow),
            circuits=self._circuits(),
            forks=forks_told(context.replica),
            clock=context.conditions["clock"],
            restored=observer.restored,
        )

    def _workers(self) -> dict[str, RolloutCounts]:
        context = self.observer.context
        own, workers = context.signer.peer_id, context.replica.ledger.workers.counts
        most = nlargest(LISTED_MAX - 1, workers, key=lambda peer: (workers[peer].committed, peer))
        return {peer: _counted(workers[peer]) for peer in sorted({*most, own} & workers.keys())}

    def traffic(self) -> TrafficStatus:
        """Return the bytes sent and received since the start."""
        blobs, gossip = self.observer.exchange, self.observer.gossip.link_counters
        return TrafficStatus(
            blobs_sent=blobs.sent.total(),
            blobs_received=blobs.received.total(),
            weights_sent=blobs.sent[BlobKind.WEIGHTS],
            weights_received=blobs.received[BlobKind.WEIGHTS],
            weights_sent_http=blobs.sent.by(BlobKind.WEIGHTS, BlobTransport.HTTP),
            weights_received_http=blobs.received.by(BlobKind.WEIGHTS, BlobTransport.HTTP),
            weights_saved=self.observer.policies.saved_bytes,
            gossip_sent=gossip.bytes_out,
            gossip_received=gossip.bytes_in,
            gossip_dropped=gossip.frames_dropped,
        )

    def _circuits(self) -> CircuitsStatus:
        circuits = self.observer.circuits
        relays, relay = len(circuits.addresses), circuits.relay
        if relay is None:
            return CircuitsStatus(relays)
        return CircuitsStatus(relays, relay.reservations, relay.circuits, relay.carried_bytes)

    def why(self) -> Why:
        """Return the reason of this node's state, and its rollouts that were not certified."""
        replica, me = self.observer.context.replica, self.observer.context.signer.peer_id
        stage, failed = self.observer.stage(), (CommitState.REJECTED, CommitState.EXPIRED)
        council = self.council.summary()
        return Why(
            stage.state,
            stage.reason,
            self.observer.is_slashed(me),
            tuple(
                self.rollouts.detail(entry)
                for entry in replica.ledger.commits.entries.values()
                if entry.commit.signer == me and entry.state in failed
            ),
            self._trained_on_rejected(),
            forks_told(replica),
            judging_status(replica).doubts,
            council.fault or self.council.lie,
            council.refused,
        )

    def _trained_on_rejected(self) -> tuple[TrainedOnRejected, ...]:
        ledger = self.observer.context.replica.ledger
        commits = defaultdict[int | None, list[str]](list)
        for entry in ledger.commits.trained_on_rejected:
            commits[entry.trained_in].append(entry.commit.digest.hex())
        versions = (entry.manifest for entry in ledger.chain.checkpoints)
        return tuple(
            TrainedOnRejected(version, manifest.signer, tuple(commits[version]))
            for manifest in versions
            if (version := manifest.message.version) in commits
        )


def _counted(counts: WorkerStats) -> RolloutCounts:
    return RolloutCounts(
        committed=counts.committed,
        certified=counts.certified,
        rejected=counts.rejected,
        expired=counts.expired,
        trained=counts.trained,
        rejected_reasons=dict(sorted(counts.reasons.items())),
    )
