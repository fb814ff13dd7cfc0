"""Training on a group of ranks: as on one, whatever their number."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from protocol.core.types import RunId, Version
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.files.policy import DTYPES, write_policy
from roles.engines.training.checkpoint import load_checkpoint, save_checkpoint
from roles.engines.training.ranks import Ranks
from roles.ports.engines import Policy
from roles.ports.storage import StorageFullError
from tests.roles.engines.tiny import grpo, model, sampling
from tests.roles.engines.training.batches import batch_of
from tests.roles.engines.training.rank_processes import on_ranks
from tests.worlds.small_disk import small_disk

RUN = RunId(bytes(range(32)))

PASS_TOKENS = 12
"""Some seven passes a batch: more than ranks, and not a multiple of their number."""


def founded(path, section):
    torch.manual_seed(0)
    policy = tensors_of(build_model(configuration("qwen2", section.config), torch.float32, "cpu"))
    return Policy(Version(0), write_policy(policy, path, DTYPES[section.dtype]), path)


def group(count, work, *arguments, section=None, rules=None, **layout):
    """Return the results of ``work`` on all ranks."""
    sections = (section or model(), sampling(), grpo(learning_rate=1e-4, **(rules or {})))
    layout = {"pass_tokens": PASS_TOKENS, "run": RUN} | layout
    return on_ranks(count, work, *arguments, sections=sections, **layout)


async def trained(engine, rank, policy, steps, scratch, repetitions=1):
    """Train, and write policy and state; return all metrics, digests and files."""
    told = []
    for _ in range(repetitions):
        await engine.load_policy(policy)
        for number in range(steps):
            batch = await engine.recompute(policy, batch_of(number))
            told += [await engine.step(batch), await engine.policy_digest()]
        told += [await engine.write_policy(scratch / "policy")]
        await engine.save_state(scratch / "state")
        told += [(scratch / "state").read_bytes()]
    return told, await engine.evaluate([(2, 3, 4)], 5)


def difference(one, other):
    first, second = load_file(one), load_file(other)
    return max(float((first[name].float() - second[name].float()).abs().max()) for name in first)


@pytest.fixture
def scratch(tmp_path):
    def made(name):
        (tmp_path / name).mkdir()
        return tmp_path / name

    return made


@pytest.mark.parametrize(
    ("count", "steps", "section", "layout"),
    [
        (2, 3, model(), {}),
        pytest.param(3, 10, model(), {}, marks=pytest.mark.long),
        (3, 2, model(tie_word_embeddings=True), {"checkpointing": True}),
        (2, 2, model("bf16"), {}),
        (3, 2, model("bf16").model_copy(update={"rounding": "dither"}), {"checkpointing": True}),
    ],
    ids=["fp32", "ten steps", "tied", "bf16", "dithered"],
)
def test_ranks_train_as_one_does(tmp_path, scratch, count, steps, section, layout):
    policy = founded(tmp_path / "base", section)
    layout = {"section": section, "rules": {"updates_per_version": 2}} | layout
    ((alone, answer),) = group(1, trained, policy, steps, scratch("1"), **layout)
    found = group(count, trained, policy, steps, scratch("n"), 2, **layout)
    assert found == [found[0]] * count, "ranks return the same results"
    told, answered = found[0]
    once = len(told) // 2
    assert told[:once] == told[once:], "a repetition is equal to the bit"
    assert difference(tmp_path / "n" / "state", tmp_path / "1" / "state") < 1e-5
    if section.dtype == "fp32":
        assert answered == answer
    for own, expected in zip(told[: 2 * steps : 2], alone[: 2 * steps : 2], strict=True):
        assert own.loss == pytest.approx(expected.loss, abs=1e-5)
        assert own.gradient_norm == pytest.approx(expected.gradient_norm, rel=0.02)
        assert own.entropy == pytest.approx(expected.entropy, rel=1e-3)
        assert own.sequences_used == expected.sequences_used


async def begun(engine, rank, policy, batch):
    await engine.load_policy(policy)
    return await engine.step(await engine.recompute(policy, batch))


@pytest.mark.parametrize("rounding", ["nearest", "dither"])
def test_ratios_of_ranks_are_one_before_the_first_update(tmp_path, rounding):
    section = model("bf16").model_copy(update={"rounding": rounding})
    policy = founded(tmp_path / "base", section)
    for found in group(2, begun, policy, batch_of(), section=section):
        assert found.kl == 0
        assert found.mismatch.mean > 0


def test_a_rank_without_a_pass_adds_nothing(tmp_path):
    """One pass for three ranks: two of them repeat a sample without weight."""
    policy = founded(tmp_path / "base", model())
    (one,), *others = (
        group(count, begun, policy, batch_of(), pass_tokens=10_000)[:1] for count in (1, 3)
    )
    for (found,) in others:
        assert found.loss == pytest.approx(one.loss, abs=1e-6)
        assert found.gradient_norm == pytest.approx(one.gradient_norm, rel=1e-4)
        assert found.entropy == pytest.approx(one.entropy, rel=1e-5)
        assert found.mismatch.mean == pytest.approx(one.mismatch.mean, rel=1e-5)


async def begun_after_a_peak(engine, rank, policy, batch):
    await begun(engine, rank, policy, batch)  # loads modules
    torch.ones(rank * 64 << 20, dtype=torch.uint8)  # freed at once
    return await begun(engine, rank, policy, batch)


def test_the_largest_memory_of_each_rank_is_told(tmp_path):
    policy = founded(tmp_path / "base", model())
    found = group(3, begun_after_a_peak, policy, batch_of())
    peaks = [one.memory_peak_bytes for one in found]
    assert peaks == [peaks[0]] * 3, "ranks return the same results"
    first, second, third = peaks[0]
    assert 100 << 20 < first + (32 << 20) < second < third - (32 << 20) < 4 << 30


def test_nothing_to_learn_from_is_no_update(tmp_path):
    policy = founded(tmp_path / "base", model())
    equal = [replace(one, reward=1.0) for one in batch_of()]
    assert {found.updates for found in group(2, begun, policy, equal)} == {0}


# Files


async def resumed(engine, rank, path, digest, batch, scratch):
    await engine.load_state(path, digest)
    await engine.save_state(scratch / "same")
    same = (scratch / "same").read_bytes() == path.read_bytes()
    await engine.step(batch)
    await engine.save_state(scratch / "state")
    return same, await engine.policy_digest()


def test_any_number_of_ranks_goes_on_from_a_state(tmp_path, scratch):
    policy = founded(tmp_path / "base", model())
    told, _ = group(2, trained, policy, 1, scratch("2"))[0]
    digests = {"alone": told[1], "ranks": told[1]}
    states = {"alone": tmp_path / "2" / "state", "ranks": tmp_path / "2" / "state"}
    for number, count in enumerate((1, 4)):
        for kind, ranks in (("alone", 1), ("ranks", count)):
            directory = scratch(f"{kind} {number}")
            found = group(
                ranks, resumed, states[kind], digests[kind], batch_of(number + 1), directory
            )
            assert found == [found[0]] * ranks
            same, digests[kind] = found[0]
            assert same, "a state has the same bytes from any number of ranks"
            states[kind] = directory / "state"
    assert difference(states["ranks"], states["alone"]) < 1e-6


async def refused(engine, rank, path, digest, policy):
    await engine.load_policy(policy)
    try:
        await engine.load_state(path, digest)
    except ValueError as error:
        return str(error), await engine.policy_digest() == policy.digest
    return "accepted", False


@pytest.mark.parametrize("fault", ["damaged", "inconsistent"])
def test_all_ranks_refuse_what_one_of_them_sees(tmp_path, scratch, fault):
    """The fault is in the last row of a tensor: the last rank has it."""
    policy = founded(tmp_path / "base", model())
    ((told, _),) = group(1, trained, policy, 1, scratch("1"))
    path, digest = tmp_path / "1" / "state", told[1]
    if fault == "damaged":
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)
    else:
        shapes = {name: tuple(one.shape) for name, one in load_file(policy.path).items()}
        state = load_checkpoint(path, shapes)
        state.first_moments["model.embed_tokens.weight"][-1, -1] = 1e6
        save_checkpoint(state, path, shapes)
    found = group(3, refused, path, digest, policy)
    assert found == [found[0]] * 3, "all say the same"
    assert fault in found[0][0]
    assert found[0][1], "the policy before is loaded"


async def saved(engine, rank, policy, path):
    await engine.load_policy(policy)
    try:
        await engine.save_state(path)
    except StorageFullError as error:
        return str(error)
    return None


def test_a_full_disk_fails_a_state_on_all_ranks(tmp_path):
    policy = founded(tmp_path / "base", model())
    with small_disk(tmp_path / "disk", 6_000_000) as disk:
        disk.fill(100_000)
        for one in group(2, saved, policy, disk.path / "state"):
            assert "no room for state" in one
        assert disk.names() == []


# Shares


@given(rows=st.integers(0, 40), count=st.integers(1, 9))
def test_each_row_is_of_one_rank(rows, count):
    tensor = torch.arange(rows * 3).reshape(rows, 3)
    ranks = [Ranks(rank, count) for rank in range(count)]
    assert torch.equal(torch.cat([one.rows(tensor) for one in ranks]), tensor)
    for one in ranks:
        own = one.rows(tensor)
        assert not len(own) or int(own[0, 0]) == 3 * one.first_row(tensor.shape)


@given(st.lists(st.integers(1, 1000), max_size=30), st.integers(1, 5))
def test_each_thing_is_of_one_rank_and_the_shares_are_even(sizes, count):
    shares = [Ranks(rank, count).own(dict(enumerate(sizes))) for rank in range(count)]
    assert sorted(place for share in shares for place in share) == list(range(len(sizes)))
    loads = [sum(sizes[place] for place in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes, default=0)
