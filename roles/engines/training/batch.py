"""From verified sequences to passes of the model: filter, advantages, minibatches, packing.

The sequences of a pass lie one after another in one row, without padding. Positions restart with
each and attention stays inside each, so the loss is that of sequences on their own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from roles.engines.training.attention import Run
from roles.engines.training.grpo import group_advantages
from roles.ports.engines import TrainingSequence


@dataclass(frozen=True, slots=True)
class TrainingSample:
    """A sequence that teaches something, with its advantage; ``place`` is that in its batch."""

    place: int
    group: int
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float

    @property
    def length(self) -> int:
        """Tokens that the model reads: the last one predicts nothing."""
        return len(self.prompt) + len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Pass:
    """One row of tokens ``[1, width]`` for the model, and what is learned of it ``[n]``.

    ``predictors`` are the places of what predicts ``targets``, in order; ``runs`` says where
    sequences begin (``attention``).
    """

    tokens: Tensor
    positions: Tensor
    runs: tuple[Run, ...]
    predictors: Tensor
    targets: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor


def select(sequences: Sequence[TrainingSequence]) -> list[TrainingSample]:
    """Return the sequences whose advantage is not zero: the others have no gradient."""
    rewards = torch.tensor([sequence.reward for sequence in sequences], dtype=torch.float64)
    groups = torch.tensor([sequence.group for sequence in sequences], dtype=torch.int64)
    advantages = group_advantages(rewards, groups).tolist()
    return [
        TrainingSample(place, one.group, one.prompt, one.tokens, one.logprobs, advantage)
        for place, (one, advantage) in enumerate(zip(sequences, advantages, strict=True))
        if advantage and one.tokens
    ]


def minibatches(samples: Sequence[TrainingSample], count: int) -> list[list[TrainingSample]]:
    """Return ``count`` parts of whole groups, or fewer when there are fewer groups.

    The groups are dealt out in their order, which in a batch is drawn by lot.
    """
    groups: dict[int, list[TrainingSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    dealt = list(groups.values())
    parts = (dealt[start::count] for start in range(min(count, len(dealt))))
    return [[sample for group in part for sample in group] for part in parts]


def pack(samples: Sequence[TrainingSample], pass_tokens: int) -> list[list[TrainingSample]]:
    """Distribute samples over passes of ``pass_tokens``, or of one longer sample: first fit.

    The longest come first, so those of equal length are neighbours.
    """
    passes: list[list[TrainingSample]] = []
    free: list[int] = []
    for sample in sorted(samples, key=lambda sample: -sample.length):
        fitting = (number for number, room in enumerate(free) if room >= sample.length)
        number = next(fitting, len(passes))
        if number == len(passes):
            passes.append([])
            free.append(pass_tokens)
        passes[number].append(sample)
        free[number] -= sample.length
    return passes


def collate(samples: Sequence[TrainingSample], device: str) -> Pass:
    """Return the samples of a pass as tensors."""
    tokens: list[int] = []
    positions: list[int] = []
    predictors: list[int] = []
    for sample in samples:
        tokens += (sample.prompt + sample.tokens)[:-1]
        positions += range(sample.length)
        predictors += range(len(tokens) - len(sample.tokens), len(tokens))
    lengths = groupby(sample.length for sample in samples)
    targets = [token for sample in samples for token in sample.tokens]
    logprobs = [logprob for sample in samples for logprob in sample.logprobs]
    advantages = [sample.advantage for sample in samples for _ in sample.tokens]
    return Pass(
        tokens=torch.tensor([tokens], device=device),
        positions=torch.tensor([positions], device=device),
        runs=tuple((length, sum(1 for _ in run)) for length, run in lengths),
        predictors=torch.tensor(predictors, device=device),
        targets=torch.tensor(targets, device=device),
        behaviour_logprobs=torch.tensor(logprobs, dtype=torch.float32, device=device),
        advantages=torch.tensor(advantages, dtype=torch.float32, device=device),
    )
