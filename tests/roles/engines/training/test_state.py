"""State from which a trainer resumes: its own after a crash, or another trainer's."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from protocol.core.types import Version
from roles.engines.training.checkpoint import load_checkpoint, save_checkpoint
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import Policy
from tests.roles.engines.tiny import grpo, model, sampling
from tests.roles.engines.training.batches import batch_of, shapes_of_state

STEPS = 3


@pytest.fixture
async def trained(make, tmp_path):
    """Return an engine after some steps, its policy digest, and the path of its state."""
    engine = await make(warmup_steps=5)
    for seed in range(STEPS):
        assert (await engine.step(batch_of(seed))).updates
    policy = await engine.write_policy(tmp_path / "policy")
    await engine.save_state(tmp_path / "state")
    return engine, policy, tmp_path / "state"


def shapes_in(path):
    """Return the shapes of the parameters in a state file."""
    return {
        name.removeprefix("weights/"): tuple(tensor.shape)
        for name, tensor in load_file(path).items()
        if name.startswith("weights/")
    }


def edited(path, **changes):
    """Write a state with some other fields, as a dishonest trainer would."""
    state = load_checkpoint(path, shapes_in(path))
    lies = {key: change(getattr(state, key)) for key, change in changes.items()}
    save_checkpoint(replace(state, **lies), path, shapes_of_state(state))


def every(function):
    return lambda tensors: {name: function(tensor) for name, tensor in tensors.items()}


async def test_a_resumed_trainer_takes_the_identical_next_step(make, trained, tmp_path):
    engine, policy, path = trained
    resumed = await make(warmup_steps=5)
    await resumed.load_state(path, policy)
    for seed in (3, 4):
        assert await resumed.step(batch_of(seed)) == await engine.step(batch_of(seed))
    digests = [await one.write_policy(tmp_path / "p") for one in (engine, resumed)]
    assert digests[0] == digests[1]


async def test_a_state_goes_on_with_the_weights_of_a_later_policy(make, trained, tmp_path):
    engine, policy, path = trained
    moments = [load_checkpoint(path, shapes_in(path))]
    await engine.step(batch_of(3))
    later = tmp_path / "later.safetensors"
    newer = Policy(Version(9), await engine.write_policy(later), later)
    heir, fresh = await make(), await make()
    await heir.load_state(path, policy, newer)
    await fresh.load_policy(newer)
    await heir.save_state(tmp_path / "heir")
    moments.append(load_checkpoint(tmp_path / "heir", shapes_in(path)))
    for key in ("first_moments", "second_moments"):
        before, after = (getattr(state, key) for state in moments)
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert moments[1].steps == moments[0].steps > 0
    assert await heir.write_policy(tmp_path / "p") == newer.digest
    assert await heir.step(batch_of(4)) is not None
    await fresh.step(batch_of(4))
    digests = {await one.write_policy(tmp_path / "p") for one in (heir, fresh)}
    assert len(digests) == 2, "the moments make another step"
    with pytest.raises(ValueError, match="does not hold the policy"):
        await heir.load_state(path, policy, replace(newer, digest=policy))
    assert await heir.write_policy(tmp_path / "q") in digests, "it is unchanged"


async def test_a_state_from_before_the_first_step_is_a_fresh_start(make, policies, tmp_path):
    engine, resumed = await make(), await make()
    await engine.save_state(tmp_path / "state")
    await resumed.load_state(tmp_path / "state", policies[0].digest)
    assert await resumed.step(batch_of()) == await engine.step(batch_of())
    assert await resumed.write_policy(tmp_path / "a") == await engine.write_policy(tmp_path / "b")


async def test_every_setting_of_the_optimizer_is_the_manifests(make, trained):
    """Another trainer's state supplies moments and progress; the run fixes their use."""
    _, policy, path = trained
    assert {name.partition("/")[0] for name in load_file(path)} == {
        "weights",
        "first_moments",
        "second_moments",
    }
    resumed = await make(weight_decay=0.25, adam_betas=(0.9, 0.95), learning_rate=7e-4)
    fresh = await make(weight_decay=0.25, adam_betas=(0.9, 0.95), learning_rate=7e-4)
    await resumed.load_state(path, policy)
    (group,), (expected,) = (
        [
            {key: value for key, value in one.items() if key != "params"}
            for one in engine._loaded().optimizer.param_groups
        ]
        for engine in (resumed, fresh)
    )
    assert group == expected
    assert (group["weight_decay"], group["lr"], group["maximize"]) == (0.25, 7e-4, False)


async def test_weights_of_another_policy_are_refused(make, trained, policies):
    engine, policy, path = trained
    edited(path, weights=every(lambda tensor: tensor + 0.1))
    successor = await make()
    with pytest.raises(ValueError, match="does not hold the weights"):
        await successor.load_state(path, policy)
    assert await successor.write_policy(path.parent / "p") == policies[0].digest, "it is unchanged"
    await engine.save_state(path)
    with pytest.raises(ValueError, match="does not hold the weights"):
        await successor.load_state(path, policies[0].digest)
    await successor.load_state(path, policy)


async def test_bf16_policies_come_from_float32_states(make, tmp_path):
    engine, resumed = await make("bf16"), await make("bf16")
    await engine.step(batch_of())
    policy = await engine.write_policy(tmp_path / "policy")
    await engine.save_state(tmp_path / "state")
    assert {tensor.dtype for tensor in load_file(tmp_path / "state").values()} == {torch.float32}
    await resumed.load_state(tmp_path / "state", policy)
    assert await resumed.step(batch_of(1)) == await engine.step(batch_of(1))


LIES = {
    "infinite": {"first_moments": every(lambda tensor: tensor * math.inf)},
    "not a number": {"second_moments": every(lambda tensor: tensor * math.nan)},
    "negative": {"second_moments": every(torch.neg)},
    "a step without bound": {"second_moments": every(torch.zeros_like)},
    "a huge direction": {"first_moments": every(lambda tensor: tensor * 100)},
    "negative progress": {"steps": lambda _: -1},
    "more progress than the run has": {"steps": lambda _: 2**53},
    "fewer versions than updates": {"version": lambda _: 2},
    "more versions than the run has": {"version": lambda _: 2**53},
}


@pytest.mark.parametrize("lie", LIES)
async def test_what_no_gradients_make_is_refused(make, trained, lie):
    _, policy, path = trained
    edited(path, **LIES[lie])
    successor = await make()
    with pytest.raises(ValueError, match=r"moments|steps"):
        await successor.load_state(path, policy)
    assert (await successor.step(batch_of())).updates


@pytest.mark.parametrize(("updates", "is_possible"), [(2, True), (1, False)])
async def test_progress_is_bounded_by_the_updates_of_all_versions(
    make, tmp_path, updates, is_possible
):
    engine = await make(updates_per_version=2, steps=1)
    assert (await engine.step(batch_of())).updates == 2
    policy = await engine.write_policy(tmp_path / "policy")
    await engine.save_state(tmp_path / "state")
    successor = await make(updates_per_version=updates, steps=1)
    if is_possible:
        await successor.load_state(tmp_path / "state", policy)
        assert await successor.step(batch_of(1)) == await engine.step(batch_of(1))
    else:
        with pytest.raises(ValueError, match="claims 2 steps"):
            await successor.load_state(tmp_path / "state", policy)


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.0, 0.5), (0.9, 0.999), (0.99, 0.9), (0.0, 0.0)])
async def test_the_moments_of_an_honest_trainer_are_believed(make, tmp_path, betas):
    """Gradients that change size and sign at each step are the hardest case for the bound."""
    engine, successor = await make(adam_betas=betas), await make(adam_betas=betas)
    for seed in range(12):
        batch = batch_of(seed)
        rare = [replace(one, reward=one.reward * 10.0 ** -(seed % 4)) for one in batch]
        await engine.step(rare if seed % 3 else batch)
    policy = await engine.write_policy(tmp_path / "policy")
    await engine.save_state(tmp_path / "state")
    await successor.load_state(tmp_path / "state", policy)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("first_moments/lm_head.weight"),
        lambda tensors: tensors.update({"param_groups/lr": torch.ones(1)}),
        lambda tensors: tensors.update({"weights/model.norm.weight": torch.ones(63)}),
        lambda tensors: tensors.update({"weights/model.norm.weight": torch.ones(64).half()}),
    ],
    ids=["one missing", "one more", "another shape", "another dtype"],
)
async def test_a_state_holds_exactly_the_parameters(make, trained, change):
    _, policy, path = trained
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "3", "steps": "3", "version": "3", "digest": "00"})
    with pytest.raises(ValueError, match=r"configured model|float32"):
        await (await make()).load_state(path, policy)


@pytest.mark.parametrize("steps", [None, "", "three", "3.0", "9" * 5000])
async def test_progress_is_a_number(make, trained, steps):
    _, policy, path = trained
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    metadata.pop("steps")
    save_file(load_file(path), path, metadata | ({} if steps is None else {"steps": steps}))
    with pytest.raises(ValueError, match=r"invalid literal|Exceeds the limit"):
        await (await make()).load_state(path, policy)


@pytest.mark.parametrize(
    "damage", ["truncated", "one moment", "empty", "absent", "pickle", "older"]
)
async def test_a_damaged_state_is_refused_and_the_trainer_goes_on(trained, damage):
    engine, policy, path = trained
    data = bytearray(path.read_bytes())
    if damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "one moment":
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
        tensors = load_file(path)
        tensors["first_moments/lm_head.weight"] *= 0.99
        save_file(tensors, path, metadata)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "absent":
        path.unlink()
    elif damage == "pickle":
        torch.save({"format": 2, "model": {}}, path)
    else:
        save_file(load_file(path), path, {"format": "1"})
    with pytest.raises(ValueError, match="state"):
        await engine.load_state(path, policy)
    assert (await engine.step(batch_of())).updates


async def test_the_state_of_another_model_is_refused(trained):
    _, policy, path = trained
    other = TorchTrainingEngine(model(hidden_size=32), sampling(), grpo())
    with pytest.raises(ValueError, match="configured model"):
        await other.load_state(path, policy)
    other.close()


async def test_a_state_fits_its_limit_and_little_more_does(trained):
    """The size of the model bounds the download of another trainer's state."""
    engine, _, path = trained
    weights_bytes = sum(4 * math.prod(shape) for shape in shapes_in(path).values())
    assert 3 * weights_bytes < path.stat().st_size <= await engine.state_bytes_max()
    large = TorchTrainingEngine(model(hidden_size=512, intermediate_size=2048), sampling(), grpo())
    assert await large.state_bytes_max() < 3.01 * 4 * parameters(large)
    large.close()


def parameters(engine):
    return sum(math.prod(shape) for shape in engine._shapes.values())
