"""Generate and verify on a device in a separate process, and measure both speeds.

``python -m roles.engines.selftest RECIPE.toml DEVICE [ENGINE]`` prints one line of JSON. A broken
device driver ends this process, not the caller's.
"""

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from protocol.core.rng import Rng
from protocol.core.types import Version
from protocol.rollout.statistics import Measurement, added, beyond
from protocol.run.recipe import Recipe
from protocol.run.toml import load_recipe
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of, weights_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.factory import device_of
from roles.engines.files.policy import DTYPES, write_policy
from roles.ports.engines import (
    GenerationEngine,
    GenerationRequest,
    Policy,
    VerificationEngine,
    claims_of,
)

SEQUENCES = 64
PROMPT_TOKENS = 4
TOKENS_MAX = 16
"""Per answer; enough to measure a device's speed."""

SMALL_WEIGHTS = 10_000_000
LARGE_SEQUENCES = 8
"""For a model that is not small, so that a CPU finishes within a minute."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A validator's measurements of generated sequences, and the speed of both engines."""

    measured: list[Measurement]
    generate_tokens_per_second: float
    verify_tokens_per_second: float


async def timed(
    worker: GenerationEngine,
    validator: VerificationEngine,
    requests: Sequence[GenerationRequest],
    temperature: float,
) -> Timed:
    """Generate sequences and verify them with an engine that holds the policy as version 0."""
    began = time.perf_counter()
    made = await worker.generate(requests, temperature)
    generated = time.perf_counter()
    measured = await validator.measure(Version(0), claims_of(requests, made), temperature)
    ended = time.perf_counter()
    tokens = sum(len(one.tokens) for one in made)
    return Timed(measured, tokens / (generated - began), tokens / (ended - generated))


async def selftest(recipe: Recipe, device: str, engine: str = "builtin") -> dict[str, object]:
    """Return tokens per second of both engines, and the audit's objection, if any.

    The weights are random; each engine checks the noise's test vectors when it is made.
    """
    device = device_of(device)
    is_small = weights_of(recipe.model) <= SMALL_WEIGHTS
    model, temperature = recipe.model, recipe.sampling.temperature
    torch.manual_seed(1)
    network = build_model(configuration(model.architecture, model.config), torch.float32, "cpu")
    draws = Rng(b"selftest")
    requests = [
        GenerationRequest(
            tuple(draws.below(model.vocabulary_size) for _ in range(PROMPT_TOKENS)),
            draws.bits64(),
            min(TOKENS_MAX, recipe.sampling.tokens_max),
        )
        for _ in range(SEQUENCES if is_small else LARGE_SEQUENCES)
    ]
    worker = _worker(recipe, device, engine)
    validator = TransformersVerificationEngine(model, recipe.toploc, device=device)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "policy"
        policy = Policy(
            Version(0), write_policy(tensors_of(network), path, DTYPES[model.dtype]), path
        )
        del network
        await worker.load(policy)
        await validator.load(policy)
        found = await timed(worker, validator, requests, temperature)
    validator.close()
    sums = added(one.sums for one in found.measured)
    excess = beyond(recipe.toploc, sums, recipe.toploc.false_reject_rate)
    return {
        "generate_tokens_per_second": round(found.generate_tokens_per_second),
        "verify_tokens_per_second": round(found.verify_tokens_per_second),
        "device": device,
        "excess": "" if excess is None else str(excess),
    }


def _worker(recipe: Recipe, device: str, engine: str) -> GenerationEngine:
    if engine == "vllm":
        from roles.engines.vllm.engine import VllmGenerationEngine  # noqa: PLC0415 - 12 seconds

        return VllmGenerationEngine(recipe.model, recipe.toploc, device=device)
    return TransformersGenerationEngine(recipe.model, recipe.toploc, device=device)


if __name__ == "__main__":
    torch.set_num_threads(1)
    rules = load_recipe(Path(sys.argv[1]).read_text())
    print(json.dumps(asyncio.run(selftest(rules, *sys.argv[2:]))))  # noqa: T201 - the output
