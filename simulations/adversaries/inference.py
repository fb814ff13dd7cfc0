"""Workers that lie about one thing each and are honest otherwise, on modelled engines.

The five lies of ``worker_lies``, which needs real weights for three of them, and one worker that
never shows what it committed to.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from protocol.crypto import digest
from protocol.faults import Fault
from protocol.manifest import RunManifest
from protocol.rng import Rng
from protocol.shardcast import index as shard_index
from protocol.types import DIGEST_BYTES, Digest
from roles.ports.engines import (
    Environment,
    Generation,
    GenerationEngine,
    GenerationRequest,
    Policy,
)
from roles.ports.swarm import RefusedError
from simulations.adversaries.passthrough import OtherEngines
from simulations.adversaries.worker_lies import EditedTokens, ForgedRewards, PassingGeneration
from simulations.cluster.machine import Machine, Parts
from simulations.ports.engines import SumTask, policy_digest
from simulations.ports.storage import Disk, SimBlobs
from simulations.runtime.content import Extent


class StaleWeights(PassingGeneration):
    """Generates with the policy before the one it claims: saves every other download."""

    def __init__(self, honest: GenerationEngine, disk: Disk, folder: Path) -> None:
        super().__init__(honest)
        self._disk = disk
        self._folder = folder
        self._previous: Policy | None = None

    async def load(self, policy: Policy) -> None:
        """Load the policy seen before ``policy``; raises ``RefusedError`` for the first."""
        previous = self._previous
        if previous is None or previous.digest != policy.digest:
            # A node deletes old versions, so the liar keeps its own copy.
            kept = self._folder / f"stale-v{policy.version}"
            self._disk.files[kept] = self._disk.files[policy.path]
            self._previous = replace(policy, path=kept)
        if previous is None or previous.digest == policy.digest:
            raise RefusedError(f"no policy before version {policy.version} seen yet")
        await self._honest.load(previous)
        del self._disk.files[previous.path]


class OtherWeights(PassingGeneration):
    """Generates with weights of its own, as a cheaper copy of the policy would be."""

    def __init__(self, honest: GenerationEngine, disk: Disk, folder: Path) -> None:
        super().__init__(honest)
        self._disk = disk
        self._path = folder / "other"

    async def load(self, policy: Policy) -> None:
        """Load a policy of the same length and skill that is another one."""
        content = self._disk.files[policy.path]
        if not isinstance(content, Extent):
            raise TypeError("a modelled policy is an extent")
        skill = content.seed[:-DIGEST_BYTES]
        other = Extent.of(skill + digest(b"other/" + content.seed), 0, len(content))
        self._disk.files[self._path] = other
        await self._honest.load(replace(policy, digest=policy_digest(other), path=self._path))


class ForgedProofs(PassingGeneration):
    """Sends proofs of the right length about nothing: saves keeping the states."""

    def __init__(self, honest: GenerationEngine, rng: Rng) -> None:
        super().__init__(honest)
        self._rng = rng

    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        """Return honest sequences with random proofs."""
        honest = await self._honest.generate(requests, temperature)
        return [
            replace(item, proofs=tuple(self._rng.bytes(len(proof)) for proof in item.proofs))
            for item in honest
        ]


class WithheldBodies(SimBlobs):
    """Keeps the bodies of its own rollouts to itself, and serves weights as everyone does."""

    async def put(self, data: bytes) -> Digest:
        """Store a blob as if it were not here, but for the index of a version."""
        if isinstance(shard_index.decode(data), Fault):
            return digest(data)
        return await super().put(data)


def stale_weights(machine: Machine, parts: Parts, _rng: Rng) -> Parts:
    """Lie about which policy generated."""
    folder = machine.weights

    def lying(honest: GenerationEngine) -> GenerationEngine:
        return StaleWeights(honest, machine.disk, folder)

    return replace(parts, engines=OtherEngines(parts.engines, generation=lying))


def other_weights(machine: Machine, parts: Parts, _rng: Rng) -> Parts:
    """Lie about the weights of the policy."""
    folder = machine.weights

    def lying(honest: GenerationEngine) -> GenerationEngine:
        return OtherWeights(honest, machine.disk, folder)

    return replace(parts, engines=OtherEngines(parts.engines, generation=lying))


def edited_tokens(_machine: Machine, parts: Parts, _rng: Rng) -> Parts:
    """Lie about what was sampled."""

    def lying(honest: GenerationEngine) -> GenerationEngine:
        return EditedTokens(honest, len(SumTask.vocabulary))

    return replace(parts, engines=OtherEngines(parts.engines, generation=lying))


def forged_rewards(_machine: Machine, parts: Parts, _rng: Rng) -> Parts:
    """Lie about how good the answers are."""

    def lying(honest: Environment, _manifest: RunManifest) -> Environment:
        return ForgedRewards(honest)

    return replace(parts, engines=OtherEngines(parts.engines, environment=lying))


def forged_proofs(_machine: Machine, parts: Parts, rng: Rng) -> Parts:
    """Lie about having computed."""

    def lying(honest: GenerationEngine) -> GenerationEngine:
        return ForgedProofs(honest, rng.child("proofs"))

    return replace(parts, engines=OtherEngines(parts.engines, generation=lying))


def withheld_body(machine: Machine, parts: Parts, _rng: Rng) -> Parts:
    """Commit to rollouts and show them to nobody."""
    blobs = WithheldBodies(machine.disk, machine.life)
    return replace(parts, ports=replace(parts.ports, blobs=blobs))
