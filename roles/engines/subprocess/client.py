"""Engines of a live daemon: the ports of ``roles.ports.engines``, computed in other processes.

Every response is validated against its request; only its numbers are trusted.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from typing_extensions import override

from protocol.core.containers import BoundedDict
from protocol.core.types import Digest, Version
from protocol.rollout.statistics import Measurement
from protocol.run.manifest import RunManifest
from roles.engines.factory import EngineName, policies_kept
from roles.engines.subprocess import wire
from roles.engines.subprocess.connection import CallTimeouts, EngineConnection
from roles.engines.subprocess.group import EngineGroup
from roles.engines.subprocess.process import EngineProcesses
from roles.engines.subprocess.supervisor import EngineSupervisor
from roles.engines.task_loader import task_of
from roles.ports.background import Background
from roles.ports.engines import (
    EngineError,
    Engines,
    Environment,
    FirstToken,
    Generation,
    GenerationEngine,
    GenerationRequest,
    Policy,
    StepMetrics,
    TrainingEngine,
    TrainingSequence,
    VerificationEngine,
    VerificationRequest,
)
from roles.runtime.shared_lock import SharedLock


class ChildGeneration(GenerationEngine):
    """Generate in another process; a replacement process gets the last policy."""

    def __init__(self, processes: EngineProcesses, make: wire.Make, patience: CallTimeouts) -> None:
        self._policy: Policy | None = None
        self._turns = SharedLock()
        """Requests are encoded concurrently, so one may overtake another."""
        self.supervisor = EngineSupervisor(processes, make, patience, self._restore)

    @property
    @override
    def tokens_sampled(self) -> int:
        return self.supervisor.tokens

    @property
    @override
    def first_token(self) -> FirstToken | None:
        return self.supervisor.first_token

    @override
    async def start(self) -> None:
        await self.supervisor.start()

    @override
    async def stage(self, policy: Policy) -> bool:
        (staged,) = await self.supervisor.call("stage", policy, items=1)
        return bool(staged)

    @override
    async def load(self, policy: Policy) -> None:
        async with self._turns.alone():
            self._policy = None
            await self.supervisor.call("load", policy)
            self._policy = policy

    @override
    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        tokens = sum(request.tokens_max for request in requests)
        async with self._turns.together():
            made: list[Generation] = await self.supervisor.call(
                "generate", temperature, elements=requests, items=len(requests), tokens=tokens
            )
        for one, request in zip(made, requests, strict=True):
            fits = 1 <= len(one.tokens) <= request.tokens_max
            if not fits or len(one.logprobs) != len(one.tokens) or min(one.tokens) < 0:
                raise EngineError("the engine process generated other sequences than requested")
        return made

    async def _restore(self, conversation: EngineConnection | EngineGroup) -> None:
        if self._policy is not None:
            # Without a policy ``generate`` raises that none is loaded.
            with suppress(ValueError):
                await conversation.call("load", (self._policy,), 0, 0)


class ChildVerification(VerificationEngine):
    """Verify in another process; a replacement process gets the kept policies."""

    def __init__(
        self, processes: EngineProcesses, make: wire.Make, patience: CallTimeouts, kept: int
    ) -> None:
        self._policies = BoundedDict[Version, Policy](kept)
        self.supervisor = EngineSupervisor(processes, make, patience, self._restore)

    @override
    async def start(self) -> None:
        await self.supervisor.start()

    @override
    async def load(self, policy: Policy) -> None:
        self._policies.pop(policy.version, None)
        await self.supervisor.call("load", policy)
        self._policies[policy.version] = policy

    @override
    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        tokens = sum(len(request.prompt) + len(request.tokens) for request in requests)
        return await self.supervisor.call(
            "measure",
            version,
            temperature,
            elements=requests,
            items=len(requests),
            tokens=tokens,
        )

    async def _restore(self, conversation: EngineConnection | EngineGroup) -> None:
        for policy in list(self._policies.values()):
            # Without it ``measure`` raises ``LookupError``.
            with suppress(ValueError):
                await conversation.call("load", (policy,), 0, 0)


class ChildTraining(TrainingEngine):
    """Train in other processes, one rank on each device.

    Replacement processes have nothing loaded and report so.
    """

    def __init__(
        self,
        processes: EngineProcesses,
        make: wire.Make,
        patience: CallTimeouts,
        devices: Sequence[str],
    ) -> None:
        self._step_tokens = 0
        self._ranks = len(devices)
        self.supervisor = EngineSupervisor(processes, make, patience, self._restore, devices)

    @property
    @override
    def ranks(self) -> int:
        return self._ranks

    @override
    async def start(self) -> None:
        await self.supervisor.start()

    @override
    async def state_bytes_max(self) -> int:
        (most,) = await self.supervisor.call("state_bytes_max", items=1)
        return int(most)

    @override
    async def load_policy(self, policy: Policy) -> None:
        await self.supervisor.call("load_policy", policy)

    @override
    async def recompute(
        self, policy: Policy, sequences: Sequence[TrainingSequence], path: Path | None = None
    ) -> list[TrainingSequence]:
        return await self.supervisor.call(
            "recompute",
            policy,
            path,
            elements=sequences,
            items=len(sequences),
            tokens=_tokens(sequences),
        )

    @override
    async def begin_step(self, batch: Sequence[TrainingSequence]) -> None:
        self._step_tokens = _tokens(batch)
        await self.supervisor.call("begin_step", elements=batch, tokens=self._step_tokens)

    @override
    async def end_step(self) -> StepMetrics:
        (metrics,) = await self.supervisor.call("end_step", items=1, tokens=self._step_tokens)
        assert isinstance(metrics, StepMetrics)
        return metrics

    @override
    async def policy_digest(self) -> Digest:
        (digest,) = await self.supervisor.call("policy_digest", items=1)
        return Digest(digest)

    @override
    async def write_policy(self, path: Path) -> Digest:
        (digest,) = await self.supervisor.call("write_policy", path, items=1)
        return Digest(digest)

    @override
    async def save_state(self, path: Path) -> None:
        await self.supervisor.call("save_state", path)

    @override
    async def load_state(self, path: Path, policy: Digest, newer: Policy | None = None) -> None:
        await self.supervisor.call("load_state", path, policy, newer)

    @override
    async def begin_round(self) -> None:
        await self.supervisor.call("begin_round")

    @override
    async def write_difference(self, path: Path) -> Digest:
        (digest,) = await self.supervisor.call("write_difference", path, items=1)
        return Digest(digest)

    @override
    async def check_difference(self, difference: Digest, path: Path) -> None:
        await self.supervisor.call("check_difference", difference, path)

    @override
    async def apply_differences(self, files: Sequence[tuple[Digest, Path]]) -> None:
        await self.supervisor.call("apply_differences", tuple(files))

    @override
    async def evaluate(
        self, prompts: Sequence[tuple[int, ...]], tokens_max: int
    ) -> list[tuple[int, ...]]:
        count = len(prompts)
        tokens = count * tokens_max
        return await self.supervisor.call(
            "evaluate", tokens_max, elements=prompts, items=count, tokens=tokens
        )

    async def _restore(self, conversation: EngineConnection | EngineGroup) -> None:
        """Restore nothing: the trainer's flow chooses the state to resume from."""


class ChildEngines(Engines):
    """Make engines in separate processes.

    ``engine``, ``device`` and ``gpus`` are as in ``engines_of``. A training engine has a process on
    each of ``training_devices``; empty for one on ``device``. ``memory_bytes_max`` bounds each
    process's writable memory; ``runtimes`` are directories of installed scoring runtimes.
    """

    def __init__(
        self,
        processes: EngineProcesses,
        background: Background,
        task_data: Path,
        device: str = "auto",
        *,
        engine: EngineName = "builtin",
        gpus: int = 1,
        training_devices: Sequence[str] = (),
        memory_bytes_max: int | None = None,
        patience: CallTimeouts | None = None,
        runtimes: Sequence[Path] = (),
    ) -> None:
        self._processes = processes
        self._background = background
        self._task_data = task_data
        self._runtimes = runtimes
        self._device = device
        self._engine = engine
        self._gpus = gpus
        self._training_devices = training_devices or (device,)
        self._memory_bytes_max = memory_bytes_max
        self._patience = patience or CallTimeouts()

    @override
    def environment(self, manifest: RunManifest) -> Environment:
        return task_of(manifest, self._task_data, self._background, self._runtimes)

    @override
    def generation(self, manifest: RunManifest) -> ChildGeneration:
        return ChildGeneration(self._processes, self._make("generation", manifest), self._patience)

    @override
    def verification(self, manifest: RunManifest) -> ChildVerification:
        make, kept = self._make("verification", manifest), policies_kept(manifest)
        return ChildVerification(self._processes, make, self._patience, kept)

    @override
    def training(self, manifest: RunManifest) -> ChildTraining:
        make = self._make("training", manifest)
        return ChildTraining(self._processes, make, self._patience, self._training_devices)

    def _make(self, kind: wire.Kind, manifest: RunManifest) -> wire.Make:
        return wire.Make(
            kind=kind,
            engine=self._engine,
            manifest=manifest.encoded(),
            device=self._device,
            gpus=self._gpus,
            rank=0,
            ranks=1,
            rendezvous="",
            memory_bytes_max=self._memory_bytes_max,
            heartbeat_seconds=self._patience.heartbeat_seconds,
        )


def _tokens(sequences: Sequence[TrainingSequence]) -> int:
    return sum(len(one.prompt) + len(one.tokens) for one in sequences)
