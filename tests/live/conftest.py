import pytest
import uvloop


def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}  # the daemon's loop


@pytest.fixture
def nodes():
    """Return a list of the nodes that a test starts, which are stopped at its end."""
    started = []
    yield started
    for node in started:
        node.stop()
