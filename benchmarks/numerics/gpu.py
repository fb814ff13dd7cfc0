"""Numerics and speed of a GPU machine: honest pairs, speed, noise, and a trainer's step.

Random bf16 weights in the sizes of Qwen3-0.6B and Qwen3-4B, generated here without a download. The
architecture is Qwen2's: it has biases where Qwen3 norms queries and keys. Its heads divide the
hidden size evenly, into 64 and 80 values where Qwen3's have 128.

* ``pairs``: error between a decoding worker and a prefilling validator;
* ``speed``: tokens per second of both, with proofs, with and without the sampling noise;
* ``noise``: its share of a decode step, and equality of its integers with the protocol's;
* ``trainer``: time and memory of an optimizer step;
* ``fused``, only on request: the noise as one kernel of ``torch.compile``, which needs a compiler
  and takes a minute.

Usage: ``python benchmarks/numerics/gpu.py [--shapes 0.6b 4b] [--parts pairs noise] [--json]``
"""

import argparse
import asyncio
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from audit import RECIPE, sharpen
from noise import milliseconds, speeds
from numpy.typing import NDArray
from torch import Tensor
from trainer_memory import bytes_held, measured_step
from typing_extensions import override

from protocol.core.rng import Rng
from protocol.core.types import Version
from protocol.run.recipe import ModelSection, Recipe
from protocol.run.toml import load_recipe
from protocol.toploc.sampling import gumbel_noise, noise_bits, noise_keys
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.generation import SampledSequence, TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.calibration.calibrate import measured_on
from roles.engines.calibration.measurement import ClaimRecording
from roles.engines.calibration.workbench import Bench, honest_pairs
from roles.engines.files.policy import write_policy
from roles.engines.sampling.gumbel_noise import Draws, NoiseSource
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import GenerationRequest, Policy

COMMON: dict[str, Any] = {
    "max_position_embeddings": 40_960,
    "tie_word_embeddings": True,
    "rope_theta": 1e6,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 1,
}
SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "initializer_range": 0.2,  # with a smaller one these few weights repeat the last token
    },
    "0.6b": {
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    },
    "4b": {
        "vocab_size": 151_936,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
}
PROMPT_TOKENS = (12, 16, 20, 24)
"""Lengths of prompts, cycled: a batch is padded, as a worker's is."""

ATTENTIONS = ("sdpa", "eager")
NOISE_SHARE_MAX = 0.02
"""The project's limit, as a share of a decode step of 64 sequences."""

CHECKED_ROWS = 16
PREFILL_TOKENS = 1 << 16

Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Setting:
    """Test settings."""

    recipe: Recipe
    bench: Bench
    batches: Sequence[int]
    rounds: int
    train_tokens: int

    @property
    def vocabulary(self) -> int:
        """Vocabulary size."""
        return self.bench.model.vocabulary_size

    def requests(self, count: int, tokens: int) -> list[GenerationRequest]:
        """Return the requests of a batch."""
        chosen = [self.bench.prompts[place % len(self.bench.prompts)] for place in range(count)]
        return [GenerationRequest(prompt, seed, tokens) for seed, prompt in enumerate(chosen)]


def say(line: str) -> None:
    """Print progress, and free device memory of earlier engines held in reference cycles."""
    print(line, file=sys.stderr, flush=True)
    gc.collect()


def settled(device: str) -> None:
    """Synchronise with a device."""
    if device != "cpu":
        torch.cuda.synchronize(device)


def bench_of(recipe: Recipe, shape: str, folder: Path, options: argparse.Namespace) -> Bench:
    """Return a bench for a shape with random weights; the policy is written to ``folder``."""
    config = COMMON | SHAPES[shape]
    torch.manual_seed(1)
    network = build_model(configuration("qwen2", config), torch.bfloat16, options.device)
    sharpen(network)
    path = folder / f"{shape}.safetensors"
    draws = Rng(b"gpu prompts")
    lengths = [PROMPT_TOKENS[place % len(PROMPT_TOKENS)] for place in range(options.sequences)]
    return Bench(
        model=ModelSection(name=shape, architecture="qwen2", config=config, dtype="bf16"),
        policy=Policy(Version(0), write_policy(tensors_of(network), path), path),
        recipe=recipe,
        prompts=[tuple(draws.below(config["vocab_size"]) for _ in range(n)) for n in lengths],
        tokens_max=options.tokens,
        device=options.device,
        directory=folder,
    )


async def pairs(setting: Setting) -> list[Found]:
    """Return the differences of every honest pair."""
    recordings = await honest_pairs(setting.bench, setting.batches, ATTENTIONS, say)
    return [distances(recording) for recording in recordings]


def distances(recording: ClaimRecording) -> Found:
    """Return one pair's differences: nats, shares, and units in the last place."""
    claimed = np.concatenate([np.array(one) for one in recording.claimed])
    own = np.concatenate([np.array(one.logprobs) for one in recording.recomputed])
    gaps = np.concatenate([np.array(one.gaps) for one in recording.recomputed])
    chunks = [chunk for one in recording.recomputed for chunk in one.chunks]
    exponents = np.array([chunk.exponent_mismatches for chunk in chunks])
    mantissas = np.array([chunk.mantissa_error_mean for chunk in chunks])
    errors = np.abs(claimed - own)
    return {
        "pair": recording.name,
        "tokens": recording.tokens,
        "logprob_error_mean": float(errors.mean()),
        "logprob_error_max": float(errors.max()),
        "mismatch_share": float((gaps > 0).mean()),
        "gap_max": float(gaps.max()),
        "exponent_mismatches_mean": float(exponents.mean()),
        "exponent_mismatches_max": int(exponents.max()),
        "mantissa_error_mean": float(mantissas.mean()),
        "mantissa_error_max": float(mantissas.max()),
    }


async def speed(setting: Setting) -> list[Found]:
    """Return tokens per second of a worker and of a validator, by batch size."""
    bench = setting.bench
    generator = TransformersGenerationEngine(
        bench.model,
        bench.toploc,
        device=bench.device,
        batch_sequences_max=max(setting.batches),
    )
    verifier = TransformersVerificationEngine(
        bench.model, bench.toploc, device=bench.device, batch_tokens_max=PREFILL_TOKENS
    )
    await generator.load(bench.policy)
    await verifier.load(bench.policy)
    found = []
    for batch in setting.batches:
        for tokens in (2, bench.tokens_max):  # the first round is a warm-up
            requests = setting.requests(batch, tokens)
            measured = await speeds(generator, verifier, requests, bench.temperature)
        found.append({"batch": batch, **measured})
        say(f"{bench.model.name}: speed of {batch}")
    generator.close()
    verifier.close()
    return found


class UnprovenEngine(TransformersGenerationEngine):
    """Decodes only: proofs are made on the CPU and would hide the cost of the noise."""

    @override
    def _prove(self, sampled: Iterable[SampledSequence]) -> None:
        for one in sampled:
            one.sequence.parts.clear()


async def noise(setting: Setting) -> Found:
    """Return the noise's share of a decode step, and whether it equals the protocol's."""
    bench = setting.bench
    engine = UnprovenEngine(
        bench.model,
        bench.toploc,
        device=bench.device,
        batch_sequences_max=max(setting.batches),
    )
    await engine.load(bench.policy)
    source = NoiseSource(setting.vocabulary, bench.device)
    steps = []
    for batch in setting.batches:
        await step_ms(engine, setting, batch)  # warm-up
        measured: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(setting.rounds):
            for noisy, at in ((True, NoiseSource.at), (False, lambda *_: None)):
                with patch.object(NoiseSource, "at", at):
                    measured[noisy].append(await step_ms(engine, setting, batch))
        with_noise, without = min(measured[True]), min(measured[False])
        steps.append(
            {
                "batch": batch,
                "step_ms": with_noise,
                "step_without_noise_ms": without,
                "noise_share": 1 - without / with_noise,
                "draw_ms": milliseconds(partial(drawn, source, seeds_of(batch))),
            }
        )
        say(f"{bench.model.name}: noise of {batch}")
    engine.close()
    at_64 = [one["noise_share"] for one in steps if one["batch"] == 64]
    return {
        "steps": steps,
        "share_at_64_within_target": at_64[0] <= NOISE_SHARE_MAX if at_64 else None,
        **integers(setting.vocabulary, bench.device),
    }


async def step_ms(engine: UnprovenEngine, setting: Setting, batch: int) -> float:
    """Return the time of one more token, without the prompt's part."""

    async def seconds(tokens: int) -> float:
        requests = setting.requests(batch, tokens)
        settled(setting.bench.device)
        began = time.perf_counter()
        await engine.generate(requests, setting.bench.temperature)
        return time.perf_counter() - began

    tokens = setting.bench.tokens_max
    return 1000 * (await seconds(tokens) - await seconds(1)) / (tokens - 1)


def seeds_of(rows: int) -> NDArray[np.uint64]:
    """Return seeds with both halves set."""
    return np.array([Rng(f"gpu/{row}".encode()).bits64() for row in range(rows)], dtype=np.uint64)


def drawn(source: NoiseSource, seeds: NDArray[np.uint64], position: int) -> Tensor:
    """Draw one step's noise and synchronise."""
    made = source.draw(seeds, position)
    settled(str(made.device))
    return made


def integers(vocabulary: int, device: str) -> Found:
    """Compare torch's integers with the reference's, on the CPU and on the device."""
    seeds = seeds_of(CHECKED_ROWS)
    positions = np.arange(CHECKED_ROWS, dtype=np.int64) * 16_411
    expected = noise_bits(noise_keys(seeds, positions), vocabulary)
    floats = gumbel_noise(seeds, positions, vocabulary)
    equal, errors = {}, {}
    for place in dict.fromkeys(("cpu", device)):
        try:
            draws = NoiseSource(vocabulary, place).at(seeds, positions)
        except RuntimeError as error:  # from its own comparison
            say(str(error))
            equal[place] = False
            continue
        found = draws.bits(slice(None)).cpu().numpy().view(np.uint32)
        equal[place] = bool(np.array_equal(found, expected))
        errors[place] = float(np.abs(draws.noise().cpu().numpy() - floats).max())
    return {"integers_equal": equal, "noise_error_max": errors}


def scores(tokens: Tensor, keys: Tensor, scaled: Tensor) -> Tensor:
    """Return logits plus noise."""
    return Draws(tokens, keys).noise().add_(scaled)


async def fused(setting: Setting) -> list[Found]:
    """Return the time of noise and sum, unfused and as one kernel."""
    device = setting.bench.device
    source = NoiseSource(setting.vocabulary, device)
    compiled: Callable[[Tensor, Tensor, Tensor], Tensor] = torch.compile(scores)
    found = []
    for batch in setting.batches:
        draws = source.at(seeds_of(batch), 7)
        arguments = draws.tokens, draws.keys, torch.zeros(batch, setting.vocabulary, device=device)
        error = float((compiled(*arguments) - scores(*arguments)).abs().max())

        def taken(function: Callable[..., Tensor], _: int, given: Any = arguments) -> None:
            function(*given)
            settled(device)

        found.append(
            {
                "batch": batch,
                "plain_ms": milliseconds(partial(taken, scores)),
                "compiled_ms": milliseconds(partial(taken, compiled)),
                "error_max": error,
            }
        )
    return found


class WatchedEngine(TorchTrainingEngine):
    """Records peak memory before the optimizer runs."""

    passes_peak_bytes = 0

    @override
    def _update(self, *arguments: Any) -> None:
        self.passes_peak_bytes = bytes_held(self._device, peak=True)
        super()._update(*arguments)


async def trainer(setting: Setting) -> Found:
    """Return the cost of one optimizer step, after a first one that allocates the moments."""
    bench, tokens = setting.bench, setting.train_tokens
    rules = setting.recipe
    engine = WatchedEngine(bench.model, rules.sampling, rules.grpo, device=bench.device)
    await engine.load_policy(bench.policy)
    step = await measured_step(engine, setting.vocabulary, tokens, bench.device)
    engine.close()
    return {
        "tokens": tokens,
        "step_s": step.seconds,
        "tokens_per_s": tokens / step.seconds,
        "held_bytes": step.held_bytes,
        "peak_bytes": step.peak_bytes,
        "bytes_per_token": (step.peak_bytes - step.held_bytes) / tokens,
        "passes_bytes_per_token": (engine.passes_peak_bytes - step.held_bytes) / tokens,
    }


PARTS: dict[str, Callable[[Setting], Coroutine[Any, Any, Any]]] = {
    "pairs": pairs,
    "speed": speed,
    "noise": noise,
    "trainer": trainer,
    "fused": fused,
}
USUAL_PARTS = ("pairs", "speed", "noise", "trainer")


def machine(names: Sequence[str], device: str) -> Found:
    """Describe machine and software."""
    return {
        "measured_on": measured_on(", ".join(names), "bf16", device),
        "cudnn": torch.backends.cudnn.version() if device != "cpu" else None,  # type: ignore[no-untyped-call]
    }


def measure(options: argparse.Namespace) -> Found:
    """Measure every part with every shape; report out-of-memory parts as such."""
    recipe = load_recipe(RECIPE.read_text())
    results: Found = {"machine": machine(options.shapes, options.device), "shapes": {}}
    for shape in options.shapes:
        found: Found = {}
        results["shapes"][shape] = found
        with tempfile.TemporaryDirectory(dir=options.work) as folder:
            bench = bench_of(recipe, shape, Path(folder), options)
            setting = Setting(recipe, bench, options.batches, options.rounds, options.train_tokens)
            for part in options.parts:
                say(f"{shape}: {part}")
                began = time.perf_counter()
                try:
                    found[part] = asyncio.run(PARTS[part](setting))
                except torch.OutOfMemoryError as error:
                    found[part] = {"out_of_memory": str(error)}
                found[f"{part}_s"] = time.perf_counter() - began
                gc.collect()
                if options.device != "cpu":
                    torch.cuda.empty_cache()
                if options.out:
                    options.out.write_text(json.dumps(results))
    return results


def table(found: Any, indent: str = "") -> None:
    """Print results for people: a line per value, and per row of a list."""
    for name, value in found.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            table(value, indent + "  ")
        elif isinstance(value, list):
            print(f"{indent}{name}")
            width = max(len(str(next(iter(row.values())))) for row in value)
            for row in value:
                first, *others = row.items()
                cells = "  ".join(f"{key} {shown(number)}" for key, number in others)
                print(f"{indent}  {first[1]!s:>{width}}  {cells}")
        else:
            print(f"{indent}{name} {shown(value)}")


def shown(value: object) -> str:
    """Format a number with four digits; return any other value unchanged."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["0.6b", "4b"])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(USUAL_PARTS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 64, 256])
    parser.add_argument("--sequences", type=int, default=256, help="number, for the pairs")
    parser.add_argument("--tokens", type=int, default=128, help="length of each sequence")
    parser.add_argument("--rounds", type=int, default=3, help="of the noise; the fastest counts")
    parser.add_argument("--train-tokens", type=int, default=8192)
    parser.add_argument("--work", type=Path, help="folder for temporary weights")
    parser.add_argument("--out", type=Path, help="write results here after each part")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = measure(options)
    if options.json:
        print(json.dumps(results))
    else:
        table(results)


if __name__ == "__main__":
    main()
