"""Publication of a trained version, during the training of the next one.

The trainer writes weights and state before it signs, stores and announces the manifest. So a crash
at any moment resumes from the last stored version with the next number. The next step begins at
once: it changes the weights only after they are written.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from protocol.core.types import Topic, Version
from protocol.messages import CheckpointManifest, TrainingRound
from protocol.rollout.body import REWARD_SCALE
from roles.ports.engines import EngineError, Policy, TrainingEngine
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.context import RoleContext
from roles.trainer.batching import BatchDraw
from roles.trainer.leadership import ResumePoint

log = structlog.get_logger()

DRAIN_SECONDS = 10.0
"""Time to announce a written version before this node stops; a guess."""

T = TypeVar("T")


class Publication:
    """Publishes versions one after another."""

    def __init__(self, context: RoleContext, engine: TrainingEngine) -> None:
        self._context = context
        self._engine = engine
        self._parent = b""
        self._position: ResumePoint | None = None
        """Point from which training resumed, until the next version begins."""
        self._writing: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[None] | None = None
        self.term = 0
        """Term of the versions that are published."""
        self.version = -1
        """Newest trained version."""
        self.policy = b""
        """Digest of the weights of ``version``."""

    def start_from(self, position: ResumePoint) -> None:
        """Set the version that the next one follows."""
        self.version, self.term, self._parent = position.version, position.term, position.parent
        self.policy, self._position = position.policy, position

    @property
    def ended(self) -> bool:
        """True when a publication has ended and is not settled."""
        return self._publishing is not None and self._publishing.done()

    @property
    def reloaded(self) -> bool:
        """True if the next version begins from rounded weights (``ResumePoint``)."""
        return self._position is not None and self._position.reloaded

    @property
    def parent(self) -> bytes:
        """Digest of the manifest of the version published last; empty before version 0."""
        return self._parent

    async def begin(self, draw: BatchDraw | None, made_by: TrainingRound | None = None) -> None:
        """Write and publish the next version in the background.

        ``draw`` is its batch, None for version 0; ``made_by`` the round of several trainers that
        made it, if any. The previous publication must be settled.
        """
        version, digest = self.version + 1, await self._engine.policy_digest()
        policy = Policy(Version(version), digest, self._context.files.weights(version))
        self._writing = asyncio.create_task(self._write(policy))
        publishing = self._publish(self._writing, policy, draw, made_by, self._position)
        self._position = None
        self._publishing = asyncio.create_task(publishing)
        self._publishing.add_done_callback(self._wake_on_failure)
        self.version, self.policy = version, digest

    async def written(self) -> bool:
        """Wait until the weights may change; False when the version in progress was refused.

        Raises ``EngineError`` when it cannot be written.
        """
        if self._writing is not None:
            await asyncio.shield(self._writing)
        return not self.ended or await self.settle()

    def _wake_on_failure(self, publishing: asyncio.Task[None]) -> None:
        """Notify the flow of an engine failure at once; a refusal is retried on the next change."""
        if not publishing.cancelled() and isinstance(publishing.exception(), EngineError):
            self._context.changes.notify()

    async def settle(self) -> bool:
        """Wait for the publication in progress: versions are published one after another.

        False when it was refused: its term has ended, or a commit of its batch was rejected. Then
        training resumes from the newest version. Raises ``EngineError`` when it could not be
        written.
        """
        if self._publishing is None:
            return True
        try:
            await asyncio.shield(self._publishing)  # a concurrent drain waits for it too
        except RefusedError as error:
            log.warning("publication refused", error=str(error))
            self._context.conditions.set("trainer", f"publication refused: {error}")
            return False
        finally:
            if self.ended:
                self._writing = self._publishing = None
        return True

    async def drain(self) -> None:
        """Wait up to ``DRAIN_SECONDS`` for the publication in progress, then cancel it."""
        if self._publishing is not None:
            await asyncio.wait((self._publishing,), timeout=DRAIN_SECONDS)
            self._publishing.cancel()

    async def _write(self, policy: Policy) -> None:
        """Write weights, and the state if it is due."""
        context, version = self._context, policy.version
        written = await until_stored(context, lambda: self._engine.write_policy(policy.path))
        if written != policy.digest:
            raise EngineError(f"the weights of version {version} changed while they were written")
        if not version % context.manifest.shardcast.state_every:
            await until_stored(
                context, lambda: self._engine.save_state(context.files.state(version))
            )

    async def _publish(
        self,
        writing: asyncio.Task[None],
        policy: Policy,
        draw: BatchDraw | None,
        made_by: TrainingRound | None,
        resumed: ResumePoint | None,
    ) -> None:
        """Publish a written version; ``resumed`` if it is the first one after that."""
        await writing
        context = self._context
        release = await until_stored(context, lambda: context.policies.release(policy))
        state = release.state

        async def announce() -> None:
            manifest = CheckpointManifest(
                version=policy.version,
                term=self.term,
                parent=self._parent,
                policy=policy.digest,
                index=release.weights.digest,
                index_bytes=release.weights.index_bytes,
                total_bytes=release.weights.total_bytes,
                encodings=release.encodings,
                state=state.digest if state else b"",
                state_index_bytes=state.index_bytes if state else 0,
                state_bytes=state.total_bytes if state else 0,
                batch=draw.commits if draw else (),
                page=draw.page if draw else b"",
                omitted=draw.omitted if draw else (),
                reloaded=resumed is not None and resumed.reloaded,
                moments=-1 if resumed is None else resumed.moments,
                round=made_by,
                ranks=self._engine.ranks,
                reward_mean=round(draw.reward_mean * REWARD_SCALE) if draw else 0,
                created_at=round(context.clock.now() * 1000),
            )
            self._parent = (await context.network.publish(Topic.CHECKPOINTS, manifest)).digest

        await until_stored(context, announce)
        log.info("version published", version=policy.version, term=self.term)


async def until_stored(context: RoleContext, write: Callable[[], Awaitable[T]]) -> T:
    """Return the result of ``write``, repeating it while the disk is full."""
    while True:
        try:
            result = await write()
        except StorageFullError as error:
            context.conditions.set("trainer", f"disk full: {error}; waiting for room")
            await asyncio.sleep(context.epoch_seconds)
            continue
        context.conditions.clear("trainer")
        return result
