"""Outer steps: differences as files, and the same bits on all trainers."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from node.storage import encodings
from protocol.core.types import RunId, Version
from protocol.run.outer_bound import difference_bound, outer_bound
from protocol.run.sections import OuterSection
from protocol.shardcast.movement_bound import MovementBound
from roles.engines.files.policy import digest_of, read_policy
from roles.engines.training.checkpoint import load_checkpoint, save_checkpoint
from roles.engines.training.outer import (
    OuterOptimizer,
    OuterRounds,
    decode,
    difference_layout,
    encode,
    limits_of,
    outer_step,
)
from roles.engines.training.ranks import ALONE, Ranks
from roles.ports.engines import EngineError, Policy
from tests.roles.engines.tiny import grpo, model
from tests.roles.engines.training.batches import batch_of
from tests.roles.engines.training.test_ranks import founded, group

RUN = RunId(bytes(range(32)))

RULE = OuterSection(trainers=2, inner_steps=2, learning_rate=0.7, momentum=0.6)

RULES = {"outer": RULE}

LAYOUT = {"run": RUN}


# Encoding

LIMIT = 0.5

SHAPES = [(7,), (3, 256), (2, 257), (5, 3), (4, 20, 30), (0, 300)]


def some(shape, seed=0):
    """Return values within and beyond the limit, zeros, and one below the normal numbers."""
    torch.manual_seed(seed)
    row = shape[1:] or shape
    values = torch.randn(shape) * torch.logspace(-6, 0, math.prod(row)).reshape(row)
    values.flatten()[::5] = 0
    values.flatten()[:1] = 1e-42
    return values


@pytest.mark.parametrize("encoding", ["int8", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_decoded_difference_is_near_and_within_its_limits(shape, encoding):
    values, limits = some(shape), torch.full(shape, LIMIT)
    made = encode("a", values, limits, encoding)
    layout = difference_layout({"a": shape}, encoding)
    assert {name: tuple(one.shape) for name, one in made.items()} == layout
    found = decode("a", made)
    assert bool((found.abs() <= limits).all())
    within = values.clamp(-LIMIT, LIMIT)
    if encoding == "float32" or len(shape) == 1:
        assert torch.equal(found, within)
        return
    for row, near in zip(found.flatten(1), within.flatten(1), strict=True):
        for decoded, block in zip(row.split(256), near.split(256), strict=True):
            step = float(block.abs().max()) / 127
            assert float((decoded - block).abs().max()) <= 0.51 * step + 1e-43


def test_a_row_of_zeros_has_the_code_zero():
    made = encode("a", torch.zeros(2, 300), torch.ones(2, 300), "int8")
    assert not made["codes/a"].any()
    assert not decode("a", made).any()


def test_a_smaller_limit_of_one_element_holds():
    limits = torch.full((1, 256), LIMIT)
    limits[0, 7] = 0.01
    values = torch.full((1, 256), LIMIT)
    found = decode("a", encode("a", values, limits, "int8"))
    assert 0 < float(found[0, 7]) <= 0.01
    assert float(found[0, 8]) == pytest.approx(LIMIT, rel=0.01)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_the_codes_of_ranks_are_rows_of_the_whole(shape, count):
    values, limits = some(shape), torch.full(shape, LIMIT)
    whole = encode("a", values, limits, "int8")
    shares = [Ranks(rank, count) for rank in range(count)]
    parts = [encode("a", one.rows(values), one.rows(limits), "int8") for one in shares]
    for name, expected in whole.items():
        assert torch.equal(torch.cat([part[name] for part in parts]), expected)


# Feedback

BOUND = MovementBound(updates=1, step=LIMIT, decay=0.0)


class Trainer:
    """Weights of two tensors, without a model."""

    def __init__(self, path, rule=RULE):
        torch.manual_seed(3)
        self.path, self.rule = path, rule
        self.outer = OuterOptimizer(rule, BOUND, {"a": torch.randn(2, 300)}, ALONE)
        self.shapes = {"a": (2, 300)}

    def write(self, difference):
        masters = {"a": self.outer.weights["a"] - difference}
        return self.outer.write(self.path, masters, self.shapes), self.path

    def sent(self):
        return decode("a", load_file(self.path))


def test_what_rounding_leaves_out_is_in_later_differences(tmp_path):
    trainer, total = Trainer(tmp_path / "d"), torch.zeros(2, 300)
    wanted = some((2, 300)).clamp(-0.4, 0.4)
    for _ in range(20):
        trainer.outer.step([trainer.write(wanted)], trainer.shapes)
        total += trainer.sent()
    assert float((total / 20 - wanted).abs().max()) < 0.6 * 0.4 / 127 / 20 + 1e-6


def test_what_a_lost_difference_left_out_is_lost_with_it(tmp_path):
    own, other = Trainer(tmp_path / "own"), Trainer(tmp_path / "other")
    own.write(some((2, 300)))
    own.outer.step([other.write(some((2, 300), seed=1))], own.shapes)
    again = Trainer(tmp_path / "again")
    own.write(torch.full((2, 300), 0.125))
    again.write(torch.full((2, 300), 0.125))
    assert float((own.sent() - again.sent()).abs().max()) < 1e-6


@given(st.lists(st.floats(-LIMIT, LIMIT, width=32), min_size=1, max_size=5), st.floats(0, 0.95))
def test_an_outer_step_is_nesterovs(differences, momentum):
    rule = RULE.model_copy(update={"momentum": momentum})
    outer = OuterOptimizer(rule, BOUND, {"a": torch.ones(1)}, ALONE, {"a": torch.full((1,), 0.3)})
    step = [{"values/a": torch.full((1,), one)} for one in differences]
    outer_step(rule, outer.weights["a"], outer.momentum["a"], "a", step)
    mean = sum(differences) / len(differences)
    buffer = momentum * 0.3 + mean
    assert float(outer.momentum["a"]) == pytest.approx(buffer, abs=1e-6)
    assert float(outer.weights["a"]) == pytest.approx(
        1 - 0.7 * (mean + momentum * buffer), abs=1e-6
    )


# Files of others


def with_scale(tensors, value):
    tensors["scales/a"][1, 0] = value


def another_dtype(tensors):
    tensors["codes/a"] = tensors["codes/a"].float()


FAULTS = {
    "nan": lambda tensors: with_scale(tensors, float("nan")),
    "infinite": lambda tensors: with_scale(tensors, float("inf")),
    "too far": lambda tensors: with_scale(tensors, LIMIT / 126),
    "negative": lambda tensors: with_scale(tensors, -LIMIT / 126),
    "dtype": another_dtype,
    "more": lambda tensors: tensors.update({"codes/b": torch.zeros(2, 2, dtype=torch.int8)}),
    "missing": lambda tensors: tensors.pop("scales/a"),
    "damaged": None,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_step_refuses_a_file_and_changes_nothing(tmp_path, fault):
    trainer = Trainer(tmp_path / "d")
    good = trainer.write(torch.full((2, 300), 0.9 * LIMIT))
    tensors, path = load_file(trainer.path), tmp_path / "bad"
    change = FAULTS[fault]
    if change is not None:
        change(tensors)
    save_file(tensors, path)
    digest = digest_of(tensors)
    if change is None:
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    before = trainer.outer.weights["a"].clone()
    with pytest.raises(ValueError, match=str(path)):
        trainer.outer.step([good, (digest, path)], trainer.shapes)
    assert torch.equal(trainer.outer.weights["a"], before)
    assert not trainer.outer.momentum["a"].any()
    trainer.outer.step([good], trainer.shapes)


def test_codes_are_no_policy(tmp_path):
    codes = {"a": torch.zeros(2, 3, dtype=torch.int8)}
    save_file(codes, tmp_path / "policy")
    with pytest.raises(ValueError, match="tensors of the configured model"):
        read_policy(tmp_path / "policy", digest_of(codes), {"a": (2, 3)})


def test_a_step_without_differences_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no difference"):
        Trainer(tmp_path / "d").outer.step([], {})


# Engines


async def trained(engine, seeds, path):
    for seed in seeds:
        assert (await engine.step(batch_of(seed))).updates
    return await engine.write_difference(path), path


async def round_of(engines, number, directory):
    """Train a round with other batches on each engine, and join them; return the files."""
    files = [
        await trained(engine, (100 * number + place, 7 + place), directory / f"{number}-{place}")
        for place, engine in enumerate(engines)
    ]
    for engine in engines:
        await engine.apply_differences(files)
    return files


def shapes_in(path):
    return {name: tuple(one.shape) for name, one in load_file(path).items()}


def bits_of(state):
    """Return what outer steps make of a state: weights and momentum."""
    return digest_of(state.weights), digest_of(state.outer_momentum)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
async def test_trainers_with_other_batches_have_equal_bits(make, policies, tmp_path, dtype):
    engines = [await make(dtype, layout=LAYOUT, outer=RULE) for _ in range(2)]
    shapes, states = shapes_in(policies[0].path), []
    for number in range(2):
        await round_of(engines, number, tmp_path)
        digests = {await engine.policy_digest() for engine in engines}
        assert len(digests) == 1
    for place, engine in enumerate(engines):
        await engine.save_state(tmp_path / f"state-{place}")
        states.append(load_checkpoint(tmp_path / f"state-{place}", shapes, outer=True))
    assert bits_of(states[0]) == bits_of(states[1])
    assert digest_of(states[0].first_moments) != digest_of(states[1].first_moments)
    assert states[0].version == 2
    assert states[0].steps == 4
    policy = await engines[0].write_policy(tmp_path / "policy")
    assert policy in digests


async def test_a_trainer_goes_on_from_another_ones_state(make, policies, tmp_path):
    first, second = [await make(outer=RULE) for _ in range(2)]
    await round_of([first], 0, tmp_path)
    state = tmp_path / "state"
    await first.save_state(state)
    await second.load_state(state, await first.policy_digest())
    await round_of([first, second], 1, tmp_path)
    assert await first.policy_digest() == await second.policy_digest()


async def test_a_state_is_refused(make, policies, tmp_path):
    engine, plain = await make(outer=RULE), await make()
    await round_of([engine], 0, tmp_path)
    path, shapes = tmp_path / "state", shapes_in(policies[0].path)
    await engine.save_state(path)
    digest = await engine.policy_digest()
    with pytest.raises(ValueError, match="tensors of the configured model"):
        await plain.load_state(path, digest)
    with pytest.raises(ValueError, match="momentum is not that of"):
        await engine.load_state(path, digest, policies[0])
    state = load_checkpoint(path, shapes, outer=True)
    name = "model.norm.weight"
    limit = limits_of(difference_bound(grpo(), RULE), state.weights[name])[0] / (1 - RULE.momentum)
    for share, accepted in ((1.005, True), (1.02, False), (float("nan"), False)):
        state.outer_momentum[name][0] = -limit * share
        save_checkpoint(state, path, shapes)
        if accepted:
            await engine.load_state(path, digest)
        else:
            with pytest.raises(ValueError, match="outer momentum"):
                await engine.load_state(path, digest)
    state.outer_momentum[name][0] = 0
    for steps, version in ((2001, 1), (2, 1001), (-1, 1), (2, -1)):
        save_checkpoint(replace(state, steps=steps, version=version), path, shapes)
        with pytest.raises(ValueError, match="more than the run has"):
            await engine.load_state(path, digest)


async def test_a_round_has_its_steps_and_no_state(make, tmp_path):
    engine = await make(outer=RULE)
    files = [await trained(engine, (1, 2), tmp_path / "d")]
    with pytest.raises(EngineError, match="round has its 2 steps"):
        await engine.begin_step(batch_of())
    with pytest.raises(EngineError, match="beginning"):
        await engine.save_state(tmp_path / "state")
    await engine.apply_differences(files)
    await engine.save_state(tmp_path / "state")
    plain = await make()
    with pytest.raises(EngineError, match="no outer steps"):
        await plain.write_difference(tmp_path / "d")
    await plain.save_state(tmp_path / "plain")
    assert not any("outer" in name for name in load_file(tmp_path / "plain"))


async def test_the_schedule_counts_the_steps_of_all_rounds(make, tmp_path):
    engine = await make(outer=RULE, schedule="linear", steps=2, learning_rate=1.0)
    rates = []
    for number in range(2):
        rates += [(await engine.step(batch_of(seed))).learning_rate for seed in range(2)]
        await engine.apply_differences([await trained(engine, (), tmp_path / f"{number}")])
    assert rates == [1.0, 0.75, 0.5, 0.25]


def test_rules_without_a_bound_are_refused():
    with pytest.raises(ValueError, match="without bound"):
        OuterRounds(RULE, grpo(adam_betas=(0.9, 0.8)), ALONE)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
async def test_no_differences_move_a_version_beyond_its_bound(make, policies, tmp_path, dtype):
    rule = RULE.model_copy(update={"encoding": "float32"})
    engine = await make(dtype, layout=LAYOUT, outer=rule, weight_decay=0.1)
    settings = grpo(weight_decay=0.1)
    own, limit = difference_bound(settings, rule), outer_bound(settings, rule, 1)
    base = replace(policies[0], path=tmp_path / "v0")
    base = replace(base, digest=await engine.write_policy(base.path))
    for version in range(1, 12):
        await engine.save_state(tmp_path / "state")
        state = load_checkpoint(tmp_path / "state", shapes_in(base.path), outer=True)
        far = {f"values/{name}": limits_of(own, one) for name, one in state.weights.items()}
        save_file(far, tmp_path / "far")
        await engine.apply_differences([(digest_of(far), tmp_path / "far")])
        path = tmp_path / f"v{version}"
        new = Policy(Version(version), await engine.write_policy(path), path)
        assert encodings.excess_of(new.path, base, limit) is None
        last, base = base, new
    smaller = replace(limit, step=0.97 * limit.step)
    assert encodings.excess_of(base.path, last, smaller) is not None


# Ranks


async def one_round(engine, rank, policy, other, scratch):
    await engine.load_policy(policy)
    own = await trained(engine, (1, 2), scratch / "own")
    await engine.apply_differences([own, other])
    await engine.save_state(scratch / "state")
    return own, await engine.policy_digest()


async def refused(engine, rank, policy, file):
    await engine.load_policy(policy)
    try:
        await engine.apply_differences([file])
    except ValueError as error:
        return str(error), await engine.policy_digest() == policy.digest
    return "accepted", False


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
async def test_any_number_of_ranks_gets_equal_bits(make, tmp_path, dtype):
    policy = founded(tmp_path / "base", model(dtype))
    alone = await make(dtype, layout=LAYOUT, outer=RULE, learning_rate=1e-4)
    await alone.load_policy(policy)
    other = await trained(alone, (3, 4), tmp_path / "other")
    found = group(2, one_round, policy, other, tmp_path, section=model(dtype), rules=RULES)
    assert found == [found[0]] * 2
    own, digest = found[0]
    await alone.apply_differences([own, other])
    assert await alone.policy_digest() == digest
    await alone.save_state(tmp_path / "alone")
    shapes = shapes_in(policy.path)
    states = [load_checkpoint(tmp_path / name, shapes, outer=True) for name in ("alone", "state")]
    assert bits_of(states[0]) == bits_of(states[1])


async def test_all_ranks_refuse_a_difference_that_one_of_them_sees(make, tmp_path):
    """The fault is in the last row of a tensor: the last rank has it."""
    policy = founded(tmp_path / "base", model())
    alone = await make(layout=LAYOUT, outer=RULE, learning_rate=1e-4)
    _, path = await trained(alone, (3,), tmp_path / "other")
    tensors = load_file(path)
    tensors["scales/lm_head.weight"][-1] = 1.0
    save_file(tensors, path)
    found = group(2, refused, policy, (digest_of(tensors), path), rules=RULES)
    assert found == [found[0]] * 2
    assert "farther than training may" in found[0][0]
    assert found[0][1], "the round goes on"
