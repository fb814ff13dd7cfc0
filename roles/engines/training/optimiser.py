"""Optimiser of a trainer: AdamW with the settings of the run, and its learning rate."""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor
from torch.nn import Parameter

from protocol.run.recipe import GrpoSection

_FUSED = ("cpu", "cuda")


def adamw_of(grpo: GrpoSection, parameters: Iterable[Parameter]) -> torch.optim.AdamW:
    """Return a fresh optimiser; ``protocol.run.training_bound`` relies on its update rule.

    One kernel reads a weight, its gradient and moments once: a quarter of the time of one operation
    after the other on a CPU (measured).
    """
    own = list(parameters)
    return torch.optim.AdamW(
        own,
        lr=grpo.learning_rate,
        betas=grpo.adam_betas,
        eps=grpo.adam_epsilon,
        weight_decay=grpo.weight_decay,
        fused=all(one.device.type in _FUSED for one in own),
    )


def moments_of(
    optimizer: torch.optim.Optimizer, masters: Mapping[str, Parameter], key: str
) -> dict[str, Tensor]:
    """Return one of AdamW's moments for each parameter; zero before the first step."""
    zero = torch.zeros(())
    return {
        name: optimizer.state[master].get(key, zero.expand(master.shape))
        for name, master in masters.items()
    }


def learning_rate(grpo: GrpoSection, optimiser_updates: int, run_updates: int) -> float:
    """Return the rate of the next update, at most ``grpo.learning_rate``.

    The warm-up counts the updates of the optimiser, since a fresh one warms up again; the schedule
    counts those of the run. It reaches 0 after the last one, as in transformers.
    """
    total, warmup = grpo.steps * grpo.updates_per_version, grpo.warmup_steps
    share = min(1.0, (optimiser_updates + 1) / (warmup + 1))
    done = max(0, min(run_updates, total - 1) - warmup) / max(1, total - warmup)
    if grpo.schedule == "linear":
        share *= 1 - done
    elif grpo.schedule == "cosine":
        share *= (1 + math.cos(math.pi * done)) / 2
    return grpo.learning_rate * share
