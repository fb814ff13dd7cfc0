"""Publication: make a trained version durable, then known, beside the training of the next one.

Weights and state are written before the manifest is signed, stored and announced, so a crash at any
moment resumes from the last stored version with the next number.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import structlog

from protocol.messages import CheckpointManifest
from protocol.types import Digest, Topic, Version
from roles.flow import RoleContext
from roles.ports.engines import Policy, TrainingEngine
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.trainer.leadership import Position

log = structlog.get_logger()

DRAIN_SECONDS = 10.0
"""A version that is written gets so long to be announced before this node ends; a guess."""

T = TypeVar("T")


class Publication:
    """Publishes versions one after another."""

    def __init__(self, context: RoleContext, engine: TrainingEngine) -> None:
        self._context = context
        self._engine = engine
        self._term = 0
        self._parent = b""
        self._publishing: asyncio.Task[None] | None = None
        self.version = -1
        """The newest version that was written."""
        self.policy = b""
        """Digest of its weights."""

    def start_from(self, position: Position) -> None:
        """Let the next version be the one after ``position``."""
        self.version, self._term, self._parent = position.version, position.term, position.parent
        self.policy = position.policy

    @property
    def ended(self) -> bool:
        """Whether a publication has ended and is not settled."""
        return self._publishing is not None and self._publishing.done()

    async def begin(self, batch: Sequence[Digest], reward_mean: int) -> None:
        """Write weights of the next version, and its state if it is due; publish in the background.

        ``reward_mean`` is in millionths. The one before must have been settled.
        """
        context = self._context
        version = self.version + 1
        path, state_path = context.files.weights(version), context.files.state(version)
        digest = await self._stored(lambda: self._engine.write_policy(path))
        if not version % context.manifest.shardcast.state_every:
            await self._stored(lambda: self._engine.save_state(state_path))
        self.version, self.policy = version, digest
        policy = Policy(Version(version), digest, path)
        self._publishing = asyncio.create_task(self._publish(policy, batch, reward_mean))

    async def settle(self) -> bool:
        """Wait for the publication under way: versions are published one after another.

        False when it was refused: another trainer has taken over, and training goes on from there.
        """
        if self._publishing is None:
            return True
        try:
            await asyncio.shield(self._publishing)  # a drain that comes now waits for it too
        except RefusedError as error:
            log.warning("publication refused", error=str(error))
            self._context.conditions.set("trainer", f"publication refused: {error}")
            self._publishing = None
            return False
        self._publishing = None
        return True

    async def drain(self) -> None:
        """Let the publication under way end within ``DRAIN_SECONDS``, else cancel it."""
        if self._publishing is not None:
            await asyncio.wait((self._publishing,), timeout=DRAIN_SECONDS)
            self._publishing.cancel()

    async def _publish(self, policy: Policy, batch: Sequence[Digest], reward_mean: int) -> None:
        context = self._context
        release = await self._stored(lambda: context.policies.release(policy))
        state = release.state

        async def announce() -> None:
            manifest = CheckpointManifest(
                version=policy.version,
                term=self._term,
                parent=self._parent,
                policy=policy.digest,
                index=release.weights.digest,
                index_bytes=release.weights.index_bytes,
                total_bytes=release.weights.total_bytes,
                encodings=release.encodings,
                state=state.digest if state else b"",
                state_index_bytes=state.index_bytes if state else 0,
                state_bytes=state.total_bytes if state else 0,
                batch=tuple(batch),
                reward_mean=reward_mean,
                created_at=round(context.clock.now() * 1000),
            )
            self._parent = (await context.network.publish(Topic.CHECKPOINTS, manifest)).digest

        await self._stored(announce)
        log.info("version published", version=policy.version, term=self._term)

    async def _stored(self, write: Callable[[], Awaitable[T]]) -> T:
        """Return what ``write`` returns, repeating it while the disk is full."""
        context = self._context
        while True:
            try:
                result = await write()
            except StorageFullError as error:
                context.conditions.set("trainer", f"disk full: {error}; waiting for room")
                await asyncio.sleep(context.epoch_seconds)
                continue
            context.conditions.clear("trainer")
            return result
