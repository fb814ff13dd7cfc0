"""Summary of a run for people: model, rules, and the needs of its nodes."""

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table

from node.founding.needs import Needs
from node.founding.trial import Trial
from node.local.run_words import run_words
from node.local.units import bytes_text, duration_text
from protocol.run.manifest import RunManifest

LINE_BITS_PER_SECOND = 100e6
"""Bandwidth of an ordinary connection, for download times."""

FLOPS = 50e12
"""Effective speed of a gaming GPU, for the duration of a rollout; a guess."""


TEACHING_SHARE_LOW = 0.25
"""Share of groups with an advantage below which most rollouts are useless; a guess."""

PATCH_SHARE_HIGH = 0.1
"""Patch size relative to a version's file; a step changes about 1 % of a bf16 policy's weights."""


def describe(manifest: RunManifest, needs: Needs, trial: Trial | None = None) -> RenderableType:
    """Return tables of the manifest, its needs, and a trial's measurements."""
    facts = Table(box=None, show_header=False)
    facts.add_column(style="bold")
    for name, value in run_words(manifest):
        facts.add_row(name, value)
    if trial is None:
        return Group(facts, "", _needs(needs))
    return Group(facts, "", _measured(needs, trial))


def _measured(needs: Needs, trial: Trial) -> Table:
    table = Table("role", "memory", "disk", "work on this machine", box=None, header_style="bold")
    disk = bytes_text(needs.disk_bytes)
    trainer_disk = bytes_text(needs.trainer_disk_bytes)
    costs = (
        ("inference", trial.worker, disk, "a rollout"),
        ("validator", trial.validator, disk, "a rollout"),
        ("trainer", trial.trainer, trainer_disk, "a version"),
    )
    for role, cost, of_disk, unit in costs:
        work = f"{_time(cost.seconds)} {unit}"
        table.add_row(role, bytes_text(cost.memory_bytes), of_disk, work)
    return table


def trial_words(manifest: RunManifest, needs: Needs, trial: Trial) -> Iterator[str]:
    """Yield sentences on the results of a trial."""
    yield (
        f"Measured with version 0: mean reward {trial.reward_mean:.3f} of {trial.samples} answers "
        f"of {trial.answer_tokens_mean:.0f} tokens, {trial.cut_share:.0%} of them cut off; "
        f"{trial.groups_that_teach} of {trial.groups} groups teach."
    )
    yield f"{trial.samples} answers were judged by the thresholds above: none was rejected."
    yield (
        f"A version takes {_time(version_seconds(manifest, trial, 1))} with one worker and the "
        "run's validators, if all have a machine like this one; "
        f"workers that keep the trainer busy: {workers_to_wait_for(manifest, trial)}."
    )
    share = trial.patch_bytes / needs.version_bytes
    yield (
        f"{needs.weights:,} weights: a version is {bytes_text(needs.version_bytes)}, and travels "
        f"as {bytes_text(trial.patch_bytes)} ({share:.1%}) after a step."
    )


def version_seconds(manifest: RunManifest, trial: Trial, workers: int) -> float:
    """Return the seconds per version with ``workers``, if all machines are like this one."""
    rollouts, validators = _rollouts_per_version(manifest), len(manifest.genesis.validators)
    generated = rollouts * trial.worker.seconds / workers
    checked = rollouts * trial.validator.seconds * manifest.committee.size / validators
    return max(generated, checked, trial.trainer.seconds)


def workers_to_wait_for(manifest: RunManifest, trial: Trial) -> int:
    """Return the number of workers like this machine that fill a batch during a training step."""
    step_seconds = max(trial.trainer.seconds, 1e-3)
    return max(1, math.ceil(_rollouts_per_version(manifest) * trial.worker.seconds / step_seconds))


def _rollouts_per_version(manifest: RunManifest) -> int:
    grpo, trainers = manifest.grpo, len(manifest.genesis.trainers)
    if grpo.outer is not None:
        trainers = min(trainers, grpo.outer.trainers)
    return grpo.rollouts_per_step * grpo.batch_steps(trainers)


def warnings_of(manifest: RunManifest, needs: Needs, trial: Trial) -> Iterator[str]:
    """Yield problems of a run, each with a remedy."""
    if trial.unscored:
        yield (
            f"{len(trial.unscored)} rollouts have no score ({trial.unscored[0]}): workers will "
            "wait at such problems for the next version"
        )
    if trial.reward_mean <= 0:
        yield (
            f"no answer of {trial.samples} earned anything, so nothing can be learned: choose "
            f"easier problems{_easier(manifest)}"
        )
    elif trial.teaching_share < TEACHING_SHARE_LOW:
        yield (
            f"only {trial.groups_that_teach} of {trial.groups} groups have unequal rewards; the "
            "others teach nothing: choose problems that the model solves now and then, larger "
            "groups (sampling.group_size) or a higher temperature"
        )
    if trial.cut_share > 1 / 2:
        yield (
            f"{trial.cut_share:.0%} of the answers reach {manifest.sampling.tokens_max} tokens "
            "without an end: raise sampling.tokens_max, or ask for shorter answers"
        )
    share = trial.patch_bytes / needs.version_bytes
    if share > PATCH_SHARE_HIGH and manifest.model.dtype == "fp32":
        yield (
            f"a version travels as {bytes_text(trial.patch_bytes)}, since a step changes nearly "
            'all weights in float32; with model.dtype = "bf16" it is some 50 times less'
        )


def _easier(manifest: RunManifest) -> str:
    """Return the settings of this run's task that make it easier."""
    environment = manifest.environment
    if environment.name.startswith("reasoning-gym/"):
        return (
            " (environment.options), or show the model how to answer: environment.system and "
            "environment.examples, since a small model never writes answer tags by itself"
        )
    if environment.in_text:
        return " (environment.pass_rates), or show the model how to answer (environment.examples)"
    return ""


def _needs(needs: Needs) -> Table:
    rollout, step = needs.rollout_flop, needs.step_flop
    table = Table("role", "memory", "disk", "work at most", box=None, header_style="bold")
    rows = (
        ("inference", needs.worker_bytes, needs.disk_bytes, f"{_work(rollout)} a rollout"),
        ("validator", needs.validator_bytes, needs.disk_bytes, f"{_work(rollout)} a rollout"),
        ("trainer", needs.trainer_bytes, needs.trainer_disk_bytes, f"{_work(step)} a version"),
    )
    for role, memory, disk, work in rows:
        table.add_row(role, bytes_text(memory), bytes_text(disk), work)
    seconds = _time(needs.version_bytes * 8 / LINE_BITS_PER_SECOND)
    table.caption = (
        f"{needs.weights:,} weights; a version is {bytes_text(needs.version_bytes)}, {seconds} at "
        f"{LINE_BITS_PER_SECOND / 1e6:g} Mbit/s. Estimates; times at {FLOPS / 1e12:g} TFLOP/s.\n"
        f"Memory of each device of a trainer with several: {_by_ranks(needs)}.{_outer(needs)}"
    )
    table.caption_justify = "left"
    return table


def _by_ranks(needs: Needs) -> str:
    several = ((count, size) for count, size in needs.rank_bytes.items() if count > 1)
    return ", ".join(f"{count}: {bytes_text(size)}" for count, size in several)


def _outer(needs: Needs) -> str:
    """Return the needs of a trainer for outer steps as a line; empty without them."""
    if not needs.host_bytes:
        return ""
    seconds = _time(needs.round_bytes * 8 / LINE_BITS_PER_SECOND)
    return (
        f"\nOuter steps: {bytes_text(needs.host_bytes)} more memory on a trainer's host; in each "
        f"round it publishes {bytes_text(needs.difference_bytes)}, and downloads "
        f"{bytes_text(needs.round_bytes)} of the others ({seconds})."
    )


def _work(flop: int) -> str:
    return f"{flop / 1e12:,.3g} TFLOP, {_time(flop / FLOPS)}"


def _time(seconds: float) -> str:
    return duration_text(seconds) if seconds >= 1 else "under 1 s"
