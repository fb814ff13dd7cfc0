"""Trainers that are dishonest about single training steps, with weights that training could make.

Both move the weights no farther than an honest step, so no node can refuse them by their size.
"""

from pathlib import Path

from typing_extensions import override

from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.core.types import Digest
from protocol.run.manifest import RunManifest
from roles.ports.engines import StepMetrics
from simulations.adversaries.trainers import VERSIONS_BEFORE, with_training
from simulations.ports.engines import SimEngines, SimTraining
from simulations.ports.parts import Parts
from simulations.ports.sums import altered_seed
from simulations.runtime.content import Extent, poisoned_seed, policy_digest


class _OwnSteps(SimTraining):
    """Knows whether its node leads."""

    def __init__(self, parts: Parts, machine: SimEngines, rng: Rng, manifest: RunManifest) -> None:
        super().__init__(machine, rng, manifest)
        self._parts = parts

    @property
    def _leads(self) -> bool:
        replica = self._parts.replica()
        return replica is not None and replica.leader == self._parts.signer.peer_id


class AlteredSteps(_OwnSteps):
    """As the leader, replaces the weights after some steps by others within the bound."""

    @override
    async def end_step(self) -> StepMetrics:
        metrics = await super().end_step()
        if self._steps > VERSIONS_BEFORE and self._leads:
            self._seed = altered_seed(self._seed)
            altered = Extent.of(self._seed, 0, self._machine.workload.weights_bytes)
            self._machine.emit("policy-altered", digest=policy_digest(altered).hex())
        return metrics


class LyingShadow(_OwnSteps):
    """Repeats the leader's steps, and states another policy than it has computed."""

    @override
    async def policy_digest(self) -> Digest:
        policy = await super().policy_digest()
        return policy if self._leads else digest(b"lie/" + policy)


class ExcessiveDifferences(_OwnSteps):
    """As a trainer of rounds that does not lead, moves weights farther than its steps may."""

    @override
    async def write_difference(self, path: Path) -> Digest:
        if not self._leads:
            self._seed = poisoned_seed(self._seed)
        return await super().write_difference(path)


def poisoned_step(parts: Parts, rng: Rng) -> Parts:
    """As the leader, alter steps within the bound."""
    return with_training(parts, AlteredSteps, rng, "step")


def excessive_difference(parts: Parts, rng: Rng) -> Parts:
    """In the rounds of a leader, send differences beyond what steps can move."""
    return with_training(parts, ExcessiveDifferences, rng, "difference")


def lying_shadow(parts: Parts, rng: Rng) -> Parts:
    """As a shadow, report other policies than it has computed."""
    return with_training(parts, LyingShadow, rng, "step")
