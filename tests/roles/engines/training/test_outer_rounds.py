"""Rounds of a training engine: begun again, without steps, checked, and while files are written."""

import asyncio
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from roles.engines.files.policy import digest_of
from roles.engines.training import engine as engine_module
from roles.engines.training.checkpoint import load_checkpoint
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import EngineError
from tests.roles.engines.tiny import grpo, model, sampling
from tests.roles.engines.training.batches import batch_of
from tests.roles.engines.training.test_outer import (
    LAYOUT,
    RULE,
    RULES,
    bits_of,
    round_of,
    shapes_in,
    trained,
)
from tests.roles.engines.training.test_ranks import founded, group

every_dtype = pytest.mark.parametrize("dtype", ["fp32", "bf16"])


async def two(make, dtype="fp32", **values):
    return [await make(dtype, layout=LAYOUT, outer=RULE, **values) for _ in range(2)]


async def saved(engine, path, policy):
    await engine.save_state(path)
    return load_checkpoint(path, shapes_in(policy.path), outer=True)


@every_dtype
async def test_a_round_that_begins_again_has_the_weights_of_its_beginning(
    make, policies, tmp_path, dtype
):
    engine, other = await two(make, dtype)
    await round_of([engine, other], 0, tmp_path)
    before = await other.policy_digest()
    for seed in (1, 2):
        await engine.step(batch_of(seed))
    assert await engine.policy_digest() != before
    await engine.begin_round()
    assert await engine.policy_digest() == before
    state, plain = [
        await saved(one, tmp_path / f"state-{place}", policies[0])
        for place, one in enumerate((engine, other))
    ]
    assert bits_of(state) == bits_of(plain)
    assert (state.version, state.steps, plain.steps) == (1, 4, 2), "the moments stay"
    await engine.load_state(tmp_path / "state-0", before)
    found, expected = [await one.step(batch_of(9)) for one in (engine, other)]
    assert found.loss == expected.loss, "the model computes with these weights"
    await trained(engine, (1,), tmp_path / "full")
    with pytest.raises(EngineError, match="round has its 2 steps"):
        await engine.begin_step(batch_of())


async def test_updates_of_repeated_rounds_do_not_exceed_those_of_the_run(make, policies, tmp_path):
    engine = await make(outer=RULE, steps=2)
    for _ in range(3):
        await engine.begin_round()
        await trained(engine, (1, 2), tmp_path / "own")
    await engine.begin_round()
    state = await saved(engine, tmp_path / "state", policies[0])
    assert (state.version, state.steps) == (0, 4)
    await engine.load_state(tmp_path / "state", policies[0].digest)


async def test_a_step_that_has_begun_is_dropped(make, tmp_path):
    engine, other = await two(make)
    await engine.begin_step(batch_of(3))
    await engine.begin_round()
    with pytest.raises(EngineError, match="no step has begun"):
        await engine.end_step()
    for one in (engine, other):
        assert (await one.step(batch_of(4))).updates
    assert await engine.policy_digest() == await other.policy_digest()


@pytest.mark.parametrize("own", ["no step", "one step", "a begun step", "a file that is left out"])
async def test_a_trainer_takes_the_outer_step_wherever_it_is_in_its_round(
    make, policies, tmp_path, own
):
    engine, other = await two(make, "bf16")
    await round_of([engine, other], 0, tmp_path)
    file = await trained(other, (5, 6), tmp_path / "other")
    if own == "one step":
        await engine.step(batch_of(1))
    elif own == "a begun step":
        await engine.begin_step(batch_of(1))
    elif own == "a file that is left out":
        await trained(engine, (1, 2), tmp_path / "own")
    for one in (engine, other):
        await one.apply_differences([file])
    states = [
        await saved(one, tmp_path / f"state-{place}", policies[0])
        for place, one in enumerate((engine, other))
    ]
    assert bits_of(states[0]) == bits_of(states[1])
    assert await engine.policy_digest() == await other.policy_digest()
    with pytest.raises(EngineError, match="no step has begun"):
        await engine.end_step()
    await round_of([engine, other], 2, tmp_path)
    assert await engine.policy_digest() == await other.policy_digest()


async def test_a_loaded_policy_has_no_momentum_and_a_loaded_state_has(make, policies, tmp_path):
    engine, other = await two(make)
    await round_of([engine], 0, tmp_path)
    state = await saved(engine, tmp_path / "state", policies[0])
    assert any(bool(one.any()) for one in state.outer_momentum.values())
    digest = await engine.policy_digest()
    await other.load_state(tmp_path / "state", digest)
    assert bits_of(await saved(other, tmp_path / "again", policies[0])) == bits_of(state)
    await other.load_policy(policies[0])
    fresh = await saved(other, tmp_path / "fresh", policies[0])
    assert not any(bool(one.any()) for one in fresh.outer_momentum.values())


async def test_a_difference_is_checked_and_changes_nothing(make, tmp_path):
    engine, other = await two(make)
    digest, path = await trained(other, (1, 2), tmp_path / "d")
    await engine.step(batch_of(7))
    await engine.begin_step(batch_of(8))
    await engine.check_difference(digest, path)
    tensors = load_file(path)
    tensors["scales/lm_head.weight"][-1] = 1.0
    save_file(tensors, tmp_path / "far")
    faults = {
        "does not hold the difference": (bytes(32), path),
        "farther than training may": (digest_of(tensors), tmp_path / "far"),
        "missing": (digest, tmp_path / "missing"),
    }
    before = await engine.policy_digest()
    for match, (claim, file) in faults.items():
        with pytest.raises(ValueError, match=match):
            await engine.check_difference(claim, file)
        with pytest.raises(ValueError, match=match):
            await engine.apply_differences([(digest, path), (claim, file)])
    with pytest.raises(ValueError, match="no difference"):
        await engine.apply_differences([])
    assert await engine.policy_digest() == before
    assert (await engine.end_step()).updates, "the begun step goes on"
    await engine.apply_differences([(digest, path)])


async def test_a_run_without_outer_steps_has_no_rounds(make, tmp_path):
    engine, path = await make(), tmp_path / "d"
    for call in (
        engine.begin_round(),
        engine.write_difference(path),
        engine.check_difference(bytes(32), path),
        engine.apply_differences([]),
    ):
        with pytest.raises(RuntimeError, match=r"no outer steps \(grpo.outer\)"):
            await call


async def test_files_of_a_version_are_written_while_the_next_round_computes_its_gradient(
    make, policies, tmp_path, monkeypatch
):
    engine, other = await two(make)
    await round_of([engine, other], 0, tmp_path)
    expected = await other.write_policy(tmp_path / "expected")
    begun, write_rows = threading.Event(), engine_module.write_rows

    def late(*arguments, **options):
        assert begun.wait(60)
        return write_rows(*arguments, **options)

    monkeypatch.setattr(engine_module, "write_rows", late)
    writing = asyncio.create_task(engine.write_policy(tmp_path / "policy"))
    saving = asyncio.create_task(engine.save_state(tmp_path / "state"))
    await asyncio.sleep(0)
    await engine.begin_round()
    await engine.begin_step(batch_of(2))
    assert not writing.done()
    begun.set()
    assert await writing == expected
    await saving
    await other.load_state(tmp_path / "state", expected)
    state = load_checkpoint(tmp_path / "state", shapes_in(policies[0].path), outer=True)
    assert (state.version, state.steps) == (1, 2)
    assert (await engine.end_step()).updates


# Any sequence of calls


CALLS = st.lists(
    st.tuples(st.sampled_from([0, 1]), st.sampled_from(["step", "begin", "again", "check"]))
    | st.tuples(st.just(-1), st.sampled_from(["apply", "apply reversed", "apply one"])),
    max_size=14,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(CALLS)
def test_after_each_outer_step_all_trainers_have_equal_weights(tmp_path, policies, calls):
    engines = [
        TorchTrainingEngine(model(), sampling(), grpo(outer=RULE), **LAYOUT) for _ in range(2)
    ]
    try:
        asyncio.run(played(engines, policies[0], calls, tmp_path))
    finally:
        for engine in engines:
            engine.close()


async def played(engines, policy, calls, directory):
    """Make calls of single trainers, and outer steps of both; compare digests at each beginning."""
    for engine in engines:
        await engine.load_policy(policy)
    known, steps, files = policy.digest, [0, 0], []
    for number, (place, call) in enumerate(calls):
        if place < 0:
            files = [await trained(one, (), directory / f"{n}") for n, one in enumerate(engines)]
            files = {"apply": files, "apply one": files[1:]}.get(call, files[::-1])
            for engine in engines:
                await engine.apply_differences(files)
            digests = {await engine.policy_digest() for engine in engines}
            assert len(digests) == 1
            (known,), steps = digests, [0, 0]
            continue
        engine = engines[place]
        if call == "again":
            await engine.begin_round()
            steps[place] = 0
        elif call == "check" and files:
            await engine.check_difference(*files[0])
        elif call in ("step", "begin") and steps[place] < RULE.inner_steps:
            await engine.begin_step(batch_of(number))
            if call == "step":
                await engine.end_step()
                steps[place] += 1
        assert (await engine.policy_digest() == known) == (steps[place] == 0)


# Ranks


async def rounds_of_ranks(engine, rank, policy, other, scratch):
    """Make a round, begin it again, check and apply; return what all ranks must agree on."""
    await engine.load_policy(policy)
    await engine.step(batch_of(1))
    await engine.begin_round()
    found = [await engine.policy_digest()]
    digest, path = await trained(engine, (1, 2), scratch / "own")
    await engine.check_difference(*other)
    try:
        await engine.check_difference(digest, other[1])
    except ValueError as error:
        found.append(str(error))
    await engine.apply_differences([other, (digest, path)])
    return [*found, digest, await engine.policy_digest()]


@every_dtype
async def test_ranks_begin_check_and_apply_together(make, tmp_path, dtype):
    policy = founded(tmp_path / "base", model(dtype))
    alone = await make(dtype, layout=LAYOUT, outer=RULE, learning_rate=1e-4)
    await alone.load_policy(policy)
    other = await trained(alone, (3, 4), tmp_path / "other")
    found = group(2, rounds_of_ranks, policy, other, tmp_path, section=model(dtype), rules=RULES)
    assert found == [found[0]] * 2
    begun, refusal, own, applied = found[0]
    assert begun == policy.digest
    assert "does not hold the difference" in refusal
    await alone.apply_differences([other, (own, tmp_path / "own")])
    assert await alone.policy_digest() == applied
