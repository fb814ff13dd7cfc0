"""GRPO with two-sided clipping, as pure functions of tensors.

Per token, with ``r`` the probability ratio of the current policy to the generating policy:

    maximise  min( min(r, delta) * A,  clip(r, 1 - epsilon, 1 + epsilon) * A )

INTELLECT-2 (arXiv 2505.07291): ``delta`` bounds the effect of one token with a negative advantage.
Three differences from its code, each a bug there. The ratio is against **the policy that
generated**, not the trainer's newest, so staleness counts. It is capped in log space before
``exp``, so infinity times zero gives no NaN gradient. Advantages are computed here.
"""

import math

import torch
from torch import Tensor

ADVANTAGE_EPSILON = 1e-6
"""Added to the standard deviation of a group's rewards, as in INTELLECT-2; TRL adds 1e-4."""


def group_advantages(rewards: Tensor, groups: Tensor) -> Tensor:
    """Return ``(R - mean) / (deviation + 1e-6)`` of each reward within its group, all ``[n]``.

    The deviation is the sample's (``n - 1``), as in TRL and in ``compute_advantages_grpo`` of
    prime-rl at 4bb0ff01f, which trained INTELLECT-2. The population's would give advantages
    ``sqrt(n / (n - 1))`` times larger: 1.15 times for 4 answers, 1.03 times for 16. A group of
    equal rewards gets exactly zero, and so does a single answer, where both others give NaN.
    """
    _, member_of = torch.unique(groups, return_inverse=True)
    counts = torch.bincount(member_of).to(rewards.dtype)
    means = torch.zeros_like(counts).index_add(0, member_of, rewards) / counts
    centred = rewards - means[member_of]
    squares = torch.zeros_like(counts).index_add(0, member_of, centred.square())
    variances = squares / (counts - 1).clamp(min=1)
    advantages = centred / (variances.sqrt() + ADVANTAGE_EPSILON)[member_of]
    return advantages.where(_range(rewards, member_of, len(counts)) > 0, 0.0)


def two_sided_losses(
    logprobs: Tensor, behaviour_logprobs: Tensor, advantages: Tensor, delta: float, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Return each token's loss, and whether clipping removed its gradient, all ``[n]``."""
    log_ratio = logprobs - behaviour_logprobs
    capped = log_ratio.clamp(max=math.log(delta)).exp() * advantages
    near = log_ratio.clamp(math.log(1 - epsilon), math.log(1 + epsilon)).exp() * advantages
    beyond_delta = log_ratio > math.log(delta)
    return -torch.minimum(capped, near), (near < capped) | beyond_delta


def _range(rewards: Tensor, member_of: Tensor, groups: int) -> Tensor:
    """Return, for each reward, the maximum minus the minimum of its group."""
    zeros = torch.zeros(groups, dtype=rewards.dtype, device=rewards.device)
    highest = zeros.scatter_reduce(0, member_of, rewards, "amax", include_self=False)
    lowest = zeros.scatter_reduce(0, member_of, rewards, "amin", include_self=False)
    return (highest - lowest)[member_of]
