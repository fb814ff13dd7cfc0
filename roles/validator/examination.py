"""Examination: what one body is worth, cheapest check first, the model last."""

import structlog

from protocol.assignment import SequenceAssignment, assign
from protocol.audit import (
    LIES,
    Finding,
    Past,
    audited,
    check_claims,
    check_rewards,
    decide,
    read_body,
)
from protocol.messages import RolloutCommit, Signed
from protocol.rollout import RolloutSequence
from protocol.types import Digest, Version
from roles.flow import RoleContext
from roles.ports.engines import (
    Environment,
    Policy,
    Unscorable,
    VerificationEngine,
    VerificationRequest,
)
from roles.task import Task

log = structlog.get_logger()


class Examination:
    """Judges bodies with the engine, one at a time."""

    def __init__(
        self, context: RoleContext, engine: VerificationEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._task = Task(context.manifest, environment)
        self._loaded: dict[int, Digest] = {}
        """The policies that the engine has, the one that it was given last at the end."""

    def policy(self, commit: Signed[RolloutCommit]) -> Policy | None:
        """Return the policy that the commit names, None while its weights are not here."""
        checkpoint = self._context.replica.ledger.checkpoint(commit.message.version)
        if checkpoint is None or checkpoint.digest != commit.message.checkpoint:
            return None
        return self._context.policies.get(commit.message.version)

    async def examine(
        self, commit: Signed[RolloutCommit], body: bytes
    ) -> Finding | Unscorable | None:
        """Judge a body; None when it cannot be judged here and now, which is no fault of it.

        ``Unscorable`` when the task has no score for it. Raises ``EngineError`` when the engine or
        the task breaks.
        """
        manifest = self._context.manifest
        sequences = read_body(manifest, commit.message, body)
        if isinstance(sequences, Finding):
            return sequences
        finding = check_claims(manifest, commit.message, sequences)
        if finding is not None:
            return finding
        assignments = assign(
            manifest, Digest(commit.message.checkpoint), commit.signer, commit.message.slot
        )
        rewards = await self._task.rewards(assignments, [item.tokens for item in sequences])
        if isinstance(rewards, Unscorable):
            return rewards
        differing = check_rewards(manifest, sequences, rewards, self._past(commit))
        if differing is not None and differing.reason in LIES:
            return differing
        if not await self._load(commit):
            return None
        return await self._measure(commit, sequences, assignments, differing)

    def _past(self, commit: Signed[RolloutCommit]) -> Past:
        decisions, worker = self._context.replica.ledger.decisions(), commit.signer
        return Past(worker, decisions.workers.get(worker, ()), decisions.fit)

    async def _load(self, commit: Signed[RolloutCommit]) -> bool:
        """Give the engine the policy of ``commit``; False when that is not possible."""
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
        # Engines keep the last few that they were given: as many as rollouts may be of.
        for version in list(self._loaded)[: -(self._context.manifest.grpo.async_level + 1)]:
            del self._loaded[version]
        return self.policy(commit) is not None

    async def _measure(
        self,
        commit: Signed[RolloutCommit],
        sequences: list[RolloutSequence],
        assignments: list[SequenceAssignment],
        differing: Finding | None,
    ) -> Finding | None:
        manifest = self._context.manifest
        beacon = self._context.replica.electorate.beacon(commit.message.epoch + 1)
        chosen = audited(beacon, commit.digest, len(sequences), manifest.toploc.audit_share)
        prompts = await self._task.prompts([assignments[index] for index in chosen])
        requests = [
            VerificationRequest(
                prompt,
                assignments[index].noise_seed,
                sequences[index].tokens,
                sequences[index].logprobs,
                sequences[index].proofs,
            )
            for index, prompt in zip(chosen, prompts, strict=True)
        ]
        version, temperature = Version(commit.message.version), manifest.sampling.temperature
        try:
            measurements = await self._engine.measure(version, requests, temperature)
        except LookupError:  # the engine keeps fewer policies than we thought
            self._loaded.clear()
            return None
        claims = [one.claim for one in requests]
        return decide(manifest, measurements, claims, self._past(commit), differing)
