"""Sampling noise of ``protocol.toploc.sampling``, computed by torch on the logits' device.

The integers equal those of the protocol's reference. torch has no unsigned 32-bit arithmetic, so
they are signed here: products wrap alike, and shifts are masked.
"""

from dataclasses import dataclass

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
"""Draws compared with the reference at the start; some milliseconds in total."""

NOISE_ERROR_MAX = 1e-4
"""Maximum error of a device's logarithms in nats: about a hundred units in the last place."""


def _signed(value: int) -> int:
    """Return the int32 with the bits of an unsigned 32-bit integer."""
    return value - (value >> 31 << 32)


_SIGNED_MULTIPLIERS = tuple(map(_signed, MULTIPLIERS))
_MASKS = tuple((1 << (32 - shift)) - 1 for shift in SHIFTS)


@dataclass(frozen=True, slots=True)
class Draws:
    """One draw for each of ``n`` rows; noise is computed only for the requested tokens.

    Tokens and keys are stored after the first shift of the mix. The shift is linear, so it can be
    applied to each once, before their sum.
    """

    tokens: Tensor
    """``[vocabulary]``, int32."""

    keys: Tensor
    """``[n, 2]``, int32; the second key is added after that shift."""

    def bits(self, block: slice) -> Tensor:
        """Return the integers ``[n, tokens of the block]`` behind the noise, as int32."""
        bits = self.tokens[block] ^ self.keys[:, :1]
        shifted = torch.empty_like(bits)
        for index, multiplier in enumerate(_SIGNED_MULTIPLIERS, start=1):
            bits *= multiplier
            torch.bitwise_right_shift(bits, SHIFTS[index], out=shifted)
            bits ^= shifted.bitwise_and_(_MASKS[index])
            if index == 1:
                bits ^= self.keys[:, 1:]
        return bits

    def noise(self) -> Tensor:
        """Return the noise ``[n, vocabulary]`` in float32."""
        return gumbel(self.bits(slice(None)))


class NoiseSource:
    """Noise for one vocabulary on one device.

    Raises ``RuntimeError`` if the device's noise differs from the protocol's.
    """

    def __init__(self, vocabulary: int, device: str) -> None:
        self._device = device
        self._tokens = self._to_device(_shifted(np.arange(vocabulary, dtype=np.uint32)))
        self._check()

    def at(self, seeds: NDArray[np.uint64], positions: int | NDArray[np.int64]) -> Draws:
        """Return the draws of ``seeds[n]`` at ``positions``.

        Only the keys, 8 bytes a draw, are copied to the device.
        """
        return self._draws(self._tokens, noise_keys(seeds, positions))

    def draw(self, seeds: NDArray[np.uint64], positions: int | NDArray[np.int64]) -> Tensor:
        """Return the noise ``[n, vocabulary]`` of ``seeds[n]`` at ``positions``, in float32."""
        return self.at(seeds, positions).noise()

    def _draws(self, tokens: Tensor, keys: NDArray[np.uint32]) -> Draws:
        return Draws(tokens, self._to_device(np.stack((_shifted(keys[:, 0]), keys[:, 1]), axis=1)))

    def _to_device(self, integers: NDArray[np.uint32]) -> Tensor:
        return torch.from_numpy(integers.view(np.int32)).to(self._device)

    def _check(self) -> None:
        wrong = RuntimeError(f"{self._device} draws other sampling noise than the protocol")
        for seed, position, token, bits in CHECK_VECTORS:
            keys = noise_keys(np.array([seed], dtype=np.uint64), position)
            one = self._to_device(_shifted(np.array([token], dtype=np.uint32)))
            if int(self._draws(one, keys).bits(slice(None))[0, 0]) % 2**32 != bits:
                raise wrong
        tokens = self._to_device(_shifted(np.arange(CHECKED_TOKENS, dtype=np.uint32)))
        seeds = np.arange(CHECKED_ROWS, dtype=np.uint64)
        keys = noise_keys(seeds, 0)
        bits_drawn = self._draws(tokens, keys).bits(slice(None))
        reference = noise_bits(keys, CHECKED_TOKENS)
        if not np.array_equal(bits_drawn.cpu().numpy().view(np.uint32), reference):
            raise wrong
        drawn = gumbel(bits_drawn).cpu().numpy()
        if not np.abs(drawn - gumbel_noise(seeds, 0, CHECKED_TOKENS)).max() <= NOISE_ERROR_MAX:
            raise wrong


def mix(words: Tensor, keys: tuple[int, int], scratch: Tensor) -> None:
    """Replace tokens ``words[n]`` by the integers behind their noise under two keys, all int32.

    It overwrites ``scratch[n]``, and allocates nothing.
    """
    first, second = map(_signed, keys)
    words ^= first
    for index, shift in enumerate(SHIFTS):
        if index:
            words *= _SIGNED_MULTIPLIERS[index - 1]
        torch.bitwise_right_shift(words, shift, out=scratch)
        words ^= scratch.bitwise_and_(_MASKS[index])
        if index == 1:
            words ^= second


def gumbel(bits: Tensor) -> Tensor:
    """Convert the integers of ``Draws`` to noise in float32; it decreases as they grow."""
    noise = bits.view(torch.uint32).to(torch.float32)
    noise.add_(0.5).mul_(-(2.0**-32)).clamp_(min=-UNIFORM_MAX)
    return noise.log1p_().neg_().log_().neg_()


def _shifted(integers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    shifted: NDArray[np.uint32] = integers ^ integers >> np.uint32(SHIFTS[0])
    return shifted
