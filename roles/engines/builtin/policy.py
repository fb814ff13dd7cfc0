"""Policies on disk: Qwen2 weights as one safetensors file, known by the digest of its tensors.

Tensor names are those of ``Qwen2ForCausalLM``; a tied output layer is stored as the embedding.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from blake3 import blake3
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from protocol.policy import policy_digest
from protocol.types import Digest
from roles.engines.files import replacing
from roles.engines.tensors import read_tensors

ModelConfig = Mapping[str, int | float | str | bool]
"""Arguments of ``transformers.Qwen2Config`` as a run manifest carries them: scalars only."""

Precision = Literal["fp32", "bf16"]

DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

_SAFETENSORS_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


def configuration(model_config: ModelConfig) -> Qwen2Config:
    """Return the configuration; raises ``ValueError`` for what the engines do not compute."""
    arguments: dict[str, Any] = dict(model_config)
    config = Qwen2Config(**arguments)
    if config.use_sliding_window or config.attention_dropout:
        raise ValueError("sliding windows and dropout are not supported")
    if not isinstance(config.eos_token_id, int):
        raise ValueError("the model config needs one eos_token_id")  # noqa: TRY004 (a value, ours)
    return config


def model_config_of(directory: Path) -> dict[str, int | float | str | bool]:
    """Return the scalars of a Hugging Face Qwen2 ``config.json``, for a run manifest."""
    values = json.loads((directory / "config.json").read_text())
    if values.get("model_type") != "qwen2":
        raise ValueError(f"{directory} holds a {values.get('model_type')!r} model, not qwen2")
    values.update(values.pop("rope_parameters", None) or {})
    known = {*Qwen2Config().to_dict(), "rope_theta"} - {"model_type", "transformers_version"}
    return {
        key: value
        for key, value in values.items()
        if key in known and isinstance(value, int | float | str | bool)
    }


def build_model(
    config: Qwen2Config, dtype: torch.dtype, device: str, attention: str = "sdpa"
) -> Qwen2ForCausalLM:
    """Return a model with random weights; without dropout its two modes are one."""
    with torch.device(device):
        model: Qwen2ForCausalLM = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, attn_implementation=attention
        )
    return model


def tensors_of(model: Qwen2ForCausalLM) -> dict[str, Tensor]:
    """Return the parameters by name, a tied one once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def shapes_of(config: Qwen2Config) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter without allocating one."""
    model = build_model(config, torch.float32, "meta")
    return {name: tuple(tensor.shape) for name, tensor in tensors_of(model).items()}


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
