from collections import Counter

import torch
from hypothesis import example, given
from hypothesis import strategies as st

from roles.engines.training.batch import (
    TrainingSample,
    collate,
    deal,
    minibatches,
    pack,
    pass_tokens_of,
    select,
)
from roles.ports.engines import TrainingSequence


def sample(prompt, tokens, advantage=1.0):
    return TrainingSample(
        0, 0, tuple(prompt), tuple(tokens), tuple(-0.1 * t for t in tokens), advantage
    )


def sequence(group, reward, tokens=(5, 1)):
    return TrainingSequence(group, (2, 3), tuple(tokens), (-1.0,) * len(tokens), reward)


def test_groups_without_a_difference_teach_nothing():
    batch = [sequence(0, 1.0), sequence(0, 1.0), sequence(1, 0.0), sequence(2, 1.0)]
    assert select(batch) == []
    kept = select([*batch, sequence(1, 1.0), sequence(1, 0.0, ())])
    assert [one.advantage > 0 for one in kept] == [False, True]
    assert select([]) == []


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 12))
def test_minibatches_are_whole_groups_dealt_out_evenly(groups, count):
    samples = [TrainingSample(n, group, (2,), (n,), (-0.1,), 1.0) for n, group in enumerate(groups)]
    parts = minibatches(samples, count)
    order = list(dict.fromkeys(groups))
    assert len(parts) == min(count, len(order))
    dealt = [list(dict.fromkeys(one.group for one in part)) for part in parts]
    assert dealt == [order[start::count] for start in range(len(parts))]
    assert sorted(one.tokens for part in parts for one in part) == sorted(
        one.tokens for one in samples
    )
    sizes = [len(part) for part in dealt]
    assert max(sizes, default=0) - min(sizes, default=0) <= 1


LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=40)


@given(LENGTHS, st.integers(1, 32))
def test_packing_keeps_every_sample_once_within_the_budget(lengths, tokens):
    samples = [sample((number + 2,) * length, (1,)) for number, length in enumerate(lengths)]
    passes = pack(samples, tokens)
    packed = sorted(one.prompt for each in passes for one in each)
    assert packed == sorted(one.prompt for one in samples)
    for each in passes:
        assert len(each) == 1 or sum(one.length for one in each) <= tokens
        assert [one.length for one in each] == sorted((one.length for one in each), reverse=True)
    halves = [sum(one.length for one in each) * 2 <= tokens for each in passes]
    assert sum(halves) <= 1  # first fit leaves at most one pass half empty
    assert passes == first_fit(samples, tokens)


def first_fit(samples, tokens):
    """Return the passes by the definition: the longest first, each into the first with room."""
    passes = []
    for one in sorted(samples, key=lambda one: -one.length):
        room = (each for each in passes if pass_tokens_of(each) + one.length <= tokens)
        chosen = next(room, None)
        if chosen is None:
            passes.append(chosen := [])
        chosen.append(one)
    return passes


@given(LENGTHS, st.integers(1, 32), st.integers(1, 9))
@example([7, 6, 4], 10, 1)  # the second pass is the longer one
def test_each_sample_counts_once_over_all_ranks(lengths, tokens, ranks):
    samples = [sample((number + 2,) * length, (1,)) for number, length in enumerate(lengths)]
    passes = pack(samples, tokens)
    dealt = deal(passes, ranks)
    assert len(dealt) == ranks
    assert {len(own) for own in dealt} == {-(-len(passes) // ranks)}
    every = [each for own in dealt for each in own]
    counted = [each for each in every if each[0].weight]
    assert Counter(map(str, counted)) == Counter(map(str, passes)), "unchanged, each once"
    shortest = min(one.length for one in samples)
    for spare in (each for each in every if not each[0].weight):
        assert (len(spare), spare[0].length) == (1, shortest)
    assert deal(passes, ranks) == dealt
    if ranks == 1:
        assert dealt == [passes]


@given(LENGTHS, st.integers(1, 32), st.integers(1, 9))
@example([8, 7, 7, 3, 3], 10, 2)  # the first pass is the shortest one
def test_ranks_get_similar_passes_at_a_time_and_similar_sums(lengths, tokens, ranks):
    samples = [sample((number + 2,) * length, (1,)) for number, length in enumerate(lengths)]
    passes = pack(samples, tokens)
    dealt = deal(passes, ranks)
    sizes = [[pass_tokens_of(each) for each in own] for own in dealt]
    longest = max(map(pass_tokens_of, passes))
    assert max(map(sum, sizes)) - min(map(sum, sizes)) <= longest
    waited = sum(map(max, zip(*sizes, strict=True)))
    order = sorted(map(pass_tokens_of, passes), reverse=True)
    assert waited == sum(order[::ranks]), "no other deal waits less for the slowest rank"


def test_nothing_is_dealt_of_nothing():
    assert deal([], 3) == [[], [], []]


def test_collating_resets_positions_and_marks_what_predicts():
    one, two, three = (
        sample((2, 3), (4, 1), 0.5),
        sample((6,), (7, 8, 1), -2.0),
        sample((9,), (1,), 3.0),
    )
    packed = collate([one, two, three], "cpu")
    assert packed.tokens.tolist() == [[2, 3, 4, 6, 7, 8, 9]]
    assert packed.positions.tolist() == [[0, 1, 2, 0, 1, 2, 0]]
    assert packed.runs == ((3, 2), (1, 1))
    assert packed.predictors.tolist() == [1, 2, 3, 4, 5, 6]
    assert packed.targets.tolist() == [4, 1, 7, 8, 1, 1]
    assert packed.advantages.tolist() == [0.5, 0.5, -2.0, -2.0, -2.0, 3.0]
    torch.testing.assert_close(packed.behaviour_logprobs, -0.1 * packed.targets.float())
