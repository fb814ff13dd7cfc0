"""Batches for the model: filter verified sequences, compute advantages, split and pack.

The sequences of a forward pass are packed into one row without padding. Positions restart with each
sequence and attention stays within it, so the loss equals that of separate sequences.
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
    """A sequence with a non-zero advantage; ``place`` is its index in the batch."""

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
    """One packed row of tokens ``[1, width]``, and its targets ``[n]``.

    ``predictors`` are the positions that predict ``targets``, in order; ``runs`` are the lengths of
    the sequences (see ``attention``).
    """

    tokens: Tensor
    positions: Tensor
    runs: tuple[Run, ...]
    predictors: Tensor
    targets: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor


def select(sequences: Sequence[TrainingSequence]) -> list[TrainingSample]:
    """Return the sequences with a non-zero advantage; the others have no gradient."""
    rewards = torch.tensor([sequence.reward for sequence in sequences], dtype=torch.float64)
    groups = torch.tensor([sequence.group for sequence in sequences], dtype=torch.int64)
    advantages = group_advantages(rewards, groups).tolist()
    return [
        TrainingSample(place, one.group, one.prompt, one.tokens, one.logprobs, advantage)
        for place, (one, advantage) in enumerate(zip(sequences, advantages, strict=True))
        if advantage and one.tokens
    ]


def minibatches(samples: Sequence[TrainingSample], count: int) -> list[list[TrainingSample]]:
    """Split into ``count`` minibatches of whole groups, or fewer if there are fewer groups.

    Groups are dealt round-robin in batch order, which is random.
    """
    groups: dict[int, list[TrainingSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group, []).append(sample)
    dealt = list(groups.values())
    parts = (dealt[start::count] for start in range(min(count, len(dealt))))
    return [[sample for group in part for sample in group] for part in parts]


def pack(samples: Sequence[TrainingSample], pass_tokens: int) -> list[list[TrainingSample]]:
    """Pack samples into passes of ``pass_tokens`` by first fit; a longer sample is a pass alone.

    The longest come first, so samples of equal length are neighbours.
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
    """Return one pass as tensors."""
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
