"""Difference between the log-probabilities of workers and of the trainer, at tokens of a step.

A trainer knows both without another forward pass. Where both are of the same weights, only the
computation differs: kernels, precision, or false claims within the audit's tolerance. This holds
for every rollout whose log-probabilities the trainer recomputed, and otherwise for those of the
version that the step starts from. The rest of the difference is the rollouts' age.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from protocol.run.loss import LossSection
from roles.engines.files.stored_numbers import floats
from roles.engines.training.batch import TrainingSample, answers_of
from roles.engines.training.ranks import ALONE, Ranks
from roles.ports.engines import Mismatch

_TAIL = 0.99

BLOCK = 1 << 23
"""Values of a block: 32 MB, which the allocator maps apart and which take memory as they fill."""


class _Values:
    """Float32 values in blocks: small tensors among those of the passes would fragment memory."""

    def __init__(self) -> None:
        self._blocks: list[Tensor] = []
        self._count = 0

    def add(self, values: Tensor) -> None:
        while len(values):
            place = self._count % BLOCK
            if not place:
                self._blocks.append(torch.empty(BLOCK))
            part, values = values[: BLOCK - place], values[BLOCK - place :]
            self._blocks[-1][place : place + len(part)] = part
            self._count += len(part)

    def parts(self) -> list[Tensor]:
        rest = self._count - BLOCK * (len(self._blocks) - 1)
        return [*self._blocks[:-1], *(block[:rest] for block in self._blocks[-1:])]


@dataclass(slots=True)
class ClaimComparison:
    """Logarithms of the ratios of trainer and workers at the tokens of a step, 8 bytes a token."""

    _step: _Values = field(default_factory=_Values)
    _same_weights: _Values = field(default_factory=_Values)
    _on_device: list[tuple[Sequence[TrainingSample], Tensor]] = field(default_factory=list)
    """Passes that a GPU may still compute."""

    def add(self, samples: Sequence[TrainingSample], own: Tensor) -> None:
        """Add a pass: ``own[n]`` are the log-probabilities at the start of the step, in order.

        Those of a GPU stay there until the result: reading them would wait for it in each pass.
        """
        self._on_device.append((samples, own))
        if own.device.type == "cpu":
            self._read()

    def result(
        self, loss: LossSection, ranks: Ranks = ALONE
    ) -> tuple[Mismatch | None, Mismatch | None]:
        """Return the mismatch of all tokens of all ranks, and that under the same weights."""
        self._read()
        step, same = (values.parts() for values in (self._step, self._same_weights))
        return mismatch(step, loss, ranks), mismatch(same, loss, ranks)

    def _read(self) -> None:
        for samples, own in self._on_device:
            for sample, newest in zip(samples, answers_of(samples, own), strict=True):
                known = floats(sample.logprobs)
                worker = known if sample.claimed is None else floats(sample.claimed)
                self._step.add(newest - worker)
                if sample.claimed is not None:
                    self._same_weights.add(known - worker)
                elif sample.lag == 0:
                    self._same_weights.add(newest - worker)
        self._on_device.clear()


def mismatch(
    log_ratios: Sequence[Tensor], loss: LossSection, ranks: Ranks = ALONE
) -> Mismatch | None:
    """Describe the logarithms of ratios ``[n]`` of all ranks; None without tokens.

    A ratio beyond the clip is outside of ``1 - epsilon`` to ``1 + epsilon_high``.
    """
    own = (
        sum(map(len, log_ratios)),
        sum(float(part.abs().sum(dtype=torch.float64)) for part in log_ratios),
        sum(int(_within(part.exp(), loss).sum()) for part in log_ratios),
    )
    count, total, within = ranks.totals(own)
    if not count:
        return None
    return Mismatch(total / count, _tail(log_ratios, count, ranks), 1 - within / count)


def _within(ratios: Tensor, loss: LossSection) -> Tensor:
    return (ratios >= 1 - loss.epsilon) & (ratios <= 1 + loss.upper_epsilon)


def _tail(log_ratios: Sequence[Tensor], count: float, ranks: Ranks) -> float:
    """Return the 99 % quantile of absolute values, by bisection over the bits of a float32.

    These are in the order of the values, and NaN is the largest. Nothing is sorted, and ranks
    exchange counts only.
    """
    least, low, high = math.ceil(_TAIL * count), 0, 2**31 - 1
    while low < high:
        middle = (low + high) // 2
        bits = (part.abs().view(torch.int32) for part in log_ratios)
        (found,) = ranks.totals([sum(int((each <= middle).sum()) for each in bits)])
        low, high = (low, middle) if found >= least else (middle + 1, high)
    return float(struct.unpack("<f", struct.pack("<i", low))[0])
