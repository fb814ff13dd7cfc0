"""Inference: generate what was assigned with the newest policy, prove it, commit to it."""

import asyncio
import math

import structlog

from protocol import crypto
from protocol.assignment import assign
from protocol.ledger.commits import window_epochs
from protocol.messages import RolloutCommit, message_id
from protocol.rollout import RolloutSequence, encode_body
from protocol.types import Digest, Topic
from roles.failures import Failures
from roles.flow import RoleContext
from roles.ports.engines import (
    EngineError,
    Environment,
    GenerationEngine,
    GenerationRequest,
    Policy,
    Unscorable,
)
from roles.ports.storage import Owner, Purpose, StorageFullError
from roles.ports.swarm import RefusedError
from roles.task import Task

log = structlog.get_logger()

OWN_COMMITS_IN_FLIGHT_MAX = 2
"""One being checked while the next one is generated; more only makes rollouts older."""

REPEAT_EPOCHS = 1.0
"""A commit that has no outcome by then may have been announced to nobody: it is told again, for as
long as anybody judges it."""


class InferenceFlow:
    """One worker."""

    def __init__(
        self, context: RoleContext, engine: GenerationEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._task = Task(context.manifest, environment)
        self._failures = Failures(context, "inference")
        self._loaded: Digest | None = None
        self._unscorable: tuple[Digest, str] | None = None
        """The checkpoint whose next slot of ours holds an answer without a score, and why."""
        self._announced_at: dict[Digest, float] = {}

    async def run(self) -> None:
        """Work until cancelled."""
        context = self._context
        while True:
            seen = context.changes.count
            await self._repeat_unsettled()
            policy = self._policy_to_use()
            if policy is None:
                await context.tick(seen)
                continue
            try:
                if await self._load(policy):
                    await self._roll_out(policy)
                    self._failures.end()
                    continue
            except StorageFullError as error:
                context.conditions.set("inference", f"disk full: {error}; waiting for room")
            except RefusedError as error:
                context.conditions.set("inference", f"commit refused: {error}")
            except EngineError as error:
                self._loaded = None  # an engine that starts anew has nothing
                await self._failures.pause(error)
                continue
            await asyncio.sleep(context.epoch_seconds / 2)  # the same again would end the same way

    async def _repeat_unsettled(self) -> None:
        """Tell the swarm again what we had committed to, after a restart or a lonely time."""
        context = self._context
        if not context.network.synchronised:
            return  # nobody would hear it
        now = asyncio.get_running_loop().time()
        unsettled = {
            entry.commit.digest: entry.commit
            for entry in context.replica.ledger.open_entries(context.peer_id)
        }
        self._announced_at = {key: at for key, at in self._announced_at.items() if key in unsettled}
        oldest = context.epoch() - window_epochs(context.manifest)
        for digest, commit in unsettled.items():
            announced_at = self._announced_at.get(digest, -math.inf)
            due = now >= announced_at + REPEAT_EPOCHS * context.epoch_seconds
            if due and commit.message.epoch >= oldest:
                self._announced_at[digest] = now
                await context.network.announce(Topic.COMMITS, commit.envelope)

    def _policy_to_use(self) -> Policy | None:
        """Return the newest policy here if the swarm wants a rollout of it from us now."""
        context = self._context
        ledger = context.replica.ledger
        policy = context.policies.newest()
        checkpoint = None if policy is None else ledger.checkpoint(policy.version)
        wanted = (
            policy is not None
            and checkpoint is not None
            and context.network.synchronised  # else we could use a slot of before a restart again
            and policy.version >= ledger.version - context.manifest.grpo.async_level
            and ledger.in_flight(context.peer_id) < OWN_COMMITS_IN_FLIGHT_MAX
            and not ledger.slashed(context.peer_id)
            and ledger.demand()
            and self._can_be_checked()
            and self._slots_are_known(policy)
            and self._has_scores(checkpoint.digest)
        )
        return policy if wanted else None

    def _slots_are_known(self, policy: Policy) -> bool:
        """Tell whether our slots of a version are in the ledger: two commits to one end us."""
        if not self._context.network.may_have_used(policy.version):
            return True
        self._context.conditions.set("inference", "our disk was lost; waiting for a newer version")
        return False

    def _has_scores(self, checkpoint: Digest) -> bool:
        """Tell whether our next slot of a checkpoint is not one that has no score.

        It would end the same way each time: problem and noise follow from the slot. Slots are used
        in order, else workers would pass over those they dislike, and a commit without a score
        would only expire. So a newer version is awaited; what is lost are our later slots of one.
        """
        if self._unscorable is None or self._unscorable[0] != checkpoint:
            return True
        reason = f"no score for {self._unscorable[1]}; waiting for a newer version"
        self._context.conditions.set("inference", reason)
        return False

    def _can_be_checked(self) -> bool:
        """Tell whether there are enough validators: without a committee a commit only expires."""
        context = self._context
        validators = context.replica.electorate.validators(context.epoch())
        return len(validators) >= context.manifest.committee.roster_min

    async def _load(self, policy: Policy) -> bool:
        """Swap the engine to ``policy``; False when its weights are not what they should be."""
        if self._loaded == policy.digest:
            return True
        now = asyncio.get_running_loop().time
        began = now()
        try:
            await self._engine.load(policy)
        except ValueError as error:
            log.warning("policy refused", version=policy.version, error=str(error))
            await self._context.policies.discard(policy)
            return False
        self._loaded = policy.digest
        log.info("policy loaded", version=policy.version, seconds=round(now() - began, 3))
        return True

    async def _roll_out(self, policy: Policy) -> None:
        context = self._context
        manifest, ledger = context.manifest, context.replica.ledger
        checkpoint = ledger.checkpoint(policy.version)
        if checkpoint is None or checkpoint.message.policy != policy.digest:
            return  # superseded while it was being loaded
        slot, previous = ledger.next_slot(context.peer_id, policy.version)
        assignments = assign(manifest, checkpoint.digest, context.peer_id, slot)
        requests = [
            GenerationRequest(prompt, item.noise_seed, manifest.sampling.tokens_max)
            for item, prompt in zip(assignments, await self._task.prompts(assignments), strict=True)
        ]
        generations = await self._engine.generate(requests, manifest.sampling.temperature)
        rewards = await self._task.rewards(assignments, [item.tokens for item in generations])
        if isinstance(rewards, Unscorable):
            self._unscorable = checkpoint.digest, f"slot {slot}, {rewards.reason}"
            log.warning(
                "rollout not committed", version=policy.version, slot=slot, reason=rewards.reason
            )
            return
        body = encode_body(
            [
                RolloutSequence(item.tokens, item.logprobs, own, item.proofs)
                for item, own in zip(generations, rewards, strict=True)
            ]
        )
        # The body is durable before the commit, and the commit before it is announced.
        commit = RolloutCommit(
            epoch=context.epoch(),
            version=policy.version,
            checkpoint=checkpoint.digest,
            slot=slot,
            previous=previous,
            body=crypto.digest(body),
            body_bytes=len(body),
            sequences=len(generations),
            tokens=sum(len(generation.tokens) for generation in generations),
        )
        identifier = message_id(commit, context.replica.run_id, context.peer_id)
        owner = Owner(Purpose.ROLLOUT_BODY, identifier)
        try:
            await context.blobs.put(body, owner)
            signed = await context.network.publish(Topic.COMMITS, commit)
        except (RefusedError, StorageFullError):
            await context.blobs.release(owner)
            raise
        self._announced_at[signed.digest] = asyncio.get_running_loop().time()
        log.info(
            "rollout committed",
            commit=signed.digest.hex()[:12],
            version=policy.version,
            slot=slot,
            reward=round(sum(rewards) / len(rewards) / 1e6, 3),
        )
