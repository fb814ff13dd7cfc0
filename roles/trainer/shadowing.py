"""Shadow of the leader: repeat each of its steps, and report the resulting policy.

A shadow loads a published state, and then trains each following version from its own state and from
the batch that the version names. It goes on from its own state while the policies are equal, so it
can lead at once. If they differ, it reports that, returns to the version before, and goes on from
the next state that is published. It loads no state of a version that the trainers dispute.

Sums of another number of ranks differ by rounding. Versions of such a step are neither repeated nor
reported: the shadow goes on from the next state that is published.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import structlog

from protocol.core.types import Digest, Topic
from protocol.messages import CheckpointManifest, Signed, StepReport
from roles.ports.engines import EngineError
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.context import RoleContext
from roles.runtime.retry import Failures
from roles.trainer.leadership import Leadership
from roles.trainer.repetition import Repetition

log = structlog.get_logger()

CONDITION = "shadow"

STUCK_EPOCHS = 2
"""Time for which a version is tried before a newer state is loaded: bodies and weights may be on
their way. A guess."""

BEHIND_MAX = 4
"""Versions by which a slow shadow may be behind before it loads a newer state. A guess."""

T = TypeVar("T")


class Shadow:
    """Repeats the steps of other trainers, one at a time, while this one does not lead."""

    def __init__(
        self,
        context: RoleContext,
        leadership: Leadership,
        repetition: Repetition[Any],
    ) -> None:
        self._context, self._repetition, self._leadership = context, repetition, leadership
        self._chain, self._reports = context.replica.ledger.chain, context.replica.shadows
        self._failures = Failures(context, CONDITION)
        self._at: Digest | None = None
        """Manifest digest of the version that was repeated or loaded last."""
        self._is_exact = False
        """True while the engine has the state of that version."""
        self._stuck_since: float | None = None
        """Time of the first failed attempt at the next version."""
        self._differing: Digest | None = None
        """The newest version that differs from its step here."""
        self._refused: Digest | None = None
        """The newest version whose published state the engine has refused."""
        self._paused_until = 0.0
        """No attempt is made before; failed ones are half an epoch apart."""
        self._yields = True
        """False while this trainer catches up to lead."""

    def leave(self) -> bytes:
        """Stop shadowing; return the version whose state the engine has, empty for none."""
        at = self._at if self._is_exact else None
        self.forget()
        self._context.shadow.leave()
        self._context.conditions.clear(CONDITION)
        return at or b""

    async def follow(self) -> bool:
        """Load a state, or repeat one step; False if nothing can be done at present."""
        context = self._context
        if not context.network.synchronised:
            return False
        context.shadow.is_active = True
        try:
            worked = await self._work()
        except EngineError as error:
            self.forget()
            await self._failures.pause(error)
            return False
        except StorageFullError as error:
            context.conditions.set(CONDITION, f"disk full: {error}; waiting for room")
            return False
        context.shadow.version = self._version if self._is_exact else None
        return worked

    @property
    def at(self) -> Digest | None:
        """Manifest digest of the version whose state the engine has; None without one.

        None also if it was dropped, or if it or one before it is disputed.
        """
        return self._at if self._is_exact and self._version is not None else None

    @property
    def _version(self) -> int | None:
        """Number of the version that was repeated or loaded last.

        None if it was dropped, or if it or one before it is disputed.
        """
        place = None if self._at is None else self._chain.place(self._at)
        is_good = place is not None and place <= self._reports.undisputed(self._chain.final)
        return place if is_good else None

    @property
    def _must_lead(self) -> bool:
        return self._yields and self._leadership.term is not None

    async def catch_up(self) -> None:
        """Repeat versions up to the newest one, to lead; stop where something is missing.

        Raises ``EngineError`` and ``StorageFullError``.
        """
        self._yields, self._paused_until = False, 0.0
        try:
            while self._following is not None or self.at is None:
                if not await self._work():
                    return
        finally:
            self._yields = True

    def forget(self) -> None:
        """Note that the engine has no state of a version."""
        self._at, self._is_exact = None, False
        self._context.shadow.version = None

    async def _work(self) -> bool:
        newest, following, now = self._newest_state(), self._following, self._context.clock.now()
        if now < self._paused_until:
            return False
        cannot = following is not None and self._cannot_repeat(following)
        if newest is not None and self._should_load(newest.message.version, cannot=cannot):
            worked = await self._load(newest)
        elif following is None or cannot:
            return False
        else:
            worked = await self._repeat(following)
            self._stuck_since = None if worked else self._stuck_since or now
        if not worked:
            self._paused_until = self._context.clock.now() + self._context.epoch_seconds / 2
        return worked

    @property
    def _following(self) -> Signed[CheckpointManifest] | None:
        """The version to repeat next, if it is here."""
        at = self._version
        return None if at is None else self._chain.get(at + 1)

    def _newest_state(self) -> Signed[CheckpointManifest] | None:
        """Return the newest version whose published state this trainer may load.

        No disputed one, none that the engine has refused, and not the one that differs: one before
        it, or a later one.
        """
        published = self._context.policies.published_state
        found = published(self._reports.undisputed(self._chain.final))
        while found is not None and found.digest in (self._differing, self._refused):
            found = published(found.message.version - 1)
        return found

    def _cannot_repeat(self, version: Signed[CheckpointManifest]) -> bool:
        """Return whether a version's step would differ here, or does."""
        can_repeat = self._repetition.can_repeat(version)
        return version.digest == self._differing or not can_repeat

    def _should_load(self, state: int, *, cannot: bool) -> bool:
        """Return whether to begin from a published state instead of repeating the next version.

        ``cannot``: that version cannot be repeated.
        """
        at, since = self._version, self._stuck_since
        if at is None:
            return True
        is_behind = self._chain.version - at > BEHIND_MAX
        longest = STUCK_EPOCHS * self._context.epoch_seconds
        is_stuck = since is not None and self._context.clock.now() - since >= longest
        return state > at and (is_behind or cannot or is_stuck)

    async def _load(self, published: Signed[CheckpointManifest]) -> bool:
        self.forget()
        version = published.message.version
        if not await self._restore(version, version):
            return False
        self._at, self._is_exact, self._stuck_since = published.digest, True, None
        log.info("shadow began", version=version)
        return True

    async def _restore(self, state: int, version: int) -> bool:
        """Load a published state, with the weights of ``version`` if that is a later one.

        For ``state`` -1, load these weights alone.
        """
        policy = None if state == version else self._context.policies.get(version)
        if policy is None and state != version:
            return False
        if policy is not None and state < 0:
            self._is_exact = False
            return await self._leadership.load_policy(policy)
        published = self._chain.get(state)
        if published is None:
            return False
        files, path = self._context.files, self._context.files.state(state)
        was_here = files.size(path) is not None
        if not was_here:
            found = await self._unless_leading(self._leadership.fetch_state(published))
            if found is None or self._must_lead:
                return False
            path = found
        self._is_exact = False
        has_loaded = await self._leadership.load_state(path, published, policy)
        if not has_loaded and was_here:  # of a version that was dropped: fetch that of this one
            await files.delete(path)
        elif not has_loaded:
            self._refused = published.digest
        return has_loaded

    # Steps

    async def _repeat(self, version: Signed[CheckpointManifest]) -> bool:
        """Compute a version anew and compare; False to try again later."""
        message, repetition = version.message, self._repetition
        gathered = await self._unless_leading(repetition.gather(version))
        if gathered is None or self._must_lead:
            return False
        if message.reloaded and not await self._restore(message.moments, message.version - 1):
            return False
        if not await repetition.begin(version, gathered) or self._must_lead:
            return False
        self._is_exact = False
        policy = await repetition.end(gathered)
        self._failures.end()
        self._compare(version, policy)
        if policy is not None:
            await self.report(version, policy)
        return True

    def _compare(self, version: Signed[CheckpointManifest], policy: Digest | None) -> None:
        number, trainer = version.message.version, version.signer
        if policy == version.message.policy:
            self._at, self._is_exact = version.digest, True
            self._context.shadow.confirm()
            log.info("step confirmed", version=number)
            return
        self.forget()
        self._differing = version.digest
        self._context.shadow.differ(number, trainer)
        log.warning(
            "step differs", version=number, trainer=trainer, policy=(policy or b"").hex()[:12]
        )

    async def report(self, version: Signed[CheckpointManifest], policy: Digest) -> None:
        """Report once about each version of another trainer."""
        context = self._context
        is_own = version.signer == context.peer_id
        if is_own or self._reports.has_reported(context.peer_id, version.digest):
            return
        report = StepReport(manifest=version.digest, policy=policy)
        try:
            await context.network.publish(Topic.CHECKPOINTS, report)
        except RefusedError as error:  # the version was dropped meanwhile
            log.info("report not published", version=version.message.version, error=str(error))

    async def _unless_leading(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Return the result of ``work``; cancel it and return None once this trainer leads."""
        task = asyncio.create_task(work)
        try:
            while not (task.done() or self._must_lead):
                await asyncio.wait([task], timeout=self._context.epoch_seconds / 2)
            return task.result() if task.done() else None
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
