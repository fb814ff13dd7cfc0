"""Data source of a recorded node, so that the dashboard also shows a report."""

from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError
from typing_extensions import override

from node.api.contributors import ContributorsPage
from node.api.council import CouncilPage
from node.api.v1.answers import (
    EventsPage,
    MachinePage,
    Meta,
    Overview,
    PeerPage,
    RolloutDetail,
    RolloutPage,
    RunEvent,
    RunPage,
    SampleHistory,
    TrainingPage,
    WeightsPage,
)
from node.api.v1.event_log import EventLog
from node.api.v1.node_source import NodeSource
from node.api.v1.peers import selected
from node.api.v1.queries import (
    LIMIT_MAX,
    EventQuery,
    PeerQuery,
    RolloutQuery,
    WeightsQuery,
)
from node.api.v1.source import DataSource
from node.local.errors import ExitCode, NodeError

RECORDING_NAME = "view.json"
RECORDING_BYTES_MAX = 256 * 1024 * 1024
ROLLOUTS_MAX = 400
"""Newest rollouts with text and verdicts in a report; about 20 KB each."""


@dataclass(frozen=True, slots=True)
class RecordedSwarm:
    """All responses of one node at one time."""

    title: str
    overview: Overview
    history: SampleHistory
    rollouts: tuple[RolloutDetail, ...]
    peers: PeerPage
    weights: WeightsPage
    machine: MachinePage
    run: RunPage
    happened: tuple[RunEvent, ...]
    training: TrainingPage = field(default_factory=TrainingPage)
    council: CouncilPage = field(default_factory=CouncilPage)
    contributors: ContributorsPage = field(default_factory=ContributorsPage)


_RECORDED = TypeAdapter(RecordedSwarm)


async def record(source: NodeSource, title: str) -> RecordedSwarm:
    """Return the current responses of a node."""
    found: list[RolloutDetail] = []
    after = ""
    while len(found) < ROLLOUTS_MAX:
        page = await source.rollouts(RolloutQuery(after=after, limit=50))
        shown = [await source.rollout(row.commit) for row in page.rows]
        found += [one for one in shown if one is not None]
        after = page.older
        if not after:
            break
    peers = source.peers(PeerQuery(limit=LIMIT_MAX))
    rows = list(peers.rows)
    while len(rows) < peers.total:
        rows += source.peers(PeerQuery(offset=len(rows), limit=LIMIT_MAX)).rows
    return RecordedSwarm(
        title,
        source.overview(),
        source.history(),
        tuple(found[:ROLLOUTS_MAX]),
        replace(peers, rows=tuple(rows)),
        source.weights(WeightsQuery()),
        await source.machine(),
        source.run(),
        source.event_log.page(EventQuery(limit=LIMIT_MAX)).rows,
        source.training(),
        source.council(),
        source.contributors(),
    )


def write_recording(directory: Path, recorded: RecordedSwarm) -> None:
    """Write the file that ``read_recording`` reads."""
    (directory / RECORDING_NAME).write_bytes(_RECORDED.dump_json(recorded))


def read_recording(directory: Path) -> RecordedSwarm:
    """Read the recording of a report; raises ``NodeError``."""
    path = directory / RECORDING_NAME
    try:
        if path.stat().st_size > RECORDING_BYTES_MAX:
            raise NodeError(f"{path} is too large to be a recording", ExitCode.USAGE)
        return _RECORDED.validate_json(path.read_bytes())
    except OSError:
        raise NodeError(
            f"no recording in {directory}; make one with: prime-node simulate run SCENARIO "
            "--report DIR",
            ExitCode.USAGE,
        ) from None
    except ValidationError:
        raise NodeError(f"{path} is damaged or of another version", ExitCode.USAGE) from None


class Recording(DataSource):
    """Data of a recorded node; a changed ``boot`` makes open pages reload."""

    def __init__(self, recorded: RecordedSwarm, boot: str = "recorded") -> None:
        self._recorded = recorded
        self._rollouts = {one.row.commit: one for one in recorded.rollouts}
        self.event_log = EventLog(boot, reversed(recorded.happened))

    @override
    def meta(self) -> Meta:
        return Meta("recorded", self.event_log.boot, self._recorded.title)

    @override
    def overview(self) -> Overview:
        return self._recorded.overview

    @override
    def history(self) -> SampleHistory:
        return self._recorded.history

    @override
    async def rollouts(self, query: RolloutQuery) -> RolloutPage:
        rows = [one.row for one in self._rollouts.values()]
        wanted = [
            row for row in rows if query.takes(row.state, row.worker, row.version, row.reason)
        ]
        chosen, older = query.page(wanted, [row.commit for row in wanted])
        reasons = {row.reason for row in rows if row.state == "rejected"}
        return RolloutPage(tuple(chosen), len(wanted), older, tuple(sorted(reasons)))

    @override
    async def rollout(self, commit: str) -> RolloutDetail | None:
        return self._rollouts.get(commit)

    @override
    def peers(self, query: PeerQuery) -> PeerPage:
        page = self._recorded.peers
        wanted = selected(page.rows, query)
        chosen = wanted[query.offset : query.offset + query.limit]
        return replace(page, rows=tuple(chosen), total=len(wanted))

    @override
    def council(self) -> CouncilPage:
        return self._recorded.council

    @override
    def contributors(self) -> ContributorsPage:
        return self._recorded.contributors

    @override
    def weights(self, query: WeightsQuery) -> WeightsPage:
        page = self._recorded.weights
        if page.forest is None or query.version in (-1, page.forest.version):
            return page
        note = f"Only the forest of version {page.forest.version} was recorded."
        return replace(page, forest=None, note=note)

    @override
    def training(self) -> TrainingPage:
        return self._recorded.training

    @override
    async def machine(self) -> MachinePage:
        return self._recorded.machine

    @override
    def run(self) -> RunPage:
        return self._recorded.run

    @override
    def events(self, query: EventQuery) -> EventsPage:
        return self.event_log.page(query)
