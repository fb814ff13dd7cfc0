import asyncio
import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.storage.evaluation_curve import ROLLOUTS_MAX, TABLE, EvaluationCurve
from protocol.ledger.chain import CheckpointEntry
from protocol.rollout.body import RolloutSequence
from tests.worlds.disks import MemoryStore
from tests.worlds.messages import World, run_manifest

WORLD = World(run_manifest(evaluation={"every_versions": 2}))
CHECKPOINTS = [CheckpointEntry(WORLD.genesis())]


def body(*rewards, tokens=3):
    return [RolloutSequence((5,) * tokens, (0.0,) * tokens, reward, ()) for reward in rewards]


async def filled(store, *bodies, curve=None):
    curve = EvaluationCurve() if curve is None else curve
    for number, rewards in enumerate(bodies):
        commit = WORLD.commit(WORLD.workers[number % 3], tokens=10 + number // 3)
        assert curve.lacks(commit)
        await curve.add(WORLD.manifest, commit, body(*rewards), store)
        assert not curve.lacks(commit)
    return curve


def points(curve, checkpoints=CHECKPOINTS, world=WORLD):
    return curve.points(world.manifest.sampling, checkpoints)


@given(
    st.lists(st.lists(st.integers(0, 1_000_000), min_size=4, max_size=4), min_size=1, max_size=12)
)
def test_a_point_is_the_mean_of_all_answers_within_its_interval(bodies):
    (point,) = points(asyncio.run(filled(MemoryStore(), *bodies)))
    rewards = [reward for one in bodies for reward in one]
    assert (point.version, point.problems, point.answers) == (0, 2 * len(bodies), len(rewards))
    assert math.isclose(point.reward_mean, fmean(rewards) / 1e6, abs_tol=1e-12)
    assert 0 <= point.reward_low <= point.reward_mean <= point.reward_high <= 1
    assert point.solved_fraction == pytest.approx(fmean(one == 1_000_000 for one in rewards))
    assert point.solved_low <= point.solved_fraction <= point.solved_high


def test_answers_that_agree_within_a_problem_are_no_independent_ones():
    alike = [(1_000_000, 1_000_000, 0, 0)] * 10
    mixed = [(1_000_000, 1_000_000, 1_000_000, 0), (0, 1_000_000, 0, 0)] * 5
    (one,), (other,) = (
        points(asyncio.run(filled(MemoryStore(), *each))) for each in (alike, mixed)
    )
    assert one.reward_mean == other.reward_mean == 0.5
    assert one.reward_high - one.reward_low > 1.3 * (other.reward_high - other.reward_low)


def test_a_restart_keeps_the_curve_and_reads_no_rollout_again():
    store = MemoryStore()
    before = asyncio.run(filled(store, (0, 0, 1_000_000, 0), (0, 250_000, 0, 0)))
    after = EvaluationCurve()
    after.restore(store)
    assert points(after) == points(before) != ()
    assert not after.lacks(WORLD.commit(WORLD.workers[0], tokens=10))


def test_an_unreadable_record_is_left_out():
    store = MemoryStore()
    asyncio.run(filled(store, (0, 0, 0, 0)))
    (key,) = store.tables[TABLE]
    store.tables[TABLE][key] = b"{}"
    after = EvaluationCurve()
    after.restore(store)
    assert points(after) == ()


def test_a_superseded_version_has_no_point_and_begins_anew():
    store = MemoryStore()
    curve = asyncio.run(filled(store, (0, 0, 0, 0)))
    other = World(run_manifest(evaluation={"every_versions": 2}, trainers=2))
    replaced = [CheckpointEntry(other.genesis())]
    assert points(curve, replaced) == ()
    commit = WORLD.commit(WORLD.workers[0], checkpoint=replaced[0].manifest.digest)
    assert curve.lacks(commit)
    asyncio.run(curve.add(WORLD.manifest, commit, body(*[1_000_000] * 4), store))
    (point,) = points(curve, replaced)
    assert (point.answers, point.reward_mean) == (4, 1.0)


def test_of_a_version_a_bounded_number_of_rollouts_is_read():
    curve = asyncio.run(filled(MemoryStore(), *[(0, 0, 0, 0)] * ROLLOUTS_MAX))
    assert not curve.lacks(WORLD.commit(WORLD.workers[0], tokens=1))


def test_the_length_of_an_answer_does_not_change_whether_it_is_solved():
    sampling = {"length_targets": (5,), "length_penalty": 0.01}
    world = World(run_manifest(evaluation={"every_versions": 2}, sampling=sampling))
    curve = EvaluationCurve()
    commit = world.commit(world.workers[0])
    earned = 1_000_000 - 2 * 10_000
    rollout = body(earned, -20_000, earned, earned)
    asyncio.run(curve.add(world.manifest, commit, rollout, MemoryStore()))
    (point,) = points(curve, [CheckpointEntry(world.genesis())], world)
    assert point.solved_fraction == 0.75
    assert point.reward_low < point.reward_mean == pytest.approx(0.73)
