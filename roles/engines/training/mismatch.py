"""Difference between the log-probabilities of workers and of the trainer, at tokens of a step.

A trainer knows both without another forward pass. Where both are of the same weights, only the
computation differs: kernels, precision, or false claims within the audit's tolerance. This holds
for every rollout whose log-probabilities the trainer recomputed, and otherwise for those of the
version that the step starts from. The rest of the difference is the rollouts' age.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from protocol.run.loss import LossSection
from roles.engines.training.batch import TrainingSample
from roles.engines.training.ranks import ALONE, Ranks
from roles.ports.engines import Mismatch

_TAIL = 0.99


def mismatch(worker: Tensor, own: Tensor, loss: LossSection) -> Mismatch | None:
    """Compare log-probabilities ``[n]``; None without tokens.

    A ratio beyond the clip is outside of ``1 - epsilon`` to ``1 + epsilon_high``.
    """
    if not len(worker):
        return None
    log_ratios = own - worker
    sizes = log_ratios.abs()
    ratios = log_ratios.exp()
    within = (ratios >= 1 - loss.epsilon) & (ratios <= 1 + loss.upper_epsilon)
    tail = sizes.kthvalue(math.ceil(_TAIL * len(sizes))).values
    return Mismatch(float(sizes.mean()), float(tail), 1 - float(within.float().mean()))


@dataclass(slots=True)
class ClaimComparison:
    """Pairs of log-probabilities of a step's tokens, worker's first."""

    _step: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    _same_weights: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def add(self, samples: Sequence[TrainingSample], own: Tensor) -> None:
        """Add a pass: ``own[n]`` are the log-probabilities at the start of the step, in order."""
        parts = torch.split(own.cpu(), [len(sample.tokens) for sample in samples])
        for sample, newest in zip(samples, parts, strict=True):
            known = torch.tensor(sample.logprobs)
            worker = known if sample.claimed is None else torch.tensor(sample.claimed)
            self._step.append((worker, newest))
            if sample.claimed is not None:
                self._same_weights.append((worker, known))
            elif sample.lag == 0:
                self._same_weights.append((worker, newest))

    def result(
        self, loss: LossSection, ranks: Ranks = ALONE
    ) -> tuple[Mismatch | None, Mismatch | None]:
        """Return the mismatch of all tokens of all ranks, and that under the same weights."""
        step, same = (
            _joined(ranks.exchange(_joined(pairs))) for pairs in (self._step, self._same_weights)
        )
        return mismatch(*step, loss), mismatch(*same, loss)


def _joined(pairs: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    if not pairs:
        return torch.empty(0), torch.empty(0)
    worker, own = zip(*pairs, strict=True)
    return torch.cat(worker), torch.cat(own)
