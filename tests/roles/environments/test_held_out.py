import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.rollout.assignment import HELD_OUT_SEED
from roles.environments.held_out import HeldOutRows, HoldOut, SplitRows, TrainingRows
from roles.environments.text import RowTask
from roles.environments.usable_rows import PromptRoom, RowRule, UsableRows
from simulations.runtime.loop import SimBackground


class Numbered:
    """Rows that hold their number."""

    def __init__(self, count):
        self.count = count

    def row(self, index):
        assert 0 <= index < self.count
        return {"prompt": str(index)}


def numbers(rows) -> list[int]:
    return [int(rows.row(place)["prompt"]) for place in range(rows.count)]


@given(size=st.integers(2, 12), data=st.data())
def test_each_row_is_on_one_side_and_each_block_has_one_held_out(size, data):
    count = data.draw(st.integers(size, 100))
    split, rows = HoldOut("math/a", size, count), Numbered(count)
    trains = numbers(TrainingRows(rows, split))
    held_out = numbers(HeldOutRows(rows, split))
    assert trains == sorted(trains)
    assert sorted([*trains, *held_out]) == list(range(count))
    assert [row // size for row in held_out] == list(range(count // size))


@given(st.integers(0, HELD_OUT_SEED - 1))
def test_a_seed_draws_from_its_side(seed):
    split = HoldOut("math/a", 5, 53)
    held_out = {split.held_out(block) for block in range(10)}
    assert split.row_of(seed) not in held_out
    assert split.row_of(HELD_OUT_SEED + seed) in held_out


def test_a_data_set_without_a_block_is_refused():
    with pytest.raises(ValueError, match="rows_per_held_out_row to at most 19"):
        HoldOut("math/a", 20, 19)


class Marked(Numbered):
    """Rows of which every third is unusable."""

    def row(self, index):
        return super().row(index) | {"answer": "" if index % 3 == 0 else "1"}


class AskedTask(RowTask):
    async def grade(self, seed, answer):
        raise AssertionError("nothing is graded here")


class Anything:
    vocabulary_size = 32

    def encode_chat(self, question, before=()):
        return (1,)

    def decode(self, tokens):
        return ""


def test_a_task_draws_usable_rows_of_the_side_of_its_seed():
    rows, split = Marked(60), HoldOut("math/a", 6, 60)
    rule = RowRule("math", PromptRoom(None, ()), Anything())
    sides = SplitRows(
        UsableRows("math/a", TrainingRows(rows, split), rule),
        UsableRows("math/a", HeldOutRows(rows, split), rule),
    )

    async def drawn(seed):
        return int((await task.row(seed))["prompt"])

    async def both():
        await task.open()
        seeds = range(600)
        return [{await drawn(first + seed) for seed in seeds} for first in (0, HELD_OUT_SEED)]

    task = AskedTask("math/a", lambda: sides, Anything, SimBackground())
    trains, held_out = asyncio.run(both())
    reserved = {split.held_out(block) for block in range(10)}
    assert held_out == {row for row in reserved if row % 3}
    assert trains == {row for row in range(60) if row % 3} - reserved
