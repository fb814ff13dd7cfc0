"""Losses of tokens, and their weights in the loss of an update, as pure functions of tensors.

Logarithms of ratios are bounded before ``exp``, so a ratio of any size gives a finite loss and
gradient: infinity times zero would be NaN. ``docs/losses.md`` compares the losses.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from protocol.run.loss import LossSection
from roles.engines.training.batch import Pass

LOG_RATIO_MAX = 20.0
"""Bound on the logarithm of a ratio in the two penalties, as in verl: 5e8 as a ratio."""

_TINY = 1e-8
"""Least probability of all other tokens in the divergence of ``dppo_kl``, as in verl."""


@dataclass(frozen=True, slots=True)
class TokenLosses:
    """Losses of tokens; ``log_ratios``, without gradient, decided which are ``clipped``; ``[n]``.

    A clipped token has no gradient; with CISPO it has one of bounded weight.
    """

    losses: Tensor
    clipped: Tensor
    log_ratios: Tensor


def weighted_loss(
    rules: LossSection, packed: Pass, logprobs: Tensor, entropies: Tensor
) -> tuple[Tensor, TokenLosses]:
    """Return the part of a pass in the loss of its update, and the policy's part of its tokens.

    ``logprobs`` of the targets of the pass have a gradient, ``entropies`` at need; both ``[n]``.
    """
    behaviour = old = packed.behaviour_logprobs
    if rules.importance_cap is not None:  # before the first update, the policy is the old one
        old = packed.old_logprobs if len(packed.old_logprobs) else logprobs.detach()
    found = token_losses(rules, logprobs, old, packed.advantages, packed.answer_of)
    losses = found.losses
    if rules.importance_cap is not None:
        losses = losses * importance_weights(old, behaviour, rules.importance_cap)
    if rules.log_ratio_coefficient:
        losses = losses + rules.log_ratio_coefficient * squared_log_ratios(logprobs, behaviour)
    if rules.kl_coefficient:
        divergences = reference_divergences(logprobs, packed.reference_logprobs)
        losses = losses + rules.kl_coefficient * divergences
    losses = losses - rules.entropy_coefficient * entropies
    return (losses * packed.weights).sum(), found


def token_losses(
    rules: LossSection,
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    answer_of: Tensor,
) -> TokenLosses:
    """Return the objective of each token, negated: a loss to minimise.

    ``old_logprobs`` are those of the policy that ratios compare with; ``answer_of`` has each
    token's answer, from 0, and all tokens of an answer are present. All are ``[n]``.
    """
    log_ratios = logprobs - old_logprobs
    low, high = rules.epsilon, rules.upper_epsilon
    if rules.kind == "gspo":
        log_ratios = answer_means(log_ratios, answer_of)
    if rules.kind in {"grpo", "gspo"}:
        losses, clipped = two_sided_losses(log_ratios, advantages, low, high, _delta(rules))
    elif rules.kind == "cispo":
        losses, clipped = cispo_losses(logprobs, log_ratios, advantages, low, high)
    else:
        divergences = (tv_divergences if rules.kind == "dppo_tv" else kl_divergences)(
            logprobs.detach(), old_logprobs
        )
        clipped = beyond_trust_region(divergences, log_ratios, advantages, low, high)
        weights = log_ratios.detach().clamp(max=math.log(_delta(rules))).exp()
        losses = -(weights * advantages * logprobs).where(~clipped, 0.0)
    return TokenLosses(losses, clipped, log_ratios.detach())


def two_sided_losses(
    log_ratios: Tensor, advantages: Tensor, low: float, high: float, delta: float
) -> tuple[Tensor, Tensor]:
    """Return each token's loss, and whether clipping removed its gradient, all ``[n]``.

    The objective is ``min(min(r, delta) A, clip(r, 1 - low, 1 + high) A)`` with the ratio ``r``
    (INTELLECT-2, arXiv 2505.07291): ``delta`` bounds the effect of one token with a negative
    advantage. ``low`` and ``high`` are equal in PPO, and differ in DAPO (arXiv 2503.14476).
    """
    capped = log_ratios.clamp(max=math.log(delta)).exp() * advantages
    near = log_ratios.clamp(_log(1 - low), math.log1p(high)).exp() * advantages
    return -torch.minimum(capped, near), (near < capped) | (log_ratios > math.log(delta))


def cispo_losses(
    logprobs: Tensor, log_ratios: Tensor, advantages: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Return ``-clip(r, 1 - low, 1 + high) A log p``, and whether the clip changed the weight.

    The clipped ratio is a constant weight: every token has a gradient (arXiv 2506.13585).
    """
    free = log_ratios.detach()
    bounded = free.clamp(_log(1 - low), math.log1p(high))
    return -bounded.exp() * advantages * logprobs, bounded != free


def answer_means(values: Tensor, answer_of: Tensor) -> Tensor:
    """Return, for each token, the mean of its answer's values: ``[n]`` to ``[n]``.

    Of logarithms of ratios it is that of the answer's ratio to the power of one over its length,
    the ratio of GSPO (arXiv 2507.18071).
    """
    answers = int(answer_of.max()) + 1 if len(answer_of) else 0
    counts = torch.bincount(answer_of, minlength=answers).to(values.dtype)
    totals = values.new_zeros(answers).index_add(0, answer_of, values)
    return (totals / counts)[answer_of]


def tv_divergences(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Return the total variation between both policies over {token, all others}, ``[n]``."""
    return (logprobs.clamp(max=0).exp() - old_logprobs.clamp(max=0).exp()).abs()


def kl_divergences(logprobs: Tensor, old_logprobs: Tensor) -> Tensor:
    """Return the divergence of the policy from the old one over {token, all others}, in nats."""
    old = old_logprobs.clamp(max=0).exp()
    rest, old_rest = (
        one.clamp(max=0).expm1().neg().clamp(min=_TINY) for one in (logprobs, old_logprobs)
    )
    return old * (old_logprobs - logprobs) + (1 - old) * (old_rest / rest).log()


def beyond_trust_region(
    divergences: Tensor, log_ratios: Tensor, advantages: Tensor, low: float, high: float
) -> Tensor:
    """Return the tokens that DPPO drops (arXiv 2602.04879): their update would diverge further.

    With a positive advantage these are the tokens whose probability has risen and whose divergence
    exceeds ``high``; with a negative one those that have fallen, beyond ``low``.
    """
    risen, fallen = log_ratios > 0, log_ratios < 0
    return torch.where(advantages > 0, risen & (divergences > high), fallen & (divergences > low))


def importance_weights(logprobs: Tensor, behaviour_logprobs: Tensor, cap: float) -> Tensor:
    """Return the ratio of two policies, at most ``cap``, ``[n]``."""
    return (logprobs - behaviour_logprobs).clamp(max=math.log(cap)).exp()


def squared_log_ratios(logprobs: Tensor, behaviour_logprobs: Tensor) -> Tensor:
    """Return the square of the logarithm of each ratio, ``[n]``."""
    return (logprobs - behaviour_logprobs).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX).square()


def reference_divergences(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Return Schulman's estimator k3 of the divergence from a reference policy, with gradient."""
    log_ratios = (reference_logprobs - logprobs).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    return log_ratios.expm1() - log_ratios


def token_weights(
    aggregation: Literal["token", "sequence", "constant"], lengths: Sequence[int], constant: float
) -> list[float]:
    """Return the weight of each token of an answer in an update of answers of these lengths.

    The loss of the update is the sum of all losses of tokens by weight, in passes of any size.
    ``constant`` divides the sum under ``constant``.
    """
    if aggregation == "sequence":
        return [1 / (len(lengths) * length) for length in lengths]
    return [1 / (sum(lengths) if aggregation == "token" else constant)] * len(lengths)


def _delta(rules: LossSection) -> float:
    assert rules.delta is not None, "the section requires it for this kind"
    return rules.delta


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf
