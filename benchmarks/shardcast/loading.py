"""Time for an engine to load a new version: from its whole file, and by its patch.

Versions are those of ``patch.py``: AdamW on random weights in the shape of a published model of 0.5
billion parameters, rounded to bf16, 1, 4 and 16 steps apart. The built-in engine generates with the
older one, in bf16 or float32, in its own process for each row. A row has the time for which
sequences continued while the patch was read (``staging_seconds``), and their tokens per second then
and before. It also has the time without generation (``still_seconds``), and the peak memory above
that of plain generation. Files are in the page cache, the best case for a whole load; its pages
count as memory.

    python benchmarks/shardcast/loading.py --json
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from patch import (
    HIDDEN,
    INNER,
    KEYS,
    LAYERS,
    STEPS_APART,
    VOCABULARY,
    memory_bytes,
    pairs,
    trained_files,
)
from safetensors.torch import load_file

from node.storage import encodings
from protocol.core.crypto import digest
from protocol.core.types import Version
from protocol.run.recipe import ModelSection, ToplocSection
from protocol.run.toml import load_recipe
from roles.engines.builtin import patching
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.files.policy import digest_of
from roles.ports.engines import GenerationRequest, Patch, Policy

HEAD = 64
SEQUENCES = 4
BEFORE_SECONDS = 10.0
"""Generation time before a patch is staged, to measure tokens per second."""

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"


@dataclass(frozen=True)
class Row:
    """One load of a version."""

    way: str
    precision: str
    changed_share: float
    patch_megabytes: float
    staging_seconds: float
    still_seconds: float
    tokens_per_second_before: float
    tokens_per_second_staging: float
    peak_megabytes: float


def engine_of(precision: str, layers: int, vocabulary: int) -> TransformersGenerationEngine:
    """Return an engine for the files of ``patch.py``: a Llama with a tied output layer."""
    recipe = load_recipe(RECIPE.read_text()).model_dump()
    config = {
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": layers,
        "num_attention_heads": HIDDEN // HEAD,
        "num_key_value_heads": KEYS // HEAD,
        "max_position_embeddings": 32_768,
        "tie_word_embeddings": True,
        "eos_token_id": 1,
    }
    model = recipe["model"] | {"architecture": "llama", "dtype": "bf16", "config": config}
    return TransformersGenerationEngine(
        ModelSection(**model), ToplocSection(**recipe["toploc"] | {"precision": precision})
    )


async def tokens_per_second(engine: TransformersGenerationEngine, seconds: float) -> float:
    """Return the current speed, measured over ``seconds``."""
    before, began_at = engine.tokens_sampled, time.perf_counter()
    await asyncio.sleep(seconds)
    return (engine.tokens_sampled - before) / (time.perf_counter() - began_at)


async def loaded(
    engine: TransformersGenerationEngine, base: Policy, policy: Policy
) -> dict[str, float]:
    """Generate with ``base`` and switch to ``policy``, by its patch if it has one."""
    await engine.load(base)
    requests = [GenerationRequest((2, 3, 4), seed, 1 << 14) for seed in range(SEQUENCES)]
    running = asyncio.create_task(engine.generate(requests, 1.0))
    await asyncio.sleep(1)
    before = await tokens_per_second(engine, BEFORE_SECONDS)
    Path("/proc/self/clear_refs").write_text("5")  # noqa: ASYNC240 - reset the peak memory
    memory, sampled, began_at = memory_bytes("VmRSS"), engine.tokens_sampled, time.perf_counter()
    await engine.stage(policy)
    staged_at = time.perf_counter()
    staging = (engine.tokens_sampled - sampled) / (staged_at - began_at)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await engine.generate([], 1.0)  # returns after the cancelled calls have ended
    still_at = time.perf_counter()
    await engine.load(policy)
    return {
        "staging_seconds": staged_at - began_at if policy.patch else 0.0,
        "still_seconds": time.perf_counter() - still_at,
        "tokens_per_second_before": before,
        "tokens_per_second_staging": staging if policy.patch else 0.0,
        "peak_megabytes": (memory_bytes("VmHWM") - memory) / 1e6,
    }


def measured(directory: Path, way: str, precision: str, after: int, size: Sequence[int]) -> Row:
    """Return a row, measured in a separate process."""
    command = [sys.executable, __file__, "--measure", str(directory), way, precision, str(after)]
    command += ["--layers", str(size[0]), "--vocabulary", str(size[1])]
    told = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
    row = Row(**json.loads(told.stdout))
    print(line(row), file=sys.stderr)
    return row


def measure(directory: Path, way: str, precision: str, after: int, size: Sequence[int]) -> Row:
    """Measure in this process."""
    base, new = (directory / f"{steps}.safetensors" for steps in (0, after))
    older, newer = (
        Policy(Version(steps), digest_of(load_file(path)), path)
        for steps, path in ((0, base), (after, new))
    )
    path = directory / f"{after}.patch"
    if not path.exists():
        encodings.encode(new, older, path)
    if way == "patch":
        patch = Patch(older.digest, path, digest(path.read_bytes()))
        newer = replace(newer, patch=patch)
    changed, elements = 0, 0
    for _, old, fresh in pairs(base, new):
        changed, elements = changed + int((old != fresh).sum()), elements + len(old)
    patching.CHANGED_SHARE_MAX = 1.0  # this benchmark finds the limit
    engine = engine_of(precision, *size)
    found = asyncio.run(loaded(engine, older, newer))
    engine.close()
    return Row(way, precision, changed / elements, path.stat().st_size / 1e6, **found)


def run(directory: Path, layers: int, vocabulary: int, rates: Sequence[float]) -> list[Row]:
    """Measure everything."""
    rows = []
    for rate in rates:
        place = directory / f"{rate:g}"
        if not place.exists():
            place.mkdir()
            trained_files(place, rate, layers, vocabulary)
        for precision in ("bf16", "fp32"):
            rows += [
                measured(place, way, precision, after, (layers, vocabulary))
                for way, steps in (("file", STEPS_APART[:1]), ("patch", STEPS_APART))
                for after in steps
            ]
    return rows


def line(row: Row) -> str:
    """Format a row for people."""
    return (
        f"{row.way:5} {row.precision:4} {row.changed_share:7.2%} {row.patch_megabytes:7.1f} MB"
        f" {row.staging_seconds:7.2f} s {row.still_seconds:7.3f} s"
        f" {row.tokens_per_second_before:6.1f} {row.tokens_per_second_staging:6.1f} tokens/s"
        f" {row.peak_megabytes:7.0f} MB"
    )


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-6])
    parser.add_argument("--directory", type=Path, help="for all files, 4 GB a rate; kept if given")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    size = options.layers, options.vocabulary
    if options.measure:
        directory, way, precision, after = options.measure
        print(json.dumps(asdict(measure(Path(directory), way, precision, int(after), size))))
        return
    with tempfile.TemporaryDirectory() as scratch:
        rows = run(options.directory or Path(scratch), *size, options.rates)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    for row in rows:
        print(line(row))


if __name__ == "__main__":
    main()
