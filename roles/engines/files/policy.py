"""Policies on disk: one safetensors file, identified by the digest of its tensors.

Tensor names are Hugging Face's; a tied output layer is stored as the embedding.
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

    Raises ``ValueError`` for a dtype that policies do not support.
    """
    return policy_digest(entries_of(tensors, dtype))


def read_policy(
    path: Path, digest: Digest, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    """Read a policy file to the CPU.

    Raises ``ValueError`` unless the tensors match ``digest`` and exactly those of ``shapes``.
    """
    tensors, _ = read_tensors(path, shapes)
    if digest_of(tensors) != digest:
        raise ValueError(f"{path} does not hold the policy {digest.hex()}")
    return tensors


def write_policy(
    tensors: Mapping[str, Tensor], path: Path, dtype: torch.dtype | None = None
) -> Digest:
    """Write a policy atomically, rounded to ``dtype`` if given; return its digest.

    Raises ``StorageFullError``.
    """
    with replacing(path) as partial:
        return policy_digest(write_tensors(partial, tensors, dtype))
