from itertools import pairwise

import pytest

from roles.ports.engines import EngineError
from roles.runtime.retry import PAUSE_EPOCHS_MAX, PAUSE_EPOCHS_MIN, Failures, pause_epochs
from tests.worlds.flow_world import FlowWorld

pytestmark = pytest.mark.virtual


def test_pauses_grow_up_to_a_bound():
    pauses = [pause_epochs(failures) for failures in range(1, 8)]
    assert pauses[0] == PAUSE_EPOCHS_MIN
    assert all(after == min(2 * before, PAUSE_EPOCHS_MAX) for before, after in pairwise(pauses))
    assert pause_epochs(10**6) == PAUSE_EPOCHS_MAX


async def test_a_failure_is_told_until_it_is_over(tmp_path):
    world = FlowWorld(tmp_path, "worker 0")
    failures = Failures(world.context, "inference")
    began = world.now()
    for _ in range(3):
        await failures.pause(EngineError("MemoryError"))
    assert world.now() - began == pytest.approx(10 * (0.5 + 1 + 2))
    assert str(world.conditions) == "inference failed: MemoryError; trying again"
    failures.end()
    assert str(world.conditions) == ""
    began = world.now()
    await failures.pause(EngineError("MemoryError"))
    assert world.now() - began == pytest.approx(5)
