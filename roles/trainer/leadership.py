"""Term in which this trainer leads, and the version from which it resumes.

The council's final pages decide which trainer leads, and which version its term follows. A leader
resumes from its own state of that version, or from what another trainer published.
"""

import asyncio
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from protocol.core.types import Digest, Role, Topic, Version
from protocol.messages import CheckpointManifest, Signed
from roles.ports.engines import Policy, TrainingEngine
from roles.ports.storage import StorageFullError
from roles.runtime.context import RoleContext

log = structlog.get_logger()

RESIGNED_LIVES = 3
"""Lifetimes of a record for which a trainer withdraws the role to hand over the lead. A guess: the
council waits for one of them if it cannot get the newest version, and pages may be late."""


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
    reloaded: bool = False
    """True if the engine has rounded weights with the moments of another version, or none."""
    moments: int = -1
    """Version of the published state with these moments; -1 for none."""


class Leadership:
    """Decides whether this node leads, and loads the version from which training resumes."""

    def __init__(self, context: RoleContext, engine: TrainingEngine) -> None:
        self._context = context
        self._engine = engine

    @property
    def term(self) -> int | None:
        """Term in which this node leads; None if it does not.

        It does not lead before it has synchronised, while the final version is not here, and before
        it has dropped the versions of an earlier term after that one.
        """
        context, lead = self._context, self._context.replica.lead
        chain = context.replica.ledger.chain
        follows = chain.is_taken(lead.head) and chain.outdated(lead) is None
        is_ours = context.network.synchronised and context.replica.leader == context.peer_id
        return lead.term if is_ours and follows else None

    def has_heirs(self) -> bool:
        """Return whether another live trainer could resume from the newest version."""
        context = self._context
        trainers = context.replica.roster.live(context.clock.now(), Role.TRAINER)
        published = context.replica.ledger.chain.head is not None
        return published and any(member.peer != context.peer_id for member in trainers)

    async def leave_to_heirs(self) -> None:
        """Hand over the lead: withdraw the role until another trainer leads, or until a timeout.

        The council gives the lead to the next live trainer once the leader's record lacks the role.
        """
        context, epochs = self._context, self._context.manifest.epochs
        loop = asyncio.get_running_loop()
        until = loop.time() + RESIGNED_LIVES * epochs.record_epochs * epochs.seconds
        context.conditions.resign(Role.TRAINER)
        while context.replica.leader == context.peer_id and loop.time() < until:
            await context.tick(context.changes.count)
        context.conditions.take_up(Role.TRAINER)

    async def resume(self, term: int, in_step: bytes = b"") -> ResumePoint | None:
        """Load the newest version, to lead in a term; None while waiting for it.

        ``in_step``: manifest digest of the version whose state the engine has; it is not loaded.
        """
        context = self._context
        head = context.replica.ledger.chain.head
        if head is None:
            return await self._begin(term)
        version, source = head.message.version, head.message.version
        if in_step != head.digest:
            own = await self._load_own_state(head) if head.signer == context.peer_id else None
            loaded = await self._take_over(head) if own is None else own
            if loaded is None:
                return None
            source = loaded
            if own is not None:  # a crash may have prevented its announcement
                await context.network.announce(Topic.CHECKPOINTS, head.envelope)
        context.conditions.clear("trainer")
        log.info("training resumed", version=version, term=term, state=source)
        is_exact = source == version
        point = ResumePoint(version, term, head.digest, head.message.policy)
        return point if is_exact else replace(point, reloaded=True, moments=source)

    async def _load_own_state(self, head: Signed[CheckpointManifest]) -> int | None:
        """Load this node's newest state, with the weights of ``head`` if the state is older.

        Return the version of the state; None if none is loaded.
        """
        context, newest = self._context, head.message.version
        policy = context.policies.get(newest)
        oldest = max(-1, newest - context.manifest.shardcast.state_every)
        for version in range(newest, oldest, -1):
            path, made = context.files.state(version), context.replica.ledger.chain.get(version)
            if made is None or made.signer != context.peer_id or context.files.size(path) is None:
                continue
            newer = None if version == newest else policy
            can_load = version == newest or policy is not None
            loaded = can_load and await self.load_state(path, made, newer)
            return version if loaded else None
        return None

    async def _begin(self, term: int) -> ResumePoint | None:
        """Load the genesis weights, if nobody has published version 0."""
        context = self._context
        path = context.files.genesis
        if context.files.size(path) is None:
            context.conditions.wait("trainer", "waiting for the genesis policy")
            return None
        if self._is_held(0):  # then we have published, and have lost our disk
            context.conditions.wait("trainer", "waiting for the state of this run from peers")
            return None
        policy = Policy(Version(0), context.manifest.genesis_policy, path)
        if not await self.load_policy(policy):
            context.conditions.set("trainer", f"{path} is not the genesis policy of this run")
            await asyncio.sleep(context.epoch_seconds)
            return None
        return ResumePoint(-1, term, b"", b"")

    async def _take_over(self, head: Signed[CheckpointManifest]) -> int | None:
        """Load the published version, with the optimiser state if available.

        The state may be of an earlier version: its moments are combined with the weights of
        ``head``. Return the version of the state, -1 for weights alone, None if nothing is loaded.
        """
        context, message, state = self._context, head.message, None
        published = context.policies.published_state(message.version)
        try:
            if published is not None:
                state = await self.fetch_state(published)
        except StorageFullError as error:
            context.conditions.set("trainer", f"disk full: {error}; waiting for room")
            await asyncio.sleep(context.epoch_seconds)
            return None
        policy = context.policies.get(message.version)
        if published is not None and state is not None:
            newer = None if published.message.version == message.version else policy
            current = newer is not None or published.message.policy == message.policy
            if current and await self.load_state(state, published, newer):
                return published.message.version
        if policy is not None and await self.load_policy(policy):
            return -1
        context.conditions.wait("trainer", f"waiting for the weights of version {message.version}")
        return None

    async def fetch_state(self, published: Signed[CheckpointManifest]) -> Path | None:
        """Return a version's state; None if it is too large or unavailable.

        Raises ``StorageFullError``.
        """
        message = published.message
        if not message.state or message.state_bytes > await self._engine.state_bytes_max():
            return None
        return await self._context.policies.fetch_state(published)

    def _is_held(self, version: int) -> bool:
        """Return whether a node of the genesis reports ``version`` or a later one."""
        context = self._context
        manifest = context.manifest
        return any(
            member.record.message.policy_version >= version
            for member in context.replica.roster.live(context.clock.now())
            if manifest.is_validator(member.peer) or manifest.is_trainer(member.peer)
        )

    async def load_state(
        self, path: Path, checkpoint: Signed[CheckpointManifest], newer: Policy | None = None
    ) -> bool:
        """Load the state of a version, with ``newer`` weights if given; False if it is refused."""
        try:
            with nullcontext() if newer is None else self._context.policies.hold(newer):
                await self._engine.load_state(path, Digest(checkpoint.message.policy), newer)
        except ValueError as error:
            log.warning("state refused", version=checkpoint.message.version, error=str(error))
            return False
        return True

    async def load_policy(self, policy: Policy) -> bool:
        """Load weights with a fresh optimiser; False if they are refused."""
        try:
            with self._context.policies.hold(policy):
                await self._engine.load_policy(policy)
        except ValueError as error:
            log.warning("policy refused", version=policy.version, error=str(error))
            await self._context.policies.discard(policy)
            return False
        return True
