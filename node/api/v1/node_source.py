"""Data source of a running node; it reads the node and never changes it."""

import asyncio
from collections.abc import Callable
from dataclasses import fields

from typing_extensions import override

from node.api.contributors import ContributorsPage
from node.api.council import CouncilPage
from node.api.reader import NodeReader
from node.api.status import Counters
from node.api.v1.answers import (
    EventsPage,
    MachinePage,
    Meta,
    NodeSummary,
    Overview,
    PeerPage,
    RolloutDetail,
    RolloutPage,
    RunPage,
    SampleHistory,
    TrainingPage,
    WeightsPage,
)
from node.api.v1.event_log import EventLog
from node.api.v1.event_recorder import EventRecorder
from node.api.v1.machine import MachineReader, queues
from node.api.v1.queries import EventQuery, PeerQuery, RolloutQuery, WeightsQuery
from node.api.v1.samples import ResourceSample
from node.api.v1.source import DataSource
from node.api.v1.training import training_page
from node.local.run_words import run_words
from protocol.consensus.trusted_page import TrustedPage
from roles.ports.clock import Clock

LOOK_SECONDS = 1.0
HAPPENED_SHOWN = 6


class NodeSource(DataSource):
    """Data of one node; before ``join`` its summary only. ``machine`` None omits machine data."""

    def __init__(
        self,
        summary: Callable[[], NodeSummary],
        clock: Clock,
        boot: str,
        machine: MachineReader | None = None,
    ) -> None:
        self._summary = summary
        self._clock = clock
        self._machine = machine
        self._reader: NodeReader | None = None
        self._looks = self._looks_idle = 0
        self._restored = False
        self.event_log = EventLog(boot)

    def join(self, reader: NodeReader) -> None:
        """Start reading a daemon."""
        self._reader, self._summary = reader, reader.summary
        context = reader.observer.context
        self._event_recorder = EventRecorder(
            context.replica, self.event_log, context.signer.peer_id
        )
        reader.observer.inbox.listen(
            lambda received, source: self._event_recorder.note(received, source, self._clock.now())
        )

    async def watch(self) -> None:
        """Take a sample each second until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(LOOK_SECONDS)

    def look(self) -> None:
        """Take a sample and wake all watchers."""
        if self._reader is not None:
            self._sample(self._reader)
        self.event_log.wake()

    def _sample(self, reader: NodeReader) -> None:
        observer, machine, now = reader.observer, self._machine, self._clock.now()
        snapshot, replica = observer.snapshot(), observer.context.replica
        ledger, manifest = replica.ledger, replica.manifest
        if 0 <= ledger.chain.version < manifest.grpo.steps:
            self._looks += 1
            batch = manifest.grpo.rollouts_per_step * manifest.grpo.batch_steps()
            self._looks_idle += len(ledger.backpressure.usable()) < batch
        if not self._restored and snapshot.state != "joining":
            # Peers connect only after the stored messages are restored.
            self._restored = True
            self._event_recorder.restore(now)
        self._event_recorder.look_at_state(observer.stage(), now)
        if self._restored:
            self._event_recorder.look_at_slashed(observer.roster_counts().slashed)
        reader.samples.note(
            ResourceSample(
                **{one.name: getattr(snapshot, one.name) for one in fields(Counters)},
                at=round(now, 3),
                looks=self._looks,
                looks_idle=self._looks_idle,
                loop_delay_seconds=round(machine.loop().delay_seconds, 3) if machine else 0.0,
                rss_bytes=machine.rss_bytes if machine else 0,
            )
        )

    # Responses

    @override
    def meta(self) -> Meta:
        return Meta("live", self.event_log.boot, self._summary().run_name)

    @override
    def overview(self) -> Overview:
        return Overview.of(self._summary(), happened=self.event_log.rare(HAPPENED_SHOWN))

    @override
    def history(self) -> SampleHistory:
        return SampleHistory() if self._reader is None else self._reader.samples.history()

    @override
    async def rollouts(self, query: RolloutQuery) -> RolloutPage:
        return RolloutPage() if self._reader is None else await self._reader.rollouts.page(query)

    @override
    async def rollout(self, commit: str) -> RolloutDetail | None:
        return None if self._reader is None else await self._reader.rollouts.shown(commit)

    @override
    def peers(self, query: PeerQuery) -> PeerPage:
        return PeerPage() if self._reader is None else self._reader.peers.page(query)

    @override
    def council(self) -> CouncilPage:
        return CouncilPage() if self._reader is None else self._reader.council.page()

    @override
    def contributors(self) -> ContributorsPage:
        return ContributorsPage() if self._reader is None else self._reader.contributors.page()

    @override
    def weights(self, query: WeightsQuery) -> WeightsPage:
        return WeightsPage() if self._reader is None else self._reader.weights.page(query)

    @override
    def training(self) -> TrainingPage:
        if self._reader is None:
            return TrainingPage()
        return training_page(self._reader.observer.context)

    @override
    async def machine(self) -> MachinePage:
        if self._machine is None:
            return MachinePage(now=self._clock.now())
        if self._reader is None:
            return await self._machine.page(self._summary(), (), {})
        moved, tables = self._reader.traffic(), self._reader.observer.context.tables
        traffic = {
            "blobs sent": moved.blobs_sent,
            "blobs received": moved.blobs_received,
            "gossip sent": moved.gossip_sent,
            "gossip received": moved.gossip_received,
        }
        used = queues(tables.sizes(), tables.limits())
        return await self._machine.page(self._summary(), used, traffic)

    @override
    def run(self) -> RunPage:
        if self._reader is None:
            return RunPage()
        signed = self._reader.observer.manifest
        genesis, run_id = signed.manifest.genesis, signed.manifest.run_id.hex()
        invited = signed.manifest.admission.rule == "invite"
        peers = ",".join(self._reader.observer.addresses()[:2]) or "ADDRESS"
        trusted = TrustedPage.of(self._reader.observer.context.replica.pages)
        page = f" --page {trusted}" if trusted else ""
        command = f"prime-node --role inference --run-id {run_id} --initial-peers {peers}"
        return RunPage(
            run_id=run_id,
            name=signed.manifest.name,
            creator=genesis.creator,
            created_at=genesis.created_at,
            words=tuple(run_words(signed.manifest)),
            join_command=f"{command}{page}{' --invite TOKEN' if invited else ''}",
            invited=invited,
            signed=signed.signature.hex(),
        )

    @override
    def events(self, query: EventQuery) -> EventsPage:
        return self.event_log.page(query)
