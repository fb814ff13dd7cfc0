"""Output layer and softmax in chunks: never materialise tokens x vocabulary logits.

At a vocabulary of 151,936 one token's logits take 0.6 MB in float32, and autograd through a softmax
keeps several copies: 2.96 MB a token (measured). This keeps only the states and one number per
token; the backward pass recomputes each chunk's logits, one more product of states and weights.
Liger and prime-rl do the same.
"""

from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import Tensor
from typing_extensions import override

LOGITS_MAX = 2**24
"""Logits of a chunk: 64 MiB in float32, of which two copies exist at once."""


def target_logprobs(
    states: Tensor,
    weight: Tensor,
    targets: Tensor,
    temperature: float,
    *,
    entropy_gradient: bool = False,
    logits_max: int = LOGITS_MAX,
) -> tuple[Tensor, Tensor]:
    """Return each target's log-probability and the entropy at its position in nats, ``[n]``.

    The logits are ``states @ weight.T / temperature`` in the precision of ``weight``: float32 in a
    trainer, whatever the rest of the model uses. Entropies have a gradient only on request: it
    costs a second pass over the logits.
    """
    arguments = (states.to(weight.dtype), weight, targets, temperature)
    result = _ChunkedHead.apply(*arguments, entropy_gradient, logits_max)  # type: ignore[no-untyped-call]
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
        entropy_gradient: bool,
        logits_max: int,
    ) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalisers = (states.new_empty(len(states)) for _ in range(3))
        for part in _chunks(states, weight, logits_max):
            logits = _logits(states[part], weight, temperature)
            highest = logits.amax(-1, keepdim=True)
            logits.sub_(highest)
            exponentials = logits.exp()
            total = exponentials.sum(-1)
            logprobs[part] = logits.gather(1, targets[part, None])[:, 0] - total.log()
            entropies[part] = total.log() - exponentials.mul_(logits).sum(-1) / total
            normalisers[part] = highest[:, 0] + total.log()
        ctx.save_for_backward(states, weight, targets, normalisers, entropies)
        ctx.temperature, ctx.logits_max = temperature, logits_max
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
        grad_states, grad_weight = torch.empty_like(states), torch.zeros_like(weight)
        for part in _chunks(states, weight, ctx.logits_max):
            logprobs = _logits(states[part], weight, ctx.temperature)
            logprobs.sub_(normalisers[part, None])
            # d logprob / d logit = [target] - p;  d entropy / d logit = -p (logprob + entropy)
            if grad_entropies is None:
                grad = logprobs.exp_().mul_(factors[part, None])
            else:
                grad = logprobs.exp()
                logprobs.add_(entropies[part, None]).mul_(-grad_entropies[part, None])
                grad.mul_(logprobs.add_(factors[part, None]))
            grad.scatter_add_(1, targets[part, None], -factors[part, None]).div_(ctx.temperature)
            torch.mm(grad, weight, out=grad_states[part])
            grad_weight.addmm_(grad.T, states[part])
        return grad_states, grad_weight, None, None, None, None


def _logits(states: Tensor, weight: Tensor, temperature: float) -> Tensor:
    return (states @ weight.T).div_(temperature)


def _chunks(states: Tensor, weight: Tensor, logits_max: int) -> Iterator[slice]:
    size = max(1, logits_max // len(weight))
    return (slice(start, start + size) for start in range(0, len(states), size))
