"""Memory of a training step on a group of ranks, per rank and weight, beside its arithmetic.

Each shape has random weights. Every rank is a process on this machine's CPU, trains two steps of
few and of many tokens, and states the bytes it held between the steps and the peaks of both. Then
it writes policy and state. Peaks include mapped policy files. What torch and transformers take at
the start is subtracted.

Usage: ``python benchmarks/training/scale.py [--shapes 135m 0.5b] [--ranks 1 2 4]
[--dtype bf16] [--tokens 256 1024] [--json]``
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import torch

from protocol.core.types import RunId, Version
from protocol.run.recipe import ModelSection
from protocol.run.toml import load_recipe
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of, weights_of
from roles.engines.files.policy import DTYPES, write_policy
from roles.engines.training.engine import TorchTrainingEngine
from roles.engines.training.ranks import join
from roles.ports.engines import Policy, TrainingSequence

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"

SHAPES: dict[str, dict[str, Any]] = {
    "testnet": {},
    "135m": {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    "0.5b": {
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
}
"""SmolLM2-135M and Qwen2.5-0.5B, as in their ``config.json``, by their sizes."""

SEQUENCE_TOKENS = 128

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload([__name__])


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Bytes of a rank above those of its libraries, CPU seconds of its larger step, and times.

    The next step waits for the digest; policy and state are written while it computes.
    """

    held_bytes: int
    peak_bytes_few: int
    peak_bytes_many: int
    peak_bytes_writing: int
    cpu_seconds: float
    digest_seconds: float
    policy_seconds: float
    state_seconds: float


def section_of(shape: str, dtype: str) -> ModelSection:
    """Return the model section of a shape, rounded to nearest."""
    recipe = load_recipe(RECIPE.read_text())
    changed = {"config": recipe.model.config | SHAPES[shape], "dtype": dtype}
    return ModelSection(**recipe.model.model_dump() | changed)


def batch_of(tokens: int, vocabulary: int) -> list[TrainingSequence]:
    """Return groups of random sequences with ``tokens`` tokens in all."""
    draws = torch.Generator().manual_seed(1)
    length = min(tokens // 4, SEQUENCE_TOKENS)

    def drawn() -> tuple[int, ...]:
        return tuple(torch.randint(2, vocabulary, (length,), generator=draws).tolist())

    return [
        TrainingSequence(0, (2, 3), drawn(), (-9.0,) * length, number % 2)
        for number in range(tokens // length)
    ]


def _peak_since(*, reset: bool) -> int:
    """Return the largest resident size since the last reset; ``reset`` begins anew."""
    status = Path("/proc/self/status").read_text()
    (line,) = (one for one in status.splitlines() if one.startswith("VmHWM"))
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    return int(line.split()[1]) * 1024


async def measured_rank(
    place: tuple[int, int, str],
    policy: Policy,
    section: ModelSection,
    counts: tuple[int, int],
    scratch: Path,
) -> RankMemory:
    """Train as one rank of a group, and write files to ``scratch``."""
    recipe = load_recipe(RECIPE.read_text())
    torch.set_num_threads(1)
    ranks = join(*place, "cpu")
    libraries = psutil.Process().memory_info().rss
    engine = TorchTrainingEngine(
        section,
        recipe.sampling,
        recipe.grpo,
        run=RunId(bytes(32)),
        pass_tokens=max(SEQUENCE_TOKENS, counts[1] // (2 * place[1])),
        checkpointing=True,
        ranks=ranks,
    )
    await engine.load_policy(policy)
    vocabulary = int(section.config["vocab_size"])
    await engine.step(batch_of(counts[0], vocabulary))  # allocates gradients and moments
    held, peaks, seconds = psutil.Process().memory_info().rss, [], 0.0
    for tokens in counts:
        _peak_since(reset=True)
        began = time.process_time()
        await engine.step(batch_of(tokens, vocabulary))
        seconds = time.process_time() - began
        peaks.append(_peak_since(reset=False) - libraries)
    times = [time.monotonic()]
    _peak_since(reset=True)
    await engine.policy_digest()
    times.append(time.monotonic())
    await engine.write_policy(scratch / "policy")
    times.append(time.monotonic())
    await engine.save_state(scratch / "state")
    times.append(time.monotonic())
    writing = _peak_since(reset=False) - libraries
    engine.close()
    lasted = [end - begin for begin, end in pairwise(times)]
    return RankMemory(held - libraries, peaks[0], peaks[1], writing, seconds, *lasted)


def _be_rank(pipe: Any, *arguments: Any) -> None:
    pipe.send(asyncio.run(measured_rank(*arguments)))
    pipe.close()
    os._exit(0)  # the other ranks may still need the connections' threads


def measured(
    shape: str, ranks: int, dtype: str, counts: tuple[int, int], directory: Path
) -> dict[str, Any]:
    """Measure a group; return the largest values of its ranks, per weight and token."""
    section, path = section_of(shape, dtype), directory / f"{shape}-{dtype}"
    weights = weights_of(section)
    torch.manual_seed(1)
    config = configuration(section.architecture, section.config)
    network = build_model(config, torch.float32, "cpu")
    policy = Policy(
        Version(0), write_policy(tensors_of(network), path, DTYPES[section.dtype]), path
    )
    del network
    pipes = []
    for rank in range(ranks):
        ours, theirs = _CONTEXT.Pipe(duplex=False)
        place = (rank, ranks, str(directory / f"{shape}-{ranks}"))
        _CONTEXT.Process(
            target=_be_rank, args=(theirs, place, policy, section, counts, directory), daemon=True
        ).start()
        theirs.close()
        pipes.append(ours)
    found = [pipe.recv() for pipe in pipes]
    path.unlink()
    largest = {name: max(asdict(one)[name] for one in found) for name in asdict(found[0])}
    own_tokens = (counts[1] - counts[0]) / ranks
    return {
        "shape": shape,
        "weights": weights,
        "ranks": ranks,
        "dtype": dtype,
        "held_bytes_per_weight": largest["held_bytes"] / weights,
        "peak_bytes_per_weight": largest["peak_bytes_few"] / weights,
        "peak_bytes_per_token": (largest["peak_bytes_many"] - largest["peak_bytes_few"])
        / own_tokens,
        "writing_bytes_per_weight": largest["peak_bytes_writing"] / weights,
        **{name: largest[name] for name in ("digest_seconds", "policy_seconds", "state_seconds")},
        "tokens_per_cpu_second": counts[1] / sum(one.cpu_seconds for one in found),
    }


def _told(item: tuple[str, Any]) -> str:
    name, value = item
    return f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["135m", "0.5b"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4])
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--tokens", nargs=2, type=int, default=[256, 1024])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for shape in options.shapes:
            for ranks in options.ranks:
                counts = tuple(options.tokens)
                rows.append(measured(shape, ranks, options.dtype, counts, Path(directory)))
                if not options.json:
                    told = (
                        f"{k} {v:,.4g}" if isinstance(v, float) else f"{k} {v}"
                        for k, v in rows[-1].items()
                    )
                    print(", ".join(told), flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
