"""Engine processes for tests: a tiny model forked from one server, or a test double."""

import asyncio
import os
import socket
import time
from pathlib import Path

from roles.engines.subprocess import wire
from roles.engines.subprocess.connection import CallTimeouts, EngineConnection
from roles.engines.subprocess.process import EngineProcess, ErrorLines
from roles.engines.subprocess.rpc_methods import METHODS
from tests.roles.engines.tiny import CONFIG
from tests.worlds.messages import run_manifest

PROOFS = {"precision": "fp32", "top_k": 16, "chunk_tokens": 8}
BRISK = CallTimeouts(start_seconds=60, silence_seconds=3, call_seconds=60)


def tiny_manifest(**sections):
    """Return the manifest of a run with the tiny model."""
    return run_manifest(model={"config": CONFIG, "dtype": "fp32"}, toploc=PROOFS, **sections)


def make(kind="generation", **fields) -> wire.Make:
    given = {
        "engine": "builtin",
        "device": "cpu",
        "gpus": 1,
        "rank": 0,
        "ranks": 1,
        "rendezvous": "",
        "memory_bytes_max": None,
        "heartbeat_seconds": 0.2,
    } | fields
    return wire.Make(kind=kind, manifest=tiny_manifest().encoded(), **given)


def exists(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


async def eventually(condition, seconds: float = 240.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the condition is any state, not an event
            await asyncio.sleep(0.02)


def calls_of(engine) -> int:
    """Return the number of calls that an engine process has not answered."""
    return len(engine.supervisor._conversation._pending)


class Played:
    """The engine's side of a connection, played by a test."""

    def __init__(self) -> None:
        self.killed = False

    @classmethod
    async def begin(cls) -> tuple["Played", EngineProcess]:
        played = cls()
        ours, channel = socket.socketpair()
        holding, leash = socket.socketpair()
        errors = ErrorLines()
        played.errors = errors.socket
        process = EngineProcess(
            os.getpid(),
            await asyncio.open_unix_connection(sock=ours),
            await asyncio.open_unix_connection(sock=holding),
            errors,
        )
        played.reader, played.writer = await asyncio.open_unix_connection(sock=channel)
        played.leash = await asyncio.open_unix_connection(sock=leash)
        played.watching = asyncio.create_task(played._watch())
        return played, process

    async def _watch(self) -> None:
        reader, writer = self.leash
        self.killed = await reader.readline() == b"kill\n"
        writer.write(b"-9\n")
        await writer.drain()
        writer.close()
        self.writer.close()

    def die(self, how: bytes) -> None:
        """End like a process: the lifeline carries the reason, and the channel closes."""
        self.watching.cancel()
        self.leash[1].write(how)
        self.leash[1].close()
        self.writer.close()

    def say(self, message: wire.EngineMessage) -> None:
        self.writer.write(wire.encode(message, wire.ANSWER_BYTES_MAX))

    def hello(self) -> None:
        self.say(wire.Hello(version=wire.VERSION, software="a test"))
        self.say(wire.Made())

    async def hear(self) -> wire.EngineMessage:
        async with asyncio.timeout(60):
            return await wire.read(self.reader, wire.QUESTIONS, wire.QUESTION_BYTES_MAX)

    async def close(self) -> None:
        self.watching.cancel()
        self.writer.close()
        self.leash[1].close()
        await asyncio.sleep(0)


async def conversation(process, patience=BRISK, kind="generation") -> EngineConnection:
    return await EngineConnection.begin(process, make(kind), METHODS[kind], patience)
