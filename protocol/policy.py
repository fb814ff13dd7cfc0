"""Policy identity: a policy is named by the digest of its decoded tensors.

Not by the digest of a file: an engine that loads half of the weights, or keeps an old output layer,
computes another digest and stops.
"""

from collections.abc import Iterable

from protocol.codec import encode
from protocol.crypto import digest
from protocol.types import Digest

TensorEntry = tuple[str, str, tuple[int, ...], Digest]
"""Name, dtype as safetensors spells it (``F32``, ``BF16``), shape, BLAKE3 of its raw bytes."""


def policy_digest(tensors: Iterable[TensorEntry]) -> Digest:
    """Return the digest of a set of tensors, whatever the order they are given in."""
    return digest(encode(sorted(tensors)))
