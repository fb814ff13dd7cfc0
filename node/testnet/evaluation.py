"""Greedy accuracy of a policy, without sampling noise; runs in a child process."""

import asyncio
import os
from pathlib import Path

from node.local.config import runtime_directories
from node.local.run_pin import load_run
from node.local.system import ThreadBackground
from node.testnet.plan import SwarmLayout
from protocol.core.rng import Rng
from protocol.core.types import Version
from roles.ports.engines import Answer, Policy, Unscorable

PROBLEMS = 512
"""With 512 problems the 95 % interval of an accuracy is within 0.045."""


def greedy_accuracy(layout: SwarmLayout, path: Path, seed: int) -> float:
    """Return the mean score of greedy answers to problems drawn with ``seed``."""
    return asyncio.run(_greedy_accuracy(layout, path, seed))


async def _greedy_accuracy(layout: SwarmLayout, path: Path, seed: int) -> float:
    from roles.engines.files.policy import digest_of  # noqa: PLC0415 - imports torch
    from roles.engines.task_loader import task_of  # noqa: PLC0415 - keeps the parent light
    from roles.engines.training.engine import TorchTrainingEngine  # noqa: PLC0415 - imports torch

    manifest = load_run(layout.manifest).manifest
    background = ThreadBackground()
    engine = TorchTrainingEngine(
        manifest.model, manifest.sampling, manifest.grpo, run=manifest.run_id
    )
    try:
        from safetensors.torch import load_file  # noqa: PLC0415 - imports torch

        task = task_of(manifest, layout.task, background, runtime_directories(os.environ))
        await task.open()
        draws = Rng(seed.to_bytes(8, "big")).child("greedy evaluation")
        problems = [draws.bits64() for _ in range(PROBLEMS)]
        targets = manifest.sampling.length_targets or (None,)
        await engine.load_policy(Policy(Version(0), digest_of(load_file(path)), path))
        answers = await engine.evaluate(
            [await task.prompt(one, targets[n % len(targets)]) for n, one in enumerate(problems)],
            manifest.sampling.tokens_max,
        )
        scores = await task.score_batch(
            [Answer(one, tokens) for one, tokens in zip(problems, answers, strict=True)]
        )
    finally:
        engine.close()
        background.close()
    return sum(one for one in scores if not isinstance(one, Unscorable)) / PROBLEMS
