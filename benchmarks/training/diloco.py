"""Train a founded run with several trainers at once, joined by outer steps, in this process.

In a round, each trainer makes ``--inner`` steps on rollouts of its own, writes its difference, and
takes the outer step by everybody's files. A round is a version; rollouts lag by ``--lag`` versions.
``--trainers 1`` is the baseline, without outer steps. ``--drop STEP`` ends one trainer in the round
of that inner step: its part is lost. The run ends when the mean reward of the last 6 inner steps is
0.85: the result is the number of inner steps of each trainer, and the bytes of a file.

    python benchmarks/training/diloco.py RUN --trainers 3 --inner 4 --rate 0.7 --momentum 0.6
    python benchmarks/training/diloco.py RUN --trainers 1 --json
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import torch
import zstandard
from learning import RolloutSource

from node.local.run_pin import load_run
from protocol.core.types import Version
from protocol.run.manifest import RunManifest
from protocol.run.sections import OuterSection
from roles.engines.training.engine import TorchTrainingEngine
from roles.ports.engines import Policy

TARGET_REWARD = 0.85

TAIL_STEPS = 6
"""Inner steps whose mean reward is compared with the target."""


class Swarm:
    """Trainers of one run, and the policies that they have made."""

    def __init__(
        self,
        run: RunManifest,
        directory: Path,
        count: int,
        rule: OuterSection | None,
        scratch: Path,
    ) -> None:
        grpo = run.grpo.model_copy(update={"outer": rule})
        sections = run.model, run.sampling, grpo
        self.engines = [TorchTrainingEngine(*sections, run=run.run_id) for _ in range(count)]
        self._rule, self._scratch = rule, scratch
        self._count = count
        self._source = RolloutSource(run, directory)
        self._policies = [Policy(Version(0), run.genesis_policy, directory / "genesis.safetensors")]
        self.rewards: list[float] = []
        """Of each inner step, over all trainers."""
        self.difference = scratch / "difference-0"

    async def start(self) -> None:
        """Load the genesis policy in all trainers."""
        await self._source.open()
        for engine in self.engines:
            await engine.load_policy(self._policies[0])

    async def round(self, seed: int, lag: int, *, drop: bool) -> None:
        """Train one version on rollouts of ``lag`` versions before the newest.

        ``drop`` the last trainer before it publishes.
        """
        old = self._policies[max(0, len(self._policies) - 1 - lag)]
        await self._source.load(old)
        for _ in range(1 if self._rule is None else self._rule.inner_steps):
            first = (seed * 1000 + len(self.rewards)) * self._count
            self.rewards.append(
                fmean([await self._step(old, first + n) for n in range(len(self.engines))])
            )
        if drop:
            self.engines.pop().close()
        if self._rule is not None:
            paths = [self._scratch / f"difference-{n}" for n in range(len(self.engines))]
            pairs = zip(self.engines, paths, strict=True)
            files = [(await engine.write_difference(path), path) for engine, path in pairs]
            for engine in self.engines:
                await engine.apply_differences(files)
            if len({await engine.policy_digest() for engine in self.engines}) != 1:
                raise RuntimeError("the trainers have different weights")
        path = self._scratch / f"{len(self._policies)}"
        digest = await self.engines[0].write_policy(path)
        self._policies.append(Policy(Version(len(self._policies)), digest, path))

    async def _step(self, old: Policy, number: int) -> float:
        """Train one trainer on its batch, and return the batch's mean reward."""
        batch = await self._source.batch(number)
        engine = self.engines[number % self._count]
        await engine.step(await engine.recompute(old, batch))
        return fmean(one.reward for one in batch)

    def close(self) -> None:
        """End all threads."""
        for engine in self.engines:
            engine.close()
        self._source.close()


async def train(swarm: Swarm, options: argparse.Namespace) -> dict[str, object]:
    """Print a row for each round; return the inner steps to the target, and bytes of a file."""
    await swarm.start()
    reached = None
    while reached is None and len(swarm.rewards) < options.steps:
        before = len(swarm.rewards)
        drop = options.drop is not None and before <= options.drop < before + options.inner
        await swarm.round(options.seed, options.lag, drop=drop)
        tail = fmean(swarm.rewards[-TAIL_STEPS:])
        if not options.json:
            reward = fmean(swarm.rewards[before:])
            print(f"{len(swarm.rewards):4} {reward:.3f} {tail:.3f}", flush=True)
        if len(swarm.rewards) >= TAIL_STEPS and tail >= TARGET_REWARD:
            reached = len(swarm.rewards)
    content = swarm.difference.read_bytes() if swarm.difference.exists() else b""
    return {
        "inner_steps": reached,
        "file_bytes": len(content),
        "zstd_bytes": len(zstandard.ZstdCompressor(level=3).compress(content)) if content else 0,
        "rewards": [round(one, 3) for one in swarm.rewards],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="directory that `prime-node run create` wrote")
    parser.add_argument("--trainers", type=int, default=3, help="1: without outer steps")
    parser.add_argument("--inner", type=int, default=1, help="inner steps of a round")
    parser.add_argument("--rate", type=float, default=1.0, help="of the outer step")
    parser.add_argument("--momentum", type=float, default=0.0, help="of the outer step")
    parser.add_argument("--encoding", choices=("int8", "float32"), default="int8")
    parser.add_argument("--lag", type=int, help="versions; the run's async level")
    parser.add_argument("--drop", type=int, help="inner step in whose round a trainer ends")
    parser.add_argument("--steps", type=int, default=90, help="inner steps at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one object, no rows")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    run: RunManifest = load_run(options.run / "run.toml").manifest
    if options.lag is None:
        options.lag = run.grpo.async_level
    rule = None
    if options.trainers > 1:
        rule = OuterSection(
            trainers=options.trainers,
            inner_steps=options.inner,
            learning_rate=options.rate,
            momentum=options.momentum,
            encoding=options.encoding,
        )
    elif options.inner != 1:
        parser.error("one trainer has no outer steps")
    with tempfile.TemporaryDirectory(prefix="diloco-") as folder:
        swarm = Swarm(run, options.run, options.trainers, rule, Path(folder))
        try:
            found = asyncio.run(train(swarm, options))
        finally:
            swarm.close()
    settings = {name: value for name, value in vars(options).items() if name not in ("run", "json")}
    print(json.dumps({**settings, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
