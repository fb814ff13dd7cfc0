"""Verification of rollout bodies with the engine and the policies of their commits."""

from collections.abc import Sequence

import structlog

from protocol.consensus.page_node import PageNode
from protocol.core.types import Digest, Version
from protocol.messages import RolloutCommit, Signed
from protocol.rollout.audit import AuditResult, Past
from protocol.rollout.statistics import Measurement
from roles.ports.engines import (
    Environment,
    Policy,
    Unscorable,
    VerificationEngine,
    VerificationRequest,
)
from roles.runtime.context import RoleContext
from roles.runtime.scoring import Task
from roles.validator.judgement import Judged, judge

log = structlog.get_logger()


class RolloutVerifier:
    """Verifies bodies with the engine, one at a time."""

    def __init__(
        self, context: RoleContext, engine: VerificationEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._task = Task(context.manifest, environment)
        self._loaded: dict[int, Digest] = {}
        """Policies of the engine, the one loaded last at the end."""

    def policy(self, commit: Signed[RolloutCommit]) -> Policy | None:
        """Return the policy that the commit names, None while its weights are missing."""
        checkpoint = self._context.replica.ledger.chain.get(commit.message.version)
        if checkpoint is None or checkpoint.digest != commit.message.checkpoint:
            return None
        return self._context.policies.get(commit.message.version)

    async def examine(
        self, commit: Signed[RolloutCommit], page: PageNode, body: bytes
    ) -> AuditResult | Unscorable | None:
        """Verify a body; None when this node cannot do so now, which is no fault of the worker.

        ``page`` drew the committee; it also draws the audited sequences and the witness points.

        Return ``Unscorable`` when the task has no score for it. Raises ``EngineError`` when the
        engine or the task fails.
        """
        manifest, message = self._context.manifest, commit.message

        async def measure(
            requests: Sequence[VerificationRequest],
        ) -> Sequence[Measurement] | None:
            return await self._measure(commit, requests) if await self._load(commit) else None

        judged = Judged(commit.signer, message, body, page.beacon + commit.digest)
        return await judge(manifest, self._task, judged, lambda: self._past(commit), measure)

    def _past(self, commit: Signed[RolloutCommit]) -> Past:
        decisions, worker = self._context.replica.ledger.decisions(), commit.signer
        return Past(worker, decisions.workers.get(worker, ()), decisions.fit)

    async def _load(self, commit: Signed[RolloutCommit]) -> bool:
        """Load the policy of ``commit`` into the engine; False when that is not possible."""
        policy = self.policy(commit)
        if policy is None:
            return False
        if self._loaded.get(policy.version) == policy.digest:
            return True
        self._loaded.pop(policy.version, None)
        try:
            with self._context.policies.hold(policy):
                await self._engine.load(policy)
        except ValueError as error:
            log.warning("policy refused", version=policy.version, error=str(error))
            await self._context.policies.discard(policy)
            return False
        self._loaded[policy.version] = policy.digest
        # Engines keep the policies loaded last: as many as rollouts may name.
        for version in list(self._loaded)[: -(self._context.manifest.grpo.async_level + 1)]:
            del self._loaded[version]
        return self.policy(commit) is not None

    async def _measure(
        self, commit: Signed[RolloutCommit], requests: Sequence[VerificationRequest]
    ) -> Sequence[Measurement] | None:
        version = Version(commit.message.version)
        temperature = self._context.manifest.sampling.temperature
        try:
            return await self._engine.measure(version, requests, temperature)
        except LookupError:  # the engine keeps fewer policies than assumed
            self._loaded.clear()
            return None
