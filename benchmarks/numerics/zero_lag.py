"""Log-probabilities of worker, validator and trainer under the same bf16 weights, and gradients.

A worker generates rollouts; a validator recomputes them in batches (padded) and each alone, and a
trainer packed. Then the trainer's gradient is compared with that of a float32 model with the same
weights, and its step is timed.

Usage: ``python benchmarks/numerics/zero_lag.py [--run DIR] [--rollouts N] [--tokens N] [--json]``

Without ``--run`` (a founded run's directory) the model is small and random; ``--sharpen`` scales
its logits.
"""

import argparse
import asyncio
import json
import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gradient import SMALL_MODEL
from torch import Tensor
from trainer_memory import ChunkedEngine

from node.local.run_pin import load_run
from protocol.core.types import RunId, Version
from protocol.run.recipe import ModelSection, Recipe
from protocol.run.toml import load_recipe
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.files.policy import write_policy
from roles.ports.engines import GenerationRequest, Policy, TrainingSequence, claims_of

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "intellect2.toml"
PASS_TOKENS = 512
STEPS = 3
RUN = RunId(bytes(32))


def small(folder: Path, sharpness: float) -> tuple[Recipe, Policy]:
    """Return a recipe in bf16 with a small model, and random weights for it."""
    recipe = load_recipe(RECIPE.read_text())
    model = recipe.model.model_dump() | {"architecture": "qwen2", "config": SMALL_MODEL}
    recipe = recipe.model_copy(update={"model": ModelSection(**model)})
    torch.manual_seed(1)
    network = build_model(configuration("qwen2", SMALL_MODEL), torch.float32, "cpu")
    network.lm_head.weight.data.mul_(sharpness)
    path = folder / "policy"
    digest = write_policy(tensors_of(network), path, torch.bfloat16)
    return recipe, Policy(Version(0), digest, path)


def differences(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> Any:
    """Return statistics of the absolute differences of log-probabilities, in nats."""
    one, other = (np.concatenate([*map(np.array, values)]) for values in (first, second))
    sizes = np.abs(one - other)
    return {
        "mean": float(sizes.mean()),
        "p99": float(np.quantile(sizes, 0.99)),
        "max": float(sizes.max()),
        "beyond_clip": float((sizes > math.log(1.2)).mean()),
    }


async def gradients(
    recipe: Recipe, model: ModelSection, policy: Policy, batch: Sequence[TrainingSequence]
) -> tuple[dict[str, Tensor], float, float, list[TrainingSequence]]:
    """Return gradients by name, tokens per CPU second, bytes per weight, and the batch."""
    engine = ChunkedEngine(model, recipe.sampling, recipe.grpo, run=RUN, pass_tokens=PASS_TOKENS)
    await engine.load_policy(policy)
    recomputed = await engine.recompute(policy, batch)
    await engine.begin_step(recomputed)
    found = engine.gradients_by_name()
    tokens, seconds = sum(len(one.prompt) + len(one.tokens) for one in batch), []
    for _ in range(STEPS):
        began = time.process_time()
        await engine.step(recomputed)
        seconds.append(time.process_time() - began)
    engine.close()
    return found, tokens / min(seconds), engine.held_bytes_per_weight(), recomputed


async def measured(recipe: Recipe, policy: Policy, rollouts: int, tokens_max: int) -> Any:
    """Generate, verify and train; return all statistics."""
    model, temperature = recipe.model, recipe.sampling.temperature
    draws = np.random.default_rng(0)
    requests = [
        GenerationRequest(
            tuple(map(int, draws.integers(2, model.config["vocab_size"], 5 + number // 4 % 40))),
            number,
            tokens_max - number * 5 % (tokens_max // 2),
        )
        for number in range(rollouts)
    ]
    worker = TransformersGenerationEngine(model, recipe.toploc)
    await worker.load(policy)
    claims = claims_of(requests, await worker.generate(requests, temperature))
    worker.close()
    own: dict[str, list[list[float]]] = {"worker": [list(one.logprobs) for one in claims]}
    for name, room in (("validator", 1 << 14), ("validator, alone", 1)):
        engine = TransformersVerificationEngine(model, recipe.toploc, batch_tokens_max=room)
        await engine.load(policy)
        found = await engine.recompute(policy.version, claims, temperature)
        own[name] = [one.logprobs for one in found if not isinstance(one, str)]
        engine.close()
    batch = [
        TrainingSequence(number // 4, one.prompt, one.tokens, one.logprobs, number % 2)
        for number, one in enumerate(claims)
    ]
    exact = model.model_copy(update={"dtype": "fp32", "rounding": None})
    reference, *_ = await gradients(recipe, exact, policy, batch)
    found, speed, held, recomputed = await gradients(recipe, model, policy, batch)
    own["trainer"] = [list(one.logprobs) for one in recomputed]
    first, second = (
        torch.cat([part[name].flatten() for name in reference]).double()
        for part in (reference, found)
    )
    pairs = [("worker", "validator"), ("worker", "trainer"), ("validator", "trainer")]
    pairs += [("validator, alone", "trainer"), ("validator, alone", "validator")]
    return {
        "tokens": sum(len(one.tokens) for one in claims),
        **{f"{one} - {other}": differences(own[one], own[other]) for one, other in pairs},
        "gradient_cosine": float(first @ second / (first.norm() * second.norm())),
        "gradient_norm_ratio": float(second.norm() / first.norm()),
        "tokens_per_cpu_second": speed,
        "held_bytes_per_weight": held,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", type=Path)
    parser.add_argument("--sharpen", type=float, default=1.0)
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        if options.run is None:
            recipe, policy = small(Path(directory), options.sharpen)
        else:
            manifest = load_run(options.run / "run.toml").manifest
            path = options.run / "genesis.safetensors"
            recipe, policy = manifest, Policy(Version(0), manifest.genesis_policy, path)
        results = asyncio.run(measured(recipe, policy, options.rollouts, options.tokens))
    if options.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:28} {json.dumps(value)}")


if __name__ == "__main__":
    main()
