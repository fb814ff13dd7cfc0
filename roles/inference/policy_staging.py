"""Staging of newer policies in an engine while it generates with an older one.

Each policy is a patch of its predecessor, so patches are staged in version order. Staging only
saves time: a failure is logged, and the engine then loads the policy's file instead.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

import structlog

from protocol.core.types import Digest
from roles.ports.engines import EngineError, GenerationEngine, Policy
from roles.ports.swarm import Policies

log = structlog.get_logger()


class Staging:
    """Stages the chain of patches from the engine's policy to a newer one."""

    def __init__(self, policies: Policies, engine: GenerationEngine) -> None:
        self._policies = policies
        self._engine = engine
        self._ahead: Digest | None = None
        """Policy that the engine loaded or staged last; None if no patch can follow it."""
        self._work: asyncio.Task[None] | None = None

    def loaded(self, policy: Policy) -> None:
        """Record the policy that the engine has loaded."""
        self._ahead = policy.digest

    def forget(self) -> None:
        """Record that the engine may have no policy."""
        self._ahead = None

    def begin(self, newest: Policy) -> None:
        """Stage the patches up to a policy, in the background."""
        if self._work is not None and self._work.done():
            self._work.result()  # raises on a bug
            self._work = None
        if self._work is None and (way := self._way_to(newest)):
            self._work = asyncio.create_task(self._stage(way))

    async def finish(self, newest: Policy) -> None:
        """Wait until the patches up to a policy are staged."""
        if self._work is not None:
            await self._work
        await self._stage(self._way_to(newest))

    async def close(self) -> None:
        """Stop; idempotent."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.gather(self._work, return_exceptions=True)

    async def _stage(self, way: Sequence[Policy]) -> None:
        with ExitStack() as held:
            for policy in way:
                held.enter_context(self._policies.hold(policy))
            await self._stage_held(way)

    async def _stage_held(self, way: Sequence[Policy]) -> None:
        now = asyncio.get_running_loop().time
        try:
            for policy in way:
                began_at = now()
                if not await self._engine.stage(policy):
                    log.info("policy not staged", version=policy.version)
                    self._ahead = None
                    return
                self._ahead = policy.digest
                seconds = round(now() - began_at, 3)
                log.info("policy staged", version=policy.version, seconds=seconds)
        except EngineError as error:
            log.warning("policy not staged", version=policy.version, reason=str(error))
            self._ahead = None

    def _way_to(self, newest: Policy) -> list[Policy]:
        """Return the policies after the staged one up to ``newest``, each a patch of the last."""
        way = [newest]
        while (patch := way[-1].patch) is not None:
            if patch.base == self._ahead:
                return way[::-1]
            before = self._policies.get(way[-1].version - 1)
            if before is None or before.digest != patch.base:
                break
            way.append(before)
        return []
