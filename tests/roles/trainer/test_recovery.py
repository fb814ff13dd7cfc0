"""Recovery of a trainer from failures of its engine or its task."""

import asyncio

import pytest

from protocol.core.types import Role
from roles.ports.engines import EngineError
from roles.runtime.retry import PAUSE_EPOCHS_MAX
from roles.trainer.flow import FAILURES_TO_RESIGN
from roles.trainer.leadership import RESIGNED_LIVES
from tests.roles.trainer.trainer_world import EPOCH_SECONDS, World, fresh, led
from tests.worlds.messages import found, set_outcome

pytestmark = pytest.mark.virtual

GONE = EngineError("OutOfMemoryError: CUDA out of memory")


def versions(world):
    return [item.version for item in world.published]


@pytest.mark.parametrize("method", ["recompute", "step", "write_policy", "save_state"])
async def test_what_breaks_is_loaded_anew_and_made_again(tmp_path, method):
    world = fresh(tmp_path, model={"dtype": "bf16"})
    await led(world)
    commits = world.batch()
    world.engine.errors[method] = [GONE]
    loads = len(world.engine.loaded)
    await world.rest(3)
    assert str(world.conditions) == f"trainer failed: {GONE}; trying again"
    assert versions(world) == [0]
    await world.rest(EPOCH_SECONDS)
    assert versions(world) == [0, 1]
    assert set(world.published[1].batch) == {signed.digest for signed in commits}
    assert world.published[1].parent == world.network.published[0].digest
    assert world.published[1].term == 0
    assert world.engine.loaded[loads:] == ["v0.state"], "what a step left half done is not used"
    assert str(world.conditions) == ""
    world.batch()
    await world.rest(2)
    assert versions(world) == [0, 1, 2]
    await world.stop()


async def test_the_version_before_is_published_first(tmp_path):
    """The version is complete; without publication its number and file would be reused."""
    world = fresh(tmp_path)
    await led(world)
    release = world.policies.release

    async def slowly(policy):
        await asyncio.sleep(EPOCH_SECONDS)  # longer than the pause
        return await release(policy)

    world.policies.release = slowly
    world.engine.errors["step"] = [None, GONE]
    world.batch()
    world.batch()
    await world.rest(2)
    assert world.engine.errors["step"] == []
    assert versions(world) == [0]
    await world.rest(3 * EPOCH_SECONDS)
    assert versions(world) == [0, 1, 2]
    assert world.engine.loaded[-1] == "v1.state"
    weights = [world.files.weights(version).read_bytes() for version in (1, 2)]
    assert weights == [b"policy 1", b"policy 2"]
    await world.stop()


@pytest.mark.parametrize("failures", [1, 4])
async def test_a_state_that_cannot_be_loaded_now_is_loaded_later(tmp_path, failures):
    world = fresh(tmp_path, trainers=1)
    await led(world)
    world.engine.errors["step"] = [GONE]
    world.engine.errors["load"] = [GONE] * failures
    world.batch()
    await world.rest(EPOCH_SECONDS * (0.5 + sum((1, 2, 4, 8)[:failures])) + 5)
    assert versions(world) == [0, 1]
    assert world.published[1].term == 0, "its optimiser goes on"
    await world.stop()


async def test_alone_it_keeps_the_lead_and_tries_for_ever(tmp_path):
    world = fresh(tmp_path)
    await led(world)
    world.engine.errors["step"] = [GONE] * 1000
    world.batch()
    await world.rest(60 * EPOCH_SECONDS)
    assert not world.conditions.has_resigned(Role.TRAINER)
    left = len(world.engine.errors["step"])
    assert 1000 - 13 <= left <= 1000 - 8
    world.engine.errors["step"].clear()
    world.batch()  # the first one is too old by now
    await world.rest(PAUSE_EPOCHS_MAX * EPOCH_SECONDS + 2)
    assert versions(world) == [0, 1]
    await world.stop()


async def test_the_lead_is_left_to_another_trainer_that_is_here(tmp_path):
    world = fresh(tmp_path)
    await led(world)
    world.live(world.world.trainers[1], policy_version=0)
    world.engine.errors["step"] = [GONE] * 1000
    world.batch()
    await world.rest(EPOCH_SECONDS - 1)
    assert not world.conditions.has_resigned(Role.TRAINER), "it may pass"
    await world.rest(EPOCH_SECONDS * 2)
    assert 1000 - len(world.engine.errors["step"]) == FAILURES_TO_RESIGN
    assert world.conditions.has_resigned(Role.TRAINER)
    assert "handing over the lead to another trainer" in str(world.conditions)
    await world.rest(20 * EPOCH_SECONDS)
    assert world.conditions.has_resigned(Role.TRAINER), "no page has ended its term"
    assert 1000 - len(world.engine.errors["step"]) == FAILURES_TO_RESIGN
    world.live(world.signer, roles=("relay",))
    await world.rest(10 * EPOCH_SECONDS)
    assert world.replica.leader == world.world.trainers[1].peer_id
    assert not world.conditions.has_resigned(Role.TRAINER), "it may be needed again"
    assert str(world.conditions) == ""
    await world.stop()


async def test_failures_count_in_a_row(tmp_path):
    world = fresh(tmp_path)
    await led(world)
    world.live(world.world.trainers[1], policy_version=0)
    world.engine.errors["step"] = [GONE, GONE, None] * 3
    for _ in range(3):
        world.batch()
    await world.rest(8 * EPOCH_SECONDS)
    assert versions(world) == [0, 1, 2, 3]
    assert not world.conditions.has_resigned(Role.TRAINER)
    await world.stop()


async def test_when_the_other_one_does_nothing_the_lead_is_taken_up_again(tmp_path):
    epochs = {"seconds": EPOCH_SECONDS, "record_epochs": 10}
    world = fresh(tmp_path, epochs=epochs)
    await led(world)
    world.live(world.world.trainers[1], policy_version=0)
    world.engine.errors["step"] = [GONE] * FAILURES_TO_RESIGN
    world.batch()
    await world.rest(5 * EPOCH_SECONDS)
    assert world.conditions.has_resigned(Role.TRAINER)
    await world.rest((RESIGNED_LIVES * 10 - 10) * EPOCH_SECONDS)
    assert world.conditions.has_resigned(Role.TRAINER)
    world.live(world.signer, policy_version=0)
    await world.rest(9 * EPOCH_SECONDS)
    assert not world.conditions.has_resigned(Role.TRAINER)
    assert versions(world) == [0, 1]
    assert str(world.conditions) == ""
    await world.stop()


async def test_before_the_first_version_there_is_nobody_to_leave_it_to(tmp_path):
    world = World(tmp_path, begun=False)
    world.live(world.world.trainers[1], policy_version=-1)
    world.engine.errors["load"] = [GONE] * FAILURES_TO_RESIGN
    world.start()
    await world.rest(5 * EPOCH_SECONDS)
    assert not world.conditions.has_resigned(Role.TRAINER)
    assert versions(world) == [0]
    await world.stop()


async def test_a_rollout_that_cannot_be_scored_is_drawn_last(tmp_path):
    world = fresh(tmp_path)
    await led(world)
    bad = []

    def choke(seed):
        bad.append(seed) if not bad else None
        if seed == bad[0]:
            raise ValueError("a bug of the task")

    world.environment.on_score = choke
    world.batch()
    await world.rest(2)
    assert versions(world) == [0]
    assert "trainer failed: ValueError: a bug of the task" in str(world.conditions)
    world.rollout(worker=2)
    await world.rest(EPOCH_SECONDS)
    assert versions(world) == [0, 1]
    assert str(world.conditions) == ""
    await world.stop()


async def test_a_step_from_a_commit_rejected_meanwhile_is_made_again_without_it(tmp_path):
    """No node would take the version on this trainer's word."""
    world = fresh(tmp_path)
    await led(world)
    lie, other = world.batch()
    end_step = world.engine.end_step

    async def rejected_meanwhile():
        world.engine.end_step = end_step
        rejection = world.world.certificate(lie, accepted=False, escalated=True)
        assert set_outcome(world.replica.ledger, rejection, found("computation"), rank=b"")
        return await end_step()

    world.engine.end_step = rejected_meanwhile
    await world.rest(EPOCH_SECONDS)
    assert versions(world) == [0]
    world.rollout(worker=2)
    await world.rest(2 * EPOCH_SECONDS)
    assert versions(world) == [0, 1]
    assert lie.digest not in world.published[-1].batch
    assert other.digest in world.published[-1].batch
    assert str(world.conditions) == ""
    await world.stop()
