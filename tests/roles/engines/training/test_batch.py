import torch
from hypothesis import given
from hypothesis import strategies as st

from roles.engines.training.batch import Sample, collate, pack, select
from roles.ports.engines import TrainingSequence


def sample(prompt, tokens, advantage=1.0):
    return Sample(tuple(prompt), tuple(tokens), tuple(-0.1 * t for t in tokens), advantage)


def sequence(group, reward, tokens=(5, 1)):
    return TrainingSequence(group, (2, 3), tuple(tokens), (-1.0,) * len(tokens), reward)


def test_groups_without_a_difference_teach_nothing():
    batch = [sequence(0, 1.0), sequence(0, 1.0), sequence(1, 0.0), sequence(2, 1.0)]
    assert select(batch) == []
    kept = select([*batch, sequence(1, 1.0), sequence(1, 0.0, ())])
    assert [one.advantage > 0 for one in kept] == [False, True]
    assert select([]) == []


LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 32))
def test_packing_keeps_every_sample_once_within_the_width(lengths, width):
    samples = [sample((number + 2,) * length, (1,)) for number, length in enumerate(lengths)]
    rows = pack(samples, width)
    packed = sorted(one.prompt for row in rows for one in row)
    assert packed == sorted(one.prompt for one in samples)
    for row in rows:
        assert len(row) == 1 or sum(one.length for one in row) <= width
    halves = [sum(one.length for one in row) * 2 <= width for row in rows]
    assert sum(halves) <= 1  # first fit leaves at most one row half empty


def test_collating_resets_positions_and_marks_what_predicts():
    rows = collate([[sample((2, 3), (4, 1), 0.5), sample((6,), (7, 8, 1), -2.0)]], "cpu")
    assert rows.tokens.tolist() == [[2, 3, 4, 6, 7, 8]]
    assert rows.positions.tolist() == [[0, 1, 2, 0, 1, 2]]
    assert rows.predictors.tolist() == [1, 2, 3, 4, 5]
    assert rows.targets.tolist() == [4, 1, 7, 8, 1]
    assert rows.advantages.tolist() == [0.5, 0.5, -2.0, -2.0, -2.0]
    torch.testing.assert_close(rows.behaviour_logprobs, -0.1 * rows.targets.float())


def test_packed_sequences_do_not_see_each_other():
    rows = collate([[sample((2, 3), (1,)), sample((4,), (1,))], [sample((5,), (1,))]], "cpu")
    assert rows.mask is not None
    assert rows.mask[0, 0].int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]
    assert rows.mask.any(-1).all()  # nobody attends to nothing, padding neither


def test_one_sequence_a_row_needs_no_mask():
    assert collate([[sample((2, 3), (1,))], [sample((5,), (1,))]], "cpu").mask is None
