"""Start of a role's engine alongside its flow, so that "ready" means that the role can work."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from protocol.core.types import Role
from roles.ports.engines import Engine, EngineError
from roles.runtime.context import RoleContext
from roles.runtime.retry import Failures


async def fill(
    context: RoleContext, role: Role, engine: Engine, flow: Coroutine[Any, Any, None]
) -> None:
    """Run the flow of a role, and start its engine meanwhile.

    The role is prepared when its engine has started. An inference role also needs a loaded version;
    its flow reports that.
    """
    context.conditions.prepare(role, "starting the engine")
    async with asyncio.TaskGroup() as group:
        group.create_task(_start(context, role, engine))
        group.create_task(flow)


async def _start(context: RoleContext, role: Role, engine: Engine) -> None:
    failures = Failures(context, f"{role} engine")
    while True:
        try:
            await engine.start()
        except EngineError as error:
            await failures.pause(error)
        else:
            break
    failures.end()
    if role is not Role.INFERENCE:
        context.conditions.prepared(role)
