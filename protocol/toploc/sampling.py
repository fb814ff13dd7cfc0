"""Reproducible sampling noise.

A worker samples ``token = argmax(logits / T + g)`` with Gumbel noise ``g``, which is equivalent to
drawing from the softmax. The noise is a function of (seed, position, token) and the seed follows
from the assignment. So the worker has no choice, and the verifier repeats the draw. prime-rl calls
this scheme TOPLOC2; here a counter replaces the generator's state. Any position can be drawn alone,
in any order, on any device.

All of it is 32-bit integer arithmetic up to the last three operations, so a device can draw next to
the logits. This is the reference; engines draw the same integers. The logarithms may differ in the
last places between platforms (and so do logits). A replay is therefore judged by the distance of a
token from the best one.
"""

import numpy as np
from numpy.typing import NDArray

SEED_MAX = (1 << 64) - 1
"""Seeds are unsigned 64-bit integers."""

MULTIPLIERS = (0xED5A_D4BB, 0xAC4C_1B51, 0x3184_8BAB)
SHIFTS = (17, 11, 15, 14)
"""Constants of triple32 (Christopher Wellons, "Hash Prospector", 2018), a bijection of 32-bit
integers. A flipped bit flips each bit with a probability of 0.5 to within 0.00001 on average."""

KEY_INCREMENTS = (0x9E37_79B9, 0x85EB_CA6B)
"""Separate the two keys of a draw; any two odd numbers without structure would do."""

UNIFORM_MAX = 1 - 2**-24
"""The largest float32 below 1: larger integers are rounded down to it."""

CHECK_VECTORS: tuple[tuple[int, int, int, int], ...] = (
    (0, 0, 0, 0x34B6_68B2),
    (1, 0, 0, 0xDD04_F07B),
    (SEED_MAX, 2**32 - 1, 151_935, 0xA46E_357F),
    (0x0123_4567_89AB_CDEF, 41, 65_537, 0xF12A_E78C),
    (1_234_567, 262_143, 7, 0x0C1B_281B),
)
"""(seed, position, token, bits): every implementation must reproduce them before use."""


def gumbel_noise(
    seeds: NDArray[np.uint64], positions: int | NDArray[np.int64], vocabulary: int
) -> NDArray[np.float32]:
    """Return the noise ``[n, vocabulary]`` of ``seeds[n]`` at one position, or at ``positions[n]``.

    Position 0 is the first output token's. Values lie between -2.82 and 22.88, and are most precise
    where they are large. Raises ``ValueError`` as ``noise_keys``.
    """
    bits = noise_bits(noise_keys(seeds, positions), vocabulary)
    uniform = bits.astype(np.float32)
    uniform += np.float32(0.5)
    uniform *= np.float32(2.0**-32)
    np.minimum(uniform, np.float32(UNIFORM_MAX), out=uniform)
    for function in (np.negative, np.log1p, np.negative, np.log, np.negative):
        function(uniform, out=uniform)
    return uniform


def noise_keys(seeds: NDArray[np.uint64], positions: int | NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the two keys ``[n, 2]`` of each draw.

    Raises ``ValueError`` for a position outside ``0..2**32 - 1`` or seeds of another dtype.
    """
    if seeds.dtype != np.uint64:
        raise ValueError(f"seeds are uint64, not {seeds.dtype}")
    steps = np.broadcast_to(np.asarray(positions, dtype=np.int64), seeds.shape)
    if (steps < 0).any() or (steps >> 32).any():
        raise ValueError("positions are unsigned 32-bit integers")
    words = np.stack((seeds.astype(np.uint32), (seeds >> np.uint64(32)).astype(np.uint32)), axis=-1)
    states = _mix(words + np.array(KEY_INCREMENTS, dtype=np.uint32))
    states = _mix(states + words[:, ::-1])
    return _mix(states + steps.astype(np.uint32)[:, None])


def noise_bits(keys: NDArray[np.uint32], vocabulary: int) -> NDArray[np.uint32]:
    """Return the integers ``[n, vocabulary]`` behind the noise of draws with ``keys[n, 2]``."""
    bits: NDArray[np.uint32] = np.arange(vocabulary, dtype=np.uint32) ^ keys[:, :1]
    return _mix(bits, keys[:, 1:])


def _mix(state: NDArray[np.uint32], key: NDArray[np.uint32] | None = None) -> NDArray[np.uint32]:
    """Return triple32 of each ``state``; ``key`` is mixed in between its first two multiplications.

    Array arithmetic wraps modulo 2**32 silently.
    """
    mixed, shifted = state.copy(), np.empty_like(state)
    for round_, shift in enumerate(SHIFTS):
        mixed ^= np.right_shift(mixed, np.uint32(shift), out=shifted)
        if round_ == 1 and key is not None:
            mixed ^= key
        if round_ < len(MULTIPLIERS):
            mixed *= np.uint32(MULTIPLIERS[round_])
    return mixed
