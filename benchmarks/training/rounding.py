"""Policies rounded to nearest and dithered: movement, and bytes of patches.

AdamW trains from the bf16 weights of a Hugging Face directory, and the same masters are rounded
both ways. Gradients are noise, new for each step, with a small constant part. For each version the
script prints:

* the share of weights that changed, the bytes of the patch, and the processor seconds of rounding;
* the distance of masters and policy from the first version (mean of absolute differences), and the
  policy's movement along that of its masters.

    python benchmarks/training/rounding.py DIRECTORY --steps 10
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from node.storage import encodings
from protocol.core.crypto import digest
from protocol.core.types import RunId, Version
from roles.engines.files.policy import write_policy
from roles.engines.training.rounding import Dither
from roles.ports.engines import Policy

Weights = dict[str, Tensor]

CONSTANT_SHARE = 0.3
"""Constant part of a gradient relative to its deviation: a guess."""

RUN = RunId(b"\x5a" * 32)

ROUNDINGS = ("nearest", "dither")


def patch_bytes(base: Path, new: Path) -> int:
    """Return the length of the patch between two files of weights."""
    with tempfile.TemporaryDirectory(dir=new.parent) as scratch:
        target = Path(scratch, "patch")
        encodings.encode(new, Policy(Version(0), digest(b"base"), base), target)
        return target.stat().st_size


def changed_share(before: Weights, after: Weights) -> float:
    """Return the share of weights whose bit patterns differ."""
    changed = sum(
        int((before[name].view(torch.int16) != after[name].view(torch.int16)).sum())
        for name in before
    )
    return changed / sum(tensor.numel() for tensor in before.values())


def movement(base: Weights, weights: Mapping[str, Tensor]) -> float:
    """Return the mean absolute difference."""
    moved = sum(float((weights[n].float() - base[n].float()).abs().sum()) for n in base)
    return moved / sum(tensor.numel() for tensor in base.values())


def along(base: Weights, masters: Mapping[str, Tensor], policy: Weights) -> float:
    """Return a policy's movement along that of its masters, relative to the latter's length."""
    product = squares = 0.0
    for name, before in base.items():
        wanted = masters[name] - before.float()
        product += float((wanted * (policy[name].float() - before.float())).sum())
        squares += float(wanted.square().sum())
    return product / squares


def take_steps(directory: Path, count: int, rate: float, scratch: Path) -> None:
    """Print a row for each step and rounding."""
    base = {
        name: one.bfloat16() for name, one in load_file(directory / "model.safetensors").items()
    }
    masters = {name: torch.nn.Parameter(one.float()) for name, one in base.items()}
    optimiser = torch.optim.AdamW(masters.values(), lr=rate, betas=(0.9, 0.99), fused=True)
    longest = max(one.numel() for one in base.values())
    generator = torch.Generator().manual_seed(1)
    # Each gradient is a shifted slice of this noise: independent enough, and fast.
    noise = torch.randn(3 * longest, generator=generator)
    dither = Dither(RUN)
    paths = {how: scratch / f"{how}-0" for how in ROUNDINGS}
    last = dict.fromkeys(ROUNDINGS, base)
    for path in paths.values():
        write_policy(base, path)
    print("step rounding changed masters_moved policy_moved along patch_bytes round_cpu_s")
    for step in range(1, count + 1):
        for one in masters.values():
            place = int(torch.randint(longest, (1,), generator=generator))
            constant, drawn = noise[2 * longest :], noise[place:]
            one.grad = (CONSTANT_SHARE * constant[: one.numel()] + drawn[: one.numel()]).view(
                one.shape
            )
        optimiser.step()
        optimiser.zero_grad()
        now = {name: one.detach() for name, one in masters.items()}
        for how in ROUNDINGS:
            began_at = time.process_time()
            policy = {
                name: dither(name, one) if how == "dither" else one.bfloat16()
                for name, one in now.items()
            }
            seconds = time.process_time() - began_at
            path = scratch / f"{how}-{step}"
            write_policy(policy, path)
            print(
                f"{step:4} {how:8} {changed_share(last[how], policy):7.3%}"
                f" {movement(base, now):.3e} {movement(base, policy):.3e}"
                f" {along(base, now, policy):6.3f} {patch_bytes(paths[how], path):9}"
                f" {seconds:5.2f}",
                flush=True,
            )
            paths[how].unlink()
            paths[how], last[how] = path, policy


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--rate", type=float, default=1e-5)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rounding-") as folder:
        take_steps(options.directory, options.steps, options.rate, Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
