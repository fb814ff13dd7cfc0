"""Log-probabilities of the output head, equal for workers and validators."""

import pytest
import torch

from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.batching import decode
from roles.engines.builtin.decoder import Decoder
from roles.engines.builtin.head import Head
from roles.engines.sampling.gumbel_noise import NoiseSource

TEMPERATURE = 0.6
PROMPTS = [[2 + (7 * i + j * (1 + i % 5)) % 29 for j in range(4)] for i in range(64)]
TIED = pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])


def bf16_model(tiny_config, *, tied):
    torch.manual_seed(3)
    config = configuration("qwen2", tiny_config | {"tie_word_embeddings": tied})
    return build_model(config, torch.bfloat16, "cpu")


def decoded(model, head):
    """Return tokens, log-probabilities and states of some rollouts, concatenated."""
    decoder = Decoder(model.config, tensors_of(model), torch.bfloat16, head=head)
    limits = [24] * len(PROMPTS)
    return decode(decoder, PROMPTS, limits, TEMPERATURE, lambda *_: None)


def joined(rows, name):
    return torch.cat([getattr(row, name) for row in rows])


def defined(states, weight, tokens, head):
    """Return the log-probabilities that the manifest defines."""
    upcast = (states.float() @ weight.float().T) if head == "fp32" else (states @ weight.T).float()
    return (upcast / TEMPERATURE).log_softmax(-1).gather(1, tokens[:, None])[:, 0]


@TIED
@pytest.mark.parametrize("head", ["fp32", "model"])
@torch.no_grad()
def test_a_worker_reports_the_defined_log_probabilities(tiny_config, tied, head):
    model = bf16_model(tiny_config, tied=tied)
    rows = decoded(model, head)
    states, tokens, logprobs = (joined(rows, name) for name in ("states", "tokens", "logprobs"))
    expected = {
        kind: defined(states, model.lm_head.weight, tokens, kind) for kind in ("fp32", "model")
    }
    torch.testing.assert_close(logprobs, expected[head], atol=1e-5, rtol=0)
    assert (expected["fp32"] - expected["model"]).abs().max() > 1e-3


@TIED
@torch.no_grad()
def test_a_float32_head_brings_a_validator_nearer(tiny_config, tied):
    """On states of Hugging Face's module, which round differently from the worker's.

    The mean squared error is then 14 to 21 % lower, over four models of each kind (measured).
    """
    model = bf16_model(tiny_config, tied=tied)
    errors = {}
    for kind in ("fp32", "model"):
        rows = decoded(model, kind)
        own = []
        for prompt, row in zip(PROMPTS, rows, strict=True):
            tokens = torch.tensor([prompt + row.tokens.tolist()[:-1]])
            own.append(model.model(input_ids=tokens).last_hidden_state[0, len(prompt) - 1 :])
        tokens = joined(rows, "tokens")
        head = Head(model.lm_head.weight, kind)
        seen = head.sample(torch.cat(own), TEMPERATURE, None, tokens).logprobs
        errors[kind] = float((seen - joined(rows, "logprobs")).square().mean().sqrt())
    assert errors["fp32"] < errors["model"]


@torch.no_grad()
def test_a_validator_judges_claimed_tokens_of_the_same_states(tiny_config):
    model = bf16_model(tiny_config, tied=False)
    states = joined(decoded(model, "fp32"), "states")[:8]
    draws = NoiseSource(32, "cpu").at(torch.arange(8).numpy().astype("uint64"), 3)
    head = Head(model.lm_head.weight, "fp32")
    drawn = head.sample(states, TEMPERATURE, draws)
    judged = head.sample(states, TEMPERATURE, draws, drawn.tokens)
    assert torch.equal(judged.logprobs, drawn.logprobs)
    assert judged.gaps.tolist() == drawn.gaps.tolist() == [0.0] * 8
    other = (drawn.tokens + 1) % 32
    assert (head.sample(states, TEMPERATURE, draws, other).gaps > 0).all()


def test_weights_in_float32_are_not_copied():
    weight = torch.randn(32, 8)
    assert Head(weight, "fp32").weight.data_ptr() == weight.data_ptr()
