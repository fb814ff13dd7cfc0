import asyncio

import pytest

from protocol.core.crypto import digest
from roles.ports.engines import Mismatch, StepMetrics, TrainingSequence
from roles.runtime.metrics import BusyTime
from roles.trainer.batching import BatchDraw, TrainingBatch
from roles.trainer.statistics import StepTimer, merged, training_step
from tests.roles.trainer.trainer_world import World, fresh, led
from tests.worlds.flow_world import ANSWER, END

pytestmark = pytest.mark.virtual

CUT = 9
"""A token that does not end a sequence."""


def sequence(group, reward, tokens=(ANSWER, END), prompt=(2, 3, 4)):
    ended = tokens[-1] == END
    return TrainingSequence(group, prompt, tokens, (-1.0,) * len(tokens), reward, ended=ended)


BATCH = TrainingBatch(
    BatchDraw({}, {}, digest(b"page"), ()),
    [
        sequence(0, 0.0),
        sequence(0, 1.0, tokens=(ANSWER, CUT, CUT, CUT)),
        sequence(1, 1.0),
        sequence(1, 1.0),
    ],
    (2, 1),
)


def made(metrics, seconds=(4.0, 1.5)):
    return training_step(7, 100.0, BATCH, metrics, seconds)


def test_steps_of_a_round_count_by_their_sequences():
    own, other = Mismatch(0.5, 1.5, 0.25), Mismatch(9.0, 9.0, 9.0)
    one = StepMetrics(1, 0.5, 2.0, 0.75, 2, 0.125, 0.25, 0.125, 1e-5, own, own, (5, 6))
    two = StepMetrics(1, 1.5, 1.0, 0.25, 6, 0.5, 0.0, 0.625, 2e-5, other, other, (5, 7))
    joined = StepMetrics(2, 1.25, 2.0, 0.375, 8, 0.40625, 0.0625, 0.5, 2e-5, own, own, (5, 7))
    assert merged([one, two]) == joined
    assert merged([one, two]).memory_peak_bytes == (5, 7)
    nothing = StepMetrics(0)
    assert merged([nothing, nothing]) == nothing


def test_a_batch_is_described():
    differences = (Mismatch(0.5, 1.5, 0.25), Mismatch(0.125, 0.75, 0.0625))
    step = made(StepMetrics(1, 0.5, 2.0, 0.75, 2, 0.125, 0.25, 0.01, 1e-5, *differences, (5, 7, 6)))
    assert (step.version, step.ended_at) == (7, 100.0)
    assert step.statistics == {
        "reward_mean": 0.75,
        "reward_std": pytest.approx((3 / 16) ** 0.5),
        "groups_teaching_fraction": 0.5,
        "sequences_offered": 4,
        "sequences_used": 2,
        "entropy_nats": 0.75,
        "kl_nats": 0.01,
        "gradient_norm": 2.0,
        "clip_low_fraction": 0.125,
        "clip_high_fraction": 0.25,
        "mismatch_mean_nats": 0.5,
        "mismatch_p99_nats": 1.5,
        "mismatch_clip_fraction": 0.25,
        "engine_mismatch_mean_nats": 0.125,
        "engine_mismatch_p99_nats": 0.75,
        "engine_mismatch_clip_fraction": 0.0625,
        "loss": 0.5,
        "learning_rate": 1e-5,
        "updates": 1,
        "answer_tokens_mean": 2.5,
        "answers_cut_fraction": 0.25,
        "staleness_mean_versions": 1.5,
        "staleness_max_versions": 2,
        "tokens_per_second": (3 + 2 + 3 + 4) / 4.0,
        "step_seconds": 4.0,
        "idle_seconds": 1.5,
        "ranks": 3,
        "memory_peak_bytes": 7,
    }


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_not_known(value):
    differences = Mismatch(value, value, 1.0)
    step = made(StepMetrics(0, value, value, value, 2, kl=value, mismatch=differences))
    assert (step.mismatch_mean_nats, step.mismatch_p99_nats) == (None, None)
    assert (step.loss, step.gradient_norm, step.entropy_nats, step.kl_nats) == (None,) * 4
    assert step.warning


async def test_time_outside_of_the_engine_is_idle():
    steps = BusyTime()
    timer = StepTimer(steps)
    await asyncio.sleep(3)
    timer.start()
    await asyncio.sleep(1)
    with steps.part(0.0):
        await asyncio.sleep(5)
    first = timer.lap()
    with steps.part(0.0):
        await asyncio.sleep(2)
    await asyncio.sleep(0.5)
    assert (first, timer.lap()) == (pytest.approx((5, 1)), pytest.approx((2, 0.5)))


async def test_a_trainer_records_each_step_before_its_version_is_published(tmp_path):
    world = fresh(tmp_path)
    publish, seen = world.network.publish, []

    async def noted(topic, message):
        seen.append((message.version, world.context.training.newest))
        return await publish(topic, message)

    world.network.publish = noted
    await led(world)
    for _ in range(2):
        world.batch()
        await world.rest(2)
    await world.stop()
    assert [(version, step and step.version) for version, step in seen] == [
        (0, None), (1, 1), (2, 2)
    ]  # fmt: skip
    step = world.context.training.newest
    assert step.sequences_offered == step.sequences_used > 0
    assert step.answer_tokens_mean == 2
    assert step.answers_cut_fraction == 0
    assert step.staleness_mean_versions == step.staleness_max_versions == 0
    assert step.step_seconds == pytest.approx(0.1)
    assert 0 < step.idle_seconds < 3


async def test_older_rollouts_are_stale(tmp_path):
    world = fresh(tmp_path)
    await led(world)
    world.batch()
    await world.rest(2)
    old = [world.rollout(worker=worker, version=0) for worker in range(2)]
    await world.rest(2)
    await world.stop()
    assert set(world.published[-1].batch) == {signed.digest for signed in old}
    step, lag = world.context.training.newest, world.replica.ledger.commits.policy_lag_max
    assert (step.version, step.staleness_mean_versions, step.staleness_max_versions) == (2, 1, lag)
    assert {one.lag for one in world.engine.begun} == {1}


async def test_a_step_without_effect_is_in_the_log_in_words(tmp_path, capsys, caplog):
    world = World(tmp_path)

    async def nothing():
        return StepMetrics(0)

    world.engine.end_step = nothing
    world.start()
    world.batch()
    await world.rest(5)
    await world.stop()
    # An earlier test may have redirected the log to the standard library.
    assert "step 1 used 0 of " in capsys.readouterr().out + caplog.text


async def test_a_mismatch_with_workers_is_in_the_log_in_words(tmp_path, capsys, caplog):
    world = World(tmp_path)

    async def mismatched():
        found = Mismatch(0.3, 2.0, 0.4)
        return StepMetrics(1, sequences_used=4, mismatch=found, engine_mismatch=found)

    world.engine.end_step = mismatched
    world.start()
    world.batch()
    await world.rest(5)
    await world.stop()
    log = capsys.readouterr().out + caplog.text
    assert "mismatch with workers" in log
    assert "differ beyond the clip range at 40% of the tokens" in log
    assert "without effect" not in log
