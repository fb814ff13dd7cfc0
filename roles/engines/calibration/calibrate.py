"""One calibration: honest pairs, lies, thresholds, and detection rates."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from protocol.core.rng import Rng
from protocol.core.types import Version
from protocol.run.recipe import ModelSection, Recipe, ToplocSection
from roles.engines.bootstrap.huggingface_import import import_pretrained, section_of
from roles.engines.calibration.honest import Progress, Prompts, TimeBudget, measure
from roles.engines.calibration.measurement import ClaimRecording, MeasuredEngine, MeasurementFile
from roles.engines.calibration.power import Power, power
from roles.engines.calibration.proposal import propose
from roles.engines.calibration.workbench import LIAR_SEQUENCES, Bench, Say, lies
from roles.environments.base import ENVIRONMENTS, environment
from roles.ports.engines import Policy

PROMPT_TOKENS = 16
"""Length of arbitrary prompts, used where the recipe's task does not fit the vocabulary."""

LIAR_BATCH = 64
_KEPT = ("precision", "chunk_tokens", "top_k", "false_reject_rate", "slash_rate",
         "history_rollouts", "audit_share", "uniform_audit_share")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Calibration:
    """Measurements, and the thresholds derived from them."""

    rules: ToplocSection
    pairs: tuple[ClaimRecording, ...]
    lies: tuple[ClaimRecording, ...]
    honest: tuple[Power, ...]
    caught: tuple[Power, ...]


async def calibrate(
    bench: Bench,
    prompts: Prompts,
    path: Path,
    budget: TimeBudget,
    margin: float,
    progress: Progress,
) -> Calibration:
    """Measure honest pairs into the file ``path``, or resume it; return the resulting thresholds.

    Errors are multiplied by ``margin``, for machines that are not measured. Raises ``ValueError``
    for a file of another subject or with too few tokens, ``EngineError``, ``OSError``.
    """
    on = measured_on(bench.model.name, bench.model.dtype, bench.device)
    file = MeasurementFile(path, MeasuredEngine.of(bench.recipe, bench.policy.digest), on)
    await measure(bench, prompts, file, budget, progress)
    recordings = file.recordings
    longest = max(len(one) for recording in recordings for one in recording.claimed)
    rules = propose(
        recordings,
        kept(bench.recipe),
        f"{file.measured_on}; answers of up to {longest} tokens, margin {margin:g}",
        margin,
    )
    return judged(rules, recordings, ())


async def with_lies(found: Calibration, bench: Bench, prompts: Prompts, say: Say) -> Calibration:
    """Return a calibration that includes the tokens until each lie is caught."""
    told = replace(bench, prompts=await prompts("/lies", LIAR_SEQUENCES), lot="/lies")
    return judged(found.rules, found.pairs, await lies(told, LIAR_BATCH, say))


def bench_of(
    recipe: Recipe,
    directory: Path,
    folder: Path,
    device: str,
    sequences: int,
    tokens_max: int,
    lot: str = "",
) -> Bench:
    """Return the bench for a model; its policy is written to ``folder``.

    The ``sequences`` prompts are of a task over characters, or of arbitrary tokens.
    """
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
    """Return the settings of a recipe that its calibration does not change."""
    return {name: getattr(recipe.toploc, name) for name in _KEPT}


def judged(
    rules: ToplocSection, pairs: Sequence[ClaimRecording], told: Sequence[ClaimRecording]
) -> Calibration:
    """Return the rejection rates of each recording under ``rules``."""
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
    """Return a recipe's note on where its thresholds were measured."""
    machine = torch.cuda.get_device_name() if device.startswith("cuda") else platform.machine()
    libraries = f"torch {torch.__version__}, transformers {version('transformers')}"
    return f"{names} in {dtype} on {device} ({machine}), {libraries}"
