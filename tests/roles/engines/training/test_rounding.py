"""Policies rounded by thresholds: on tensors, and in the training engine."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from protocol.core.types import RunId, Version
from protocol.run.policy import CHECK_VECTORS, LARGEST, rounded, threshold, threshold_keys
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.files.policy import write_policy
from roles.engines.training import rounding
from roles.engines.training.batch import select
from roles.engines.training.engine import TorchTrainingEngine
from roles.engines.training.rounding import Dither
from roles.ports.engines import Policy
from tests.roles.engines.sampling.test_gumbel_noise import DEVICES
from tests.roles.engines.tiny import CONFIG, grpo, model, sampling
from tests.roles.engines.training.batches import batch_of

RUN, OTHER_RUN = RunId(b"\x5a" * 32), RunId(b"\xa5" * 32)
STEPS = 8

SPECIAL = (0, 1, 0x7FFFFF, LARGEST, LARGEST + 1, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF)
patterns = st.one_of(
    st.integers(0, LARGEST),
    st.sampled_from(SPECIAL),
    st.sampled_from(SPECIAL).map(lambda pattern: pattern | 1 << 31),
)


def floats(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64).to(torch.int32).view(torch.float32)


def words(tensor: torch.Tensor) -> list[int]:
    return [word % 2**16 for word in tensor.reshape(-1).cpu().view(torch.int16).tolist()]


def expected(name, values):
    keys = threshold_keys(RUN, name)
    return [rounded(value, threshold(keys, index)) for index, value in enumerate(values)]


@given(st.lists(patterns, min_size=1, max_size=40), st.sampled_from([2, 6, 2**17]))
def test_tensors_are_rounded_as_the_reference_does_in_any_slices(values, slice_weights):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "SLICE_WEIGHTS", slice_weights)
        policy = Dither(RUN)("model.norm.weight", floats(values))
    assert policy.dtype == torch.bfloat16
    assert words(policy) == expected("model.norm.weight", values)


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_rounds_alike(device):
    torch.manual_seed(0)
    masters = torch.randn(300, 1001) * 0.02
    policy = Dither(RUN)("w", masters.to(device))
    assert (policy.shape, policy.device.type) == (masters.shape, device)
    assert words(policy) == expected(
        "w", [v % 2**32 for v in masters.view(torch.int32).flatten().tolist()]
    )


@pytest.mark.parametrize("device", DEVICES)
def test_thresholds_are_those_of_the_vectors(device):
    for byte, name, index, value in CHECK_VECTORS:
        own = Dither(RunId(bytes([byte]) * 32))
        assert own.thresholds(name, index, 1, torch.device(device)).tolist() == [value]


@given(st.sampled_from([0, 2**32 - 20, 2**33 - 20]), st.integers(0, 40), st.integers(1, 40))
def test_a_part_of_a_tensor_has_the_thresholds_of_the_whole(offset, begin, count):
    keys = threshold_keys(RUN, "w")
    own = Dither(RUN).thresholds("w", offset + begin, count, torch.device("cpu")).tolist()
    assert own == [threshold(keys, offset + begin + index) for index in range(count)]


@pytest.fixture
def base(tmp_path):
    """Return a first policy on the grid of bf16."""
    torch.manual_seed(0)
    network = build_model(configuration("qwen2", CONFIG), torch.float32, "cpu")
    path = tmp_path / "base.safetensors"
    return Policy(Version(0), write_policy(tensors_of(network), path, torch.bfloat16), path)


@pytest.fixture
async def founded(base):
    engines = []

    async def one(rounding="dither", run=RUN, **values):
        section = model("bf16").model_copy(update={"rounding": rounding})
        engine = TorchTrainingEngine(section, sampling(), grpo(**values), run=run)
        engines.append(engine)
        await engine.load_policy(base)
        return engine

    yield one
    for engine in engines:
        engine.close()


async def test_the_first_policy_is_the_base_bit_for_bit(founded, base, tmp_path):
    engine = await founded()
    assert await engine.policy_digest() == base.digest
    assert await engine.write_policy(tmp_path / "again") == base.digest


async def test_a_policy_is_what_the_masters_of_its_state_round_to(founded, tmp_path):
    engine = await founded()
    await engine.step(batch_of())
    digest = await engine.policy_digest()
    assert await engine.write_policy(tmp_path / "policy") == digest
    await engine.save_state(tmp_path / "state")
    masters, policy = load_file(tmp_path / "state"), load_file(tmp_path / "policy")
    for name, weights in policy.items():
        values = [
            v % 2**32 for v in masters[f"weights/{name}"].view(torch.int32).flatten().tolist()
        ]
        assert words(weights) == expected(name, values), name
    assert any(
        not torch.equal(masters[f"weights/{name}"].bfloat16(), weights)
        for name, weights in policy.items()
    ), "to nearest it would be another one"


async def test_a_standby_resumes_the_state_of_its_own_run_alone(founded, tmp_path):
    leader, standby, foreign = await founded(), await founded(), await founded(run=OTHER_RUN)
    await leader.step(batch_of())
    digest = await leader.policy_digest()
    await leader.save_state(tmp_path / "state")
    await standby.load_state(tmp_path / "state", digest)
    assert await standby.policy_digest() == digest
    assert await standby.step(batch_of(1)) == await leader.step(batch_of(1))
    assert await standby.policy_digest() == await leader.policy_digest()
    for other in (foreign, await founded("nearest")):
        with pytest.raises(ValueError, match="does not hold the weights of policy"):
            await other.load_state(tmp_path / "state", digest)


@pytest.mark.parametrize("how", ["dither", "nearest"])
async def test_the_ratio_of_the_published_policy_is_one(founded, tmp_path, how):
    """At ratio one the loss of a token is its advantage, to the last place of their sum."""
    engine = await founded(how, learning_rate=1e-3)
    for seed in range(3):
        await engine.step(batch_of(seed))
    path = tmp_path / "policy"
    policy = Policy(Version(3), await engine.write_policy(path), path)
    batch = await engine.recompute(policy, batch_of(3))
    metrics = await engine.step(batch)
    samples = select(batch)
    tokens = sum(len(one.tokens) for one in samples)
    mean = sum(one.advantage * len(one.tokens) for one in samples) / tokens
    assert metrics.loss == pytest.approx(-mean, abs=1e-7)
    assert metrics.clip_low_fraction == metrics.clip_high_fraction == 0


@pytest.mark.parametrize(("how", "least", "most"), [("dither", 0.9, 1.1), ("nearest", 0.0, 0.35)])
async def test_a_dithered_policy_moves_as_its_masters_do(founded, base, tmp_path, how, least, most):
    """The policy's movement projected on the masters' movement, relative to its length."""
    engine = await founded(how, learning_rate=1e-5, warmup_steps=0)
    for seed in range(STEPS):
        await engine.step(batch_of(seed))
    await engine.write_policy(tmp_path / "policy")
    await engine.save_state(tmp_path / "state")
    first, policy, state = map(load_file, (base.path, tmp_path / "policy", tmp_path / "state"))
    along = squares = 0.0
    for name, before in first.items():
        masters = state[f"weights/{name}"].double() - before.double()
        along += float(((policy[name].double() - before.double()) * masters).sum())
        squares += float(masters.square().sum())
    assert math.sqrt(squares) > 0
    assert least < along / squares < most


def test_thresholds_need_a_run():
    section = model("bf16").model_copy(update={"rounding": "dither"})
    with pytest.raises(ValueError, match="need the id of its run"):
        TorchTrainingEngine(section, sampling(), grpo())
