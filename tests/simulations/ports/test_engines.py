"""Modelled engines treat policy files like the real ones."""

from pathlib import Path
from typing import Any

import pytest

from protocol.core.rng import Rng
from protocol.core.types import Digest, Version
from roles.ports.engines import Policy
from simulations.ports.engines import SimEngines
from simulations.ports.storage import Disk
from simulations.runtime.content import Extent, policy_digest
from simulations.runtime.loop import run_virtual
from simulations.scenario.scenario import Compute, Workload

PATH = Path("v3.safetensors")
CONTENT = Extent.of(b"seed", 0, 1000)
WORKLOAD = Workload(weights_bytes=4096, tokens_mean=4, skill=0.3, learning_rate=0.1)


def load(disk: Disk, digest: Digest) -> list[dict[str, Any]]:
    """Load ``PATH`` as the policy of a digest; return the trace events."""
    told: list[dict[str, Any]] = []

    def emit(_kind: str, **facts: Any) -> None:
        told.append(facts)

    engines = SimEngines(disk, Compute(), WORKLOAD, Rng(b"seed"), emit)
    generation = engines.generation(None)  # type: ignore[arg-type] # every run is of the same sums
    try:
        run_virtual(generation.load(Policy(Version(3), digest, PATH)))
    except ValueError:
        told.append({"refused": True})
    return told


def test_a_policy_that_is_what_it_should_be_is_loaded():
    digest = policy_digest(CONTENT)
    (event,) = load(Disk(files={PATH: CONTENT}), digest)
    assert (event["claimed"], event["actual"]) == (digest.hex(), digest.hex())


@pytest.mark.parametrize("content", [b"", b"rubbish", Extent.of(b"other", 0, 1000)])
def test_another_policy_is_refused_and_told_of(content):
    event, refusal = load(Disk(files={PATH: content}), policy_digest(CONTENT))
    assert event["claimed"] != event["actual"]
    assert refusal == {"refused": True}


def test_a_policy_that_was_deleted_meanwhile_is_refused_and_was_never_loaded():
    assert load(Disk(), policy_digest(CONTENT)) == [{"refused": True}]
