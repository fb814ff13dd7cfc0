"""Trial of a run before its start: generate rollouts of version 0, verify them, train a step.

It runs the engines of nodes in separate processes on this machine. It verifies rollouts by the
run's thresholds, scores them with its task, and measures memory and time.
"""

import asyncio
import math
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import cycle, groupby, islice
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from node.founding.calibration import Say
from node.founding.model import require_positions
from node.local.config import runtime_directories
from node.local.memory import peak_rss_bytes
from node.storage.encodings import encode
from node.storage.row_files import RowDirectory
from protocol.core.crypto import digest
from protocol.core.types import Digest, PeerId, Version
from protocol.rollout.assignment import SequenceAssignment, assign
from protocol.rollout.audit import AuditResult, Past
from protocol.rollout.body import REWARD_SCALE, RolloutSequence, commit_to, encode_body
from protocol.rollout.statistics import Measurement
from protocol.run.manifest import RunManifest
from roles.ports.background import Background
from roles.ports.engines import (
    EngineError,
    Environment,
    GenerationRequest,
    Policy,
    TrainingSequence,
    Unscorable,
    VerificationRequest,
)
from roles.runtime.scoring import Task
from roles.validator.judgement import Judged, judge

if TYPE_CHECKING:
    from roles.engines.subprocess.client import ChildEngines, ChildGeneration, ChildVerification

SAMPLES = 64
"""Minimum number of sampled answers: a mean reward of 0.5 is then known within 0.12."""

ROLLOUTS_MIN = 2
STEPS = 2
"""The first step allocates the optimiser's moments, so the second one is timed."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one unit of work on this machine: a rollout, or a version."""

    seconds: float
    memory_bytes: int
    """Largest resident size of the engine's process."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Measurements of version 0 of a run on this machine."""

    samples: int
    reward_mean: float
    groups: int
    groups_that_teach: int
    """Groups with unequal rewards: the others have no advantage."""
    answer_tokens_mean: float
    cut_share: float
    """Share of answers that reached the limit without an end token."""
    rejected: tuple[str, ...]
    """Reasons of the run's thresholds for rejecting rollouts of version 0, all of them honest."""
    unscored: tuple[str, ...]
    """Reasons for rollouts without rewards."""
    worker: Cost
    validator: Cost
    trainer: Cost
    patch_bytes: int
    """Size of the patch of one step."""

    @property
    def teaching_share(self) -> float:
        """Share of groups with unequal rewards."""
        return self.groups_that_teach / self.groups if self.groups else 0.0


@dataclass(slots=True)
class _Rollout:
    slot: int
    assignments: list[SequenceAssignment]
    prompts: list[tuple[int, ...]]
    sequences: list[RolloutSequence]

    def batch(self, number: int) -> list[TrainingSequence]:
        """Return the sequences of rollout ``number`` of a batch, with alternating rewards."""
        claims = zip(self.assignments, self.prompts, self.sequences, strict=True)
        return [
            TrainingSequence(
                number * 1000 + item.group, prompt, one.tokens, one.logprobs, place % 2
            )
            for place, (item, prompt, one) in enumerate(claims)
        ]


def run_trial(
    manifest: RunManifest,
    policy: Path,
    task: Path,
    device: str,
    background: Background,
    say: Say,
) -> Trial:
    """Run a trial with the first policy in ``policy`` and the run's files in ``task``.

    Raises ``ValueError`` when an engine or the task fails.
    """
    from roles.engines.subprocess.client import ChildEngines  # noqa: PLC0415 - only for a trial
    from roles.engines.subprocess.process import EngineProcesses  # noqa: PLC0415 - the same

    async def tried() -> Trial:
        processes = EngineProcesses()
        runtimes = runtime_directories(os.environ)
        engines = ChildEngines(processes, background, task, device, runtimes=runtimes)
        try:
            return await _Trying(manifest, policy, engines, say).run()
        finally:
            processes.close()

    try:
        return asyncio.run(tried())
    except EngineError as error:
        raise ValueError(f"the trial failed: {error}") from None


class _Trying:
    def __init__(
        self, manifest: RunManifest, policy: Path, engines: "ChildEngines", say: Say
    ) -> None:
        self._manifest = manifest
        self._policy = Policy(Version(0), Digest(manifest.genesis_policy), policy)
        self._engines = engines
        self._environment: Environment = engines.environment(manifest)
        self._task = Task(manifest, self._environment)
        self._say = say
        self._unscored: list[str] = []

    async def run(self) -> Trial:
        await self._environment.open()
        rollouts, worker = await self._generate()
        rejected, validator = await self._judge(rollouts)
        trainer, patch_bytes = await self._train(rollouts)
        sequences = [one for rollout in rollouts for one in rollout.sequences]
        groups = [
            {one.reward for _, one in members}
            for rollout in rollouts
            for _, members in groupby(
                zip(rollout.assignments, rollout.sequences, strict=True),
                key=lambda pair: pair[0].group,
            )
        ]
        ends = self._manifest.model.end_tokens
        return Trial(
            samples=len(sequences),
            reward_mean=fmean(one.reward for one in sequences) / REWARD_SCALE if sequences else 0.0,
            groups=len(groups),
            groups_that_teach=sum(len(rewards) > 1 for rewards in groups),
            answer_tokens_mean=fmean(len(one.tokens) for one in sequences) if sequences else 0.0,
            cut_share=fmean(one.tokens[-1] not in ends for one in sequences) if sequences else 0.0,
            rejected=tuple(rejected),
            unscored=tuple(self._unscored),
            worker=worker,
            validator=validator,
            trainer=trainer,
            patch_bytes=patch_bytes,
        )

    async def _generate(self) -> tuple[list[_Rollout], Cost]:
        sampling = self._manifest.sampling
        count = math.ceil(SAMPLES / (sampling.prompts_per_rollout * sampling.group_size))
        count = max(ROLLOUTS_MIN, count)
        engine = self._engines.generation(self._manifest)
        made: list[_Rollout] = []
        seconds: list[float] = []
        try:
            await engine.load(self._policy)
            for slot in range(count):
                self._say(f"trial: rollout {slot + 1} of {count}")
                rollout, took = await self._rollout(engine, slot)
                seconds.append(took)
                if rollout is not None:
                    made.append(rollout)
            return made, Cost(fmean(seconds), peak_rss_bytes(engine.supervisor.pid))
        finally:
            await engine.supervisor.close()

    async def _rollout(self, engine: "ChildGeneration", slot: int) -> tuple[_Rollout | None, float]:
        manifest = self._manifest
        worker = PeerId(manifest.genesis.creator)
        assignments = assign(manifest, worker, slot)
        prompts = await self._task.prompts(assignments)
        require_positions(manifest, max(map(len, prompts)))
        requests = [
            GenerationRequest(prompt, item.noise_seed, manifest.sampling.tokens_max)
            for item, prompt in zip(assignments, prompts, strict=True)
        ]
        began = time.monotonic()
        made = await engine.generate(requests, manifest.sampling.temperature)
        took = time.monotonic() - began
        rewards = await self._task.rewards(assignments, [one.tokens for one in made])
        if isinstance(rewards, Unscorable):
            self._unscored.append(rewards.reason)
            return None, took
        sequences = [
            RolloutSequence(one.tokens, one.logprobs, reward, one.proofs)
            for one, reward in zip(made, rewards, strict=True)
        ]
        return _Rollout(slot, assignments, prompts, sequences), took

    async def _judge(self, rollouts: Sequence[_Rollout]) -> tuple[list[str], Cost]:
        """Verify the rollouts as a validator does; return the reasons for rejections."""
        engine = self._engines.verification(self._manifest)
        seconds: list[float] = []
        rejected: list[str] = []
        try:
            await engine.load(self._policy)
            for number, rollout in enumerate(rollouts):
                self._say(f"trial: check {number + 1} of {len(rollouts)}")
                began = time.monotonic()
                finding = await self._finding(engine, rollout)
                seconds.append(time.monotonic() - began)
                if not finding.accept:
                    rejected.append(f"{finding.reason}: {finding.detail}")
            memory_bytes = peak_rss_bytes(engine.supervisor.pid)
            return rejected, Cost(fmean(seconds) if seconds else 0.0, memory_bytes)
        finally:
            await engine.supervisor.close()

    async def _finding(self, engine: "ChildVerification", rollout: _Rollout) -> AuditResult:
        manifest, worker = self._manifest, PeerId(self._manifest.genesis.creator)
        body = encode_body(rollout.sequences)
        commit = commit_to(body, rollout.sequences, self._policy.digest, rollout.slot)

        async def measure(requests: Sequence[VerificationRequest]) -> Sequence[Measurement]:
            return await engine.measure(Version(0), requests, manifest.sampling.temperature)

        judged = Judged(worker, commit, body)
        found = await judge(manifest, self._task, judged, lambda: Past(worker), measure)
        return found if isinstance(found, AuditResult) else AuditResult("unscorable", str(found))

    async def _train(self, rollouts: Sequence[_Rollout]) -> tuple[Cost, int]:
        """Train steps of the run's size; return the cost and the bytes of a version's patch.

        The result is discarded, so the rewards alternate: groups with equal rewards would take no
        part in a step.
        """
        if not rollouts:
            return Cost(0.0, 0), 0
        grpo = self._manifest.grpo
        engine = self._engines.training(self._manifest)
        seconds = 0.0
        with tempfile.TemporaryDirectory(dir=self._policy.path.parent) as folder:
            stepped, patch = Path(folder, "stepped.safetensors"), Path(folder, "patch")
            rows = RowDirectory(Path(folder, "rows"))
            batch: list[TrainingSequence] = []
            try:
                await engine.load_policy(self._policy)
                for number, rollout in enumerate(islice(cycle(rollouts), grpo.rollouts_per_step)):
                    batch += await rows.store(digest(b"%d" % number), rollout.batch(number))
                for number in range(STEPS):
                    self._say(f"trial: step {number + 1} of {STEPS}, {len(batch)} answers")
                    began = time.monotonic()
                    if self._manifest.model.dtype != "fp32":
                        own = rows.logprobs("own")
                        batch = await engine.recompute(self._policy, batch, own)
                    if grpo.loss.kl_coefficient:  # the policy is the reference
                        reference = rows.logprobs("reference")
                        known = await engine.recompute(self._policy, batch, reference)
                        batch = [replace(one, reference_logprobs=one.logprobs) for one in known]
                    await engine.step(batch)
                    seconds = time.monotonic() - began
                    if grpo.outer is not None:  # a round of this step alone
                        path = Path(folder, "difference")
                        difference = await engine.write_difference(path)
                        await engine.apply_differences([(difference, path)])
                        seconds *= grpo.outer.inner_steps
                    if not number:
                        await engine.write_policy(stepped)
                cost = Cost(seconds, peak_rss_bytes(engine.supervisor.pid))
            finally:
                await engine.supervisor.close()
            return cost, await asyncio.to_thread(_patch_bytes, stepped, self._policy, patch)


def _patch_bytes(stepped: Path, base: Policy, patch: Path) -> int:
    encode(stepped, base, patch)
    return patch.stat().st_size
