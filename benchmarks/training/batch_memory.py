"""Memory of a batch in the daemon and in its training engine, per token.

A batch goes from the daemon's form through the engine's process to the gradient of a very small
model. The rollouts come one by one, as tuples, as decoded bodies do. ``memory`` keeps these
tuples; ``files`` stores their numbers with ``RowDirectory``, as a node does, and recomputes the
log-probabilities first. ``--equal N`` gives equal rewards to all groups but each N-th: they are
sent, and have no part in the step. Each form runs in a process of its own. The peaks are those
above the memory before the batch, after a small one. ``frame_bytes`` is the longest frame of the
call, and ``pack_seconds`` the time to pack 131 million tokens in answers of that length.

Usage: ``python benchmarks/training/batch_memory.py [--tokens N] [--memory-tokens N]
[--answer-tokens N] [--equal N] [--vocabulary N] [--json]``
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from node.local.memory import peak_rss_bytes
from node.storage.row_files import RowDirectory
from protocol.core.crypto import digest
from protocol.core.types import Version
from protocol.run.recipe import ModelSection
from protocol.run.toml import load_recipe
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.files.policy import write_policy
from roles.engines.subprocess import wire
from roles.engines.subprocess.client import ChildEngines, ChildTraining
from roles.engines.subprocess.process import EngineProcesses
from roles.engines.training.batch import pack, select
from roles.ports.engines import Policy, StoredNumbers, TrainingSequence
from roles.ports.storage import BatchRows
from simulations.runtime.loop import SimBackground
from tests.worlds.messages import run_manifest

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"
PROMPT = (2, 3, 4, 5)
GROUP = 16
SMALL = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 65_536,
}
TARGET_TOKENS = 131_072_000
"""A batch of INTELLECT-2: 4,096 answers of up to 32,000 tokens."""

FORMS = ("memory", "files")


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a batch, and of the model that trains on it."""

    tokens: int
    answer_tokens: int
    equal: int
    vocabulary: int
    """Python shares integers up to 256; a large vocabulary takes longer."""


def rollout(number: int, shape: Shape) -> list[TrainingSequence]:
    """Return a group of random answers, every other one rewarded unless all are equal."""
    draws = np.random.default_rng(number)
    made = []
    for place in range(GROUP):
        tokens = draws.integers(2, shape.vocabulary, shape.answer_tokens).tolist()
        logprobs = (-12 * draws.random(shape.answer_tokens, np.float32)).tolist()
        reward = 0 if number % shape.equal else place % 2
        made.append(TrainingSequence(number, PROMPT, tuple(tokens), tuple(logprobs), reward))
    return made


@asynccontextmanager
async def engine_in(
    directory: Path, vocabulary: int
) -> AsyncIterator[tuple[ChildTraining, Policy]]:
    """Yield an engine of a very small model in a process of its own."""
    recipe = load_recipe(RECIPE.read_text())
    config = recipe.model.config | SMALL | {"vocab_size": vocabulary}
    model = ModelSection(**recipe.model.model_dump() | {"config": config, "dtype": "fp32"})
    torch.manual_seed(1)
    network = build_model(configuration("qwen2", config), torch.float32, "cpu")
    written = write_policy(tensors_of(network), directory / "policy", torch.float32)
    policy = Policy(Version(0), written, directory / "policy")
    processes = EngineProcesses()
    manifest = run_manifest(model=model.model_dump(), toploc={"precision": "fp32", "top_k": 8})
    engine = ChildEngines(processes, SimBackground(), directory, "cpu").training(manifest)
    try:
        await engine.load_policy(policy)
        yield engine, policy
    finally:
        await engine.supervisor.close()
        processes.close()


async def peaks(form: str, shape: Shape) -> dict[str, float]:
    """Return the peaks of one form in bytes per token, and its times."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        rows = RowDirectory(directory / "rows") if form == "files" else BatchRows()
        async with engine_in(directory, shape.vocabulary) as (engine, policy):
            small = await rows.store(digest(b"small"), rollout(0, shape))
            await engine.recompute(policy, small, rows.logprobs("small"))
            await engine.begin_step(small)
            pids = os.getpid(), engine.supervisor.pid
            before = [peak_rss_bytes(pid) for pid in pids]
            began = time.perf_counter()
            batch: list[TrainingSequence] = []
            for number in range(shape.tokens // (GROUP * shape.answer_tokens)):
                found = rollout(number, shape)
                batch += await rows.store(digest(b"%d" % number), found)
            stored = time.perf_counter()
            if form == "files":
                batch = await engine.recompute(policy, batch, rows.logprobs("version"))
            recomputed = time.perf_counter()
            await engine.begin_step(batch)
            ended = time.perf_counter()
            after = [peak_rss_bytes(pid) for pid in pids]
        count = sum(len(one.tokens) for one in batch)
        daemon, process = (end - start for end, start in zip(after, before, strict=True))
        return {
            "tokens": count,
            "daemon_bytes_per_token": daemon / count,
            "engine_bytes_per_token": process / count,
            "frame_bytes": max(map(len, wire.call_parts(1, batch))),
            "store_seconds": stored - began,
            "recompute_seconds": recomputed - stored,
            "begin_step_seconds": ended - recomputed,
        }


def measured(form: str, shape: Shape) -> dict[str, float]:
    """Run ``peaks`` in a separate process: a process's peak never falls."""
    sizes = {f"--{name.replace('_', '-')}": value for name, value in asdict(shape).items()}
    options = [str(part) for pair in sizes.items() for part in pair]
    command = [sys.executable, __file__, "--measure", form, *options]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def pack_seconds(answer_tokens: int) -> float:
    """Return the time to select and pack answers of up to twice a length, 131 million tokens."""
    lengths = np.random.default_rng(1).integers(
        1, 2 * answer_tokens, TARGET_TOKENS // answer_tokens
    )
    places = [StoredNumbers(Path("rows"), 0, int(length)) for length in lengths]
    batch = [
        TrainingSequence(number // GROUP, PROMPT, one, one, number % 2)
        for number, one in enumerate(places)
    ]
    began = time.perf_counter()
    pack(select(batch), 16_384)
    return time.perf_counter() - began


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", type=int, default=4_000_000)
    parser.add_argument("--memory-tokens", type=int, default=1_000_000)
    parser.add_argument("--answer-tokens", type=int, default=2000)
    parser.add_argument("--equal", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--measure", choices=FORMS, help="one form, in this process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shape = Shape(options.tokens, options.answer_tokens, options.equal, options.vocabulary)
    if options.measure:
        print(json.dumps(asyncio.run(peaks(options.measure, shape))))
        return
    shapes = {"memory": replace(shape, tokens=options.memory_tokens), "files": shape}
    results = {
        f"{form}_{name}": value
        for form, each in shapes.items()
        for name, value in measured(form, each).items()
    }
    results["pack_seconds"] = pack_seconds(options.answer_tokens)
    if options.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:32} {value:16,.6g}")


if __name__ == "__main__":
    main()
