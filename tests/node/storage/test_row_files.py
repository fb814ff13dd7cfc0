"""Sequences of a batch in files: what an engine reads is what was stored."""

import asyncio
import tempfile
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.storage.row_files import RowDirectory
from protocol.core.crypto import digest
from roles.engines.files.stored_numbers import floats, integers
from roles.ports.engines import TrainingSequence
from roles.ports.storage import StorageFullError
from tests.worlds.small_disk import small_disk

ONE, TWO = digest(b"one"), digest(b"two")
FLOATS = st.floats(-100, 0, width=32)
ANSWERS = st.lists(st.tuples(st.integers(0, 2**31 - 1), FLOATS), min_size=1, max_size=9)
PROMPTS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5)


def rows(prompts, answers):
    """Return sequences; each answer is of the group of its prompt."""
    return [
        TrainingSequence(
            group,
            tuple(prompt),
            tuple(token for token, _ in answer),
            tuple(logprob for _, logprob in answer),
            reward=float(group),
            ended=bool(group),
        )
        for group, prompt in enumerate(prompts)
        for answer in answers
    ]


SOME = rows([[2, 3]], [[(4, -0.5), (1, -1.5)]])


@given(st.lists(PROMPTS, min_size=1, max_size=3), st.lists(ANSWERS, min_size=1, max_size=3))
async def test_an_engine_reads_what_was_stored(prompts, answers):
    known = rows(prompts, answers)
    with tempfile.TemporaryDirectory() as name:
        stored = await RowDirectory(Path(name) / "rows").store(ONE, known)
        for one, known_one in zip(stored, known, strict=True):
            assert integers(one.prompt).tolist() == [*known_one.prompt]
            assert integers(one.tokens).tolist() == [*known_one.tokens]
            assert floats(one.logprobs).tolist() == [*known_one.logprobs]
            assert len(one.tokens) == len(known_one.tokens)
            numbers = {name: getattr(one, name) for name in ("prompt", "tokens", "logprobs")}
            assert one == replace(known_one, **numbers)
        (path,) = (Path(name) / "rows").iterdir()
        distinct = [prompt for prompt, _ in groupby(prompts)]
        count = sum(map(len, distinct)) + 2 * sum(len(one.tokens) for one in known)
        assert path.stat().st_size == 4 * count, "each prompt once"


async def test_files_that_no_batch_needs_are_deleted(tmp_path):
    directory = tmp_path / "rows"
    store = RowDirectory(directory)
    await store.retain([])
    for commit in (ONE, TWO):
        await store.store(commit, SOME)
    store.logprobs("version-3").write_bytes(b"")
    await store.retain([TWO, digest(b"not here")])
    assert [path.name for path in directory.iterdir()] == [TWO.hex() + ".rows"]
    RowDirectory(directory)
    assert not directory.exists(), "a start deletes the files of an earlier process"


async def test_one_rollout_may_be_stored_twice_at_once(tmp_path):
    store = RowDirectory(tmp_path / "rows")
    found = await asyncio.gather(*(store.store(ONE, SOME * 50) for _ in range(8)))
    assert all(each == found[0] for each in found)
    assert floats(found[0][-1].logprobs).tolist() == [-0.5, -1.5]
    assert len([*(tmp_path / "rows").iterdir()]) == 1


async def test_a_full_disk_leaves_nothing_half_written(tmp_path):
    with small_disk(tmp_path / "disk", 200_000) as disk:
        store = RowDirectory(disk.path / "rows")
        long = replace(SOME[0], tokens=(5,) * 100_000, logprobs=(-1.0,) * 100_000)
        with pytest.raises(StorageFullError):
            await store.store(ONE, [long])
        assert [*(disk.path / "rows").iterdir()] == []
        assert torch.equal(integers((await store.store(TWO, SOME))[0].tokens), torch.tensor([4, 1]))
