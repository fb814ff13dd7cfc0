"""Engines on another device than the CPU: torch's meta device checks shapes and mixed devices.

Some operations accept tensors of two devices there and fail on a GPU, so all are observed.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.engine import BuiltinEngine
from roles.engines.builtin.head import Head
from roles.engines.builtin.verification import TransformersVerificationEngine, _Policy
from roles.engines.sampling.gumbel_noise import NoiseSource
from roles.engines.training.attention import PACKED
from roles.engines.training.batch import select
from roles.engines.training.engine import TorchTrainingEngine, _Sums
from roles.ports.engines import VerificationRequest
from tests.roles.engines.tiny import grpo, model, sampling, toploc
from tests.roles.engines.training.batches import batch_of

BF16 = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices, except copies and scalars.

    A read number, which meta tensors lack, is 1.
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.ndim}
        copies = func.overloadpacket in {torch.ops.aten._to_copy, torch.ops.aten.copy_}
        assert copies or len(devices) < 2, f"{func} of {devices}"
        if func.overloadpacket in {torch.ops.aten._local_scalar_dense, torch.ops.aten.is_nonzero}:
            return 1
        return func(*args, **kwargs or {})


@pytest.fixture
def noise(monkeypatch):
    """A source whose draws cannot be compared with the protocol's: meta has no numbers."""
    monkeypatch.setattr(NoiseSource, "_check", lambda _: None)


def on_meta(tiny_config, dtype):
    return build_model(configuration("qwen2", tiny_config), dtype, "meta")


@BF16
@pytest.mark.parametrize("prompts", [[(2,), (3, 4)], [(2, 3), (3, 4)]], ids=["padded", "even"])
def test_a_step_of_a_decode(tiny_config, noise, dtype, prompts):
    network = on_meta(tiny_config, dtype)
    decoder = Decoder(network.config, tensors_of(network), dtype, "meta")
    draws = NoiseSource(32, "meta").at(np.array([1, 2], dtype=np.uint64), 0)
    with torch.inference_mode(), OneDevice():
        cache, states = decoder.prefill(prompts, 4)
        sampled = decoder.head.sample(states, 0.6, draws)
        states = decoder.step(sampled.tokens, [cache])
    assert states.shape == (2, 64) and states.dtype == dtype
    assert sampled.logprobs.device.type == "meta"


@BF16
def test_a_prefill_and_its_replay(tiny_config, noise, dtype):
    network = on_meta(tiny_config, dtype)
    policy = _Policy(network.model, Head(network.lm_head.weight, "fp32"))
    engine = TransformersVerificationEngine(model(), toploc("bf16"), device="meta")
    requests = [VerificationRequest((2, 3), 1, tokens, (), ()) for tokens in ((4,), (5, 6, 7))]
    with torch.inference_mode(), OneDevice():
        states = engine._prefill(policy, requests)
        assert states.shape == (4, 64)
        with pytest.raises(NotImplementedError, match="meta"):  # its result cannot be read
            engine._replay(policy, requests, states, 0.6)
    engine.close()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_pass_of_the_trainer(tiny_config, monkeypatch, checkpointing):
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())  # has none
    engine = TorchTrainingEngine(
        model(), sampling(), grpo(), device="meta", checkpointing=checkpointing
    )
    network = engine._builder._packed(on_meta(tiny_config, torch.float32))
    network.causal.set_attn_implementation(PACKED)
    network.keep_inputs_only(0 if checkpointing else 10**6)
    with OneDevice():
        engine._accumulate(network, select(batch_of()), _Sums(tokens=1))
    assert all(parameter.grad is not None for parameter in network.parameters())
    engine.close()


async def test_an_engine_leaves_cudnn_and_tf32_out():
    """cuDNN plans again for every length of the keys, TF32 rounds float32 products."""
    torch.backends.cuda.enable_cudnn_sdp(enabled=True)
    torch.set_float32_matmul_precision("high")
    engine = BuiltinEngine(model(), "fp32", "cpu")
    await engine._compute(lambda: None)
    engine.close()
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert torch.get_float32_matmul_precision() == "highest"
