"""Rounding of float32 master weights to a policy's weights: to nearest, or dithered.

The thresholds are those of ``protocol.run.policy``, computed on the masters' device.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from protocol.core.types import RunId
from protocol.run.policy import LARGEST, NAN, THRESHOLD_BITS, threshold_keys
from protocol.run.recipe import ModelSection
from roles.engines.files.policy import DTYPES
from roles.engines.sampling.gumbel_noise import mix


class PolicyRounding(Protocol):
    """Rounds float32 masters to the policy's weights."""

    def __call__(self, name: str, masters: Tensor, first: int = 0) -> Tensor:
        """Round elements of the tensor ``name``, from flat index ``first`` on."""


SLICE_WEIGHTS = 2**17
"""Weights rounded at once: half a megabyte of masters, so intermediates stay in the CPU cache."""

_FRACTION = (1 << THRESHOLD_BITS) - 1
_LARGEST = float(np.uint32(LARGEST).view(np.float32))


def rounding_of(model: ModelSection, run: RunId | None) -> PolicyRounding:
    """Return the rounding of policies; ``ValueError`` for dithered ones without a run id."""
    if model.rounding == "dither":
        if run is None:
            raise ValueError("thresholds of a dithered policy need the id of its run")
        return Dither(run)
    dtype = DTYPES[model.dtype]

    def to_nearest(name: str, masters: Tensor, first: int = 0) -> Tensor:  # noqa: ARG001
        return masters.to(dtype)

    return to_nearest


class Dither:
    """Round to bf16 by the thresholds of one run."""

    def __init__(self, run: RunId) -> None:
        self._run = run

    def __call__(self, name: str, masters: Tensor, first: int = 0) -> Tensor:
        """Round float32 masters on any device to the bf16 weights of the tensor ``name``.

        They are its elements from flat index ``first`` on. Needs memory for the result and a few
        slices.
        """
        flat = masters.detach().reshape(-1)
        policy = torch.empty_like(flat, dtype=torch.bfloat16)
        least, most = map(float, torch.aminmax(flat)) if len(flat) else (0.0, 0.0)
        is_usual = least >= -_LARGEST and most <= _LARGEST
        slices = _Slices(
            threshold_keys(self._run, name), min(len(flat), SLICE_WEIGHTS), flat.device
        )
        for begin in range(0, len(flat), SLICE_WEIGHTS):
            part = flat[begin : begin + SLICE_WEIGHTS]
            thresholds = slices.thresholds(first + begin, len(part))
            if not is_usual:
                thresholds.masked_fill_((part.abs() <= _LARGEST).logical_not_(), 0)
            thresholds += part.view(torch.int32)
            thresholds >>= THRESHOLD_BITS
            place = policy[begin : begin + len(part)].view(torch.int16)
            place.copy_(thresholds)
            if not is_usual:
                place.masked_fill_(part.isnan(), NAN)
        return policy.view(masters.shape)

    def thresholds(self, name: str, begin: int, count: int, device: torch.device) -> Tensor:
        """Return ``count`` thresholds from flat index ``begin``, int32 below ``2**16``."""
        return _Slices(threshold_keys(self._run, name), count, device).thresholds(begin, count)


class _Slices:
    """Thresholds of a tensor's slices of up to ``size`` weights, in memory that all slices use."""

    def __init__(self, keys: tuple[int, int], size: int, device: torch.device) -> None:
        self._keys = keys
        self._places = torch.arange(size // 2 + 1, dtype=torch.int32, device=device)
        self._words, self._scratch = torch.empty_like(self._places), torch.empty_like(self._places)
        self._thresholds = torch.empty(size, dtype=torch.int32, device=device)

    def thresholds(self, begin: int, count: int) -> Tensor:
        """Return those from flat index ``begin``; the next call overwrites them."""
        offset = (begin // 2 + 2**31) % 2**32 - 2**31  # as int32, wrapped
        torch.add(self._places, offset, out=self._words)
        mix(self._words, self._keys, self._scratch)
        halves = self._words.view(torch.int16)[begin % 2 :][:count]
        return self._thresholds[:count].copy_(halves).bitwise_and_(_FRACTION)
