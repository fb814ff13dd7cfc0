"""Training engines of a tiny model that have loaded version 0."""

import pytest

from roles.engines.training.engine import TorchTrainingEngine
from tests.roles.engines.tiny import grpo, model, sampling


@pytest.fixture
async def make(policies):
    engines = []

    async def made(dtype="fp32", *, temperature=1.0, layout=None, **values):
        engine = TorchTrainingEngine(
            model(dtype), sampling(temperature=temperature), grpo(**values), **(layout or {})
        )
        engines.append(engine)
        await engine.load_policy(policies[0])
        return engine

    yield made
    for engine in engines:
        engine.close()
