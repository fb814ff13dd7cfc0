"""Sampling noise that a verifier can draw again.

A worker samples ``token = argmax(logits / T + g)`` with Gumbel noise ``g``, which is the same as
drawing from the softmax. The noise is a function of (seed, position, token) and the seed follows
from the assignment, so the worker has no choice left and the verifier repeats the draw: the scheme
that prime-rl calls TOPLOC2, with a counter in place of a generator's state. Any position can be
drawn alone, in any order, on any device.

The integer part is exact everywhere. The logarithms may differ in the last places between platforms
(and so do logits), which is why a replay is judged by a gap and a tolerance.

SplitMix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
"""

import numpy as np
from numpy.typing import NDArray

SEED_MAX = (1 << 64) - 1
"""Seeds are unsigned 64-bit integers."""

_GAMMA = np.uint64(0x9E37_79B9_7F4A_7C15)
"""SplitMix64's step: 2**64 divided by the golden ratio, odd."""

_MULTIPLIERS = (np.uint64(0xBF58_476D_1CE4_E5B9), np.uint64(0x94D0_49BB_1331_11EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))


def gumbel_noise(seed: int, position: int, vocabulary: int) -> NDArray[np.float64]:
    """Return the noise ``[vocabulary]`` of one position, the first output token's being 0.

    Raises ``ValueError`` for a seed outside ``0..SEED_MAX`` or a negative position.
    """
    if not 0 <= seed <= SEED_MAX:
        raise ValueError("a seed has 64 bits")
    return gumbel_noise_batch(np.array([seed], dtype=np.uint64), position, vocabulary).reshape(-1)


def gumbel_noise_batch(
    seeds: NDArray[np.uint64], positions: int | NDArray[np.int64], vocabulary: int
) -> NDArray[np.float64]:
    """Return the noise ``[n, vocabulary]`` of ``seeds[n]`` at one position, or at ``positions[n]``.

    Repeat a seed to draw all positions of one sequence. Values lie between -3.6 and 36.8. The
    result takes ``8 * n * vocabulary`` bytes: with a large vocabulary pass few rows at a time.
    Raises ``ValueError`` for a negative position or seeds of another dtype.
    """
    # 52 bits and a half: both ends stay off 0 and 1, and no rounding can reach them.
    uniform = (noise_bits(seeds, positions, vocabulary) >> np.uint64(12)).astype(np.float64)
    uniform += 0.5
    uniform *= 2.0**-52
    for _ in range(2):
        np.log(uniform, out=uniform)
        np.negative(uniform, out=uniform)
    return uniform


def noise_bits(
    seeds: NDArray[np.uint64], positions: int | NDArray[np.int64], vocabulary: int
) -> NDArray[np.uint64]:
    """Return the exact integers ``[n, vocabulary]`` behind the noise.

    Row ``i`` is the SplitMix64 stream that starts from the state
    ``mix(mix(seed + gamma) + (position + 1) * gamma)``, all modulo 2**64: the stream over positions
    of the hashed seed gives the state of the stream over tokens.
    """
    if seeds.dtype != np.uint64:
        raise ValueError(f"seeds are uint64, not {seeds.dtype}")
    steps = np.atleast_1d(np.asarray(positions, dtype=np.int64))
    if (steps < 0).any():
        raise ValueError("positions count from 0")
    states = _mix(seeds + _GAMMA)
    states = _mix(states + (steps.astype(np.uint64) + np.uint64(1)) * _GAMMA)
    tokens = np.arange(1, vocabulary + 1, dtype=np.uint64)
    return _mix(states[:, None] + tokens * _GAMMA)


def _mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's output for a state; array arithmetic wraps modulo 2**64 silently."""
    mixed = state ^ (state >> _SHIFTS[0])
    mixed *= _MULTIPLIERS[0]
    mixed ^= mixed >> _SHIFTS[1]
    mixed *= _MULTIPLIERS[1]
    mixed ^= mixed >> _SHIFTS[2]
    return mixed
