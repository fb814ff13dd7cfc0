"""Versions of a tiny policy, each with the patch from the one before."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from node.storage import encodings
from protocol.core.crypto import digest
from protocol.core.types import Version
from protocol.shardcast.encodings import tensor_file
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.files.policy import write_policy
from roles.ports.engines import Patch, Policy
from tests.roles.engines.tiny import CONFIG

BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}

OWN = {
    "qwen2": {},
    "qwen3": {"head_dim": 24, "attention_bias": True},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 128},
    "smollm3": {"no_rope_layers": (1, 0), "mlp_bias": True},
    "granite": {"attention_bias": True, "residual_multiplier": 0.5, "logits_scaling": 2.0},
    "olmo2": {"attention_bias": True},
}
"""Properties that only this architecture has."""


def stepped(tensors, seed, share=0.02):
    """Return tensors with other low bits in a share of the elements, at least one."""
    rng = np.random.default_rng(seed)
    out = {}
    for name, tensor in tensors.items():
        bits = tensor.clone().view(BITS[tensor.dtype]).view(-1)
        hit = rng.random(len(bits)) < share
        hit[rng.integers(len(bits))] = True
        top = 6 if tensor.dtype == torch.bfloat16 else 22  # of the mantissa
        flipped = 1 << rng.choice([0, 3, top], hit.sum())
        bits[torch.from_numpy(hit)] ^= torch.from_numpy(flipped).to(bits.dtype)
        out[name] = bits.view(tensor.dtype).view(tensor.shape)
    return out


def patched(base: Policy, tensors, version: int) -> Policy:
    """Write tensors as the next version, with its patch of ``base``."""
    path = base.path.with_name(f"{version}.safetensors")
    policy = Policy(Version(version), write_policy(tensors, path), path)
    patch = base.path.with_name(f"{version}.patch")
    made = encodings.encode(path, base, patch)
    assert made == digest(patch.read_bytes())
    return replace(policy, patch=Patch(base.digest, patch, made))


def chain(tmp_path, dtype=torch.float32, architecture="qwen2", count=4, share=0.02, **config):
    """Return versions, each with a patch of the one before."""
    torch.manual_seed(5)
    section = configuration(architecture, CONFIG | OWN[architecture] | config)
    tensors = {
        name: tensor.to(dtype)
        for name, tensor in tensors_of(build_model(section, torch.float32, "cpu")).items()
    }
    path = tmp_path / "0.safetensors"
    made = [Policy(Version(0), write_policy(tensors, path), path)]
    for version in range(1, count):
        tensors = stepped(tensors, version, share)
        made.append(patched(made[-1], tensors, version))
    return made


def only_header(path: Path) -> None:
    """Truncate a file to the header."""
    data = path.read_bytes()
    path.write_bytes(data[: tensor_file.header_bytes(data)])
