"""Modelled differences of outer steps: by how much a trainer's steps moved the weights.

A difference is an extent whose seed holds the gain in skill and a digest of both weights. So a file
of a declared length can be stored, served and checked like weights. An outer step adds the mean
gain to the skill of the outer weights. Its lineage has the digests of the differences in their
order, and the momentum: the digest of all outer steps since the trainer loaded a policy.
"""

from collections.abc import Sequence

from protocol.core.crypto import digest
from protocol.core.types import DIGEST_BYTES, Digest
from protocol.run.sections import DifferenceEncoding
from simulations.ports.sums import policy_seed, skill_of
from simulations.runtime.content import Extent, is_poisoned, poisoned_seed, policy_digest

NO_MOMENTUM = bytes(DIGEST_BYTES)

_KIND = b"difference/"
_GAIN_BYTES = 4
_MILLION = 10**6
_SHARES = {"int8": 4, "float32": 1}
"""Weights' bytes for each byte of a difference."""


def difference_bytes(weights_bytes: int, encoding: DifferenceEncoding) -> int:
    """Return the size of a difference of float32 weights."""
    return weights_bytes // _SHARES[encoding]


def difference_of(outer: bytes, own: bytes, length: int) -> Extent:
    """Return the difference of a trainer's policy seed from the seed of the outer weights.

    It is poisoned if the trainer's weights are.
    """
    gain = max(0, round((skill_of(own) - skill_of(outer)) * _MILLION))
    seed = _KIND + gain.to_bytes(_GAIN_BYTES, "big") + digest(outer + own)
    poisoned = is_poisoned(Extent.of(own, 0, length))
    return Extent.of(poisoned_seed(seed) if poisoned else seed, 0, length)


def checked_difference(content: bytes | None, expected: Digest, length: int) -> float:
    """Return the gain in skill of a file with a difference.

    Raises ``ValueError`` for a missing file, one of another digest or length, and one that a round
    cannot make.
    """
    if content is None or policy_digest(content) != expected:
        raise ValueError(f"there is no file with the difference {expected.hex()}")
    if not isinstance(content, Extent) or not content.seed.startswith(_KIND):
        raise ValueError("the file is not a difference")
    if len(content) != length or is_poisoned(content):
        raise ValueError("the difference moves weights farther than training may")
    gain = content.seed[len(_KIND) : len(_KIND) + _GAIN_BYTES]
    return int.from_bytes(gain, "big") / _MILLION


def outer_step(
    outer: bytes, momentum: bytes, differences: Sequence[tuple[Digest, float]]
) -> tuple[bytes, bytes]:
    """Return the seed and the momentum after an outer step by digests and gains."""
    momentum = digest(momentum + b"".join(one for one, _ in differences))
    gain = sum(gain for _, gain in differences) / len(differences)
    return policy_seed(min(1.0, skill_of(outer) + gain), outer + momentum), momentum
