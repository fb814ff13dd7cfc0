"""Output layer and softmax in chunks: never materialise tokens x vocabulary logits.

At a vocabulary of 151,936 one token's logits take 0.6 MB in float32, and autograd through a softmax
keeps several copies: 2.96 MB a token (measured). This keeps the states, one number per token, and
the probabilities of a bounded number of tokens; the backward pass recomputes the other logits, one
more product of states and weights. Liger and prime-rl recompute all.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import override

from roles.engines.builtin.head import Head
from roles.engines.sampling.sampling import log_totals
from roles.engines.training.products import operand, product, rounding

LOGITS_MAX = 2**24
"""Logits of a chunk: 64 MiB in float32, of which two copies exist at once."""

KEPT_MAX = 2**26
"""Probabilities that a pass keeps for its backward pass: 256 MiB. Those of further chunks are
computed again."""


def target_logprobs(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    head: Head | None = None,
    entropy_gradient: bool = False,
    logits_max: int = LOGITS_MAX,
    kept_max: int = KEPT_MAX,
) -> tuple[Tensor, Tensor]:
    """Return each target's log-probability and the entropy at its position in nats, ``[n]``.

    The logits are ``states @ weight.T / temperature`` in the precision of ``weight``: float32 in a
    trainer, whatever the rest of the model uses. ``head`` has the same weights, which are bf16
    values: with it, logits and log-probabilities are bit for bit those of workers and validators.
    Gradients are then sums in float32 of products of bf16 values (``products``).
    Entropies have a gradient only on request: it costs a second pass over the logits.
    """
    kept_max = kept_max if torch.is_grad_enabled() and not entropy_gradient else 0
    arguments = (states.to(weight.dtype), weight, targets, temperature)
    options = (head, entropy_gradient, logits_max, kept_max)
    result = _ChunkedHead.apply(*arguments, *options)  # type: ignore[no-untyped-call]
    return cast("tuple[Tensor, Tensor]", result)


class _ChunkedHead(torch.autograd.Function):
    @staticmethod
    @override
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        targets: Tensor,
        temperature: float,
        head: Head | None,
        entropy_gradient: bool,
        logits_max: int,
        kept_max: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalisers = (states.new_empty(len(states)) for _ in range(3))
        evaluated = _evaluated if head is None else _evaluated_as_sampled
        kept: dict[int, Tensor] = {}
        for part in _chunks(states, weight, logits_max):
            logits = _logits(states[part], weight, temperature, head)
            found = evaluated(logits, targets[part])
            logprobs[part], entropies[part], normalisers[part], probabilities = found
            kept_max -= probabilities.numel()
            if kept_max >= 0:
                kept[part.start] = probabilities
        ctx.save_for_backward(states, weight, targets, normalisers, entropies)
        ctx.temperature, ctx.head, ctx.logits_max, ctx.kept = temperature, head, logits_max, kept
        ctx.set_materialize_grads(False)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    @override
    def backward(
        ctx: Any, grad_logprobs: Tensor | None, grad_entropies: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        states, weight, targets, normalisers, entropies = ctx.saved_tensors
        factors = torch.zeros_like(normalisers) if grad_logprobs is None else -grad_logprobs
        rounded = ctx.head is not None
        left, right = (operand(one, rounded=rounded) for one in (states, weight))
        grad_states, grad_weight = torch.empty_like(states), torch.zeros_like(weight)
        for part in _chunks(states, weight, ctx.logits_max):
            if part.start in ctx.kept:
                grad = ctx.kept[part.start] * factors[part, None]
            else:
                logprobs = _logits_again(left[part], right, ctx.temperature, ctx.head)
                logprobs.sub_(normalisers[part, None])
                # d logprob / d logit = [target] - p;  d entropy / d logit = -p (logprob + entropy)
                if grad_entropies is None:
                    grad = logprobs.exp_().mul_(factors[part, None])
                else:
                    grad = logprobs.exp()
                    logprobs.add_(entropies[part, None]).mul_(-grad_entropies[part, None])
                    grad.mul_(logprobs.add_(factors[part, None]))
            grad.scatter_add_(1, targets[part, None], -factors[part, None]).div_(ctx.temperature)
            grad = operand(grad, rounded=rounded)
            with rounding(rounded=rounded):
                grad_states[part] = product(grad, right)
                product(grad.T, left[part], grad_weight)
        return grad_states, grad_weight, None, None, None, None, None, None


def _logits(states: Tensor, weight: Tensor, temperature: float, head: Head | None) -> Tensor:
    if head is not None:
        return head.logits(states, temperature)
    return (states @ weight.T).div_(temperature)


def _logits_again(states: Tensor, weight: Tensor, temperature: float, head: Head | None) -> Tensor:
    """Return logits for the backward pass: those of a float32 head in another order of sums."""
    if head is not None and head.weight.dtype != torch.float32:
        return head.logits(states, temperature)
    with rounding(rounded=head is not None):
        return product(states, weight.T).div_(temperature)


Evaluated = tuple[Tensor, Tensor, Tensor, Tensor]
"""Log-probabilities of targets, entropies, the logits' ``logsumexp``, and all probabilities."""


def _evaluated(logits: Tensor, targets: Tensor) -> Evaluated:
    """Evaluate a chunk's ``logits``, and overwrite them."""
    highest = logits.amax(-1, keepdim=True)
    logits.sub_(highest)
    exponentials = logits.exp()
    total = exponentials.sum(-1)
    logprobs = logits.gather(1, targets[:, None])[:, 0] - total.log()
    entropies = total.log() - logits.mul_(exponentials).sum(-1) / total
    probabilities = exponentials.div_(total[:, None])
    return logprobs, entropies, highest[:, 0] + total.log(), probabilities


def _evaluated_as_sampled(logits: Tensor, targets: Tensor) -> Evaluated:
    """Do as ``_evaluated``, with the normaliser of the samplers."""
    totals = log_totals(logits)
    logprobs = logits.gather(1, targets[:, None])[:, 0] - totals
    logits.sub_(totals[:, None])
    probabilities = logits.exp()
    return logprobs, -logits.mul_(probabilities).sum(-1), totals, probabilities


def _chunks(states: Tensor, weight: Tensor, logits_max: int) -> Iterator[slice]:
    size = max(1, logits_max // len(weight))
    return (slice(start, start + size) for start in range(0, len(states), size))
