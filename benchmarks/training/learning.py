"""Train a founded run in this process, with the project's trainer or with plain Hugging Face.

Each step generates a version's rollouts with a policy ``--lag`` versions old, scores them and
trains on them, without a network. ``--trainer plain`` is the baseline: transformers' model in
float32, one sequence at a time, PPO's clipping, torch's AdamW, and policies rounded like the run's.
Prompts and sampling noise are equal for both. Per step the script prints:

* mean reward, loss, share of tokens clipped to no gradient, gradient norm, and seconds;
* of the published policy: the share of weights that changed, its distance from the first one (mean
  of absolute differences), and the bytes of its patch.

    prime-node run create --model DIR --recipe smollm2-135m --dataset ROWS --out RUN
    python benchmarks/training/learning.py RUN --steps 10
    python benchmarks/training/learning.py RUN --steps 10 --trainer plain
"""

import argparse
import asyncio
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from rounding import changed_share, movement, patch_bytes
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from typing_extensions import override

from node.local.run_pin import load_run
from node.local.system import ThreadBackground
from protocol.core.crypto import Identity
from protocol.core.types import Digest, Version
from protocol.rollout.assignment import assign
from protocol.rollout.body import REWARD_SCALE
from protocol.run.manifest import RunManifest
from roles.engines.bootstrap.huggingface_export import config_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.files.policy import write_policy
from roles.engines.task_loader import task_of
from roles.engines.training.batch import group_advantages
from roles.engines.training.engine import TorchTrainingEngine
from roles.engines.training.rounding import rounding_of
from roles.ports.engines import GenerationRequest, Policy, TrainingSequence, Unscorable
from roles.runtime.scoring import Task

WORKER = Identity(b"\x01" * 32)


@dataclass(frozen=True, slots=True)
class Learned:
    """Statistics of one step."""

    loss: float
    clip_fraction: float
    gradient_norm: float


class Trainer(ABC):
    """Trains on batches and writes policies."""

    @abstractmethod
    async def load(self, policy: Policy) -> None:
        """Start from the initial policy."""

    @abstractmethod
    async def learn(self, old: Policy, batch: Sequence[TrainingSequence]) -> Learned:
        """Train one step; ``old`` generated the batch."""

    @abstractmethod
    async def write(self, path: Path) -> Digest:
        """Write the newest policy."""


class OwnTrainer(Trainer):
    """The project's engine, called as in a swarm's trainer."""

    def __init__(self, run: RunManifest) -> None:
        self._engine = TorchTrainingEngine(run.model, run.sampling, run.grpo, run=run.run_id)

    @override
    async def load(self, policy: Policy) -> None:
        await self._engine.load_policy(policy)

    @override
    async def learn(self, old: Policy, batch: Sequence[TrainingSequence]) -> Learned:
        found = await self._engine.step(await self._engine.recompute(old, batch))
        clipped = found.clip_low_fraction + found.clip_high_fraction
        return Learned(found.loss, clipped, found.gradient_norm)

    @override
    async def write(self, path: Path) -> Digest:
        return await self._engine.write_policy(path)


class PlainTrainer(Trainer):
    """transformers and torch; the ratio is against the worker's log-probabilities."""

    def __init__(self, run: RunManifest) -> None:
        self._run = run
        self._round = rounding_of(run.model, run.run_id)

    @override
    async def load(self, policy: Policy) -> None:
        config = AutoConfig.for_model(**config_of(self._run.model))
        self._model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        weights = {name: one.float() for name, one in load_file(policy.path).items()}
        self._names = set(weights)  # without a tied output layer
        self._model.load_state_dict(weights, strict=False)
        self._model.tie_weights()
        grpo = self._run.grpo
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(),
            lr=grpo.learning_rate,
            betas=grpo.adam_betas,
            weight_decay=grpo.weight_decay,
        )

    @override
    async def learn(self, old: Policy, batch: Sequence[TrainingSequence]) -> Learned:
        rewards = torch.tensor([one.reward for one in batch], dtype=torch.float64)
        advantages = group_advantages(rewards, torch.tensor([one.group for one in batch])).tolist()
        teaching = [pair for pair in zip(batch, advantages, strict=True) if pair[1]]
        tokens = max(1, sum(len(one.tokens) for one, _ in teaching))
        epsilon = self._run.grpo.loss.epsilon
        loss = clipped = 0.0
        self._optimizer.zero_grad()
        for one, advantage in teaching:
            ratios = (self._logprobs(one) - torch.tensor(one.logprobs)).exp()
            near = ratios.clamp(1 - epsilon, 1 + epsilon) * advantage
            own = -torch.minimum(ratios * advantage, near).sum() / tokens
            own.backward()
            loss += float(own.detach())
            clipped += float((near < ratios * advantage).sum()) / tokens
        norm = torch.nn.utils.clip_grad_norm_(
            self._model.parameters(), self._run.grpo.gradient_clip
        )
        self._optimizer.step()
        return Learned(loss, clipped, float(norm))

    def _logprobs(self, one: TrainingSequence) -> Tensor:
        tokens = torch.tensor([one.prompt + one.tokens])
        logits = self._model(tokens[:, :-1]).logits[0, len(one.prompt) - 1 :]
        distribution = (logits / self._run.sampling.temperature).log_softmax(-1)
        return distribution.gather(1, torch.tensor(one.tokens)[:, None])[:, 0]

    @override
    async def write(self, path: Path) -> Digest:
        state = self._model.state_dict()
        return write_policy({name: self._round(name, state[name]) for name in self._names}, path)


TRAINERS = {"own": OwnTrainer, "plain": PlainTrainer}


class RolloutSource:
    """Generates and scores the rollouts of a run founded in ``directory``."""

    def __init__(self, run: RunManifest, directory: Path) -> None:
        self._run = run
        self._worker = TransformersGenerationEngine(run.model, run.toploc)
        self._background = ThreadBackground()
        self._environment = task_of(run, directory / "task", self._background)
        self._task = Task(run, self._environment)

    async def open(self) -> None:
        """Read the run's files."""
        await self._environment.open()

    async def load(self, policy: Policy) -> None:
        """Generate with another policy."""
        await self._worker.load(policy)

    async def batch(self, number: int) -> list[TrainingSequence]:
        """Return a step's rollouts; each number has other prompts and noise."""
        size = self._run.grpo.rollouts_per_step
        return [
            one for slot in range(size) for one in await self._roll_out(number * size + slot, slot)
        ]

    def close(self) -> None:
        """End the threads."""
        self._worker.close()
        self._background.close()

    async def _roll_out(self, number: int, slot: int) -> list[TrainingSequence]:
        """Generate answers to the prompts of a step's slot, and score them."""
        sampling = self._run.sampling
        assignments = assign(self._run, WORKER.peer_id, number)
        prompts = await self._task.prompts(assignments)
        requests = [
            GenerationRequest(prompt, item.noise_seed, sampling.tokens_max)
            for item, prompt in zip(assignments, prompts, strict=True)
        ]
        made = await self._worker.generate(requests, sampling.temperature)
        rewards = await self._task.rewards(assignments, [one.tokens for one in made])
        if isinstance(rewards, Unscorable):
            raise RuntimeError(rewards.reason)  # noqa: TRY004 - a machine fault
        groups = slot * sampling.prompts_per_rollout
        return [
            TrainingSequence(
                groups + item.group, asked.prompt, one.tokens, one.logprobs, own / REWARD_SCALE
            )
            for item, asked, one, own in zip(assignments, requests, made, rewards, strict=True)
        ]


class Loop:
    """Trains one run, founded in ``directory``."""

    def __init__(self, run: RunManifest, directory: Path, trainer: Trainer, lag: int) -> None:
        self._trainer, self._lag = trainer, lag
        self._source = RolloutSource(run, directory)
        self._policies = [Policy(Version(0), run.genesis_policy, directory / "genesis.safetensors")]

    async def learn(self, steps: int, seed: int, scratch: Path) -> None:
        """Print a row for each step."""
        await self._source.open()
        await self._trainer.load(self._policies[0])
        base = load_file(self._policies[0].path)
        print("step reward changed moved patch_bytes loss clipped norm seconds")
        for step in range(steps):
            began_at = time.monotonic()
            old = self._policies[max(0, step - self._lag)]
            await self._source.load(old)
            batch = await self._source.batch(seed * steps + step)
            reward = fmean(one.reward for one in batch)
            learned = await self._trainer.learn(old, batch)
            path = scratch / f"{step + 1}.safetensors"
            made = Policy(Version(step + 1), await self._trainer.write(path), path)
            last, new = (load_file(one.path) for one in (self._policies[-1], made))
            print(
                f"{step:4} {reward:.3f} {changed_share(last, new):7.3%} {movement(base, new):.3e}"
                f" {patch_bytes(self._policies[-1].path, path):9} {learned.loss:+.4f}"
                f" {learned.clip_fraction:.3f} {learned.gradient_norm:.2f}"
                f" {time.monotonic() - began_at:5.0f}",
                flush=True,
            )
            self._policies.append(made)
            if step > self._lag:
                self._policies[step - self._lag].path.unlink()

    def close(self) -> None:
        """End the source's threads."""
        self._source.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path, help="directory that `prime-node run create` wrote")
    parser.add_argument("--trainer", choices=TRAINERS, default="own")
    parser.add_argument("--rounding", choices=("nearest", "dither"), help="instead of the run's")
    parser.add_argument("--rate", type=float, help="learning rate, instead of the run's")
    parser.add_argument("--lag", type=int, help="versions; the run's async level")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    run: RunManifest = load_run(options.run / "run.toml").manifest
    changes = {
        "model": {"rounding": options.rounding} if options.rounding else {},
        "grpo": {"learning_rate": options.rate} if options.rate else {},
    }
    sections = {name: getattr(run, name).model_copy(update=new) for name, new in changes.items()}
    changed = run.model_copy(update=sections)
    lag = run.grpo.async_level if options.lag is None else options.lag
    trainer = TRAINERS[options.trainer](changed)
    loop = Loop(run, options.run, trainer, lag)  # prompts depend only on the founded run
    with tempfile.TemporaryDirectory(prefix="learning-") as folder:
        try:
            asyncio.run(loop.learn(options.steps, options.seed, Path(folder)))
        finally:
            loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
