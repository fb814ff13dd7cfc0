"""Maximum change of the gradient by false log-probabilities within the bounds of an audit.

Log-probabilities are the denominators of the trainer's ratios. Honest rollouts are generated and
their claims shifted up to the limit of the recipe's audit: every token, a few up to the limit of a
single one, or both; up, down, or by the sign of the advantage. Every rollout of the batch is
shifted, and the audit's own sums decide what passes. The training engine then computes the gradient
with honest and with shifted claims, ``async_level`` steps after the generating policy. It does so
recomputed, as a trainer does where engines round, and as claimed, as in float32. ``sustained`` is a
worker that shifts each of its rollouts and whose last ones are verified together.

Two recipes: the testnet's, its model with random weights, and INTELLECT-2's bounds with a small
bf16 model and shorter rollouts. Bounds of a mean narrow with the tokens of a rollout, so that is
the worse case.

Usage: ``python benchmarks/numerics/gradient.py [--recipes testnet] [--tokens N] [--json]``
"""

import argparse
import asyncio
import json
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from audit import sharpen
from numpy.typing import NDArray
from torch import Tensor
from trainer_memory import ChunkedEngine

from protocol.core.rng import Rng
from protocol.core.types import Version
from protocol.rollout.statistics import Recomputed, Sums, added, beyond, compared, measured
from protocol.run.recipe import ModelSection, Recipe, ToplocSection
from protocol.run.toml import load_recipe
from protocol.toploc import ChunkResult
from roles.engines.architectures.configuration import configuration
from roles.engines.architectures.model import build_model, tensors_of
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.files.policy import write_policy
from roles.engines.training.batch import group_advantages
from roles.ports.engines import GenerationRequest, Policy, TrainingSequence

RUNS = Path(__file__).parents[2] / "configs" / "runs"
SMALL_MODEL: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 16_384,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
    "eos_token_id": 1,
}
RECIPES = ("testnet", "intellect2")
CHANGE_MAX = 0.01
"""The project's limit on the change of the norm, and on 1 - cosine of the direction."""

PROMPT_TOKENS = 4
BISECTIONS = 30
OWN_PROOFS = (ChunkResult(0, 0.0, 0.0),)
"""Claims are shifted after honest proofs were made."""

TESTED = ("logprob_error", "logprob_shift", "logprob_outliers")

Floats = NDArray[np.float64]
Found = dict[str, Any]

DIRECTIONS: dict[str, Callable[[Floats], Floats]] = {
    "up": np.ones_like,
    "down": lambda advantages: -np.ones_like(advantages),
    "good down, bad up": lambda advantages: -np.sign(advantages),
    "good up, bad down": np.sign,
}
KINDS = ("spread", "concentrated", "both")


@dataclass(frozen=True, slots=True)
class Rollout:
    """Honest sequences, with the claims and advantages of all their tokens."""

    sequences: Sequence[TrainingSequence]
    claimed: Floats
    advantages: Floats

    def shifted(self, shifts: Floats) -> list[TrainingSequence]:
        """Return the sequences with shifted claims."""
        claims = iter((self.claimed + shifts).tolist())
        return [
            replace(one, logprobs=tuple(next(claims) for _ in one.tokens)) for one in self.sequences
        ]


@dataclass(frozen=True, slots=True)
class Audit:
    """The audit of one rollout, or of a worker whose rollouts are all like it."""

    rules: ToplocSection
    sustained: bool

    def sums(self, claimed: Floats, shifts: Floats) -> Sums | None:
        """Return the statistics of shifted claims; None if a single one exceeds its limit."""
        own = Recomputed(OWN_PROOFS, claimed.tolist(), [0.0] * len(claimed))
        found = measured(self.rules, (claimed + shifts).tolist(), own)
        within = found.extremes.logprob_error_max <= self.rules.logprob_error_max
        return found.sums if within else None

    def passes(self, claimed: Floats, shifts: Floats) -> bool:
        """Return whether shifted claims are accepted."""
        sums = self.sums(claimed, shifts)
        if sums is None or beyond(self.rules, sums, self.rules.false_reject_rate):
            return False
        history = added([sums] * self.rules.history_rollouts)
        return not (self.sustained and beyond(self.rules, history, self.rules.slash_rate))

    def tightness(self, claimed: Floats, shifts: Floats) -> dict[str, float]:
        """Return each statistic as a share of its bound."""
        sums = self.sums(claimed, shifts)
        assert sums is not None
        rate = self.rules.false_reject_rate
        if self.sustained:
            sums, rate = added([sums] * self.rules.history_rollouts), self.rules.slash_rate
        return {
            one.name: one.value / one.allowed
            for one in compared(self.rules, sums, rate)
            if one.name in TESTED
        }


def shifts_of(audit: Audit, rollout: Rollout, direction: str, kind: str) -> Floats:
    """Return the largest shifts of a kind that pass."""
    claimed, signs = rollout.claimed, DIRECTIONS[direction](rollout.advantages)
    limit = audit.rules.logprob_error_max * (1 - 1e-6)
    influence = np.abs(rollout.advantages) * -np.expm1(claimed)
    order = np.argsort(-influence, kind="stable")

    def made(sizes: Floats) -> Floats:
        return np.minimum(sizes * signs, -claimed)  # no probability exceeds 1

    def concentrated(count: float) -> Floats:
        sizes = np.zeros_like(claimed)
        sizes[order[: round(count)]] = limit
        return sizes

    def spread(size: float, least: Floats) -> Floats:
        return np.maximum(least, size)

    def passes(sizes: Floats) -> bool:
        return audit.passes(claimed, made(sizes))

    sizes = np.zeros_like(claimed)
    if kind != "spread":
        sizes = largest(concentrated, len(claimed), passes)
    if kind != "concentrated":
        sizes = largest(partial(spread, least=sizes), limit, passes)
    return made(sizes)


def largest(
    sizes_of: Callable[[float], Floats], highest: float, passes: Callable[[Floats], bool]
) -> Floats:
    """Return ``sizes_of`` the largest number that passes; zero always does."""
    low, high = 0.0, float(highest)
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if passes(sizes_of(middle)) else (low, middle)
    return sizes_of(low)


async def rollouts_of(
    engine: TransformersGenerationEngine, recipe: Recipe, model: ModelSection, name: str, count: int
) -> list[Rollout]:
    """Return honest rollouts with arbitrary rewards."""
    draws = Rng(name.encode())
    sampling = recipe.sampling
    made = []
    for number in range(count):
        requests, groups = [], []
        for group in range(sampling.prompts_per_rollout):
            prompt = tuple(draws.below(model.vocabulary_size) for _ in range(PROMPT_TOKENS))
            for _ in range(sampling.group_size):
                requests.append(GenerationRequest(prompt, draws.bits64(), sampling.tokens_max))
                groups.append(number * sampling.prompts_per_rollout + group)
        generated = await engine.generate(requests, sampling.temperature)
        sequences = [
            TrainingSequence(group, asked.prompt, one.tokens, one.logprobs, float(draws.below(2)))
            for group, asked, one in zip(groups, requests, generated, strict=True)
        ]
        rewards = torch.tensor([one.reward for one in sequences], dtype=torch.float64)
        advantages = group_advantages(rewards, torch.tensor(groups)).numpy()
        lengths = [len(one.tokens) for one in sequences]
        claimed = np.concatenate([np.array(one.logprobs) for one in sequences])
        made.append(Rollout(sequences, claimed, np.repeat(advantages, lengths)))
    return made


async def gradient(
    engine: ChunkedEngine,
    policy: Policy,
    batch: Sequence[TrainingSequence],
    generated_by: Policy | None = None,
) -> Tensor:
    """Return a policy's gradient before clipping; recomputed under another one, or as claimed."""
    await engine.load_policy(policy)
    if generated_by is not None:
        batch = await engine.recompute(generated_by, batch)
    step = await engine.step(batch)
    clipped = engine.gradients().double()
    found: Tensor = clipped * (step.gradient_norm / clipped.norm())
    return found


def adapted(name: str, tokens: int, thresholds: Path | None) -> tuple[Recipe, ModelSection]:
    """Return a recipe with one update per version, and the stand-in for its model."""
    recipe = load_recipe((RUNS / f"{name}.toml").read_text())
    if thresholds:
        section = tomllib.loads(thresholds.read_text())["toploc"]
        recipe = recipe.model_copy(update={"toploc": ToplocSection.model_validate(section)})
    tokens_max = min(tokens, recipe.sampling.tokens_max)
    grpo = recipe.grpo.model_copy(update={"updates_per_version": 1})
    sampling = recipe.sampling.model_copy(update={"tokens_max": tokens_max})
    model = recipe.model
    if name != "testnet":
        model = model.model_copy(update={"config": SMALL_MODEL})
    return recipe.model_copy(update={"grpo": grpo, "sampling": sampling}), model


async def measure(name: str, tokens: int, rollouts: int, thresholds: Path | None) -> Found:
    """Measure every strategy under a recipe, with its own thresholds or those of a file."""
    recipe, model = adapted(name, tokens, thresholds)
    generator = TransformersGenerationEngine(model, recipe.toploc)
    engine = ChunkedEngine(model, recipe.sampling, recipe.grpo)
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(1)
        network = build_model(configuration("qwen2", model.config), torch.float32, "cpu")
        sharpen(network)
        dtype = torch.bfloat16 if model.dtype == "bf16" else torch.float32
        tensors = {key: tensor.to(dtype) for key, tensor in tensors_of(network).items()}
        path = Path(folder) / "old"
        older = Policy(Version(0), write_policy(tensors, path), path)
        await generator.load(older)
        earlier, honest = [
            await rollouts_of(generator, recipe, model, part, rollouts) for part in ("then", "now")
        ]
        await engine.load_policy(older)
        for _ in range(recipe.grpo.async_level):
            await engine.step([one for rollout in earlier for one in rollout.sequences])
        path = Path(folder) / "new"
        newer = Policy(Version(recipe.grpo.async_level), await engine.write_policy(path), path)
        found = await compared_with_honest(engine, older, newer, honest, recipe.toploc)
    generator.close()
    engine.close()
    # If engines do not round, the trainer uses the claims.
    taken = "_as_claimed" if model.dtype == "fp32" else ""
    changes = (found[f"{what}_change{taken}_max"] for what in ("norm", "direction"))
    return {
        "recipe": name,
        "measured_on": recipe.toploc.measured_on,
        "within_bar": max(changes) <= CHANGE_MAX,
        **found,
    }


async def compared_with_honest(
    engine: ChunkedEngine,
    older: Policy,
    newer: Policy,
    honest: Sequence[Rollout],
    rules: ToplocSection,
) -> Found:
    """Return the difference of each strategy's gradient from the honest one."""
    batch = [one for rollout in honest for one in rollout.sequences]
    expected = await gradient(engine, newer, batch, older)
    expected_as_claimed = await gradient(engine, newer, batch)
    rows: list[Found] = []
    for sustained in (False, True):
        audit = Audit(rules, sustained)
        for direction in DIRECTIONS:
            for kind in KINDS:
                shifts = [shifts_of(audit, one, direction, kind) for one in honest]
                batch = [
                    s for one, own in zip(honest, shifts, strict=True) for s in one.shifted(own)
                ]
                changes = changes_of(await gradient(engine, newer, batch, older), expected)
                claimed = changes_of(await gradient(engine, newer, batch), expected_as_claimed)
                every = np.abs(np.concatenate(shifts))
                rows.append(
                    {
                        "strategy": f"{direction}, {kind}",
                        "sustained": sustained,
                        "shift_median": float(np.median(every)),
                        "outlier_share": float((every > rules.logprob_tau).mean()),
                        **changes,
                        **{f"{name}_as_claimed": change for name, change in claimed.items()},
                        "of_bounds": audit.tightness(honest[0].claimed, shifts[0]),
                    }
                )
    tokens = int(np.mean([len(one.claimed) for one in honest]))
    honest_claims = changes_of(expected_as_claimed, expected)
    return {
        "tokens_per_rollout": tokens,
        **worst(rows),
        "honest_claims": honest_claims,
        "strategies": rows,
    }


def changes_of(changed: Tensor, expected: Tensor) -> dict[str, float]:
    """Return how two gradients differ, in norm and in direction."""
    cosine = float(changed @ expected / changed.norm() / expected.norm())
    return {
        "norm_change": abs(float(changed.norm() / expected.norm()) - 1),
        "direction_change": max(0.0, 1 - cosine),
    }


def worst(rows: Sequence[Found]) -> Found:
    """Return the largest changes by single rollouts and by sustained shifts, with the strategy."""
    found: Found = {}
    kinds = [f"{what}_change{how}" for how in ("", "_as_claimed") for what in ("norm", "direction")]
    for sustained, suffix in ((False, ""), (True, "_sustained")):
        own = [row for row in rows if row["sustained"] is sustained]
        for change in kinds:
            row = max(own, key=lambda one: one[change])
            found[f"{change}_max{suffix}"] = row[change]
            found[f"{change}_by{suffix}"] = row["strategy"]
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=list(RECIPES))
    parser.add_argument("--tokens", type=int, default=128, help="maximum length of a sequence")
    parser.add_argument("--rollouts", type=int, default=4, help="in a batch, all of them shifted")
    parser.add_argument("--thresholds", type=Path, help="as `prime-node calibrate` prints them")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = [
        asyncio.run(measure(name, options.tokens, options.rollouts, options.thresholds))
        for name in options.recipes
    ]
    keys = [key for key in cases[0] if "_max" in key]
    totals = {key: max(case[key] for case in cases) for key in keys}
    bar = all(case["within_bar"] for case in cases)
    if options.json:
        print(json.dumps({**totals, "within_bar": bar, "recipes": cases}))
        return
    for case in cases:
        print(f"{case['recipe']}: {case['tokens_per_rollout']} tokens a rollout")
        for row in case["strategies"]:
            changes = (
                f"norm {row['norm_change']:.3%}  direction {row['direction_change']:.3%}  "
                f"as claimed {row['norm_change_as_claimed']:.3%}  "
                f"{row['direction_change_as_claimed']:.3%}"
            )
            scope = "sustained" if row["sustained"] else "once"
            bounds = "  ".join(f"{key} {share:.0%}" for key, share in row["of_bounds"].items())
            print(f"  {row['strategy']:32} {scope:9}  {changes}  {bounds}")
    print("  ".join(f"{key} {value:.3%}" for key, value in totals.items()), f"within bar: {bar}")


if __name__ == "__main__":
    main()
