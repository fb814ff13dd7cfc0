import math

import pytest
import torch
from torch.autograd import gradcheck
from torch.utils._python_dispatch import TorchDispatchMode

from roles.engines.builtin.head import Head
from roles.engines.training.head import target_logprobs

TOKENS, HIDDEN, VOCABULARY = 7, 5, 11
CHUNK = 3 * VOCABULARY + 1
"""Logits for chunks of 3, 3 and 1 tokens."""


def problem(dtype=torch.float64):
    torch.manual_seed(0)
    states = torch.randn(TOKENS, HIDDEN, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCABULARY, HIDDEN, dtype=dtype, requires_grad=True)
    return states, weight, torch.randint(VOCABULARY, (TOKENS,))


@pytest.mark.parametrize("logits_max", [1, CHUNK, 1000])
def test_values_are_those_of_a_softmax_over_all_logits(logits_max):
    states, weight, targets = problem()
    logprobs, entropies = target_logprobs(states, weight, targets, 0.7, logits_max=logits_max)
    distribution = (states @ weight.T / 0.7).log_softmax(-1)
    torch.testing.assert_close(logprobs, distribution.gather(1, targets[:, None])[:, 0])
    torch.testing.assert_close(entropies, -(distribution.exp() * distribution).sum(-1))


def test_gradients_are_those_of_the_values():
    states, weight, targets = problem()

    def both(states, weight):
        options = {"entropy_gradient": True, "logits_max": CHUNK}
        return target_logprobs(states, weight, targets, 0.7, **options)

    assert gradcheck(both, (states, weight))
    assert gradcheck(lambda *two: both(*two)[0], (states, weight))
    assert gradcheck(lambda *two: both(*two)[1], (states, weight))

    def plain(states, weight):
        return target_logprobs(states, weight, targets, 0.7, logits_max=CHUNK)[0]

    assert gradcheck(plain, (states, weight))


def test_an_entropy_that_is_a_metric_has_no_gradient():
    _, entropies = target_logprobs(*problem(), 1.0)
    assert not entropies.requires_grad


def test_extreme_logits_stay_finite():
    states, weight, targets = problem(torch.float32)
    logprobs, entropies = target_logprobs(states * 1e4, weight, targets, 1.0, entropy_gradient=True)
    (logprobs + entropies).sum().backward()
    assert all(t.isfinite().all() for t in (logprobs, entropies, states.grad, weight.grad))
    assert (entropies >= -1e-6).all()
    uniform, _ = target_logprobs(torch.zeros(2, HIDDEN), weight, targets[:2], 1.0)
    torch.testing.assert_close(uniform, torch.full((2,), -math.log(VOCABULARY)))


def test_states_of_a_reduced_decoder_meet_weights_of_full_precision():
    states, weight, targets = problem(torch.float32)
    reduced = states.detach().bfloat16().requires_grad_()
    logprobs, _ = target_logprobs(reduced, weight, targets, 1.0)
    expected, _ = target_logprobs(reduced.detach().float(), weight, targets, 1.0)
    assert torch.equal(logprobs, expected)
    logprobs.sum().backward()
    assert reduced.grad.dtype == torch.bfloat16


@pytest.mark.parametrize("kept_max", [0, CHUNK, 1000])
def test_what_is_kept_changes_no_gradient(kept_max):
    found = []
    for kept in (0, kept_max):
        states, weight, targets = problem()
        options = {"logits_max": CHUNK, "kept_max": kept}
        logprobs, _ = target_logprobs(states, weight, targets, 0.7, **options)
        logprobs.square().sum().backward()
        found.append((states.grad, weight.grad))
    for before, after in zip(*found, strict=True):
        torch.testing.assert_close(after, before)


@pytest.mark.parametrize("kept_max", [0, 10**6])
def test_products_of_a_bf16_policy_round_nothing_but_the_logits_gradients(kept_max):
    torch.manual_seed(0)
    states, weight = (torch.randn(n, 96).bfloat16().float() / 8 for n in (64, 640))
    targets, head = torch.randint(640, (64,)), Head(weight, "fp32")
    found = []
    for own in (None, head):
        both = [one.clone().requires_grad_() for one in (states, weight)]
        logprobs, _ = target_logprobs(*both, targets, 1.0, head=own, kept_max=kept_max)
        logprobs.square().sum().backward()
        found.append([one.grad.flatten() for one in both])
    for exact, ours in zip(*found, strict=True):
        assert float(torch.cosine_similarity(exact, ours, dim=0)) > 1 - 1e-5
        torch.testing.assert_close(ours, exact, rtol=0.02, atol=2e-3 * float(exact.abs().max()))
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"


class Largest(TorchDispatchMode):
    """Records the largest number of elements of any result."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, torch.Tensor):
                self.elements = max(self.elements, one.numel())
        return result


@pytest.mark.parametrize("entropy_gradient", [True, False])
def test_no_more_logits_live_at_once_than_a_chunk_has(entropy_gradient):
    states, weight, targets = problem()
    seen = Largest()
    with seen:
        options = {"entropy_gradient": entropy_gradient, "logits_max": 2 * VOCABULARY}
        logprobs, _ = target_logprobs(states, weight, targets, 1.0, **options)
        logprobs.sum().backward()
    assert seen.elements == weight.numel()
    assert weight.numel() < TOKENS * VOCABULARY
