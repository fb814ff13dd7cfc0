"""Interface of a data source of the routes."""

from typing import Protocol

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
    RunPage,
    SampleHistory,
    TrainingPage,
    WeightsPage,
)
from node.api.v1.event_log import EventLog
from node.api.v1.queries import EventQuery, PeerQuery, RolloutQuery, WeightsQuery


class DataSource(Protocol):
    """A running or recorded node, read-only."""

    event_log: EventLog
    """Event log with its watchers."""

    def meta(self) -> Meta:
        """Return the identity of the source."""

    def overview(self) -> Overview:
        """Return the overview page."""

    def history(self) -> SampleHistory:
        """Return the time series of counters."""

    async def rollouts(self, query: RolloutQuery) -> RolloutPage:
        """Return a page of rollouts."""

    async def rollout(self, commit: str) -> RolloutDetail | None:
        """Return the rollout of a commit; None if it is no longer held."""

    def peers(self, query: PeerQuery) -> PeerPage:
        """Return a page of peers."""

    def council(self) -> CouncilPage:
        """Return the council and its newest pages."""

    def contributors(self) -> ContributorsPage:
        """Return the contributors by credit, and the work of this node."""

    def weights(self, query: WeightsQuery) -> WeightsPage:
        """Return the versions and a forest."""

    def training(self) -> TrainingPage:
        """Return the statistics of training steps."""

    async def machine(self) -> MachinePage:
        """Return the page about the machine."""

    def run(self) -> RunPage:
        """Return the rules of the run."""

    def events(self, query: EventQuery) -> EventsPage:
        """Return a page of events."""
