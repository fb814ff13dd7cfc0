"""Data source of a running node; it reads the node and never changes it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from typing_extensions import override

from node.api.rollout_counts import counted
from node.api.status import NodeStatus, RolloutCounts
from node.api.v1.answers import (
    EventsPage,
    MachinePage,
    Meta,
    Overview,
    PeerPage,
    RewardPoint,
    RolloutDetail,
    RolloutPage,
    RunPage,
    SampleHistory,
    StreamTick,
    TrainingPage,
    WeightsPage,
)
from node.api.v1.event_log import EventLog
from node.api.v1.event_recorder import EventRecorder
from node.api.v1.machine import MachineReader
from node.api.v1.peers import PeerReader
from node.api.v1.queries import EventQuery, PeerQuery, RolloutQuery, WeightsQuery
from node.api.v1.queues import queues
from node.api.v1.rollouts import RolloutReader
from node.api.v1.samples import ResourceSample, ResourceSamples
from node.api.v1.source import DataSource
from node.api.v1.training import POINTS_MAX, training_page
from node.api.v1.view import NodeView
from node.api.v1.weights import WeightsReader
from node.local.run_words import run_words
from protocol.core.types import Role
from protocol.ledger.chain import CheckpointEntry
from roles.ports.clock import Clock

LOOK_SECONDS = 1.0
PACE_VERSIONS = 10
HAPPENED_SHOWN = 6


@dataclass(frozen=True, slots=True)
class _EpochNumbers:
    """Counts over all members and workers, computed once per epoch."""

    epoch: int
    members: dict[str, int]
    members_total: int
    slashed: int


class NodeSource(DataSource):
    """Data of one node; before ``join`` its status only. ``machine`` None omits machine data."""

    def __init__(
        self,
        status: Callable[[], NodeStatus],
        clock: Clock,
        boot: str,
        machine: MachineReader | None = None,
    ) -> None:
        self._status = status
        self._clock = clock
        self._machine = machine
        self._samples = ResourceSamples()
        self._view: NodeView | None = None
        self._looks = self._looks_idle = 0
        self._restored = False
        self._numbers = _EpochNumbers(-1, {}, 0, 0)
        self._rewards: tuple[bytes, tuple[RewardPoint, ...]] = b"", ()
        self.event_log = EventLog(boot)

    def join(self, view: NodeView) -> None:
        """Start reading a daemon."""
        self._view = view
        context, me = view.observer.context, view.observer.context.signer.peer_id
        self._rollouts = RolloutReader(context, view.task)
        self._peers = PeerReader(view.observer, view.forest, view.round_trips)
        self._weights = WeightsReader(view.observer, view.forest)
        self._event_recorder = EventRecorder(context.replica, self.event_log, me)
        view.observer.inbox.listen(
            lambda received, source: self._event_recorder.note(received, source, self._clock.now())
        )

    async def watch(self) -> None:
        """Take a sample each second until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Take a sample and wake all watchers."""
        if self._view is not None:
            self._sample(self._view)
        self.event_log.wake()

    def _sample(self, view: NodeView) -> None:
        now, snapshot, machine = self._clock.now(), view.observer.snapshot(), self._machine
        ledger, manifest = view.observer.context.replica.ledger, view.manifest.manifest
        if 0 <= ledger.chain.version < manifest.grpo.steps:
            self._looks += 1
            self._looks_idle += len(ledger.backpressure.usable()) < manifest.grpo.rollouts_per_step
        if not self._restored and snapshot.state != "joining":
            # Peers connect only after the stored messages are restored.
            self._restored = True
            self._event_recorder.restore(now)
        self._event_recorder.look(snapshot, view.observer.reason(), now)
        self._samples.note(
            ResourceSample(
                at=round(now, 3),
                committed=snapshot.committed,
                certified=snapshot.certified,
                rejected=snapshot.rejected,
                expired=snapshot.expired,
                version=snapshot.version,
                backlog=snapshot.backlog,
                connected=snapshot.connected,
                members=snapshot.members,
                looks=self._looks,
                looks_idle=self._looks_idle,
                loop_delay_seconds=round(machine.loop().delay_seconds, 3) if machine else 0.0,
                weights_received=snapshot.weights_received,
                rss_bytes=machine.rss_bytes if machine else 0,
            )
        )

    # Responses

    @override
    def meta(self) -> Meta:
        title = "" if self._view is None else self._view.manifest.manifest.name
        return Meta("live", self.event_log.boot, title)

    @override
    def look_now(self) -> StreamTick:
        """Return the summary pushed to open pages each second."""
        if self._view is None:
            status = self._status()
            return StreamTick(status.state, status.reason, 0, -1, 0, 0, 0)
        observer = self._view.observer
        snapshot = observer.snapshot()
        return StreamTick(
            state=snapshot.state,
            reason=observer.reason(),
            epoch=self._view.manifest.manifest.epoch_at(self._clock.now()),
            version=snapshot.version,
            certified=snapshot.certified,
            rejected=snapshot.rejected,
            connected=snapshot.connected,
        )

    @override
    def overview(self) -> Overview:
        if self._view is None:
            status = self._status()
            return Overview(
                peer_id=status.peer_id,
                roles=status.roles,
                run_id=status.run_id,
                run_name=status.run_name,
                state=status.state,
                reason=status.reason,
                started_at=status.started_at,
                now=self._clock.now(),
            )
        return self._overview(self._view)

    def _overview(self, view: NodeView) -> Overview:
        observer, manifest, now = view.observer, view.manifest.manifest, self._clock.now()
        replica, snapshot = observer.context.replica, view.observer.snapshot()
        ledger, me = replica.ledger, observer.context.signer.peer_id
        numbers = self._epoch_numbers(view, now)
        return Overview(
            peer_id=me,
            roles=tuple(map(str, observer.roles)),
            run_id=replica.run_id.hex(),
            run_name=manifest.name,
            state=snapshot.state,
            reason=observer.reason(),
            started_at=observer.started_at,
            now=now,
            epoch=numbers.epoch,
            epoch_seconds=manifest.epochs.seconds,
            steps=manifest.grpo.steps,
            version=ledger.chain.version,
            policy_version=snapshot.policy_version,
            policy_lag_max=ledger.commits.policy_lag_max,
            seconds_to_go=seconds_to_go(ledger.chain.checkpoints, manifest.grpo.steps, now),
            certified_per_minute=self._samples.certified_per_minute,
            trainer_idle_share=self._samples.trainer_idle_share,
            leader=replica.leader(now) or "",
            members=numbers.members,
            members_total=numbers.members_total,
            peers_connected=snapshot.connected,
            backlog=snapshot.backlog,
            slashed=numbers.slashed,
            rollouts=counted(ledger.workers.totals),
            own_rollouts=counted(ledger.workers.counts[me])
            if me in ledger.workers.counts
            else RolloutCounts(),
            rewards=self._reward_points(ledger.chain.checkpoints),
            training_warning=observer.context.training.warning,
            evaluation=observer.context.evaluated()[-POINTS_MAX:],
            happened=self.event_log.rare(HAPPENED_SHOWN),
        )

    def _epoch_numbers(self, view: NodeView, now: float) -> _EpochNumbers:
        replica = view.observer.context.replica
        epoch = view.manifest.manifest.epoch_at(now)
        if epoch != self._numbers.epoch:
            live = partial(replica.roster.live, now)
            roles = {str(role): len(live(role)) for role in Role}
            ledger = replica.ledger
            slashed = sum(map(ledger.workers.is_slashed, ledger.workers.counts))
            self._numbers = _EpochNumbers(epoch, roles, len(live()), slashed)
        return self._numbers

    def _reward_points(self, checkpoints: Sequence[CheckpointEntry]) -> tuple[RewardPoint, ...]:
        head = checkpoints[-1].manifest.digest if checkpoints else b""
        if head != self._rewards[0]:
            self._rewards = head, reward_points(checkpoints)
        return self._rewards[1]

    @override
    def history(self) -> SampleHistory:
        return self._samples.history()

    @override
    async def rollouts(self, query: RolloutQuery) -> RolloutPage:
        return RolloutPage() if self._view is None else await self._rollouts.page(query)

    @override
    async def rollout(self, commit: str) -> RolloutDetail | None:
        return None if self._view is None else await self._rollouts.shown(commit)

    @override
    def peers(self, query: PeerQuery) -> PeerPage:
        return PeerPage() if self._view is None else self._peers.page(query)

    @override
    def weights(self, query: WeightsQuery) -> WeightsPage:
        return WeightsPage() if self._view is None else self._weights.page(query)

    @override
    def training(self) -> TrainingPage:
        if self._view is None:
            return TrainingPage()
        return training_page(self._view.observer.context)

    @override
    async def machine(self) -> MachinePage:
        if self._machine is None:
            return MachinePage(now=self._clock.now())
        if self._view is None:
            return await self._machine.page((), {}, self._clock.now())
        moved = self._view.observer.traffic()
        traffic = {
            "blobs sent": moved.blobs_sent,
            "blobs received": moved.blobs_received,
            "gossip sent": moved.gossip_sent,
            "gossip received": moved.gossip_received,
        }
        tables = self._view.observer.context.tables
        used = queues(tables.sizes(), tables.limits())
        return await self._machine.page(used, traffic, self._clock.now())

    @override
    def run(self) -> RunPage:
        if self._view is None:
            return RunPage()
        signed = self._view.manifest
        genesis, run_id = signed.manifest.genesis, signed.manifest.run_id.hex()
        invited = signed.manifest.admission.rule == "invite"
        peers = ",".join(self._view.observer.addresses()[:2]) or "ADDRESS"
        command = f"prime-node --role inference --run-id {run_id} --initial-peers {peers}"
        return RunPage(
            run_id=run_id,
            name=signed.manifest.name,
            creator=genesis.creator,
            created_at=genesis.created_at,
            words=tuple(run_words(signed.manifest)),
            join_command=command + (" --invite TOKEN" if invited else ""),
            invited=invited,
            signed=signed.signature.hex(),
        )

    @override
    def events(self, query: EventQuery) -> EventsPage:
        return self.event_log.page(query)


def reward_points(checkpoints: Sequence[CheckpointEntry]) -> tuple[RewardPoint, ...]:
    """Return the reward by version; with many versions a point is the mean of several."""
    learned = checkpoints[1:]  # version 0 is untrained
    width = -(-len(learned) // POINTS_MAX)
    points = []
    for start in range(0, len(learned), max(1, width)):
        messages = [entry.manifest.message for entry in learned[start : start + width]]
        mean = sum(message.reward_mean for message in messages) / len(messages) / 1e6
        last = messages[-1]
        points.append(RewardPoint(last.version, round(mean, 4), last.created_at / 1000))
    return tuple(points)


def seconds_to_go(checkpoints: Sequence[CheckpointEntry], steps: int, now: float) -> float | None:
    """Return the expected time to the last version; None with fewer than three versions."""
    recent = [entry.manifest.message for entry in checkpoints[-PACE_VERSIONS:]]
    if len(recent) < 3:
        return None
    first, last = recent[0], recent[-1]
    if last.version >= steps:
        return 0.0
    pace_seconds = (last.created_at - first.created_at) / 1000 / (last.version - first.version)
    since_last = max(0.0, now - last.created_at / 1000)
    return max(0.0, (steps - last.version) * pace_seconds - min(since_last, pace_seconds))
