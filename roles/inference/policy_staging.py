"""Getting an engine ready for newer policies while it computes with an older one.

A newer policy is a patch of the one before it, which is a patch of the one before that: they are
staged in that order. It is done to save time only, so what breaks in it is told and no failure: the
policy's file is loaded then.
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
    """Stages, one after another, what leads from the policy that the engine has to a newer one."""

    def __init__(self, policies: Policies, engine: GenerationEngine) -> None:
        self._policies = policies
        self._engine = engine
        self._ahead: Digest | None = None
        """What the engine has loaded, or staged last; None where nothing can be a patch of it."""
        self._work: asyncio.Task[None] | None = None

    def loaded(self, policy: Policy) -> None:
        """Note what the engine has loaded."""
        self._ahead = policy.digest

    def forget(self) -> None:
        """Note that the engine may have nothing."""
        self._ahead = None

    def begin(self, newest: Policy) -> None:
        """Stage what leads to a policy, beside whatever is generated."""
        if self._work is not None and self._work.done():
            self._work.result()  # raises what is a defect
            self._work = None
        if self._work is None and (way := self._way_to(newest)):
            self._work = asyncio.create_task(self._stage(way))

    async def finish(self, newest: Policy) -> None:
        """Return when what leads to a policy is staged."""
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
        """Return the policies, each a patch of the one before, from what is ahead to ``newest``."""
        way = [newest]
        while (patch := way[-1].patch) is not None:
            if patch.base == self._ahead:
                return way[::-1]
            before = self._policies.get(way[-1].version - 1)
            if before is None or before.digest != patch.base:
                break
            way.append(before)
        return []
