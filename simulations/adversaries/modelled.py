"""Dishonest workers of a simulation: those of testnets on modelled weights, and two more."""

from collections.abc import Sequence
from dataclasses import replace

from typing_extensions import override

from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.core.types import DIGEST_BYTES, Digest
from roles.ports.engines import Answer, Engines, Policy, Score, Unscorable
from roles.ports.storage import Owner, Purpose
from simulations.adversaries.passthrough import OtherEngines, PassingEnvironment
from simulations.adversaries.workers import PolicyCopies, WorkerBehaviour
from simulations.ports.blobs import SimBlobs
from simulations.ports.parts import Behaviour, Parts
from simulations.ports.storage import Disk
from simulations.runtime.content import Extent, policy_digest


class CopiedExtents(PolicyCopies):
    """Files on the modelled disk of one machine, beside its policies."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    @override
    def keep(self, policy: Policy) -> Policy:
        path = policy.path.with_name(f"kept-v{policy.version}")
        self._disk.files[path] = self._disk.files[policy.path]
        return replace(policy, path=path)

    @override
    def perturb(self, policy: Policy) -> Policy:
        content = self._disk.files[policy.path]
        if not isinstance(content, Extent):
            raise TypeError("a modelled policy is an extent")
        skill = content.seed[:-DIGEST_BYTES]
        other = Extent.of(skill + digest(b"other/" + content.seed), 0, len(content))
        path = policy.path.with_name("other")
        self._disk.files[path] = other
        return replace(policy, digest=policy_digest(other), path=path)

    @override
    def discard(self, policy: Policy) -> None:
        del self._disk.files[policy.path]


def modelled(behaviour: WorkerBehaviour) -> Behaviour:
    """Return a worker's behaviour for a simulated machine."""

    def replaced(parts: Parts, rng: Rng) -> Parts:
        copies = CopiedExtents(parts.disk)
        return replace(parts, engines=behaviour(parts.engines, copies, rng))

    return replaced


class WithheldBodies(SimBlobs):
    """Withholds the bodies of its own rollouts, and serves weights normally."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts.disk, parts.session)
        self._acting = parts.acting

    @override
    async def put(self, data: bytes, owner: Owner) -> Digest:
        if owner.purpose is Purpose.ROLLOUT_BODY and self._acting():
            return digest(data)
        return await super().put(data, owner)


def withheld_body(parts: Parts, _rng: Rng) -> Parts:
    """Commit to rollouts and serve their bodies to no peer."""
    return parts.with_ports(blobs=WithheldBodies(parts))


DISLIKED_SHARE = 4
"""One problem in so many is disliked."""


class SkippedSlots(PassingEnvironment):
    """Has no score for disliked problems, so an honest worker leaves their slots out."""

    @override
    async def score_batch(self, answers: Sequence[Answer]) -> list[Score]:
        scores = await super().score_batch(answers)
        return [
            Unscorable("disliked") if answer.seed % DISLIKED_SHARE == 0 else score
            for answer, score in zip(answers, scores, strict=True)
        ]


def skipped_slots(honest: Engines, _copies: PolicyCopies, _rng: Rng) -> Engines:
    """Leave out the slots with disliked problems."""
    return OtherEngines(honest, environment=lambda task, _: SkippedSlots(task))
