"""From verified sequences to rows of tokens: filter, advantages, packing.

Short sequences are packed several to a row. Positions restart with each and attention stays inside
each, so the loss is that of unpacked sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from roles.engines.training.grpo import group_advantages
from roles.ports.engines import TrainingSequence

_PADDING_SEGMENT = -1


@dataclass(frozen=True, slots=True)
class Sample:
    """A sequence that teaches something, with its advantage."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    advantage: float

    @property
    def length(self) -> int:
        """Tokens that the model reads: the last one predicts nothing."""
        return len(self.prompt) + len(self.tokens) - 1


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed rows: what the model reads ``[rows, width]`` and what is learned of it ``[n]``.

    ``predictors`` are flat indices into ``rows * width`` of what predicts ``targets``, in order.
    """

    tokens: Tensor
    positions: Tensor
    segments: Tensor
    predictors: Tensor
    targets: Tensor
    behaviour_logprobs: Tensor
    advantages: Tensor

    @property
    def mask(self) -> Tensor | None:
        """Who may look at whom, ``[rows, 1, width, width]``; None when plain causal does it."""
        if not bool((self.segments > 0).any()):
            return None
        same = self.segments[:, :, None] == self.segments[:, None, :]
        return same.tril()[:, None]


def select(sequences: Sequence[TrainingSequence]) -> list[Sample]:
    """Return the sequences whose advantage is not zero: the others have no gradient."""
    rewards = torch.tensor([sequence.reward for sequence in sequences], dtype=torch.float64)
    groups = torch.tensor([sequence.group for sequence in sequences], dtype=torch.int64)
    advantages = group_advantages(rewards, groups).tolist()
    return [
        Sample(sequence.prompt, sequence.tokens, sequence.logprobs, advantage)
        for sequence, advantage in zip(sequences, advantages, strict=True)
        if advantage and sequence.tokens
    ]


def pack(samples: Sequence[Sample], width: int) -> list[list[Sample]]:
    """Distribute samples over rows of ``width`` tokens, or of one longer sample: first fit."""
    rows: list[list[Sample]] = []
    free: list[int] = []
    for sample in sorted(samples, key=lambda sample: -sample.length):
        fitting = (row for row, room in enumerate(free) if room >= sample.length)
        row = next(fitting, len(rows))
        if row == len(rows):
            rows.append([])
            free.append(width)
        rows[row].append(sample)
        free[row] -= sample.length
    return rows


def collate(rows: Sequence[Sequence[Sample]], device: str) -> Rows:
    """Return packed rows as tensors, padded to the longest."""
    width = max(sum(sample.length for sample in row) for row in rows)
    tokens = torch.zeros(len(rows), width, dtype=torch.int64)
    positions = torch.zeros(len(rows), width, dtype=torch.int64)
    segments = torch.full((len(rows), width), _PADDING_SEGMENT)
    predictors: list[int] = []
    for number, row in enumerate(rows):
        start = 0
        for segment, sample in enumerate(row):
            end = start + sample.length
            tokens[number, start:end] = torch.tensor((sample.prompt + sample.tokens)[:-1])
            positions[number, start:end] = torch.arange(sample.length)
            segments[number, start:end] = segment
            predictors += range(number * width + end - len(sample.tokens), number * width + end)
            start = end
    flat = [sample for row in rows for sample in row]
    targets = [token for sample in flat for token in sample.tokens]
    logprobs = [logprob for sample in flat for logprob in sample.logprobs]
    advantages = [sample.advantage for sample in flat for _ in sample.tokens]
    return Rows(
        tokens=tokens.to(device),
        positions=positions.to(device),
        segments=segments.to(device),
        predictors=torch.tensor(predictors, device=device),
        targets=torch.tensor(targets, device=device),
        behaviour_logprobs=torch.tensor(logprobs, dtype=torch.float32, device=device),
        advantages=torch.tensor(advantages, dtype=torch.float32, device=device),
    )
