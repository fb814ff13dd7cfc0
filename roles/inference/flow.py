"""Inference: generate what was assigned with the newest policy, prove it, commit to it."""

import structlog

from protocol.assignment import assign
from protocol.ledger import CommitState
from protocol.messages import RolloutCommit
from protocol.rollout import RolloutSequence, encode_body
from protocol.types import Topic
from roles.flow import RefusedError, RoleContext, reward
from roles.ports import (
    Environment,
    Generation,
    GenerationEngine,
    GenerationRequest,
    Policy,
    StorageFullError,
)

log = structlog.get_logger()

OWN_COMMITS_IN_FLIGHT_MAX = 2
"""One being checked while the next one is generated; more only makes rollouts older."""


class InferenceFlow:
    """One worker."""

    def __init__(
        self, context: RoleContext, engine: GenerationEngine, environment: Environment
    ) -> None:
        self._context = context
        self._engine = engine
        self._environment = environment
        self._loaded_version: int | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        await self._announce_unsettled()
        while True:
            policy = self._policy_to_use()
            if policy is None:
                await self._context.tick()
                continue
            try:
                await self._roll_out(policy)
                self._context.conditions.clear("inference")
            except StorageFullError as error:
                self._context.conditions.set("inference", f"disk full: {error}; waiting for room")
                await self._context.tick()
            except RefusedError as error:
                self._context.conditions.set("inference", f"commit refused: {error}")
                await self._context.tick()

    async def _announce_unsettled(self) -> None:
        """Tell the swarm again what we had committed to before a restart."""
        for entry in list(self._context.replica.ledger.entries.values()):
            ours = entry.commit.signer == self._context.peer_id
            if ours and entry.state is CommitState.COMMITTED:
                await self._context.network.announce(Topic.COMMITS, entry.commit.envelope)

    def _policy_to_use(self) -> Policy | None:
        """Return the newest policy here if the swarm wants a rollout of it from us now."""
        context = self._context
        ledger = context.replica.ledger
        policy = context.policies.newest()
        wanted = (
            policy is not None
            and policy.version >= ledger.version - context.manifest.grpo.async_level
            and ledger.checkpoint(policy.version) is not None
            and ledger.in_flight(context.peer_id) < OWN_COMMITS_IN_FLIGHT_MAX
            and not ledger.slashed(context.peer_id)
            and ledger.demand()
        )
        return policy if wanted else None

    async def _roll_out(self, policy: Policy) -> None:
        context = self._context
        manifest, ledger = context.manifest, context.replica.ledger
        checkpoint = ledger.checkpoint(policy.version)
        if checkpoint is None:
            return
        if self._loaded_version != policy.version:
            await self._engine.load(policy)
            self._loaded_version = policy.version
        slot, previous = ledger.next_slot(context.peer_id, policy.version)
        assignments = assign(manifest, checkpoint.digest, context.peer_id, slot)
        requests = [
            GenerationRequest(
                self._environment.prompt(item.problem_seed),
                item.noise_seed,
                manifest.sampling.tokens_max,
            )
            for item in assignments
        ]
        generations = await self._engine.generate(requests, manifest.sampling.temperature)
        rewards = [
            reward(manifest, self._environment, item, generation.tokens)
            for item, generation in zip(assignments, generations, strict=True)
        ]
        body = encode_body(_sequences(generations, rewards))
        # The body is durable before the commit, and the commit before it is announced.
        digest = await context.blobs.put(body)
        signed = await context.network.publish(
            Topic.COMMITS,
            RolloutCommit(
                epoch=context.epoch(),
                version=policy.version,
                policy=policy.digest,
                slot=slot,
                previous=previous,
                body=digest,
                body_bytes=len(body),
                sequences=len(generations),
                tokens=sum(len(generation.tokens) for generation in generations),
            ),
        )
        log.info(
            "rollout committed",
            commit=signed.digest.hex()[:12],
            version=policy.version,
            slot=slot,
            reward=round(sum(rewards) / len(rewards) / 1e6, 3),
        )


def _sequences(generations: list[Generation], rewards: list[int]) -> list[RolloutSequence]:
    return [
        RolloutSequence(item.tokens, item.logprobs, value, item.proofs)
        for item, value in zip(generations, rewards, strict=True)
    ]
