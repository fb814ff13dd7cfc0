"""What the routes answer from."""

from typing import Protocol

from node.api.v1.answers import (
    EventsPage,
    MachinePage,
    Meta,
    Overview,
    PeerPage,
    RolloutDetail,
    RolloutPage,
    RunPage,
    SampleHistory,
    StreamTick,
    TrainingPage,
    WeightsPage,
)
from node.api.v1.happenings import EventLog
from node.api.v1.queries import EventQuery, PeerQuery, RolloutQuery, WeightsQuery


class DataSource(Protocol):
    """A node, or what was recorded of one. Nothing here changes anything."""

    happenings: EventLog
    """What happened, and who is told of it."""

    def meta(self) -> Meta:
        """Return who answers."""

    def look_now(self) -> StreamTick:
        """Return what pages that watch are told each second."""

    def overview(self) -> Overview:
        """Return the first page."""

    def history(self) -> SampleHistory:
        """Return what was counted over time."""

    async def rollouts(self, query: RolloutQuery) -> RolloutPage:
        """Return a page of rollouts."""

    async def rollout(self, commit: str) -> RolloutDetail | None:
        """Return the rollout of a commit; None when it is not known any more."""

    def peers(self, query: PeerQuery) -> PeerPage:
        """Return a page of peers."""

    def weights(self, query: WeightsQuery) -> WeightsPage:
        """Return the versions and a forest."""

    def training(self) -> TrainingPage:
        """Return the statistics of training steps."""

    async def machine(self) -> MachinePage:
        """Return the machine."""

    def run(self) -> RunPage:
        """Return the run in words."""

    def events(self, query: EventQuery) -> EventsPage:
        """Return what happened."""
