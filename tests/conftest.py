"""Settings and fixtures for all tests."""

import asyncio
import signal

import pytest
from hypothesis import HealthCheck, settings

from tests.worlds.inline_loop import InlineLoop

# A loaded machine is no defect: how long an example took says nothing about what it found.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of its own
def pytest_collection_modifyitems(items):
    """Keep the tests that start p2pd on one worker: they time out when they share the machine."""
    for item in items:
        if item.get_closest_marker("live"):
            item.add_marker(pytest.mark.xdist_group("live"))


def pytest_asyncio_loop_factories(config, item):
    """Return the event loop of an async test: a virtual one for the marker ``virtual``."""
    if mark := item.get_closest_marker("virtual"):
        return {"virtual": mark.kwargs.get("loop", InlineLoop)}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def interruptible():
    """Let the processes of a test be interrupted: a shell's background job inherits SIGINT ignored.

    A handler of ours becomes the default in a process that is started.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
