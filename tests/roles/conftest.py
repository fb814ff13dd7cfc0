"""Tiny models for the engine tests; torch is imported by the fixtures that need it."""

import sys
from pathlib import Path

import pytest

from protocol.types import Version
from roles.ports.engines import Policy

TINY = {
    "vocab_size": 32,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,  # wide, so that a model without training has opinions
    "eos_token_id": 1,
}


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread():
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_config():
    return dict(TINY)


@pytest.fixture(scope="session")
def policies(tmp_path_factory) -> list[Policy]:
    """Versions 0 and 1: random weights of different seeds."""
    import torch  # noqa: PLC0415 - takes seconds that tests of flows do not need

    from roles.engines.qwen2.policy import (  # noqa: PLC0415 - the same
        build_model,
        configuration,
        tensors_of,
        write_policy,
    )

    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp("policies")
    made = []
    for version in range(2):
        torch.manual_seed(version)
        model = build_model(configuration(TINY), torch.float32, "cpu")
        path = folder / f"{version}.safetensors"
        made.append(Policy(Version(version), write_policy(tensors_of(model), path), path))
    return made
