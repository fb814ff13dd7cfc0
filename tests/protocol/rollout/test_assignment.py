from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.crypto import digest
from protocol.rollout.assignment import assign, assign_commit, is_evaluation
from protocol.run.manifest import decode_manifest
from tests.worlds.messages import World, run_manifest

WORLD = World(run_manifest())
TARGETED = World(run_manifest(sampling={"length_targets": (10, 20, 30)}))
WORKER = WORLD.workers[0].peer_id
CHECKPOINT = digest(b"checkpoint")


def test_a_slot_has_its_groups_in_order():
    sequences = assign(WORLD.manifest, WORKER, 0)
    assert [item.group for item in sequences] == [0, 0, 1, 1]
    assert len({item.problem_seed for item in sequences}) == 2
    assert len({item.noise_seed for item in sequences}) == 4
    assert {item.length_target for item in sequences} == {None}


def test_a_group_shares_its_problem_and_its_target():
    for slot in range(20):
        sequences = assign(TARGETED.manifest, WORKER, slot)
        shared = {(item.group, item.problem_seed, item.length_target) for item in sequences}
        assert len(shared) == 2


def test_targets_come_up_equally_often():
    counts = Counter(
        item.length_target
        for slot in range(300)
        for item in assign(TARGETED.manifest, WORKER, slot)[::2]
    )
    assert sorted(counts) == [10, 20, 30]
    assert all(abs(count - 200) < 60 for count in counts.values())  # five standard deviations


@pytest.mark.parametrize("evaluates", [None, CHECKPOINT])
@given(slot=st.integers(0, 2**53))
def test_run_worker_and_slot_all_matter_and_the_checkpoint_of_an_evaluation(evaluates, slot):
    variants = [
        assign(WORLD.manifest, WORKER, slot, evaluates),
        assign(run_manifest(2), WORKER, slot, evaluates),
        assign(WORLD.manifest, WORKER, slot, digest(b"other")),
        assign(WORLD.manifest, WORLD.workers[1].peer_id, slot, evaluates),
        assign(WORLD.manifest, WORKER, slot + 1, evaluates),
    ]
    assert len({repr(variant) for variant in variants}) == 5
    assert len({item.noise_seed for one in variants for item in one}) == 20
    assert variants[0] == assign(WORLD.manifest, WORKER, slot, evaluates)


@given(version=st.integers(0, 2**53), slot=st.integers(0, 2**53), evaluation=st.booleans())
def test_a_training_commit_has_its_problems_with_every_version(version, slot, evaluation):
    commit = WORLD.commit(WORLD.workers[0], slot, version=version, evaluation=evaluation).message
    evaluates = commit.checkpoint if evaluation else None
    assert assign_commit(WORLD.manifest, WORKER, commit) == assign(
        WORLD.manifest, WORKER, slot, evaluates
    )


@given(
    every=st.integers(1, 12),
    rollouts=st.integers(1, 4),
    version=st.integers(0, 40),
    slot=st.integers(0, 8),
)
def test_the_first_slots_of_evaluated_versions_evaluate_them(every, rollouts, version, slot):
    rule = {"every_versions": every, "rollouts_per_worker": rollouts}
    manifest = run_manifest(evaluation=rule)
    evaluated = version in range(0, 41, every) and slot in range(rollouts)
    assert is_evaluation(manifest, version, slot) == evaluated
    assert not is_evaluation(WORLD.manifest, version, slot)


@given(st.integers(0, 2**53))
def test_evaluation_slots_have_held_out_problems_and_no_other_slot_has(slot):
    for evaluates, held_out in ((None, 0), (CHECKPOINT, 1)):
        items = assign(WORLD.manifest, WORKER, slot, evaluates)
        assert {item.problem_seed >> 64 for item in items} == {held_out}
        assert [item.group for item in items] == [0, 0, 1, 1]


def test_a_manifest_without_evaluation_keeps_its_bytes():
    assert b"evaluation" not in WORLD.manifest.encoded()
    with_rule = run_manifest(evaluation={"every_versions": 5})
    assert with_rule.run_id != WORLD.manifest.run_id
    assert decode_manifest(with_rule.encoded()) == with_rule
