"""Each table that strangers can fill has a limit, and both are in a node's metrics."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from node.api.metrics import NodeMetrics
from node.api.tables import LIMITS
from tests.worlds.swarm import Swarm

pytestmark = pytest.mark.virtual

LIVE_ONLY = (
    "directory_callers",
    "directory_records",
    "http_addresses",
    "http_connections",
    "reservations",
    "streams_hop",
)
"""A simulated machine serves no HTTP and carries no circuits; its directory is not of its nodes."""


async def test_a_node_tells_the_size_of_each_table_that_has_a_limit_and_of_no_other():
    world = Swarm(validator=3, inference=1, grpo__steps=1)
    world.start_all()
    await world.reach(1, "relay-0")
    daemon = world.daemon("relay-0")
    status, sampled = daemon.status(), set(daemon.snapshot().sizes)
    await world.finish()
    assert set(status.tables) == sampled == set(LIMITS) - set(LIVE_ONLY)
    text = NodeMetrics(lambda: status).exposition().decode()
    told = {
        (sample.name, sample.labels["table"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "table" in sample.labels
    }
    for name, limit in LIMITS.items():
        assert told["prime_node_table_entries_limit", name] == limit
        assert told["prime_node_table_entries", name] == status.tables.get(name, 0)
    assert len(told) == 2 * len(LIMITS)
    assert status.tables["roster"] > 0
