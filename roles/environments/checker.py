"""Checkers: libraries that score text, in a pool of warm jails.

Results must be the same on every machine. An answer that makes a checker raise or exceed a hard
limit has no result; one between the soft and the hard limits is ``Unscorable``.
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
"""Limits for one answer: mathematics takes milliseconds, reasoning-gym 0.1 s (measured). The factor
between soft and hard limits is a guess: training machines differ less in the speed of one core."""


class Checker:
    """The function ``check`` of a module of ``jailed``, in a pool of jails.

    With ``settings`` (JSON), the function that the module's ``checker(settings)`` returns.
    """

    def __init__(
        self,
        module: str,
        limits: JailLimits = LIMITS,
        settings: Mapping[str, Any] | None = None,
        sources: Mapping[str, Path] | None = None,
        interpreter: Interpreter | None = None,
    ) -> None:
        """Verify that a jail works; raises ``NoJailError``.

        The checker runs under ``interpreter``, by default that of this process, and may import
        ``sources``.
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
        """Return the checker's answer to a question as JSON, None without a result.

        Raises ``EngineError`` when a jail cannot be started.
        """
        async with self._places:
            jailed = self._idle.pop() if self._idle else await self._start()
            try:
                async with asyncio.timeout(self._limits.wall_seconds):
                    reply = await self._exchange(jailed, json.dumps(question).encode())
            except TimeoutError:
                jailed.kill()
                return Unscorable(f"timed out after {self._limits.wall_seconds:g} s")
            except (asyncio.IncompleteReadError, ValueError, KeyError):
                jailed.kill()
                return Unscorable("its checker exited")
            except BaseException:
                jailed.kill()
                raise
            self._idle.append(jailed)
        return self._judged(reply)

    async def close(self) -> None:
        """End the idle jails; idempotent."""
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
            raise ValueError("invalid reply of a checker")
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
            return Unscorable(f"its checker exited with status {reply['status']}")
        return reply["answer"]
