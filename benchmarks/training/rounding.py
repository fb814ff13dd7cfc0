"""Policies rounded to nearest beside dithered ones: what changes, what travels, what is learned.

``steps DIRECTORY`` takes AdamW steps from the bf16 weights of a Hugging Face directory and rounds
the same masters both ways. Gradients are noise with a small constant part, a new draw for each
step. For each version it prints the share of weights that changed in both, how far masters and
policies are from the first version (mean of absolute differences), how far a policy went along the
movement of its masters, the bytes of its patch, and the processor seconds of rounding.

``learn RUN`` trains a founded bf16 run (``prime-node run create``) with the project's own engines
in one process, without a network: every step generates two groups of rollouts with a policy that is
two versions old, scores them, and learns from them. Prompts and noise are the same for both.

    python benchmarks/training/rounding.py steps DIRECTORY --steps 10
    python benchmarks/training/rounding.py learn RUN --rounding dither --steps 10
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

import torch
from safetensors.torch import load_file
from torch import Tensor

from node.live.background import ThreadBackground
from node.local.run_pin import load_run
from node.storage import encodings
from protocol.assignment import assign
from protocol.crypto import Identity, digest
from protocol.manifest import RunManifest
from protocol.rollout import REWARD_SCALE
from protocol.types import RunId, Version
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.policy import write_policy
from roles.engines.task import task_of
from roles.engines.training.engine import TorchTrainingEngine
from roles.engines.training.rounding import Dither
from roles.ports.engines import GenerationRequest, Policy, TrainingSequence, Unscorable
from roles.task import Task

Weights = dict[str, Tensor]

LAG = 2
"""Versions that a policy is old when it generates, as in a swarm that never waits."""

CONSTANT_SHARE = 0.3
"""Of the deviation of a gradient, in its constant part: a guess."""

WORKER = Identity(b"\x01" * 32)
"""Draws the prompts."""

RUN = RunId(b"\x5a" * 32)
"""Any run's thresholds do."""

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
    """Return how far a policy went along the movement of its masters, of the latter's length."""
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
    # A gradient is a part of it from another place on: as good as new, and soon made.
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


class Loop:
    """Trains one founded run in this process."""

    def __init__(self, run: Path, rounding: str, seed: int, scratch: Path) -> None:
        self._founded = load_run(run / "run.toml").manifest
        section = self._founded.model.model_copy(update={"rounding": rounding})
        manifest: RunManifest = self._founded.model_copy(update={"model": section})
        self._seed, self._scratch = seed, scratch
        self._worker = TransformersGenerationEngine(manifest.model, manifest.toploc)
        self._trainer = TorchTrainingEngine(
            manifest.model, manifest.sampling, manifest.grpo, run=manifest.run_id
        )
        self._background = ThreadBackground()
        self._environment = task_of(manifest, run / "task", self._background)
        self._task = Task(manifest, self._environment)
        path = run / "genesis.safetensors"
        self._policies = [Policy(Version(0), manifest.genesis_policy, path)]

    async def learn(self, steps: int) -> list[float]:
        """Print a row for each step; return the mean rewards."""
        await self._environment.open()
        await self._trainer.load_policy(self._policies[0])
        base = load_file(self._policies[0].path)
        rewards: list[float] = []
        print("step reward changed moved patch_bytes loss clipped norm seconds")
        for step in range(steps):
            began_at = time.monotonic()
            old = self._policies[max(0, step - LAG)]
            await self._worker.load(old)
            batch = [one for slot in range(2) for one in await self._roll_out(step, slot)]
            rewards.append(fmean(one.reward for one in batch))
            metrics = await self._trainer.step(await self._trainer.recompute(old, batch))
            path = self._scratch / f"{step + 1}.safetensors"
            made = Policy(Version(step + 1), await self._trainer.write_policy(path), path)
            last, new = (load_file(one.path) for one in (self._policies[-1], made))
            print(
                f"{step:4} {rewards[-1]:.3f} {changed_share(last, new):7.3%}"
                f" {movement(base, new):.3e} {patch_bytes(self._policies[-1].path, path):9}"
                f" {metrics.loss:+.4f} {metrics.clip_fraction:.3f} {metrics.gradient_norm:.2f}"
                f" {time.monotonic() - began_at:5.0f}",
                flush=True,
            )
            self._policies.append(made)
            if step > LAG:
                self._policies[step - LAG].path.unlink()
        return rewards

    def close(self) -> None:
        """End its threads."""
        for one in (self._worker, self._trainer, self._background):
            one.close()

    async def _roll_out(self, step: int, slot: int) -> list[TrainingSequence]:
        """Answer the prompts that a slot of this step draws, and score the answers."""
        sampling = self._founded.sampling
        checkpoint = digest(f"{self._seed}/{step}".encode())
        assignments = assign(self._founded, checkpoint, WORKER.peer_id, slot, 0)
        prompts = await self._task.prompts(assignments)
        requests = [
            GenerationRequest(prompt, item.noise_seed, sampling.tokens_max)
            for item, prompt in zip(assignments, prompts, strict=True)
        ]
        made = await self._worker.generate(requests, sampling.temperature)
        rewards = await self._task.rewards(assignments, [one.tokens for one in made])
        if isinstance(rewards, Unscorable):
            raise RuntimeError(rewards.reason)  # noqa: TRY004 - of this machine
        groups = slot * sampling.prompts_per_rollout
        return [
            TrainingSequence(
                groups + item.group, asked.prompt, one.tokens, one.logprobs, own / REWARD_SCALE
            )
            for item, asked, one, own in zip(assignments, requests, made, rewards, strict=True)
        ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    steps = commands.add_parser("steps")
    steps.add_argument("directory", type=Path)
    steps.add_argument("--rate", type=float, default=1e-5)
    learn = commands.add_parser("learn")
    learn.add_argument("run", type=Path)
    learn.add_argument("--rounding", choices=ROUNDINGS, required=True)
    learn.add_argument("--seed", type=int, default=1)
    for command in (steps, learn):
        command.add_argument("--steps", type=int, default=10)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rounding-") as folder:
        if options.command == "steps":
            take_steps(options.directory, options.steps, options.rate, Path(folder))
        else:
            loop = Loop(options.run, options.rounding, options.seed, Path(folder))
            try:
                asyncio.run(loop.learn(options.steps))
            finally:
                loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
