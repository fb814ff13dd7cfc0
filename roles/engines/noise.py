"""The sampling noise of ``protocol.toploc.sampling``, drawn by torch where the logits are.

The integers are those of the protocol's reference. torch has no arithmetic of unsigned 32-bit
integers, so they are signed ones here: products wrap alike, and shifts are masked.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protocol.toploc.sampling import (
    CHECK_VECTORS,
    MULTIPLIERS,
    SHIFTS,
    UNIFORM_MAX,
    gumbel_noise,
    noise_bits,
    noise_keys,
)

CHECKED_ROWS = 4
CHECKED_TOKENS = 1 << 16
"""Of the draws that are compared with the reference at the start; together some milliseconds."""

NOISE_ERROR_MAX = 1e-4
"""By which a device's logarithms may be off, in nats: a hundred units in the last place."""

_SIGNED_MULTIPLIERS = tuple(value - (value >> 31 << 32) for value in MULTIPLIERS)
_MASKS = tuple((1 << (32 - shift)) - 1 for shift in SHIFTS)


class NoiseSource:
    """Draws for one vocabulary on one device.

    Raises ``RuntimeError`` when the device computes anything else than the protocol.
    """

    def __init__(self, vocabulary: int, device: str) -> None:
        self._device = device
        self.tokens = torch.arange(vocabulary, dtype=torch.int32, device=device)
        """All of the vocabulary, on the device."""
        self._check()

    def draw(self, seeds: NDArray[np.uint64], positions: int | NDArray[np.int64]) -> Tensor:
        """Return the noise ``[n, vocabulary]`` of ``seeds[n]`` at ``positions``, in float32.

        Only the keys, eight bytes a draw, go to the device.
        """
        return _gumbel(_bits(self.tokens, self._to_device(noise_keys(seeds, positions))))

    def _to_device(self, keys: NDArray[np.uint32]) -> Tensor:
        return torch.from_numpy(keys.view(np.int32)).to(self._device)

    def _check(self) -> None:
        wrong = RuntimeError(f"{self._device} draws other sampling noise than the protocol")
        for seed, position, token, bits in CHECK_VECTORS:
            keys = noise_keys(np.array([seed], dtype=np.uint64), position)
            one = torch.tensor([token], dtype=torch.int32, device=self._device)
            if int(_bits(one, self._to_device(keys))[0, 0]) % 2**32 != bits:
                raise wrong
        tokens = torch.arange(CHECKED_TOKENS, dtype=torch.int32, device=self._device)
        seeds = np.arange(CHECKED_ROWS, dtype=np.uint64)
        keys = noise_keys(seeds, 0)
        bits_drawn = _bits(tokens, self._to_device(keys))
        reference = noise_bits(keys, CHECKED_TOKENS)
        if not np.array_equal(bits_drawn.cpu().numpy().view(np.uint32), reference):
            raise wrong
        drawn = _gumbel(bits_drawn).cpu().numpy()
        if not np.abs(drawn - gumbel_noise(seeds, 0, CHECKED_TOKENS)).max() <= NOISE_ERROR_MAX:
            raise wrong


def _bits(tokens: Tensor, keys: Tensor) -> Tensor:
    """Return the integers ``[n, vocabulary]`` of draws with ``keys[n, 2]``, as int32."""
    bits = tokens ^ keys[:, :1]
    shifted = torch.empty_like(bits)
    for index, (shift, mask) in enumerate(zip(SHIFTS, _MASKS, strict=True)):
        torch.bitwise_right_shift(bits, shift, out=shifted)
        bits ^= shifted.bitwise_and_(mask)
        if index == 1:
            bits ^= keys[:, 1:]
        if index < len(_SIGNED_MULTIPLIERS):
            bits *= _SIGNED_MULTIPLIERS[index]
    return bits


def _gumbel(bits: Tensor) -> Tensor:
    noise = bits.view(torch.uint32).to(torch.float32)
    noise.add_(0.5).mul_(-(2.0**-32)).clamp_(min=-UNIFORM_MAX)
    return noise.log1p_().neg_().log_().neg_()
