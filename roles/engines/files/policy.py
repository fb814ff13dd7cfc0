"""Policies on disk: weights as one safetensors file, known by the digest of its tensors.

Tensor names are those of Hugging Face; a tied output layer is stored as the embedding.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from protocol.core.crypto import policy_digest
from protocol.core.types import Digest
from roles.engines.files.atomic_write import replacing
from roles.engines.files.safetensors import entries_of, read_tensors, write_tensors

Precision = Literal["fp32", "bf16"]

DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}


def digest_of(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> Digest:
    """Return the policy digest of tensors, rounded to ``dtype`` if given.

    Raises ``ValueError`` for a dtype without a name.
    """
    return policy_digest(entries_of(tensors, dtype))


def read_policy(
    path: Path, digest: Digest, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Return the tensors of a policy file, on the CPU.

    Raises ``ValueError`` unless they have ``digest`` and are exactly those that ``shapes`` names.
    """
    tensors, _ = read_tensors(path, shapes)
    if digest_of(tensors) != digest:
        raise ValueError(f"{path} does not hold the policy {digest.hex()}")
    return tensors


def write_policy(
    tensors: Mapping[str, Tensor], path: Path, dtype: torch.dtype | None = None
) -> Digest:
    """Write a policy, rounded to ``dtype`` if given, whole or not at all; return its digest.

    Raises ``StorageFullError``.
    """
    with replacing(path) as partial:
        return policy_digest(write_tensors(partial, tensors, dtype))
