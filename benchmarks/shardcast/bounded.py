"""Cost of the bound on the movement of weights, while a patch is decoded.

AdamW moves random weights with the statistics of a model's. A version is decoded from file to file
as a node does, with and without the bound in turn, in one thread. The time is that of the
processor, the kernel's for reading and writing the files included. *Slower* is the median of the
ratios of neighbouring runs. On a busy machine these differ by more than the cost, so *check* is
measured too: time inside the comparison over the time of the rest of its run, the median.

    python benchmarks/shardcast/bounded.py [--megabytes N] [--runs N] [--directory DIR] [--json]
"""

import argparse
import json
import resource
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

from node.storage import encodings
from protocol.core.crypto import digest
from protocol.core.types import RunId, Version
from protocol.run.training_bound import TOLERANCE, step_ratio_max
from protocol.shardcast.encodings import movement
from protocol.shardcast.encodings.block import FarMoves
from protocol.shardcast.encodings.framing import Piece
from protocol.shardcast.encodings.planes import Words
from protocol.shardcast.movement_bound import ExcessiveMovement, MovementBound
from roles.engines.files.policy import write_policy
from roles.engines.training.rounding import Dither
from roles.ports.engines import Policy

WEIGHT_STD = 0.02
BETAS = (0.9, 0.99)
WEIGHT_DECAY = 0.01
WARM_STEPS = 10
COLUMNS = 4096
TENSOR_ELEMENTS = 1 << 24
PIECE_BYTES = 1 << 18
RUN = RunId(b"\x5a" * 32)

KINDS = (("bf16", 1e-6), ("bf16", 1e-5), ("bf16", 3e-5), ("fp32", 2e-4))
"""Type and learning rate: of a large model, of ``small-text``, ``smollm2-135m`` and ``testnet``."""


@dataclass(frozen=True)
class Row:
    """Results for one kind of version."""

    dtype: str
    learning_rate: float
    changed_share: float
    patch_factor: float
    unbounded_gb_per_s: float
    bounded_gb_per_s: float
    slower: float
    check: float


def versions(
    dtype: str, rate: float, elements: int
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return the tensors of two neighbouring versions."""
    generator, dither = torch.Generator().manual_seed(1), Dither(RUN)
    old: dict[str, torch.Tensor] = {}
    new: dict[str, torch.Tensor] = {}
    for number, first in enumerate(range(0, elements, TENSOR_ELEMENTS)):
        count, name = min(TENSOR_ELEMENTS, elements - first), f"w{number}"
        weights = torch.nn.Parameter(torch.randn(count, generator=generator) * WEIGHT_STD)
        optimiser = torch.optim.AdamW(
            [weights], lr=rate, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True
        )
        noise = torch.randn(2 * count, generator=generator)
        for step in range(WARM_STEPS + 1):
            place = int(torch.randint(count, (1,), generator=generator))
            weights.grad = noise[place : place + count]
            optimiser.step()
            if step >= WARM_STEPS - 1:
                flat = weights.detach()
                policy = dither(name, flat) if dtype == "bf16" else flat.clone()
                (old if step < WARM_STEPS else new)[name] = policy.view(-1, COLUMNS)
    return old, new


def processor_seconds() -> float:
    """Return this process's CPU seconds, the kernel's included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Checking:
    """The comparison of a block, timed."""

    def __init__(self) -> None:
        self._compare = movement.excess_in
        self.seconds = 0.0

    def __call__(
        self, piece: Piece, old: Words, new: Words, far: FarMoves | None, bound: MovementBound
    ) -> ExcessiveMovement | None:
        """Compare a block with its base."""
        began = time.perf_counter()
        try:
            return self._compare(piece, old, new, far, bound)
        finally:
            self.seconds += time.perf_counter() - began


def decode(base: Policy, patch: Path, target: Path, bound: MovementBound | None) -> float:
    """Decode a version; return the seconds."""
    began = processor_seconds()
    decoding = encodings.DecodingFile(base, target, 1 << 40, bound)
    with patch.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            decoding.feed(piece)
    decoding.finish()
    decoding.close()
    assert decoding.excess is None, "an honest version"
    return processor_seconds() - began


def measured(dtype: str, rate: float, elements: int, runs: int, folder: Path) -> Row:
    """Return the results for one kind of version."""
    old, new = versions(dtype, rate, elements)
    paths = [folder / name for name in ("old", "new", "patch", "made")]
    write_policy(old, paths[0])
    write_policy(new, paths[1])
    base = Policy(Version(0), digest(b"base"), paths[0])
    encodings.encode(paths[1], base, paths[2])
    step = rate * TOLERANCE * step_ratio_max(BETAS, 4096)
    bound = MovementBound(1, step, rate * WEIGHT_DECAY)
    seconds, shares = [], []
    movement.excess_in = checking = Checking()
    for run in range(runs + 1):
        checking.seconds = 0.0
        first, second = (None, bound) if run % 2 else (bound, None)
        pair = [decode(base, paths[2], paths[3], one) for one in (first, second)]
        seconds.append(tuple(pair if run % 2 else pair[::-1]))
        shares.append(checking.seconds / (seconds[-1][1] - checking.seconds))
    seconds, shares = seconds[1:], shares[1:]  # the first one warms the page cache
    size = paths[1].stat().st_size
    changed = sum(int((old[name] != new[name]).sum()) for name in old) / elements
    return Row(
        dtype,
        rate,
        changed,
        size / paths[2].stat().st_size,
        size / min(free for free, _ in seconds) / 1e9,
        size / min(bounded for _, bounded in seconds) / 1e9,
        median(bounded / free for free, bounded in seconds) - 1,
        median(shares),
    )


def main() -> None:
    """Measure and print."""
    encodings.THREADS = 1
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--megabytes", type=int, default=270, help="of a bf16 file")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--directory", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    elements = options.megabytes * 500_000 // COLUMNS * COLUMNS
    with tempfile.TemporaryDirectory(dir=options.directory) as folder:
        rows = [measured(*kind, elements, options.runs, Path(folder)) for kind in KINDS]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    for row in rows:
        print(
            f"{row.dtype} {row.learning_rate:g} changed {row.changed_share:.1%}"
            f" factor {row.patch_factor:.1f} GB/s {row.unbounded_gb_per_s:.2f}"
            f" bounded {row.bounded_gb_per_s:.2f} slower {row.slower:.1%}"
            f" check {row.check:.1%}"
        )


if __name__ == "__main__":
    main()
