"""Modelled engines: results and durations without any model.

A policy is a file of declared length whose seed determines its samples
(``simulations.ports.sums``). A proof is the digest of the policy really used. Training makes a new
seed; its skill grows with the disagreement within groups. ``simulations.ports.differences`` has
the outer steps of runs with several trainers.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blake3 import blake3
from typing_extensions import override

from node.network.streams.deadline import loop_time
from protocol.core.rng import Rng
from protocol.core.types import Digest, Version
from protocol.rollout.statistics import Measurement, Recomputed, measured
from protocol.rollout.witness import WitnessPoint, WitnessValue
from protocol.run.manifest import RunManifest
from protocol.toploc import ChunkResult
from roles.environments.threaded import InBackground
from roles.ports.engines import (
    Engines,
    Environment,
    Generation,
    GenerationEngine,
    GenerationRequest,
    Mismatch,
    Policy,
    StepMetrics,
    TokenIds,
    TrainingEngine,
    TrainingSequence,
    VerificationEngine,
    VerificationRequest,
)
from roles.runtime.shared_lock import SharedLock
from simulations.ports.differences import (
    NO_MOMENTUM,
    checked_difference,
    difference_bytes,
    difference_of,
    outer_step,
)
from simulations.ports.rounding import Rounding, recorded
from simulations.ports.storage import Disk, Session
from simulations.ports.sums import (
    SEED_BYTES,
    SKILL_MAX,
    SumTask,
    policy_seed,
    rollout_mark,
    sample,
    skill_of,
)
from simulations.ports.throughput import SharedThroughput
from simulations.runtime.content import Extent, policy_digest
from simulations.runtime.loop import SimBackground
from simulations.runtime.trace import Emit
from simulations.scenario.scenario import Compute, Workload

_LOGPROB = -0.5
_ALIKE = Mismatch(0.0, 0.0, 0.0)
"""Every simulated engine has the same log-probabilities."""

_FAR = 120
"""Exponent mismatches of a proof about another policy, and nats lost by a token that was not
sampled; any number above the limits works."""

_WITNESS_NATS = 10.0
"""Log-probabilities of tokens that were not sampled are between this and twice it, negative."""

_SPREAD = 0.2
"""Durations vary by up to this share either way."""


class SimGeneration(GenerationEngine):
    """The ``GenerationEngine`` port."""

    def __init__(self, machine: "SimEngines", rng: Rng) -> None:
        self._machine = machine
        self._rng = rng
        self._turns = SharedLock()
        self._throughput = SharedThroughput(machine.compute.generation_rate)
        self._seed: bytes | None = None
        self._policy = Digest(b"")

    @property
    @override
    def tokens_sampled(self) -> int:
        return int(self._throughput.done)

    @property
    @override
    def first_token(self) -> None:
        return None  # sequences are modelled as a whole

    @override
    async def stage(self, policy: Policy) -> bool:
        return False  # a modelled file always loads this fast

    @override
    async def load(self, policy: Policy) -> None:
        async with self._turns.alone():
            await asyncio.sleep(self._machine.compute.load_seconds)
            self._seed = self._machine.open_policy(policy, "generation")
            self._policy = policy.digest

    @override
    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        del temperature  # the noise is in the seeds
        async with self._turns.together():
            return await self._generate(requests)

    async def _generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        seed, machine = self._seed, self._machine
        if seed is None:
            raise RuntimeError("no policy is loaded")
        made = [
            sample(seed, request.prompt, request.seed, machine.length_max(request.tokens_max))
            for request in requests
        ]
        tokens = sum(map(len, made))
        began_at = loop_time()
        await self._throughput.work(tokens * _spread(self._rng))
        seconds = loop_time() - began_at
        machine.emit(
            "generated",
            rollout=rollout_mark(
                (request.prompt, item) for request, item in zip(requests, made, strict=True)
            ),
            seed=requests[0].seed,
            sequences=len(made),
            tokens=tokens,
            seconds=round(seconds, 3),
        )
        return [Generation(item, (_LOGPROB,) * len(item), (self._policy,)) for item in made]


class SimVerification(VerificationEngine):
    """The ``VerificationEngine`` port."""

    def __init__(self, machine: "SimEngines", rng: Rng, manifest: RunManifest) -> None:
        self._machine = machine
        self._rng = rng
        self._rules = manifest.toploc
        self._kept = manifest.shardcast.versions_kept
        self._length_max = machine.length_max(manifest.sampling.tokens_max)
        recording = machine.workload.rounding
        self._rounding = Rounding(recorded(recording), rng.child("rounding")) if recording else None
        self._witness_rng = rng.child("witness")
        self._vocabulary = manifest.model.vocabulary_size
        self._policies: dict[int, tuple[bytes, Digest]] = {}

    @override
    async def load(self, policy: Policy) -> None:
        await asyncio.sleep(self._machine.compute.load_seconds)
        self._policies[policy.version] = (
            self._machine.open_policy(policy, "verification"),
            policy.digest,
        )
        while len(self._policies) > self._kept:
            del self._policies[min(self._policies)]

    @override
    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        del temperature
        tokens = sum(len(request.tokens) for request in requests)
        machine = self._machine
        seconds = tokens / machine.compute.check_tokens_per_second * _spread(self._rng)
        await asyncio.sleep(seconds)
        machine.emit("checked", sequences=len(requests), tokens=tokens, seconds=round(seconds, 3))
        return [self._measure(version, request) for request in requests]

    def _measure(self, version: Version, request: VerificationRequest) -> Measurement:
        seed, policy = self._policies[version]
        witness = tuple(self._witness(seed, request, point) for point in request.points)
        same_policy = request.proofs == (policy,)
        same_tokens = request.tokens == sample(seed, request.prompt, request.seed, self._length_max)
        if same_policy and same_tokens and self._rounding is not None:
            sampled = [_LOGPROB] * len(request.tokens)
            rounded = replace(self._rounding.recomputed(sampled), witness=witness)
            return measured(self._rules, request.logprobs, rounded)
        count = len(request.tokens)
        own = Recomputed(
            [ChunkResult(0 if same_policy else _FAR, 0.0, 0.0)],
            [_LOGPROB] * count,
            [0.0 if same_tokens else _FAR] * count,
            witness,
        )
        return measured(self._rules, request.logprobs, own)

    def _witness(
        self, seed: bytes, request: VerificationRequest, point: WitnessPoint
    ) -> WitnessValue:
        """Return the true value of a point, a hash, with the rounding of an honest engine."""
        known = seed + bytes(request.prompt) + b"/" + bytes(request.tokens)
        place = (point.position, point.token, point.seed)
        drawn = blake3(known + b"".join(one.to_bytes(8, "big") for one in place)).digest(8)
        logprob = -_WITNESS_NATS * (1 + int.from_bytes(drawn[:4], "big") / 2**32)
        rng, replay = self._witness_rng, int.from_bytes(drawn[4:], "big") % self._vocabulary
        error = self._rules.gap_sigma * (2 * rng.uniform() - 1)
        if rng.uniform() < self._rules.honest.replay_mismatches.mean / 2:
            replay = (replay + 1) % self._vocabulary
        return WitnessValue(logprob + error, replay)


class SimTraining(TrainingEngine):
    """The ``TrainingEngine`` port."""

    def __init__(self, machine: "SimEngines", rng: Rng, manifest: RunManifest) -> None:
        self._machine = machine
        self._rng = rng
        self._prompts_per_rollout = manifest.sampling.prompts_per_rollout
        self._updates = manifest.grpo.updates_per_version
        self._outer = manifest.grpo.outer
        self._outer_seed, self._momentum = b"", NO_MOMENTUM
        self._round_steps = 0
        """Steps of this round, in a run with outer steps."""
        self._seed = b""
        self._steps = 0
        self._begun: tuple[Sequence[TrainingSequence], float] | None = None
        """The batch before its first update, and the step's total seconds."""

    @override
    async def state_bytes_max(self) -> int:
        return SEED_BYTES + len(NO_MOMENTUM) * (self._outer is not None)

    @override
    async def load_policy(self, policy: Policy) -> None:
        await asyncio.sleep(self._machine.compute.load_seconds)
        self._start(self._machine.open_policy(policy, "training"), NO_MOMENTUM)

    def _start(self, seed: bytes, momentum: bytes) -> None:
        self._seed = self._outer_seed = seed
        self._momentum, self._round_steps, self._begun = momentum, 0, None

    @override
    async def recompute(
        self, policy: Policy, sequences: Sequence[TrainingSequence], path: Path | None = None
    ) -> list[TrainingSequence]:
        return list(sequences)  # included in ``train_tokens_per_second``

    @override
    async def begin_step(self, batch: Sequence[TrainingSequence]) -> None:
        if self._outer is not None and self._round_steps >= self._outer.inner_steps:
            raise RuntimeError(f"the round has its {self._round_steps} steps")
        tokens = sum(len(item.tokens) for item in batch)
        seconds = tokens / self._machine.compute.train_tokens_per_second * _spread(self._rng)
        await asyncio.sleep(seconds / self._updates)
        self._begun = batch, seconds

    @override
    async def end_step(self) -> StepMetrics:
        if self._begun is None:
            raise RuntimeError("no step has begun")
        machine, (batch, seconds), self._begun = self._machine, self._begun, None
        await asyncio.sleep(seconds - seconds / self._updates)
        groups: dict[int, list[float]] = {}
        for item in batch:
            groups.setdefault(item.group, []).append(item.reward)
        informative = [rewards for rewards in groups.values() if min(rewards) < max(rewards)]
        share = len(informative) / max(1, len(groups))
        skill = skill_of(self._seed)
        skill += machine.workload.learning_rate * share * max(0.0, SKILL_MAX - skill)
        lineage = blake3(self._seed)
        for item in batch:
            lineage.update(bytes(_known(item.tokens)) + item.group.to_bytes(4, "big"))
        self._seed = policy_seed(skill, lineage.digest())
        self._steps += 1
        self._round_steps += self._outer is not None
        machine.emit(
            "trained",
            rollouts=",".join(self._marks(batch)),
            step=self._steps,
            sequences=len(batch),
            skill=round(skill, 6),
            seconds=round(seconds, 3),
        )
        return StepMetrics(
            updates=int(bool(informative)),
            loss=0.0,
            gradient_norm=share,
            entropy=1.0 - skill,
            sequences_used=sum(map(len, informative)),
            learning_rate=machine.workload.learning_rate if informative else 0.0,
            mismatch=_ALIKE,
            engine_mismatch=_ALIKE,
        )

    def _marks(self, batch: Sequence[TrainingSequence]) -> list[str]:
        rollouts: dict[int, list[TrainingSequence]] = {}
        for item in batch:
            rollouts.setdefault(item.group // self._prompts_per_rollout, []).append(item)
        return [
            rollout_mark((_known(item.prompt), _known(item.tokens)) for item in items)
            for items in rollouts.values()
        ]

    @override
    async def policy_digest(self) -> Digest:
        content = Extent.of(self._seed, 0, self._machine.workload.weights_bytes)
        await asyncio.sleep(self._machine.compute.weights_seconds(len(content)))
        return policy_digest(content)

    @override
    async def write_policy(self, path: Path) -> Digest:
        content = Extent.of(self._seed, 0, self._machine.workload.weights_bytes)
        await self._write(path, content, len(content))
        made = policy_digest(content)
        self._machine.emit("policy-made", digest=made.hex(), skill=skill_of(self._seed))
        return made

    @override
    async def save_state(self, path: Path) -> None:
        if self._round_steps:
            raise RuntimeError("a state is that of a round's beginning")
        content = self._seed if self._outer is None else self._seed + self._momentum
        await self._write(path, content, self._machine.workload.state_bytes)

    async def _write(self, path: Path, content: bytes, written_bytes: int) -> None:
        machine = self._machine
        async with machine.session.writing(machine.compute.weights_seconds(written_bytes)):
            machine.disk.require_room()
            machine.disk.files[path] = content

    @override
    async def load_state(self, path: Path, policy: Digest, newer: Policy | None = None) -> None:
        content, momentum = self._machine.disk.files.get(path, b""), NO_MOMENTUM
        if self._outer is not None:
            content, momentum = content[:SEED_BYTES], content[SEED_BYTES:]
        weights = Extent.of(content, 0, self._machine.workload.weights_bytes)
        if policy_digest(weights) != policy or len(momentum) != len(NO_MOMENTUM):
            raise ValueError(f"{path} is not the state of policy {policy.hex()}")
        if newer is None:
            self._start(content, momentum)
        elif self._outer is not None:
            raise ValueError(f"{path}: the outer momentum is not that of {newer.digest.hex()}")
        else:
            await self.load_policy(newer)

    def _difference_bytes(self) -> int:
        if self._outer is None:
            raise RuntimeError("the run has no outer steps (grpo.outer)")
        if not self._outer_seed:
            raise RuntimeError("no policy is loaded")
        weights_bytes = self._machine.workload.weights_bytes
        return difference_bytes(weights_bytes, self._outer.encoding)

    @override
    async def begin_round(self) -> None:
        self._difference_bytes()  # raises without outer steps, or without a policy
        self._start(self._outer_seed, self._momentum)

    @override
    async def write_difference(self, path: Path) -> Digest:
        content = difference_of(self._outer_seed, self._seed, self._difference_bytes())
        await self._write(path, content, len(content))
        return policy_digest(content)

    @override
    async def check_difference(self, difference: Digest, path: Path) -> None:
        await self._checked([(difference, path)])

    @override
    async def apply_differences(self, files: Sequence[tuple[Digest, Path]]) -> None:
        if not files:
            raise ValueError("no difference to step by")
        gains = await self._checked(files)
        before, length = self._outer_seed, self._machine.workload.weights_bytes
        self._start(*outer_step(before, self._momentum, gains))
        self._machine.emit(
            "outer-step",
            parent=policy_digest(Extent.of(before, 0, length)).hex(),
            policy=policy_digest(Extent.of(self._seed, 0, length)).hex(),
            differences=",".join(digest.hex() for digest, _ in gains),
        )

    async def _checked(self, files: Sequence[tuple[Digest, Path]]) -> list[tuple[Digest, float]]:
        """Return the digests with the gains of differences, after the time to read them."""
        length = self._difference_bytes()
        await asyncio.sleep(self._machine.compute.weights_seconds(length * len(files)))
        contents = self._machine.disk.files
        return [
            (digest, checked_difference(contents.get(path), digest, length))
            for digest, path in files
        ]

    @override
    async def evaluate(
        self, prompts: Sequence[tuple[int, ...]], tokens_max: int
    ) -> list[tuple[int, ...]]:
        length_max = self._machine.length_max(tokens_max)
        return [sample(self._seed, prompt, 0, length_max) for prompt in prompts]


def _known(numbers: TokenIds) -> tuple[int, ...]:
    """Return token ids, which a simulated node leaves in memory."""
    assert isinstance(numbers, tuple)
    return numbers


class SimEngines(Engines):
    """The ``Engines`` of one node and their shared state."""

    def __init__(
        self,
        disk: Disk,
        compute: Compute,
        workload: Workload,
        rng: Rng,
        emit: Emit,
        session: Session | None = None,
    ) -> None:
        self.disk = disk
        self.compute = compute
        self.workload = workload
        self.emit = emit
        self.session = session or Session()
        self._rng = rng

    @override
    def environment(self, manifest: RunManifest) -> Environment:
        del manifest  # every run has the same task
        return InBackground(SumTask(), SimBackground())

    @override
    def generation(self, manifest: RunManifest) -> SimGeneration:
        del manifest
        return SimGeneration(self, self._rng.child("generation"))

    @override
    def verification(self, manifest: RunManifest) -> SimVerification:
        return SimVerification(self, self._rng.child("verification"), manifest)

    @override
    def training(self, manifest: RunManifest) -> SimTraining:
        return SimTraining(self, self._rng.child("training"), manifest)

    def open_policy(self, policy: Policy, engine: str) -> bytes:
        """Return the seed of a policy file; raises ``ValueError`` for another policy or no file.

        Retention may delete a version between its choice by a flow and this call.
        """
        content = self.disk.files.get(policy.path)
        if content is None:
            raise ValueError(f"{policy.path} is not here")
        actual = policy_digest(content)
        self.emit(
            "policy-loaded",
            engine=engine,
            version=policy.version,
            claimed=policy.digest.hex(),
            actual=actual.hex(),
        )
        if actual != policy.digest or not isinstance(content, Extent):
            raise ValueError(f"the weights of version {policy.version} are another policy")
        return content.seed

    def length_max(self, tokens_max: int) -> int:
        """Return the maximum sequence length here, in tokens."""
        return max(2, min(tokens_max, 2 * self.workload.tokens_mean))


def _spread(rng: Rng) -> float:
    return 1 + _SPREAD * (2 * rng.uniform() - 1)
