import pytest
import torch
from transformers import AutoModelForCausalLM, GptOssConfig, MistralConfig

from roles.engines.training.attention import PACKED, packed_attention

HEADS, KEY_HEADS, SIZE = 4, 2, 8
RUNS = ((5, 2), (3, 1), (1, 3))


def test_every_sequence_attends_to_its_own_past_alone():
    """Equal to a dense mask over the whole row, with gradients."""
    torch.manual_seed(0)
    width = sum(length * count for length, count in RUNS)
    lengths = [length for length, count in RUNS for _ in range(count)]
    segments = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    mask = (segments[:, None] == segments[None, :]).tril()
    heads = [torch.randn(1, n, width, SIZE) for n in (HEADS, KEY_HEADS, KEY_HEADS)]
    weights = torch.randn(1, width, HEADS, SIZE)

    packed = [tensor.clone().requires_grad_() for tensor in heads]
    attended, _ = packed_attention(None, *packed, None, scaling=0.3, runs=RUNS, use_cache=False)
    (attended * weights).sum().backward()

    query, key, value = dense = [tensor.clone().requires_grad_() for tensor in heads]
    key, value = (tensor.repeat_interleave(HEADS // KEY_HEADS, 1) for tensor in (key, value))
    scores = (0.3 * query @ key.mT).masked_fill(~mask, float("-inf")).softmax(-1)
    expected = (scores @ value).transpose(1, 2)
    (expected * weights).sum().backward()

    torch.testing.assert_close(attended, expected)
    for ours, theirs in zip(packed, dense, strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_short_bf16_sequences_have_the_kernels_values_and_float32_gradients():
    torch.manual_seed(0)
    width = sum(length * count for length, count in RUNS)
    heads = [torch.randn(1, n, width, SIZE).bfloat16() for n in (HEADS, KEY_HEADS, KEY_HEADS)]
    found = {}
    for name, dtype in (("bf16", torch.bfloat16), ("float32", torch.float32)):
        own = [one.detach().to(dtype, copy=True).requires_grad_() for one in heads]
        attended, _ = packed_attention(None, *own, None, scaling=0.3, runs=RUNS)
        attended.backward(torch.ones_like(attended))
        found[name] = attended, [one.grad for one in own]
    with torch.no_grad():
        kernels, _ = packed_attention(None, *heads, None, scaling=0.3, runs=RUNS)
    assert torch.equal(found["bf16"][0], kernels)
    for ours, exact in zip(found["bf16"][1], found["float32"][1], strict=True):
        assert torch.equal(ours, exact.bfloat16())


SIZES = {
    "vocab_size": 32,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (MistralConfig(**SIZES, sliding_window=2), "sliding_window"),
        (GptOssConfig(**SIZES, head_dim=8, num_local_experts=2), "s_aux, sliding_window"),
    ],
    ids=["window", "sinks"],
)
def test_scores_that_it_does_not_compute_are_refused_by_name(config, named):
    model = AutoModelForCausalLM.from_config(config)
    model.set_attn_implementation(PACKED)
    with pytest.raises(ValueError, match=f"packed attention does not compute {named};"):
        model.model(input_ids=torch.arange(6)[None], runs=((3, 2),), use_cache=False)


def test_a_mask_is_refused():
    heads = torch.ones(1, HEADS, 4, SIZE)
    mask = torch.ones(1, 1, 4, 4)
    with pytest.raises(ValueError, match="does not compute a mask"):
        packed_attention(None, heads, heads, heads, mask, scaling=1.0, runs=((4, 1),))
