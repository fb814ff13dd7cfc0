"""Hugging Face modules from a configuration, with random or given weights."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from protocol.run.recipe import ModelSection
from roles.engines.architectures.architecture import CausalLM, Config
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.registry import architecture_of
from roles.engines.files.safetensors import Shapes


def build_model(
    config: Config, dtype: torch.dtype, device: str, attention: str = "sdpa"
) -> CausalLM:
    """Return a model with random weights; without dropout its two modes are equal."""
    with torch.device(device):
        model: CausalLM = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, attn_implementation=attention
        )
    return model


def model_of(
    config: Config,
    tensors: Mapping[str, Tensor],
    dtype: torch.dtype,
    device: str,
    attention: str = "sdpa",
) -> CausalLM:
    """Return a model whose parameters are copies of ``tensors``.

    Nothing else is allocated. Copies are needed because a file's tensors are memory-mapped: the
    file may change, and they may be unaligned.
    """
    # float32 until the weights are set: for another dtype Hugging Face changes torch's default
    # dtype of the whole process, which affects other threads.
    model = build_model(config, torch.float32, "meta", attention)
    copies = {name: tensor.to(device, dtype, copy=True) for name, tensor in tensors.items()}
    # Strict loading would miss the tied alias of one of them.
    model.load_state_dict(copies, strict=False, assign=True)
    model.tie_weights()
    model.model.rotary_emb = rotary(config, device)
    return model


def rotary(config: Config, device: str) -> torch.nn.Module:
    """Return the module that maps positions to cosines and sines, equal on every device."""
    return architecture_of(config.model_type).rotary(config).to(device)


def tensors_of(model: CausalLM) -> dict[str, Tensor]:
    """Return the parameters by name, a tied one once."""
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def weights_of(section: ModelSection) -> int:
    """Return the number of weights of a model; raises ``ValueError`` as ``configuration``."""
    return sum(
        map(math.prod, shapes_of(configuration(section.architecture, section.config)).values())
    )


def shapes_of(config: Config) -> Shapes:
    """Return the shape of every parameter without allocating one."""
    model = build_model(config, torch.float32, "meta")
    return {name: tuple(tensor.shape) for name, tensor in tensors_of(model).items()}
