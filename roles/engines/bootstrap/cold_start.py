"""Cold start: train the initial policy, version 0.

A tiny untrained model never earns a reward, so RL has nothing to reinforce. A *cold start* learns
from solved examples until nearly every group of samples contains right and wrong answers. A
published model needs none: ``huggingface_import`` makes it a policy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from protocol.core.rng import Rng
from protocol.core.types import Digest
from protocol.run.recipe import ModelSection
from roles.engines.architectures.architecture import CausalLM
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.files.policy import DTYPES, Precision, write_policy
from roles.environments.base import SolvedTask

TARGET_ACCURACY = 0.33
"""Middle of the band 0.25 to 0.40: four standard errors over 512 samples from each end."""

_IGNORED = -100
"""Target of a position without a loss; the default of ``cross_entropy``."""

_EXAMPLES_PER_PASS = 64
"""Bounds the memory of a measurement; larger passes are no faster on one core (measured)."""

_BISECTIONS = 8
"""Narrow the interval between two snapshots to 1/256."""

_Weights = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class ColdStart:
    """Result of a cold start."""

    digest: Digest
    accuracy: float
    """Mean probability of the right completion over problems: the expected reward."""
    steps: int


@dataclass(frozen=True, slots=True)
class _Examples:
    """Solved problems, right-padded: inputs and the target at each position."""

    tokens: Tensor
    targets: Tensor


def cold_start(
    task: SolvedTask,
    section: ModelSection,
    seed: int,
    path: Path,
    *,
    teacher: SolvedTask | None = None,
    target_accuracy: float = TARGET_ACCURACY,
    learning_rate: float = 1e-3,
    length_targets: Sequence[int] = (),
    warmup_steps: int = 20,
    batch_problems: int = 128,
    problems_measured: int = 512,
    check_every_steps: int = 4,
    steps_max: int = 2000,
) -> ColdStart:
    """Write a policy whose expected reward at temperature 1 is ``target_accuracy``.

    One completion of each problem is rewarded, so the expected reward is its probability. It is
    continuous in the weights, so bisection between the last snapshot below the target and the first
    above it finds the target. Prompts name one of ``length_targets``, if any, as in the run;
    solutions have their own length. Learns from the solutions of ``teacher``, if given, and is
    measured on the task's. Computes in the calling thread for seconds and draws from torch's global
    generator. Raises ``ValueError`` if ``steps_max`` is not enough.
    """
    torch.manual_seed(seed)
    draws = Rng(seed.to_bytes(8, "big")).child("cold start")
    model = build_model(configuration(section.architecture, section.config), torch.float32, "cpu")
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    warmup = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / warmup_steps)
    )
    measured = _examples(task, draws.child("measured"), problems_measured, length_targets)
    below = _snapshot(model)
    for step in range(1, steps_max + 1):
        examples = _examples(teacher or task, draws, batch_problems, length_targets)
        _learn(model, optimizer, examples)
        warmup.step()
        if step % check_every_steps:
            continue
        if _expected_reward(model, measured) >= target_accuracy:
            accuracy = _bisect(model, below, measured, target_accuracy)
            return ColdStart(_write(model, section.dtype, path), accuracy, step)
        below = _snapshot(model)
    raise ValueError(f"{task.name} was not learned within {steps_max} steps")


def _examples(task: SolvedTask, draws: Rng, count: int, length_targets: Sequence[int]) -> _Examples:
    seeds = [draws.bits64() for _ in range(count)]
    pairs = [
        (task.prompt(seed, _target(draws, length_targets)), task.solution(seed)) for seed in seeds
    ]
    width = max(len(prompt) + len(solution) for prompt, solution in pairs) - 1
    tokens = torch.zeros(count, width, dtype=torch.int64)
    targets = torch.full((count, width), _IGNORED)
    for row, (prompt, solution) in enumerate(pairs):
        end = len(prompt) + len(solution) - 1
        tokens[row, :end] = torch.tensor((prompt + solution)[:-1])
        targets[row, len(prompt) - 1 : end] = torch.tensor(solution)
    return _Examples(tokens, targets)


def _target(draws: Rng, length_targets: Sequence[int]) -> int | None:
    return length_targets[draws.below(len(length_targets))] if length_targets else None


def _surprise(model: CausalLM, examples: _Examples) -> Tensor:
    """Return the negative log-probability of each example's solution, ``[examples]``."""
    logits = model(input_ids=examples.tokens, use_cache=False).logits
    losses = cross_entropy(
        logits.flatten(0, 1), examples.targets.flatten(), ignore_index=_IGNORED, reduction="none"
    )
    return losses.view_as(examples.targets).sum(-1)


def _learn(model: CausalLM, optimizer: torch.optim.Optimizer, examples: _Examples) -> None:
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(_surprise(model, examples).mean())
    optimizer.step()


@torch.no_grad()
def _expected_reward(model: CausalLM, examples: _Examples) -> float:
    both = (examples.tokens, examples.targets)
    pieces = zip(*(torch.split(part, _EXAMPLES_PER_PASS) for part in both), strict=True)
    surprises = [_surprise(model, _Examples(*piece)) for piece in pieces]
    return float((-torch.cat(surprises)).exp().mean())


def _snapshot(model: CausalLM) -> _Weights:
    return {name: tensor.clone() for name, tensor in tensors_of(model).items()}


def _bisect(model: CausalLM, below: _Weights, measured: _Examples, target_accuracy: float) -> float:
    """Move the model towards ``below`` until its expected reward is the target."""
    above = _snapshot(model)
    low, high = 0.0, 1.0
    accuracy = 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        for name, tensor in tensors_of(model).items():
            torch.lerp(below[name], above[name], middle, out=tensor)
        accuracy = _expected_reward(model, measured)
        low, high = (low, middle) if accuracy >= target_accuracy else (middle, high)
    return accuracy


def _write(model: CausalLM, precision: Precision, path: Path) -> Digest:
    tensors = tensors_of(model).items()
    return write_policy({name: tensor.to(DTYPES[precision]) for name, tensor in tensors}, path)
