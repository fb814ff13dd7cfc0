"""Cost of sampling noise at a real model's vocabulary, on one CPU thread.

Part one draws noise for a whole vocabulary: ours in NumPy (the reference) and in torch (the
engines). Baselines are SplitMix64 in 64-bit integers and float64 (as several public schemes do in
NumPy) and torch's own exponential variates, which cannot be replayed. Part two generates and
verifies a rollout of the testnet's model at that vocabulary, with the noise and without.

Usage: ``python benchmarks/numerics/noise.py [--vocabulary N] [--tokens N] [--json]``
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.core.types import Version
from protocol.run.recipe import ModelSection, ToplocSection
from protocol.run.toml import load_recipe
from protocol.toploc.sampling import SEED_MAX, gumbel_noise
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.files.policy import write_policy
from roles.engines.sampling.gumbel_noise import NoiseSource
from roles.engines.selftest import timed
from roles.ports.engines import GenerationRequest, Policy

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"
PROMPT = (2, 3, 4, 5)
DRAWS = 30


def splitmix_noise(seed: int, position: int, vocabulary: int) -> NDArray[np.float64]:
    """Return Gumbel noise from SplitMix64, in float64."""
    gamma = np.uint64(0x9E37_79B9_7F4A_7C15)
    state = np.array([seed + position * int(gamma) & SEED_MAX], dtype=np.uint64)
    mixed = state + np.arange(1, vocabulary + 1, dtype=np.uint64) * gamma
    for shift, multiplier in ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= np.uint64(multiplier)
    mixed ^= mixed >> np.uint64(31)
    noise: NDArray[np.float64] = -np.log(-np.log(((mixed >> np.uint64(12)) + 0.5) * 2.0**-52))
    return noise


def torch_noise(vocabulary: int) -> torch.Tensor:
    """Return Gumbel noise from torch's own generator."""
    return torch.empty(1, vocabulary).exponential_().log_().neg_()


def milliseconds(draw: Callable[[int], object]) -> float:
    """Return the time of the fastest of several draws; ``draw`` takes a position."""
    taken = []
    for position in range(DRAWS):
        began = time.perf_counter()
        draw(position)
        taken.append(time.perf_counter() - began)
    return 1000 * min(taken)


async def engine_speeds(vocabulary: int, sequences: int, tokens: int) -> dict[str, float]:
    """Return tokens per second of generation and verification, with noise and without."""
    recipe = load_recipe(RECIPE.read_text())
    config = recipe.model.config | {"vocab_size": vocabulary, "max_position_embeddings": 4096}
    model = ModelSection(**recipe.model.model_dump() | {"config": config})
    toploc = ToplocSection(**recipe.toploc.model_dump())
    requests = [GenerationRequest(PROMPT, seed, tokens) for seed in range(sequences)]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "policy"
        torch.manual_seed(1)
        network = build_model(configuration("qwen2", config), torch.float32, "cpu")
        policy = Policy(Version(0), write_policy(tensors_of(network), path), path)
        generator = TransformersGenerationEngine(model, toploc)
        verifier = TransformersVerificationEngine(model, toploc)
        await generator.load(policy)
        await verifier.load(policy)
    results = await speeds(generator, verifier, requests, 1.0)
    generator.close()
    verifier.close()
    return results


async def speeds(
    generator: TransformersGenerationEngine,
    verifier: TransformersVerificationEngine,
    requests: Sequence[GenerationRequest],
    temperature: float,
) -> dict[str, float]:
    """Return tokens per second of two engines with version 0, with noise and without."""
    results = {}
    for suffix, at in (("", NoiseSource.at), ("_without_noise", lambda *_: None)):
        with patch.object(NoiseSource, "at", at):
            found = await timed(generator, verifier, requests, temperature)
        results[f"generate_tokens_per_s{suffix}"] = found.generate_tokens_per_second
        results[f"verify_tokens_per_s{suffix}"] = found.verify_tokens_per_second
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    vocabulary, seeds = options.vocabulary, np.array([12345], dtype=np.uint64)
    source = NoiseSource(vocabulary, "cpu")
    results = {
        "vocabulary": vocabulary,
        "numpy_ms_per_token": milliseconds(lambda at: gumbel_noise(seeds, at, vocabulary)),
        "torch_cpu_ms_per_token": milliseconds(lambda at: source.draw(seeds, at)),
        "splitmix64_numpy_ms_per_token": milliseconds(lambda at: splitmix_noise(1, at, vocabulary)),
        "torch_generator_ms_per_token": milliseconds(lambda _: torch_noise(vocabulary)),
        **asyncio.run(engine_speeds(vocabulary, options.sequences, options.tokens)),
    }
    if options.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:36} {value:12,.3f}")


if __name__ == "__main__":
    main()
