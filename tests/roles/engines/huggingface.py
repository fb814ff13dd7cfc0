"""Hugging Face directories with random weights, made on the spot."""

import json

import torch
from safetensors.torch import save_file

from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from tests.roles.engines.tiny import CONFIG


def write_directory(path, **config):
    """Write a tiny Qwen2 to ``path`` and return it."""
    path.mkdir()
    torch.manual_seed(1)
    model = build_model(configuration("qwen2", CONFIG | config), torch.float32, "cpu")
    save_file(dict(tensors_of(model)), path / "model.safetensors", {"format": "pt"})
    values = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], **CONFIG, **config}
    (path / "config.json").write_text(json.dumps(values))
    return path
