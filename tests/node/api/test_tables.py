"""Sizes and limits of tables that remote peers can fill, in a node's metrics."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from node.api.metrics import NodeMetrics
from node.context import TableRegistry
from node.network.http.rate_limit import ConnectionLimits, HttpRateLimiter
from node.network.relay.relay import CircuitRelay
from node.network.resources.dht_call_limiter import DhtCallLimiter
from node.network.resources.upload_scheduler import UploadScheduler
from simulations.checkers.limits import LIMITS
from tests.worlds.swarm import Swarm

pytestmark = pytest.mark.virtual


async def test_a_node_reports_the_size_and_the_limit_of_each_table():
    world = Swarm(validator=3, inference=1, grpo__steps=1)
    world.start_all()
    await world.reach(1, "relay-0")
    daemon = world.daemon("relay-0")
    status, sampled = daemon.status(), daemon.snapshot().sizes
    CircuitRelay(daemon.context, UploadScheduler(None))
    limits = daemon.context.tables.limits()
    assert limits == {**LIMITS, "reservations": 128, "streams_hop": 128}
    await world.finish()
    assert status.table_limits == LIMITS
    assert set(status.tables) == set(sampled) == set(LIMITS)
    text = NodeMetrics(lambda: status).exposition().decode()
    told = {
        (sample.name, sample.labels["table"]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "table" in sample.labels
    }
    for name, limit in LIMITS.items():
        assert told["prime_node_table_entries_limit", name] == limit
        assert told["prime_node_table_entries", name] == status.tables[name]
    assert len(told) == 2 * len(LIMITS)
    assert status.tables["roster"] > 0


def test_the_tables_of_live_adapters_have_their_limits():
    """A simulated machine serves no HTTP, and its directory is not part of its nodes."""
    tables = TableRegistry()
    tables.register(*HttpRateLimiter(ConnectionLimits()).tables, *DhtCallLimiter().tables)
    limits = {"directory_callers": 4096, "http_addresses": 4096, "http_connections": 256}
    assert tables.limits() == limits
    assert tables.sizes() == dict.fromkeys(limits, 0)
