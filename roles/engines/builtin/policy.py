"""Policies on disk: weights as one safetensors file, known by the digest of its tensors.

Tensor names are those of Hugging Face; a tied output layer is stored as the embedding.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from blake3 import blake3
from safetensors.torch import save_file
from torch import Tensor

from protocol.policy import policy_digest
from protocol.types import Digest
from roles.engines.files import replacing
from roles.engines.tensors import read_tensors

Precision = Literal["fp32", "bf16"]

DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

_SAFETENSORS_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def digest_of(tensors: Mapping[str, Tensor]) -> Digest:
    """Return the policy digest of tensors; raises ``ValueError`` for a dtype without a name."""
    return policy_digest(
        (name, _dtype_name(tensor), tuple(tensor.shape), _bytes_digest(tensor))
        for name, tensor in tensors.items()
    )


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


def write_policy(tensors: Mapping[str, Tensor], path: Path) -> Digest:
    """Write a policy whole or not at all, return its digest; raises ``StorageFullError``."""
    on_cpu = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as partial:
        save_file(on_cpu, partial)
    return digest_of(on_cpu)


def _dtype_name(tensor: Tensor) -> str:
    if tensor.dtype not in _SAFETENSORS_NAMES:
        raise ValueError(f"a policy does not hold {tensor.dtype}")
    return _SAFETENSORS_NAMES[tensor.dtype]


def _bytes_digest(tensor: Tensor) -> Digest:
    flat = tensor.contiguous().reshape(-1)
    return Digest(blake3(flat.view(torch.uint8).numpy().data).digest())
