"""Size and speed of a version's patch against an earlier one, on real training steps.

There are two sources of steps. One is a training testnet (float32, a few of its own versions). The
other is AdamW on random weights in the shape of a published model of 0.5 billion parameters. They
are kept in float32 and rounded to bf16, at three learning rates and 1, 4 and 16 steps apart. For
each pair of files it reports the ratio of the file's size to:

* ``ratio``: the patch;
* ``bound_ratio``: the entropy of the same data;
* ``pulse_ratio``: the format of PULSE (arXiv 2602.03839), written here from its description. Per
  change it has a row difference of one byte, a column difference of two and the new value, all
  through zstd-1.

Encoding and decoding go from file to file in a separate process, and decoded tensors are digested
as in a node. Speeds are weights per second of processor time: of the process, and
(``encode_file_gb_per_s``) including the kernel's for reading and writing the files.

The bound treats each tensor separately. Positions count as random. 16-bit differences count by
their frequencies. Of wider ones, sign and length count by frequency and the lower bits in full,
because nearly every value is unique.

    python benchmarks/shardcast/patch.py --json
"""

import argparse
import json
import math
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import zstandard

from node.storage import encodings
from protocol.core.crypto import digest
from protocol.core.types import Version
from protocol.shardcast.encodings import stream
from protocol.shardcast.encodings.planes import Positions, Words
from roles.engines.files.policy import write_policy
from roles.ports.engines import Policy

HIDDEN, INNER, KEYS, VOCABULARY, LAYERS = 896, 4864, 128, 151_936, 24
"""Qwen2.5-0.5B's config.json; its output layer is tied to the embedding."""

LEARNING_RATES = (3e-7, 1e-6, 3e-6)
STEPS_APART = (1, 4, 16)
WARM_STEPS = 10
"""Steps before the base: Adam's first steps are as large as the learning rate allows."""

WEIGHT_STD = 0.02
SLICE_ELEMENTS = 1 << 24
TESTNET_STEPS = 12
ROUNDS = 3
ROUND_BYTES = 250_000_000
"""A smaller file is coded repeatedly in a round: the kernel's clock resolves milliseconds."""


Tensor = tuple[tuple[int, ...], Words, Words]
"""Shape, words before, words after."""


@dataclass(frozen=True)
class Row:
    """Results for one pair of versions."""

    source: str
    learning_rate: float | None
    steps_apart: int
    megabytes: float
    changed_share: float
    ratio: float
    bound_ratio: float
    pulse_ratio: float | None
    encode_gb_per_s: float
    decode_gb_per_s: float
    encode_file_gb_per_s: float
    decode_file_gb_per_s: float
    peak_models: float
    """Peak memory of encoding or decoding beyond its libraries, in multiples of the weights."""


def shapes(layers: int, vocabulary: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the parameters of the model by name."""
    yield "model.embed_tokens.weight", (vocabulary, HIDDEN)
    for layer in range(layers):
        name = f"model.layers.{layer}."
        yield name + "input_layernorm.weight", (HIDDEN,)
        yield name + "post_attention_layernorm.weight", (HIDDEN,)
        for part in ("q", "o"):
            yield f"{name}self_attn.{part}_proj.weight", (HIDDEN, HIDDEN)
        for part in ("k", "v"):
            yield f"{name}self_attn.{part}_proj.weight", (KEYS, HIDDEN)
        for part in ("gate", "up"):
            yield f"{name}mlp.{part}_proj.weight", (INNER, HIDDEN)
        yield name + "mlp.down_proj.weight", (HIDDEN, INNER)
    yield "model.norm.weight", (HIDDEN,)


def stepped(elements: int, rate: float, generator: torch.Generator) -> dict[int, torch.Tensor]:
    """Return bf16 weights by steps after the base (0: the base itself)."""
    weights = torch.nn.Parameter(torch.randn(elements, generator=generator) * WEIGHT_STD)
    optimiser = torch.optim.AdamW([weights], lr=rate, fused=True)
    # Each step's gradient is a shifted slice of this noise: independent enough, and fast.
    noise = torch.randn(2 * elements, generator=generator)
    kept = {}
    for step in range(WARM_STEPS + max(STEPS_APART) + 1):
        after = step - WARM_STEPS
        if after == 0 or after in STEPS_APART:
            kept[after] = weights.detach().to(torch.bfloat16)
        place = int(torch.randint(elements + 1, (1,), generator=generator))
        weights.grad = noise[place : place + elements]
        optimiser.step()
    return kept


def trained_files(directory: Path, rate: float, layers: int, vocabulary: int) -> dict[int, Path]:
    """Write a file for each number of steps."""
    generator = torch.Generator().manual_seed(1)
    tensors: dict[int, dict[str, torch.Tensor]] = {}
    for name, shape in shapes(layers, vocabulary):
        count = math.prod(shape)
        slices = [
            stepped(min(SLICE_ELEMENTS, count - first), rate, generator)
            for first in range(0, count, SLICE_ELEMENTS)
        ]
        for after in slices[0]:
            whole = torch.cat([piece[after] for piece in slices]).reshape(shape)
            tensors.setdefault(after, {})[name] = whole
    print(f"trained with {rate}", file=sys.stderr)
    for after, named in tensors.items():
        write_policy(named, directory / f"{after}.safetensors")
    return {after: directory / f"{after}.safetensors" for after in tensors}


def testnet_files(directory: Path, steps: int) -> list[Path]:
    """Return the last versions of a testnet trained for ``steps`` steps."""
    command = [sys.executable, "-m", "node.cli.main", "testnet", "--keep", "--no-view"]
    command += ["--steps", str(steps), "--data-dir", str(directory)]
    subprocess.run(command, check=True, stdout=sys.stderr, timeout=600)
    found = list(directory.glob("nodes/trainer*/weights/v*.safetensors"))
    return sorted(found, key=lambda path: int(path.stem[1:]))


def pairs(base: Path, new: Path) -> Iterator[Tensor]:
    """Yield shape and words of each tensor of two files."""
    old, fresh = base.read_bytes(), new.read_bytes()
    layout = stream.source_of(lambda at, length: old[at : at + length], len(old)).layout
    for tensor in layout.places:
        before, after = (
            np.frombuffer(data, f"<u{tensor.element_bytes}", tensor.count, tensor.offset)
            for data in (old, fresh)
        )
        yield tensor.shape, before, after


def entropy_bits(counts: Positions) -> float:
    """Return the total entropy in bits of symbols with these counts."""
    counts = counts[counts > 0]
    return float(-(counts * np.log2(counts / counts.sum())).sum())


def ordered(words: Words) -> Words:
    """Map float bit patterns (sign and magnitude) to integers of the same order."""
    upper = words.dtype.type(1 << words.itemsize * 8 - 1)
    return np.where(words & upper, ~words, words | upper)


def bound_bits(old: Words, new: Words) -> float:
    """Return the entropy of a tensor's changes."""
    changed = np.flatnonzero(old != new)
    positions = entropy_bits(np.array([len(changed), len(old) - len(changed)]))
    difference = ordered(new[changed]) - ordered(old[changed])
    if old.itemsize == 2:
        return positions + entropy_bits(np.unique(difference, return_counts=True)[1])
    signed = difference.view(np.int32).astype(np.float64)
    lengths = np.frexp(np.abs(signed))[1]
    classes = np.unique(lengths * np.sign(signed), return_counts=True)[1]
    return positions + entropy_bits(classes) + float((lengths - 1).sum())


def pulse_bytes(parts: Sequence[Tensor]) -> int:
    """Return the length of PULSE's patch of all tensors: one frame of rows, columns and values."""
    rows, columns, values = [], [], []
    for shape, old, new in parts:
        changed = np.flatnonzero(old != new)
        row, column = np.divmod(changed, shape[-1])
        down = np.diff(row, prepend=0)
        across = np.where(down > 0, column, np.diff(column, prepend=0))
        rows.append(np.minimum(down, 255).astype(np.uint8).tobytes())
        columns.append(across.astype("<u2").tobytes())
        values.append(new[changed].tobytes())
    return len(zstandard.compress(b"".join([*rows, *columns, *values]), 1))


def memory_bytes(name: str) -> int:
    """Return this process's memory from ``/proc``: ``VmRSS`` now, ``VmHWM`` at peak."""
    (found,) = re.findall(
        rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE
    )
    return int(found) * 1024


def processor_seconds() -> tuple[float, float]:
    """Return this process's CPU seconds, without and with the kernel's part."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_utime + used.ru_stime


def code(base: Path, new: Path, target: Path, rounds: int) -> dict[str, float]:
    """Encode and decode in this process; return seconds of processor time, and peak memory.

    The fastest of ``rounds``, because machines are shared. The first of two seconds exclude the
    kernel's part.
    """
    policy = Policy(Version(0), digest(b"base"), base)
    decoded = target.with_suffix(".decoded")
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak memory
    before = memory_bytes("VmRSS")
    times = max(1, ROUND_BYTES // new.stat().st_size) if rounds > 1 else 1
    seconds = [one_round(new, policy, target, decoded, times) for _ in range(rounds)]
    names = ("encode", "encode_file", "decode", "decode_file")
    return {
        "bytes": float(target.stat().st_size),
        **dict(zip(names, map(min, zip(*seconds, strict=True)), strict=True)),
        "peak": memory_bytes("VmHWM") - before,
    }


def one_round(
    new: Path, policy: Policy, target: Path, decoded: Path, times: int
) -> tuple[float, ...]:
    """Code repeatedly; return the mean of each of the seconds of ``once``."""
    each = [once(new, policy, target, decoded) for _ in range(times)]
    return tuple(sum(seconds) / times for seconds in zip(*each, strict=True))


def once(new: Path, policy: Policy, target: Path, decoded: Path) -> tuple[float, ...]:
    """Encode and decode; return the seconds of both, each without and with the kernel's."""
    started_at = processor_seconds()
    encodings.encode(new, policy, target)
    encoded_at = processor_seconds()
    decoding = encodings.DecodingFile(policy, decoded, new.stat().st_size)
    with target.open("rb") as file:
        while piece := file.read(1 << 18):
            decoding.feed(piece)
    decoding.finish()
    decoding.close()
    ended_at = processor_seconds()
    with decoded.open("rb") as one, new.open("rb") as other:
        while piece := one.read(1 << 22):
            assert piece == other.read(1 << 22)
        assert not other.read(1)
    decoded.unlink()
    moments = pairwise((started_at, encoded_at, ended_at))
    return tuple(
        after - before for begin, end in moments for before, after in zip(begin, end, strict=True)
    )


def measured(
    source: str, rate: float | None, apart: int, base: Path, new: Path, rounds: int
) -> Row:
    """Return the results for a pair of files."""
    with tempfile.TemporaryDirectory(dir=new.parent) as scratch:
        arguments = [str(base), str(new), str(Path(scratch, "patch"))]
        command = [sys.executable, __file__, "--rounds", str(rounds), "--code", *arguments]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=600)
    coded = json.loads(told.stdout)
    size, changed, elements, bits = new.stat().st_size, 0, 0, 0.0
    parts = []
    for shape, old, fresh in pairs(base, new):
        changed += int((old != fresh).sum())
        elements += len(old)
        bits += bound_bits(old, fresh)
        parts.append((shape, old, fresh))
    pulse = size / pulse_bytes(parts) if parts[0][1].itemsize == 2 else None
    row = Row(
        source,
        rate,
        apart,
        size / 1e6,
        changed / elements,
        size / coded["bytes"],
        8 * size / bits,
        pulse,
        *(size / coded[name] / 1e9 for name in ("encode", "decode", "encode_file", "decode_file")),
        coded["peak"] / size,
    )
    print(line(row), file=sys.stderr)
    return row


def line(row: Row) -> str:
    """Format a row for people."""
    rate = "" if row.learning_rate is None else f"{row.learning_rate:g}"
    pulse = "" if row.pulse_ratio is None else f"{row.pulse_ratio:.1f}"
    return (
        f"{row.source:8} {rate:>6} {row.steps_apart:3} {row.changed_share:8.4%}"
        f" {row.ratio:8.1f} {row.bound_ratio:8.1f} {pulse:>8}"
        f" {row.encode_gb_per_s:6.2f} {row.decode_gb_per_s:6.2f}"
        f" {row.encode_file_gb_per_s:6.2f} {row.decode_file_gb_per_s:6.2f} {row.peak_models:6.3f}"
    )


def run(
    directory: Path,
    layers: int,
    vocabulary: int,
    testnet_steps: int,
    rounds: int,
    rates: Sequence[float] = LEARNING_RATES,
) -> list[Row]:
    """Measure everything."""
    rows = []
    if testnet_steps:
        versions = testnet_files(directory / "testnet", testnet_steps)
        rows += [
            measured("testnet", None, apart, versions[-1 - apart], versions[-1], rounds)
            for apart in (1, 4)
        ]
    for rate in rates:
        files = trained_files(directory, rate, layers, vocabulary)
        rows += [
            measured("0.5b", rate, apart, files[0], files[apart], rounds) for apart in STEPS_APART
        ]
    return rows


def main() -> None:
    """Measure, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--testnet-steps", type=int, default=TESTNET_STEPS, help="0: no testnet")
    parser.add_argument("--directory", type=Path, help="for all files, 6 GB")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="1: code each file once")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--code", nargs=3, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.code:
        print(json.dumps(code(*options.code, options.rounds)))
        return
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        sizes = options.layers, options.vocabulary, options.testnet_steps
        rows = run(Path(directory), *sizes, options.rounds)
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    print("source     rate  apart  changed   ratio    bound    PULSE  GB/s, with kernel's  memory")
    for row in rows:
        print(line(row))


if __name__ == "__main__":
    main()
