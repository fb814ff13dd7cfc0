"""Leadership among trainers, and the version from which a new leader resumes.

A leader resumes from its own state of the newest version, or from the version that another trainer
published. If no node holds the newest version any more, it goes back to one that it holds.
"""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import structlog

from protocol.core.types import Digest, Role, Topic, Version
from protocol.messages import CheckpointManifest, Signed
from roles.ports.engines import Policy, TrainingEngine
from roles.ports.storage import StorageFullError
from roles.runtime.context import RoleContext

log = structlog.get_logger()

RESIGNED_LIVES = 3
"""Lifetimes of a record for which a trainer without the lead waits for another trainer's version; a
guess at the time of loading and a first step."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Version from which training resumes, and the fields of the next manifest."""

    version: int
    """Predecessor of the next version, -1 when version 0 is to be published."""
    term: int
    parent: bytes
    """Digest of the manifest of ``version``; empty before version 0."""
    policy: bytes
    """Digest of the weights of ``version``; empty before version 0."""


class Leadership:
    """Decides whether this node leads, and loads the version from which training resumes."""

    def __init__(self, context: RoleContext, engine: TrainingEngine) -> None:
        self._context = context
        self._engine = engine
        self._started_at = asyncio.get_running_loop().time()
        self._awaited: tuple[Digest, float] | None = None
        """Newest version while no node serves it, and the time since then."""

    def is_ours(self) -> bool:
        """Return whether this node leads; False before it has synchronised."""
        context = self._context
        genesis = context.manifest.genesis
        if context.peer_id != genesis.trainers[0]:
            # Trainers of higher priority get one record lifetime to appear.
            waited_seconds = asyncio.get_running_loop().time() - self._started_at
            if waited_seconds < context.manifest.epochs.record_epochs * context.epoch_seconds:
                return False
        now = context.clock.now()
        return context.network.synchronised and context.replica.leader(now) == context.peer_id

    def has_heirs(self) -> bool:
        """Return whether another live trainer could resume from the newest version."""
        context = self._context
        trainers = context.replica.roster.live(context.clock.now(), Role.TRAINER)
        published = context.replica.ledger.chain.head is not None
        return published and any(member.peer != context.peer_id for member in trainers)

    async def leave_to_heirs(self) -> None:
        """Hand over the lead: wait until another trainer has published, or until a timeout.

        The leader is the trainer that published last and offers the role in its record, so this
        node withdraws the role. The other one must then load the version and make a step.
        """
        context, epochs = self._context, self._context.manifest.epochs
        head, loop = context.replica.ledger.chain.head, asyncio.get_running_loop()
        until = loop.time() + RESIGNED_LIVES * epochs.record_epochs * epochs.seconds
        context.conditions.resign(Role.TRAINER)
        while context.replica.ledger.chain.head is head and loop.time() < until:
            await context.tick(context.changes.count)
        context.conditions.take_up(Role.TRAINER)

    async def resume(self) -> ResumePoint | None:
        """Load the newest version that is available; None while waiting for one."""
        context = self._context
        head = context.replica.ledger.chain.head
        if head is None:
            return await self._begin()
        ours = head.signer == context.peer_id and await self._load_own_state(head)
        found: Signed[CheckpointManifest] | None = head
        if not ours and not await self._take_over(head):
            found = await self._go_back(head)
        if found is None:
            return None
        term = head.message.term
        context.conditions.clear("trainer")
        if ours:  # a crash may have prevented its announcement
            await context.network.announce(Topic.CHECKPOINTS, head.envelope)
        else:  # above terms of an earlier trainer, or of this one before it lost its disk
            term = context.manifest.term_of(context.peer_id, term + 1)
        log.info("training resumed", version=found.message.version, term=term)
        return ResumePoint(found.message.version, term, found.digest, found.message.policy)

    async def _load_own_state(self, head: Signed[CheckpointManifest]) -> bool:
        """Load this node's newest state, with the weights of ``head`` if the state is older."""
        context, newest = self._context, head.message.version
        policy = context.policies.get(newest)
        oldest = max(-1, newest - context.manifest.shardcast.state_every)
        for version in range(newest, oldest, -1):
            path, made = context.files.state(version), context.replica.ledger.chain.get(version)
            if made is None or made.signer != context.peer_id or context.files.size(path) is None:
                continue
            if version == newest:
                return await self._load_state(path, made)
            return policy is not None and await self._load_state(path, made, policy)
        return False

    async def _begin(self) -> ResumePoint | None:
        """Load the genesis weights, if this node may publish version 0."""
        context = self._context
        path = context.files.genesis
        first = context.peer_id == context.manifest.genesis.trainers[0]
        if context.files.size(path) is None or not first:
            context.conditions.wait("trainer", "waiting for the genesis policy")
            return None
        if self._is_held(0):  # then we have published, and have lost our disk
            context.conditions.wait("trainer", "waiting for the state of this run from peers")
            return None
        policy = Policy(Version(0), context.manifest.genesis_policy, path)
        if not await self._load_policy(policy):
            context.conditions.set("trainer", f"{path} is not the genesis policy of this run")
            await asyncio.sleep(context.epoch_seconds)
            return None
        return ResumePoint(-1, 0, b"", b"")

    async def _take_over(self, head: Signed[CheckpointManifest]) -> bool:
        """Load the published version, with the optimiser state if available; False if neither.

        The state may be of an earlier version: its moments are combined with the weights of
        ``head``.
        """
        context, message, state = self._context, head.message, None
        published = context.policies.published_state(message.version)
        bytes_max = await self._engine.state_bytes_max()
        try:
            if published is not None and published.message.state_bytes <= bytes_max:
                state = await context.policies.fetch_state(published)
        except StorageFullError as error:
            context.conditions.set("trainer", f"disk full: {error}; waiting for room")
            await asyncio.sleep(context.epoch_seconds)
            return False
        policy = context.policies.get(message.version)
        if published is not None and state is not None:
            newer = None if published.message.version == message.version else policy
            current = newer is not None or published.message.policy == message.policy
            if current and await self._load_state(state, published, newer):
                return True
        if policy is not None and await self._load_policy(policy):
            return True
        context.conditions.wait("trainer", f"waiting for the weights of version {message.version}")
        return False

    async def _go_back(self, head: Signed[CheckpointManifest]) -> Signed[CheckpointManifest] | None:
        """Load the newest version on this node, once no node holds the head any more.

        A trainer may crash between announcing a version and serving its first byte. The next
        version then takes the number and parent of the lost one, in a later term, even if it
        learned from an older one: nodes replace no other version on a trainer's claim.
        """
        context, now = self._context, asyncio.get_running_loop().time()
        if self._awaited is None or self._awaited[0] != head.digest:
            self._awaited = (head.digest, now)
        # Within one record lifetime every live node has published its newest version.
        record_seconds = context.manifest.epochs.record_epochs * context.epoch_seconds
        if now < self._awaited[1] + record_seconds or self._is_held(head.message.version):
            return None
        for version in range(head.message.version - 1, -1, -1):
            checkpoint = context.replica.ledger.chain.get(version)
            if checkpoint is None or context.policies.get(version) is None:
                continue
            if await self._take_over(checkpoint):
                log.warning("versions lost", newest=head.message.version, left=version)
                return context.replica.ledger.chain.get(head.message.version - 1)
        return None

    def _is_held(self, version: int) -> bool:
        """Return whether a node of the genesis reports ``version`` or a later one."""
        context = self._context
        manifest = context.manifest
        return any(
            member.record.message.policy_version >= version
            for member in context.replica.roster.live(context.clock.now())
            if manifest.is_validator(member.peer) or manifest.is_trainer(member.peer)
        )

    async def _load_state(
        self, path: Path, checkpoint: Signed[CheckpointManifest], newer: Policy | None = None
    ) -> bool:
        try:
            with nullcontext() if newer is None else self._context.policies.hold(newer):
                await self._engine.load_state(path, Digest(checkpoint.message.policy), newer)
        except ValueError as error:
            log.warning("state refused", version=checkpoint.message.version, error=str(error))
            return False
        return True

    async def _load_policy(self, policy: Policy) -> bool:
        try:
            with self._context.policies.hold(policy):
                await self._engine.load_policy(policy)
        except ValueError as error:
            log.warning("policy refused", version=policy.version, error=str(error))
            await self._context.policies.discard(policy)
            return False
        return True
