"""Process that a test kills with SIGKILL and restarts.

It is forked for each of its lives from one process, so that slow imports run once.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]

LIVES = """
import importlib, os, sys, traceback
main = importlib.import_module(sys.argv[1]).main
while line := sys.stdin.readline():
    life = os.fork()
    if not life:
        try:
            main(*line.split())
        except BaseException:
            traceback.print_exc()
        os._exit(0)
    os.write(1, b"born %d\\n" % life)
    os.waitpid(life, 0)
    os.write(1, b"dead\\n")
"""


def say(*words: object) -> None:
    """Print a line from a life."""
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


class Mortal:
    """Lives of ``module``'s function ``main``; an asynchronous context manager."""

    def __init__(self, module: str) -> None:
        self._module = module
        self.pid = 0
        """Process id of the current life, 0 when it is dead."""

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            LIVES,
            self._module,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        return self

    async def __aexit__(self, *_error: object) -> None:
        if self.pid:
            await self.kill()
        self._process.kill()
        await self._process.wait()

    async def begin(self, *arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, arguments)).encode() + b"\n")
        self.pid = int((await self._until("born"))[-1].split()[1])

    async def line(self) -> str:
        """Return the next printed line; empty when the process is dead."""
        assert self._process.stdout is not None
        line = (await asyncio.wait_for(self._process.stdout.readline(), 60)).decode().strip()
        assert line, "the process that forks has ended"
        if line == "dead":
            self.pid = 0
        return "" if line == "dead" else line

    async def kill(self) -> list[str]:
        """Kill it; return the printed lines not yet read."""
        assert self.pid > 0, "it died by itself; 0 would mean this process and its group"
        os.kill(self.pid, signal.SIGKILL)
        said = []
        while line := await self.line():
            said.append(line)
        return said

    async def _until(self, word: str) -> list[str]:
        said = [await self.line()]
        while not said[-1].startswith(word):
            said.append(await self.line())
        return said
