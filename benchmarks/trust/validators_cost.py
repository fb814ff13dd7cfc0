"""Time of validators per learned token, and what a worker gains that generates only a part.

Workers generate rollouts, validators judge them with the real engines, in this process. A version
learns from groups with unequal rewards; the tokens of these are *learned*. ``before`` audits every
sequence of every group; ``now`` follows the run's ``audit_share`` and ``uniform_audit_share``. Each
rollout has ``size`` checks. Time is that of the process on all its threads, in seconds.

A free rider generates a part of the answers and makes up the others:

* ``copies``: it repeats generated answers of the same group, with their log-probabilities and
  proofs. They differ from honest ones only in the sampling noise;
* ``invents``: random tokens, with log-probabilities and proofs of another answer.

Its ``gain`` compares accepted rollouts per generated answer with those of an honest worker: 0 is
equal, -1 is nothing. It ignores that a slashed key loses its locked credit, so it is an upper
bound.

Without arguments: the testnet's task with the policy of its genesis. ``--run`` adds runs that
``prime-node run create`` has founded.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from node.local.run_pin import load_run
from node.local.system import ThreadBackground
from protocol.core.crypto import Identity, digest
from protocol.core.rng import Rng
from protocol.core.types import Digest, Version
from protocol.rollout.assignment import assign
from protocol.rollout.audit import SLASHABLE_REASONS, AuditResult, Past
from protocol.rollout.body import RolloutSequence, commit_to, encode_body
from protocol.rollout.statistics import Measurement, Sums
from protocol.run.manifest import Genesis, RunManifest
from protocol.run.toml import load_recipe
from roles.engines.bootstrap.cold_start import cold_start
from roles.engines.builtin.generation import TransformersGenerationEngine
from roles.engines.builtin.verification import TransformersVerificationEngine
from roles.engines.task_loader import task_of
from roles.environments.base import environment, solved
from roles.ports.engines import GenerationRequest, Policy, Unscorable, VerificationRequest
from roles.runtime.scoring import Task
from roles.validator.judgement import Judged, judge

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"
WORKER = Identity(b"\x01" * 32)
CHECKPOINT = Digest(bytes(32))
"""Manifest digest of the first version; it is never announced here."""

INVENTED_TOKENS = 3
"""Length of an invented answer, at most; longer ones earn more."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A run, its first policy, and the files of its task."""

    name: str
    manifest: RunManifest
    policy: Policy
    task_data: Path


@dataclass(frozen=True, slots=True)
class Rollout:
    """Answers of a slot; the first ``generated`` of each group were generated."""

    slot: int
    sequences: Sequence[RolloutSequence]


class Swarm:
    """A worker and a validator of one run."""

    def __init__(self, subject: Subject) -> None:
        manifest = self.manifest = subject.manifest
        self._policy = subject.policy
        self._worker = TransformersGenerationEngine(manifest.model, manifest.toploc)
        self._validator = TransformersVerificationEngine(manifest.model, manifest.toploc)
        self._background = ThreadBackground()
        self._environment = task_of(manifest, subject.task_data, self._background)
        self._task = Task(manifest, self._environment)
        self.worker_seconds = 0.0

    async def open(self) -> None:
        """Open the task and load the policy."""
        await self._environment.open()
        await self._worker.load(self._policy)
        await self._validator.load(self._policy)

    def close(self) -> None:
        """End the engines' threads."""
        for one in (self._worker, self._validator, self._background):
            one.close()

    async def roll_out(self, slot: int) -> Rollout:
        """Generate the rollout of a slot, with its time."""
        manifest = self.manifest
        assignments = assign(manifest, WORKER.peer_id, slot)
        began = time.process_time()
        prompts = await self._task.prompts(assignments)
        requests = [
            GenerationRequest(prompt, item.noise_seed, manifest.sampling.tokens_max)
            for item, prompt in zip(assignments, prompts, strict=True)
        ]
        made = await self._worker.generate(requests, manifest.sampling.temperature)
        rewards = await self.rewards(slot, [one.tokens for one in made])
        self.worker_seconds += time.process_time() - began
        return Rollout(
            slot,
            [
                RolloutSequence(one.tokens, one.logprobs, own, one.proofs)
                for one, own in zip(made, rewards, strict=True)
            ],
        )

    async def rewards(self, slot: int, answers: Sequence[tuple[int, ...]]) -> list[int]:
        """Return the rewards of answers, in millionths."""
        assignments = assign(self.manifest, WORKER.peer_id, slot)
        found = await self._task.rewards(assignments, answers)
        if isinstance(found, Unscorable):
            raise RuntimeError(found.reason)  # noqa: TRY004 - a machine fault
        return found

    async def judged(
        self, rollout: Rollout, lot: bytes, history: Sequence[Sums] = ()
    ) -> AuditResult:
        """Return a validator's result; without a lot all sequences are audited."""
        body = encode_body(rollout.sequences)
        commit = commit_to(body, rollout.sequences, CHECKPOINT, rollout.slot)

        async def measure(requests: Sequence[VerificationRequest]) -> Sequence[Measurement]:
            temperature = self.manifest.sampling.temperature
            return await self._validator.measure(Version(0), requests, temperature)

        case = Judged(WORKER.peer_id, commit, body, lot)
        past = Past.of(history)
        found = await judge(self.manifest, self._task, case, lambda: past, measure)
        if not isinstance(found, AuditResult):
            raise RuntimeError(str(found))  # noqa: TRY004 - a machine fault
        return found


def groups(swarm: Swarm, rollout: Rollout) -> list[Sequence[RolloutSequence]]:
    """Return the answers by problem."""
    size = swarm.manifest.sampling.group_size
    every = rollout.sequences
    return [every[first : first + size] for first in range(0, len(every), size)]


def teaches(group: Sequence[RolloutSequence]) -> bool:
    """Return whether a version learns from a group."""
    return len({one.reward for one in group}) > 1


# Cost


async def cost(swarm: Swarm, rollouts: Sequence[Rollout]) -> dict[str, Any]:
    """Return seconds per learned token of workers and validators."""
    every = [group for rollout in rollouts for group in groups(swarm, rollout)]
    learned = sum(len(one.tokens) for group in every if teaches(group) for one in group)
    tokens = sum(len(one.tokens) for group in every for one in group)
    checks = swarm.manifest.committee.size
    seconds = {
        "before": await checking(swarm, rollouts, lambda _: b""),
        "now": await checking(swarm, rollouts, lambda slot: digest(b"lot %d" % slot)),
    }
    worker = swarm.worker_seconds
    return {
        "rollouts": len(rollouts),
        "tokens": tokens,
        "learned_tokens": learned,
        "groups_that_teach": sum(map(teaches, every)) / len(every),
        "worker_ms_per_learned_token": 1e3 * worker / max(1, learned),
        "checks_per_rollout": checks,
        **{
            f"validators_ms_per_learned_token_{name}": 1e3 * checks * one / max(1, learned)
            for name, one in seconds.items()
        },
        **{f"check_of_generation_{name}": one / worker for name, one in seconds.items()},
        **{
            f"validators_of_generation_{name}": checks * one / worker
            for name, one in seconds.items()
        },
    }


async def checking(swarm: Swarm, rollouts: Sequence[Rollout], lot: Callable[[int], bytes]) -> float:
    """Return the seconds of one check of each rollout; all of them must be accepted."""
    began, history = time.process_time(), list[Sums]()
    for rollout in rollouts:
        found = await swarm.judged(rollout, lot(rollout.slot), history)
        if not found.accept or found.sums is None:
            raise RuntimeError(f"an honest rollout was rejected: {found.reason} {found.detail}")
        history.append(found.sums)
    return time.process_time() - began


# Free riders


def copied(group: Sequence[RolloutSequence], generated: int, _rng: Rng) -> list[RolloutSequence]:
    """Return a group whose answers repeat the first ``generated`` ones."""
    return [one for one, _ in zip(cycle(group[:generated]), group, strict=False)]


def invented(
    group: Sequence[RolloutSequence], generated: int, rng: Rng, end: int
) -> list[RolloutSequence]:
    """Return a group of which only the first ``generated`` answers were generated."""
    made = list(group[:generated])
    for one in group[generated:]:
        tokens = tuple(rng.below(end) for _ in one.tokens[:-1]) + one.tokens[-1:]
        other = group[rng.below(max(1, generated))]
        logprobs = tuple(value for value, _ in zip(cycle(other.logprobs), tokens, strict=False))
        made.append(replace(one, tokens=tokens, logprobs=logprobs, proofs=other.proofs))
    return made


async def gain(
    swarm: Swarm, rollouts: Sequence[Rollout], kind: str, generated: int, *, is_whole: bool
) -> dict[str, Any]:
    """Return what a free rider gets; ``is_whole``: as if all sequences were audited."""
    rng, history, reasons = Rng(b"free rider"), list[Sums](), dict[str, int]()
    size, end = swarm.manifest.sampling.group_size, min(swarm.manifest.model.end_tokens)
    for rollout in rollouts:
        made: list[RolloutSequence] = []
        for group in groups(swarm, rollout):
            if kind == "copies":
                made += copied(group, generated, rng)
            else:
                made += invented(group, generated, rng, end)
        rewards = await swarm.rewards(rollout.slot, [one.tokens for one in made])
        made = [replace(one, reward=own) for one, own in zip(made, rewards, strict=True)]
        lot = b"" if is_whole else digest(b"lot %d" % rollout.slot)
        found = await swarm.judged(Rollout(rollout.slot, made), lot, history)
        reasons[found.reason] = reasons.get(found.reason, 0) + 1
        if found.sums is not None:
            history.append(found.sums)
    accepted = reasons.get("accepted", 0) / len(rollouts)
    slashed = sum(count for reason, count in reasons.items() if reason in SLASHABLE_REASONS)
    return {
        "kind": kind,
        "generated_of_group": f"{generated}/{size}",
        "audit": "before" if is_whole else "now",
        "accepted": accepted,
        "slashable": slashed / len(rollouts),
        "gain": accepted * size / generated - 1,
        "reasons": reasons,
    }


# Subjects


def testnet(folder: Path) -> Subject:
    """Return the testnet's run with a policy that solves a part of its task."""
    recipe = load_recipe(RECIPE.read_text())
    path = folder / "genesis.safetensors"
    made = cold_start(solved(environment(recipe.environment.name)), recipe.model, 0, path)
    keys = tuple(Identity(digest(b"%d" % n)).peer_id for n in range(5))
    genesis = Genesis(
        creator=keys[0],
        created_at=1_700_000_000,
        policy=made.digest.hex(),
        trainers=keys[1:2],
        validators=keys[2:],
    )
    manifest = RunManifest(**recipe.model_dump(), genesis=genesis)
    return Subject("testnet", manifest, Policy(Version(0), made.digest, path), folder)


def founded(run: Path) -> Subject:
    """Return a run that ``prime-node run create`` has founded."""
    manifest = load_run(run / "run.toml").manifest
    policy = Policy(Version(0), manifest.genesis_policy, run / "genesis.safetensors")
    return Subject(run.name, manifest, policy, run / "task")


async def measured(subject: Subject, rollouts: int) -> dict[str, Any]:
    """Return the figures of one run."""
    swarm = Swarm(subject)
    try:
        await swarm.open()
        await swarm.roll_out(rollouts)  # a first call compiles and allocates
        swarm.worker_seconds = 0.0
        made = [await swarm.roll_out(slot) for slot in range(rollouts)]
        size = subject.manifest.sampling.group_size
        return {
            "subject": subject.name,
            **await cost(swarm, made),
            "free_riders": [
                await gain(swarm, made, kind, generated, is_whole=is_whole)
                for kind in ("copies", "invents")
                for generated in (1, size // 2, size - 1)
                for is_whole in (True, False)
            ],
        }
    finally:
        swarm.close()


def lines(rows: Iterable[dict[str, Any]]) -> Iterable[str]:
    """Yield the figures as text."""
    for row in rows:
        yield f"{row['subject']}: {row['groups_that_teach']:.0%} of the groups teach"
        for name, one in row.items():
            if isinstance(one, float):
                yield f"  {name:46} {one:8.3f}"
        for rider in row["free_riders"]:
            yield (
                f"  {rider['kind']:8} {rider['generated_of_group']:6} audit {rider['audit']:6} "
                f"accepted {rider['accepted']:4.0%} slashable {rider['slashable']:4.0%} "
                f"gain {rider['gain']:+.2f}"
            )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rollouts", type=int, default=32)
    parser.add_argument("--run", type=Path, nargs="*", default=[], help="directories of runs")
    parser.add_argument("--run-rollouts", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [asyncio.run(measured(testnet(Path(folder)), options.rollouts))]
        rows += [asyncio.run(measured(founded(run), options.run_rollouts)) for run in options.run]
    print(json.dumps(rows, indent=1) if options.json else "\n".join(lines(rows)))


if __name__ == "__main__":
    main()
