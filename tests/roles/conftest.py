"""Tiny models for the engine tests; torch is imported by the fixtures that need it."""

import sys
from pathlib import Path

import pytest

from protocol.core.types import Version
from roles.ports.engines import Policy
from tests.roles.engines.tiny import CONFIG


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread():
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_config():
    return dict(CONFIG)


@pytest.fixture(scope="session")
def policies(tmp_path_factory) -> list[Policy]:
    """Versions 0 and 1: random weights of different seeds."""
    import torch  # noqa: PLC0415 - takes seconds that tests of flows do not need

    from roles.engines.architectures.configuration import configuration  # noqa: PLC0415 - the same
    from roles.engines.architectures.model import build_model, tensors_of  # noqa: PLC0415 - the same
    from roles.engines.files.policy import write_policy  # noqa: PLC0415 - the same

    torch.set_num_threads(1)
    folder: Path = tmp_path_factory.mktemp("policies")
    made = []
    for version in range(2):
        torch.manual_seed(version)
        model = build_model(configuration("qwen2", CONFIG), torch.float32, "cpu")
        path = folder / f"{version}.safetensors"
        made.append(Policy(Version(version), write_policy(tensors_of(model), path), path))
    return made
