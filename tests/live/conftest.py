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


@pytest.fixture
def shared_engines(monkeypatch, fork_server):
    """Let the nodes of a test share one fork server."""
    from tests.live.test_founded_run import Node  # noqa: PLC0415 - imports this module's fixtures

    monkeypatch.setattr(Node, "engines", ("--engine-server", str(fork_server[0])))
