"""Dithered rounding of policies from float32 masters to bf16, with a fixed threshold per weight.

A training step moves a master weight by a small part of the distance between two bf16 numbers.
Rounded to nearest, a weight that begins on the bf16 grid stays there for tens of steps, and then
jumps. Here a weight is rounded up if the fraction that rounding down would cut off, plus the
weight's threshold in ``[0, 1)``, reaches 1. Thresholds are uniform, so the policy moves on average
as the masters do. They are fixed, so a step changes only the weights that cross theirs, and a
master on the grid is its own policy.

A threshold is a function of run id, tensor and index: trainers compute the same policy from the
same masters on every device. The reference of ``roles.engines.training.rounding``.
"""

from protocol.core.crypto import digest
from protocol.core.types import RunId
from protocol.toploc.sampling import MULTIPLIERS, SHIFTS

THRESHOLD_BITS = 16
"""Bits that float32 has more than bf16: the fraction."""

LARGEST = 0x7F7F_0000
"""Float32 pattern of the largest finite bf16 number."""

NAN = 0x7FC0
"""Bf16 pattern of every NaN."""

CHECK_VECTORS: tuple[tuple[int, str, int, int], ...] = (
    (0x00, "model.embed_tokens.weight", 0, 0x8B8E),
    (0x00, "model.embed_tokens.weight", 1, 0xBB8B),
    (0x01, "model.embed_tokens.weight", 0, 0xCF6C),
    (0x5A, "model.layers.29.mlp.down_proj.weight", 884_735, 0x4BDB),
    (0xFF, "w", 2**33 - 1, 0xDB27),
    (0xFF, "w", 2**33, 0x4280),
)
"""(byte that the run id repeats, tensor, flat index, threshold)."""

_WORD = (1 << 32) - 1
_FRACTION = (1 << THRESHOLD_BITS) - 1
_INFINITY = 0x7F80_0000
_MAGNITUDE = 0x7FFF_FFFF


def threshold_keys(run_id: RunId, tensor: str) -> tuple[int, int]:
    """Return the two 32-bit keys of a tensor's thresholds."""
    seed = digest(b"prime-node/rounding" + run_id + tensor.encode())
    return int.from_bytes(seed[:4], "big"), int.from_bytes(seed[4:8], "big")


def threshold(keys: tuple[int, int], index: int) -> int:
    """Return the threshold of a weight at a flat index, in units of ``2**-16``.

    One 32-bit hash serves two neighbours, the even one with its lower half.
    """
    word = _mix((index >> 1 & _WORD) ^ keys[0], keys[1])
    return word >> THRESHOLD_BITS if index & 1 else word & _FRACTION


def rounded(master: int, threshold: int) -> int:
    """Return the bf16 pattern of a float32 pattern.

    Down is towards zero. A finite number above every finite bf16 number becomes the largest one;
    infinity stays, and every NaN becomes ``NAN``.
    """
    magnitude = master & _MAGNITUDE
    if magnitude > _INFINITY:
        return NAN
    goes_up = magnitude <= LARGEST and (master & _FRACTION) + threshold > _FRACTION
    return (master >> THRESHOLD_BITS) + goes_up


def _mix(state: int, key: int) -> int:
    """Return the mix of the sampling noise, on one integer."""
    for round_, shift in enumerate(SHIFTS):
        state ^= state >> shift
        if round_ == 1:
            state ^= key
        if round_ < len(MULTIPLIERS):
            state = state * MULTIPLIERS[round_] & _WORD
    return state
