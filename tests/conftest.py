"""Settings and fixtures for all tests."""

import asyncio
import gc
import json
import os
import signal
import sys
import tempfile
from contextlib import suppress
from importlib import import_module
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.supervise import RESULTS
from tests.worlds.inline_loop import InlineLoop

# A loaded machine is no defect: how long an example took says nothing about what it found.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

WORKER = "PYTEST_XDIST_WORKER"
RECORDED_SECONDS_MIN = 1.0

GC_THRESHOLDS = (20_000, 20, 50)
"""Python's own, 700 new objects for a collection, take a tenth of the time of a simulated swarm."""

# Imports and collection make a million objects that stay: no use to look for cycles in them.
gc.disable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    """Import the test modules first, each worker beginning with others.

    pytest rewrites the assertions of a module at its first import, and stores the bytecode. In a
    fresh checkout all workers would rewrite all modules at the same time: 7 s of a core each.
    Errors show when pytest collects the module.
    """
    if WORKER not in os.environ:
        return
    roots = [session.config.rootpath / one.partition("::")[0] for one in session.config.args]
    files = [file for root in roots for file in (sorted(root.rglob("test_*.py")) or [root])]
    number = int(os.environ[WORKER].removeprefix("gw"))
    first = len(files) * number // int(os.environ["PYTEST_XDIST_WORKER_COUNT"])
    for file in files[first:] + files[:first]:
        name = ".".join(file.relative_to(session.config.rootpath).with_suffix("").parts)
        with suppress(Exception, pytest.skip.Exception):  # a skip is a BaseException
            import_module(name)


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of its own
def pytest_collection_modifyitems(items):
    """Group tests by what they share, and begin with the longest tests.

    xdist starts the groups in the order of collection (``--no-loadscope-reorder``): a long test
    that comes last is waited for by idle workers.
    """
    for item in items:
        if not item.get_closest_marker("xdist_group") and (group := _group(item)):
            item.add_marker(pytest.mark.xdist_group(group))
    if WORKER in os.environ:
        items.sort(key=_order)


def _group(item):
    """Return the group of a test that names none, or None.

    Tests that start p2pd stay on two workers. What a module or a session makes once, each worker
    would make once.
    """
    if item.get_closest_marker("live"):
        return "live"
    if "fork_server" in item.fixturenames:
        return "fork server"
    of_module = item.getparent(pytest.Module).nodeid
    fixtures = item.config.pluginmanager.get_plugin("funcmanage")
    definitions = (fixtures.getfixturedefs(name, item) for name in item.fixturenames)
    newest = (found[-1] for found in definitions if found)
    is_shared = any(one.scope == "module" and one.baseid == of_module for one in newest)
    return of_module if is_shared else None


def _order(item):
    names = ("live", "slow", "xdist_group")
    return next((rank for rank, name in enumerate(names) if item.get_closest_marker(name)), 3)


def pytest_runtest_logreport(report):
    """Append failures and long tests to the file of the supervisor; workers of xdist do not."""
    path = os.environ.get(RESULTS)
    if path is None or WORKER in os.environ:
        return
    if report.failed or report.duration >= RECORDED_SECONDS_MIN:
        result = {
            "nodeid": report.nodeid,
            "when": report.when,
            "outcome": report.outcome,
            "seconds": report.duration,
        }
        with Path(path).open("a") as file:
            file.write(json.dumps(result) + "\n")


def pytest_asyncio_loop_factories(config, item):
    """Return the event loop of an async test: a virtual one for the marker ``virtual``."""
    if mark := item.get_closest_marker("virtual"):
        return {"virtual": mark.kwargs.get("loop", InlineLoop)}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(scope="session")
def fork_server():
    """The socket of one fork server for all tests of a worker, and its process.

    Its imports take 5 s of a core, in each process that starts its own.
    """
    from roles.engines.subprocess.process import start_fork_server  # noqa: PLC0415 - few tests
    from tests.roles.engines.subprocess.engine_processes import wait_until  # noqa: PLC0415 - the same

    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        path = Path(folder) / "engines.sock"
        server, client = start_fork_server(Path(sys.executable), sys.__stderr__.fileno(), path)
        wait_until(path.exists)
        yield path, server
        client.close()
        server.wait(10)


@pytest.fixture
def interruptible():
    """Let the processes of a test be interrupted: a shell's background job inherits SIGINT ignored.

    A handler of ours becomes the default in a process that is started.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
