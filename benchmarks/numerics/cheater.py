"""Reward gained by a worker that knows the audit and uses all of its tolerance.

An honest worker and adaptive ones (``simulations.adversaries.adaptive``) do the same slots of a
testnet's run; each rollout is audited with the worker's history, as in a validator. In float32 the
thresholds are the recipe's, in bf16 those from a calibration of the same policy.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from protocol.core.crypto import Identity
from protocol.core.rng import Rng
from protocol.core.types import Version
from protocol.rollout.assignment import assign
from protocol.rollout.audit import Past, decide
from protocol.rollout.statistics import Sums
from protocol.run.manifest import Genesis, RunManifest
from protocol.run.recipe import Recipe, ToplocSection
from protocol.run.toml import load_recipe
from roles.engines.bootstrap.cold_start import cold_start
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.calibration.calibrate import kept, measured_on, prompts_of
from roles.engines.calibration.proposal import propose
from roles.engines.calibration.workbench import Bench, honest_pairs
from roles.environments.base import environment, solved
from roles.environments.threaded import InBackground
from roles.ports.engines import (
    Answer,
    GenerationEngine,
    GenerationRequest,
    Policy,
    claims_of,
)
from simulations.adversaries.adaptive import AdaptiveGeneration, RememberedProblems
from simulations.runtime.loop import SimBackground

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"
WORKER, CREATOR = Identity(bytes(32)), Identity(bytes([1] * 32))
CALIBRATED_SEQUENCES = 512
MARGIN = 1.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one worker; rewards are means over sequences, uplifts percentage points."""

    task: str
    precision: str
    worker: str
    rollouts: int
    rejected: int
    cut_off_after: int | None
    reward: float
    uplift_first: float
    uplift_sustained: float


async def measure(task: str, precision: str, rollouts: int) -> list[Outcome]:
    """Return the results of an honest worker and of two that cheat."""
    recipe = recipe_for(task, precision)
    problems = RememberedProblems(InBackground(environment(task), SimBackground()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy"
        started = cold_start(solved(environment(task)), recipe.model, 0, path)
        policy = Policy(Version(0), started.digest, path)
        if precision == "bf16":
            recipe = recipe.model_copy(
                update={"toploc": await calibrated(recipe, policy, Path(folder))}
            )
        manifest = manifest_of(recipe, policy)
        generation = TransformersGenerationEngine(manifest.model, manifest.toploc)
        verification = TransformersVerificationEngine(manifest.model, manifest.toploc)
        workers: dict[str, GenerationEngine] = {"honest": generation}
        for name, plans in (("greedy", False), ("planning", True)):
            workers[name] = AdaptiveGeneration(
                generation, verification, problems, manifest, Rng(name.encode()), plans=plans
            )
        found: list[Outcome] = []
        base: list[float] = []
        for name, worker in workers.items():
            await worker.load(policy)
            await verification.load(policy)
            rewards, reasons = await work(manifest, worker, verification, problems, rollouts)
            base = base or rewards
            found.append(outcome(task, precision, name, rewards, base, reasons))
            print(found[-1], file=sys.stderr, flush=True)
        generation.close()
        verification.close()
    return found


async def work(
    manifest: RunManifest,
    worker: GenerationEngine,
    verification: TransformersVerificationEngine,
    task: RememberedProblems,
    rollouts: int,
) -> tuple[list[float], list[str]]:
    """Return each rollout's mean reward and audit result, until the history fails it."""
    rewards: list[float] = []
    reasons: list[str] = []
    history: list[Sums] = []
    for slot in range(rollouts):
        assigned = assign(manifest, WORKER.peer_id, slot)
        requests = [
            GenerationRequest(
                await task.prompt(item.problem_seed, item.length_target),
                item.noise_seed,
                manifest.sampling.tokens_max,
            )
            for item in assigned
        ]
        made = await worker.generate(requests, manifest.sampling.temperature)
        claimed = claims_of(requests, made)
        measured = await verification.measure(Version(0), claimed, manifest.sampling.temperature)
        finding = decide(manifest, measured, [one.claim for one in claimed], Past.of(history))
        scores = await task.score_batch(
            [
                Answer(one.problem_seed, item.tokens)
                for one, item in zip(assigned, made, strict=True)
            ]
        )
        rewards.append(sum(scores) / len(scores) if finding.accept else 0.0)
        reasons.append(finding.reason)
        if finding.reason == "history":
            break
        if finding.sums is not None:
            history.append(finding.sums)
    return rewards, reasons


def outcome(
    task: str,
    precision: str,
    name: str,
    rewards: list[float],
    base: list[float],
    reasons: list[str],
) -> Outcome:
    """Compare a worker's rewards with those of the honest one."""
    uplifts = [100 * (own - other) for own, other in zip(rewards, base, strict=False)]
    half = uplifts[len(uplifts) // 2 :]
    return Outcome(
        task=task,
        precision=precision,
        worker=name,
        rollouts=len(rewards),
        rejected=sum(reason != "accepted" for reason in reasons),
        cut_off_after=len(reasons) if reasons[-1] == "history" else None,
        reward=round(sum(rewards) / len(rewards), 4),
        uplift_first=round(uplifts[0], 2),
        uplift_sustained=round(sum(half) / len(half), 3),
    )


def recipe_for(task: str, precision: str) -> Recipe:
    """Return the testnet's recipe for a task and a precision."""
    values = load_recipe(RECIPE.read_text()).model_dump()
    values["environment"] |= {"name": task}
    values["model"] |= {"dtype": precision}
    values["toploc"] |= {"precision": precision}
    return Recipe(**values)


async def calibrated(recipe: Recipe, policy: Policy, folder: Path) -> ToplocSection:
    """Return the thresholds from honest pairs with this policy."""
    bench = Bench(
        model=recipe.model,
        policy=policy,
        recipe=recipe,
        prompts=prompts_of(recipe, recipe.model, CALIBRATED_SEQUENCES),
        tokens_max=recipe.sampling.tokens_max,
        device="cpu",
        directory=folder,
    )
    pairs = await honest_pairs(bench, (64,), ("sdpa", "eager"), lambda _: None)
    return propose(pairs, kept(recipe), measured_on("cold start", "bf16", "cpu"), MARGIN)


def manifest_of(recipe: Recipe, policy: Policy) -> RunManifest:
    """Return a run of the recipe that starts with ``policy``."""
    genesis = Genesis(
        creator=CREATOR.peer_id,
        created_at=0,
        policy=policy.digest.hex(),
        trainers=(CREATOR.peer_id,),
        validators=(CREATOR.peer_id,),
    )
    return RunManifest(**recipe.model_dump(), genesis=genesis)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", nargs="+", default=["arithmetic", "sorting"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "bf16"])
    parser.add_argument("--rollouts", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = [
        one
        for task in options.tasks
        for precision in options.precisions
        for one in asyncio.run(measure(task, precision, options.rollouts))
    ]
    if options.json:
        print(json.dumps([asdict(one) for one in found]))
        return
    for one in found:
        print("  ".join(f"{value!s:>12}" for value in asdict(one).values()))


if __name__ == "__main__":
    main()
