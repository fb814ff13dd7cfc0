"""Checkers: libraries that score text, in jails that stay warm.

What follows from an answer must be the same on every machine: an answer that makes a checker raise
or pass a hard limit has no result, one between the limits is ``Unscorable``.
"""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import roles
from roles.environments.jail import Jail, Jailed, jail_slots
from roles.environments.jailed.serve import LENGTH_BYTES, REPLY_BYTES_MAX
from roles.environments.limits import JailLimits, Use
from roles.environments.runtime import Interpreter
from roles.ports.engines import Unscorable

LIMITS = JailLimits(
    cpu_soft_seconds=2.0,
    cpu_hard_seconds=8,
    memory_soft_bytes=384 << 20,
    memory_hard_bytes=512 << 20,
    wall_seconds=30.0,
    output_bytes_max=REPLY_BYTES_MAX,
    processes_max=4,
)
"""For one answer: mathematics takes milliseconds, reasoning-gym 0.1 s (measured). The factor
between soft and hard is a guess: machines with which people train differ less in the speed of one
core."""


class Checker:
    """The function ``check`` of a module of ``jailed``, in as many jails as have a place.

    With ``settings``, which are JSON, it is what the module's ``checker(settings)`` returns.
    """

    def __init__(
        self,
        module: str,
        limits: JailLimits = LIMITS,
        settings: Mapping[str, Any] | None = None,
        sources: Mapping[str, Path] | None = None,
        interpreter: Interpreter | None = None,
    ) -> None:
        """Try a jail, in which ``sources`` are seen, too; raises ``NoJailError``.

        The checker runs under ``interpreter``, by default that of this process.
        """
        seen = {**(sources or {}), "roles": Path(roles.__file__).parent}
        self._jail = Jail(libraries=True, sources=seen, interpreter=interpreter)
        made = "check" if settings is None else "checker(json.loads(sys.argv[1]))"
        self._program = (
            "import json, sys\n"
            "from roles.environments.jailed.serve import serve, take_output\n"
            "output = take_output()\n"
            f"from roles.environments.jailed.{module} import {made.partition('(')[0]}\n"
            f"serve(output, {made}, {limits.cpu_hard_seconds + 1})\n"
        )
        self._arguments = () if settings is None else (json.dumps(settings),)
        self._limits = limits
        self._places = jail_slots()
        self._idle: list[Jailed] = []

    async def ask(self, question: dict[str, Any]) -> Any | Unscorable:
        """Return what the checker says of a question: JSON, None without a result.

        Raises ``EngineError`` when there is no jail to ask in.
        """
        async with self._places:
            jailed = self._idle.pop() if self._idle else await self._start()
            try:
                async with asyncio.timeout(self._limits.wall_seconds):
                    reply = await self._exchange(jailed, json.dumps(question).encode())
            except TimeoutError:
                jailed.kill()
                return Unscorable(f"no end within {self._limits.wall_seconds:g} s")
            except (asyncio.IncompleteReadError, ValueError, KeyError):
                jailed.kill()
                return Unscorable("its checker has ended")
            except BaseException:
                jailed.kill()
                raise
            self._idle.append(jailed)
        return self._judged(reply)

    async def close(self) -> None:
        """End the jails that wait for a question; idempotent."""
        while self._idle:
            jailed = self._idle.pop()
            jailed.kill()
            await jailed.wait()

    async def _start(self) -> Jailed:
        return await self._jail.start(self._program, self._arguments, self._limits, lasting=True)

    async def _exchange(self, jailed: Jailed, question: bytes) -> dict[str, Any]:
        jailed.write(len(question).to_bytes(LENGTH_BYTES, "big") + question)
        header = await jailed.output.readexactly(LENGTH_BYTES)
        length = int.from_bytes(header, "big")
        if length > REPLY_BYTES_MAX:
            raise ValueError("a reply that no checker gives")
        reply: dict[str, Any] = json.loads(await jailed.output.readexactly(length))
        return reply

    def _judged(self, reply: dict[str, Any]) -> Any | Unscorable:
        use = Use(reply["cpu_seconds"], reply["memory_bytes"])
        if use.over(self._limits):
            return None
        between = use.between(self._limits)
        if between is not None:
            return between
        if reply["status"] != 0:
            return Unscorable(f"its checker ended with status {reply['status']}")
        return reply["answer"]
