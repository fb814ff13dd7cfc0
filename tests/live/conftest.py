import pytest
import uvloop


def pytest_asyncio_loop_factories(config, item):
    return {"uvloop": uvloop.new_event_loop}  # the daemon's loop


@pytest.fixture
def nodes():
    """Return a list for the nodes of a test, which are stopped at its end."""
    started = []
    yield started
    for node in started:
        node.stop()
