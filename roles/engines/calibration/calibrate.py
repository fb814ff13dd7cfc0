"""One calibration: honest pairs, lies, thresholds, and how well those tell them apart."""

import platform
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import tomlkit
import torch

from protocol.recipe import ModelSection, Recipe, ToplocSection
from protocol.rng import Rng
from protocol.types import Version
from roles.engines.calibration.power import Power, power
from roles.engines.calibration.proposal import propose
from roles.engines.calibration.recording import Recording
from roles.engines.calibration.workbench import Bench, Say, honest_pairs, lies
from roles.engines.published import import_pretrained, section_of
from roles.environments.base import ENVIRONMENTS, environment
from roles.ports.engines import Policy

PROMPT_TOKENS = 16
"""Of a prompt of arbitrary tokens, where the recipe's task has none for this vocabulary."""

BATCHES = (1, 16, 64)
ATTENTIONS = ("sdpa", "eager")
_KEPT = ("precision", "chunk_tokens", "top_k", "false_reject_rate", "slash_rate",
         "history_rollouts", "audit_share")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was measured, and what follows from it."""

    rules: ToplocSection
    pairs: tuple[Recording, ...]
    lies: tuple[Recording, ...]
    honest: tuple[Power, ...]
    caught: tuple[Power, ...]


async def calibrate(
    recipe: Recipe,
    directories: Sequence[Path],
    *,
    device: str,
    sequences: int,
    tokens_max: int,
    margin: float,
    say: Say,
    batches: Sequence[int] = BATCHES,
    attentions: Sequence[str] = ATTENTIONS,
) -> Calibration:
    """Measure what ``recipe`` should tolerate, with the models in Hugging Face ``directories``.

    Each pair of engines computes ``sequences`` of up to ``tokens_max`` tokens with each model; all
    lies are told with the last. Raises ``ValueError`` for a model that cannot be used.
    """
    pairs: list[Recording] = []
    told: list[Recording] = []
    for directory in directories:
        with tempfile.TemporaryDirectory(prefix="prime-node-calibrate-") as folder:
            bench = bench_of(recipe, directory, Path(folder), device, sequences, tokens_max)
            pairs += await honest_pairs(bench, batches, attentions, say)
            if directory is directories[-1]:
                told = await lies(bench, max(batches), say)
    names = ", ".join(directory.name for directory in directories)
    on = measured_on(names, recipe.model.dtype, device)
    return judged(propose(pairs, kept(recipe), on, margin), pairs, told)


def bench_of(
    recipe: Recipe,
    directory: Path,
    folder: Path,
    device: str,
    sequences: int,
    tokens_max: int,
    lot: str = "",
) -> Bench:
    """Return what to measure with a model, whose policy is written to ``folder``."""
    model = section_of(directory, recipe.model)
    path = folder / "policy.safetensors"
    return Bench(
        model=model,
        policy=Policy(Version(0), import_pretrained(directory, path, model.dtype), path),
        recipe=recipe,
        prompts=prompts_of(recipe, model, sequences, lot),
        tokens_max=tokens_max,
        lot=lot,
        device=device,
        directory=folder,
    )


def kept(recipe: Recipe) -> dict[str, object]:
    """Return the settings of a recipe that its calibration leaves as they are."""
    return {name: getattr(recipe.toploc, name) for name in _KEPT}


def judged(
    rules: ToplocSection, pairs: Sequence[Recording], told: Sequence[Recording]
) -> Calibration:
    """Return how often ``rules`` reject each recording."""
    rng = np.random.default_rng(0)
    return Calibration(
        rules,
        tuple(pairs),
        tuple(told),
        tuple(power(rules, recording, rng) for recording in pairs),
        tuple(power(rules, recording, rng) for recording in told),
    )


def prompts_of(
    recipe: Recipe, model: ModelSection, count: int, lot: str = ""
) -> list[tuple[int, ...]]:
    """Return prompts of the recipe's task, or of arbitrary tokens for a larger vocabulary."""
    draws = Rng(f"calibration prompts{lot}".encode())
    if recipe.environment.name in ENVIRONMENTS:
        task = environment(recipe.environment.name)
        if task.vocabulary_size == model.vocabulary_size:
            return [task.prompt(draws.bits64(), None) for _ in range(count)]
    return [
        tuple(draws.below(model.vocabulary_size) for _ in range(PROMPT_TOKENS))
        for _ in range(count)
    ]


def measured_on(names: str, dtype: str, device: str) -> str:
    """Return what a recipe says of where its thresholds come from."""
    machine = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    libraries = f"torch {torch.__version__}, transformers {version('transformers')}"
    return f"{names} in {dtype} on {device} ({machine}), {libraries}"


def as_toml(rules: ToplocSection) -> str:
    """Return the ``[toploc]`` section of a recipe."""
    values = rules.model_dump()
    honest = {name: tomlkit.inline_table() for name in values["honest"]}
    for name, line in honest.items():
        line.update(values["honest"][name])
    return tomlkit.dumps({"toploc": values | {"honest": honest}})
