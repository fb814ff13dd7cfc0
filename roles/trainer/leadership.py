"""Leadership: whose turn it is to train, and which version a new leader goes on from.

It resumes from its own state of the newest version, or takes over what another trainer published;
when nobody has the newest version any more, it goes back to one that it holds.
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
"""For how many lives of a record a trainer that has resigned waits for another one's version; a
guess at what loading and a first step take."""


@dataclass(frozen=True, slots=True)
class ResumePoint:
    """Where training goes on from, and what the next version is published with."""

    version: int
    """The version that the next one follows, -1 when version 0 is to be published."""
    term: int
    parent: bytes
    """Digest of the manifest of ``version``; empty before version 0."""
    policy: bytes
    """Digest of its weights; empty before version 0."""


class Leadership:
    """Says when it is our turn, and loads the engine with what training goes on from."""

    def __init__(self, context: RoleContext, engine: TrainingEngine) -> None:
        self._context = context
        self._engine = engine
        self._started_at = asyncio.get_running_loop().time()
        self._awaited: tuple[Digest, float] | None = None
        """The newest version while nobody can give it to us, and since when."""

    def is_ours(self) -> bool:
        """Return whether it is our turn, once we know what we may have missed."""
        context = self._context
        genesis = context.manifest.genesis
        if context.peer_id != genesis.trainers[0]:
            # Those before us in the order get the time for which one record counts to show up.
            waited_seconds = asyncio.get_running_loop().time() - self._started_at
            if waited_seconds < context.manifest.epochs.record_epochs * context.epoch_seconds:
                return False
        now = context.clock.now()
        return context.network.synchronised and context.replica.leader(now) == context.peer_id

    def has_heirs(self) -> bool:
        """Return whether another trainer is here that could go on from the newest version."""
        context = self._context
        trainers = context.replica.roster.live(context.clock.now(), Role.TRAINER)
        published = context.replica.ledger.head is not None
        return published and any(member.peer != context.peer_id for member in trainers)

    async def leave_to_heirs(self) -> None:
        """Rest until another trainer has published, or until it is clear that nobody does.

        A leader is whoever published last while its record says that it trains, so ours stops
        saying so. That takes a refresh, and the other one then has to load and to make a step.
        """
        context, epochs = self._context, self._context.manifest.epochs
        head, loop = context.replica.ledger.head, asyncio.get_running_loop()
        until = loop.time() + RESIGNED_LIVES * epochs.record_epochs * epochs.seconds
        context.conditions.resign(Role.TRAINER)
        while context.replica.ledger.head is head and loop.time() < until:
            await context.tick(context.changes.count)
        context.conditions.take_up(Role.TRAINER)

    async def resume(self) -> ResumePoint | None:
        """Load the newest version that can be had; None while we wait for one."""
        context = self._context
        head = context.replica.ledger.head
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
        if ours:  # a crash may have come between its storing and its announcing
            await context.network.announce(Topic.CHECKPOINTS, head.envelope)
        else:  # above what an earlier trainer, or we before we lost our disk, may have published
            term = context.manifest.term_of(context.peer_id, term + 1)
        log.info("training resumed", version=found.message.version, term=term)
        return ResumePoint(found.message.version, term, found.digest, found.message.policy)

    async def _load_own_state(self, head: Signed[CheckpointManifest]) -> bool:
        """Load our newest state, with the weights of ``head`` if it is of an earlier version."""
        context, newest = self._context, head.message.version
        policy = context.policies.get(newest)
        oldest = max(-1, newest - context.manifest.shardcast.state_every)
        for version in range(newest, oldest, -1):
            path, made = context.files.state(version), context.replica.ledger.checkpoint(version)
            if made is None or made.signer != context.peer_id or context.files.size(path) is None:
                continue
            if version == newest:
                return await self._load_state(path, made)
            return policy is not None and await self._load_state(path, made, policy)
        return False

    async def _begin(self) -> ResumePoint | None:
        """Load the genesis weights, if version 0 is ours to publish."""
        context = self._context
        path = context.files.genesis
        first = context.peer_id == context.manifest.genesis.trainers[0]
        if context.files.size(path) is None or not first:
            context.conditions.wait("trainer", "waiting for the genesis policy")
            return None
        if self._is_held(0):  # then we have published, and have lost our disk
            context.conditions.wait("trainer", "waiting for what others know of this run")
            return None
        policy = Policy(Version(0), context.manifest.genesis_policy, path)
        if not await self._load_policy(policy):
            context.conditions.set("trainer", f"{path} is not the genesis policy of this run")
            await asyncio.sleep(context.epoch_seconds)
            return None
        return ResumePoint(-1, 0, b"", b"")

    async def _take_over(self, head: Signed[CheckpointManifest]) -> bool:
        """Load what was published, the optimiser's state too if it can be had; False if nothing.

        The state may be that of an earlier version: its moments go with the weights of ``head``.
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
        """Load the newest version that we hold once the head is lost with all who had it.

        A trainer may die between announcing a version and serving its first byte. Our next version
        then takes the number of the lost one, in a later term and from the same parent, even where
        it learned from an older one: nodes replace no more than that on a trainer's word.
        """
        context, now = self._context, asyncio.get_running_loop().time()
        if self._awaited is None or self._awaited[0] != head.digest:
            self._awaited = (head.digest, now)
        # By then everyone live has said what it holds.
        record_seconds = context.manifest.epochs.record_epochs * context.epoch_seconds
        if now < self._awaited[1] + record_seconds or self._is_held(head.message.version):
            return None
        for version in range(head.message.version - 1, -1, -1):
            checkpoint = context.replica.ledger.checkpoint(version)
            if checkpoint is None or context.policies.get(version) is None:
                continue
            if await self._take_over(checkpoint):
                log.warning("versions are lost", newest=head.message.version, left=version)
                return context.replica.ledger.checkpoint(head.message.version - 1)
        return None

    def _is_held(self, version: int) -> bool:
        """Return whether a node of the genesis says that it holds ``version`` or a later one."""
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
