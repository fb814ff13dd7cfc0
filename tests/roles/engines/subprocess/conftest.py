"""One fork server for all tests of engine processes: importing torch takes seconds."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

from roles.engines.subprocess.client import ChildEngines
from roles.engines.subprocess.process import EngineProcesses, start_fork_server
from simulations.runtime.loop import SimBackground
from tests.roles.engines.subprocess.engine_processes import BRISK, wait_until


@pytest.fixture(scope="session")
def fork_server():
    """The socket of a fork server, and its process."""
    with tempfile.TemporaryDirectory(prefix="engines-") as folder:
        path = Path(folder) / "engines.sock"
        server, client = start_fork_server(Path(sys.executable), sys.__stderr__.fileno(), path)
        wait_until(path.exists)
        yield path, server
        client.close()
        server.wait(10)


@pytest.fixture
async def made(fork_server):
    """A function that makes an engine of a run; all processes are gone at the end."""
    engines = []
    processes = EngineProcesses(shared=fork_server[0])

    def one(kind, manifest, *, patience=BRISK, **options):
        factory = ChildEngines(
            processes, SimBackground(), Path("nowhere"), "cpu", patience=patience, **options
        )
        engines.append(getattr(factory, kind)(manifest))
        return engines[-1]

    yield one
    for engine in engines:
        await engine.supervisor.close()
    processes.close()


@pytest.fixture
def secret(monkeypatch):
    monkeypatch.setitem(os.environ, "PRIME_NODE_TOKEN", "a secret")
