"""Engines in processes that the fork server of the test session forks."""

import os
from pathlib import Path

import pytest

from roles.engines.subprocess.client import ChildEngines
from roles.engines.subprocess.process import EngineProcesses
from simulations.runtime.loop import SimBackground
from tests.roles.engines.subprocess.engine_processes import BRISK


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
