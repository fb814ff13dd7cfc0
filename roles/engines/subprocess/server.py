"""Engine process: makes one engine on request and serves it on a socket.

The serving thread computes nothing (an engine has its own thread), so heartbeats continue through
any computation. The process ends when the daemon closes its end of the socket.
"""

import asyncio
import os
import resource
import socket
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from protocol.core.faults import Fault
from protocol.run.manifest import decode_manifest
from roles.engines.factory import engines_of
from roles.engines.subprocess import wire
from roles.engines.subprocess.rpc_methods import ELEMENTS_MAX, METHODS, Method
from roles.ports.engines import (
    EngineError,
    FirstToken,
    RankPlace,
    TrainingSequence,
    VerificationRequest,
)


def serve(channel: socket.socket) -> None:
    """Serve a daemon until it closes ``channel``."""
    asyncio.run(_serve(channel))


async def _serve(channel: socket.socket) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=channel)
    server = _Server(reader, writer)
    try:
        await server.run()
    except (EOFError, ConnectionError):
        os._exit(0)  # nothing waits for the computation in progress


class _Server:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._process = psutil.Process()
        self._tokens = 0
        self._first_token: FirstToken | None = None
        """The last value sent to the daemon."""
        self._engine: Any = None
        self._sends_items = True
        """False in a rank other than 0, whose results the daemon does not read."""
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._elements: dict[int, list[bytes]] = {}
        """Elements of the long argument of calls that are not complete."""

    async def run(self) -> None:
        """Serve until the stream ends; raises ``EOFError`` then."""
        await self._say(wire.Hello(version=wire.VERSION, software=_software()))
        make = await self._next()
        if not isinstance(make, wire.Make):
            raise wire.WireError("the first message is not Make")
        self._sends_items = make.rank == 0
        beating = asyncio.create_task(self._beat(make.heartbeat_seconds))
        try:
            engine = self._engine = await asyncio.to_thread(_made, make)
        except Exception as error:
            await self._fail(None, error)
            raise
        await self._say(wire.Made())
        methods = METHODS[make.kind]
        while not beating.done():
            match await self._next():
                case wire.CallPart(id=id_, elements=elements):
                    self._elements.setdefault(id_, []).extend(elements)
                case wire.Call() as call if call.method in methods:
                    work = self._answer(engine, methods[call.method], call)
                    self._calls[call.id] = asyncio.create_task(work)
                case wire.CancelCall(id=id_):
                    self._elements.pop(id_, None)
                    if id_ in self._calls:
                        self._calls[id_].cancel()
                case other:
                    raise wire.WireError(f"unexpected: {str(other)[:100]}")

    async def _next(self) -> wire.EngineMessage:
        return await wire.read(self._reader, wire.QUESTIONS, wire.QUESTION_BYTES_MAX)

    async def _say(self, message: wire.EngineMessage) -> None:
        self._writer.write(wire.encode(message, wire.ANSWER_BYTES_MAX))
        await self._writer.drain()

    async def _beat(self, seconds: float) -> None:
        while True:
            memory_bytes = self._process.memory_info().rss
            # Long generate calls are counted while they run.
            tokens = getattr(self._engine, "tokens_sampled", self._tokens)
            await self._say(wire.EngineHeartbeat(memory_bytes=memory_bytes, tokens=tokens))
            await self._tell_first_token()
            await asyncio.sleep(seconds)

    async def _tell_first_token(self) -> None:
        found: FirstToken | None = getattr(self._engine, "first_token", None)
        if found is not None and found != self._first_token:
            self._first_token = found
            await self._say(wire.FirstTokenNotice(version=found.version, seconds=found.seconds))

    async def _answer(self, engine: Any, method: Method, call: wire.Call) -> None:
        try:
            arguments = _checked(method, call, self._elements.pop(call.id, []))
            result = await getattr(engine, call.method)(*arguments)
            items = result if isinstance(result, list) else [result]
            self._tokens += sum(map(_tokens, [*_sequences(arguments), *items]))
            if method.item is not None and self._sends_items:
                for item in items:
                    await self._say(wire.Item(id=call.id, value=item))
            await self._tell_first_token()  # before the caller can load another policy
            await self._say(wire.CallDone(id=call.id))
        except asyncio.CancelledError:
            await self._fail(call.id, EngineError("cancelled"))
        except Exception as error:  # noqa: BLE001 - the daemon raises it again
            await self._fail(call.id, error)
        finally:
            self._calls.pop(call.id, None)

    async def _fail(self, call: int | None, error: Exception) -> None:
        told = next((name for name, kind in wire.TOLD.items() if isinstance(error, kind)), None)
        shown = error if told else EngineError.of(error)
        trace = shown.trace if isinstance(shown, EngineError) else ""
        await self._say(
            wire.Failed(
                id=call,
                error=told or "EngineError",
                reason=str(shown)[: wire.REASON_CHARACTERS_MAX],
                trace=trace[-wire.TRACE_CHARACTERS_MAX :],
            )
        )


def _made(make: wire.Make) -> Any:
    """Return the engine, limited to ``memory_bytes_max`` of memory.

    RLIMIT_DATA counts private writable memory, the kind that grows; RLIMIT_AS would also count
    CUDA's reserved address space and mapped libraries.
    """
    if make.memory_bytes_max is not None:
        limit = make.memory_bytes_max
        resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    manifest = decode_manifest(make.manifest)
    if isinstance(manifest, Fault):
        raise wire.WireError(f"the run manifest: {manifest}")
    place = RankPlace(make.rank, make.ranks, make.rendezvous)
    return getattr(engines_of(make.engine, make.device, make.gpus, place), make.kind)(manifest)


def _checked(method: Method, call: wire.Call, elements: Sequence[bytes]) -> tuple[Any, ...]:
    """Return a call's arguments; their own ``ValueError`` would be read as a wrong policy."""
    if len(elements) > ELEMENTS_MAX:
        raise EngineError(f"{len(elements)} elements, more than {ELEMENTS_MAX}")
    try:
        arguments: tuple[Any, ...] = method.arguments.validate_python(call.arguments)
        if method.long is None:
            return arguments
        place, element = method.long
        found = tuple(element.validate_python(wire.unpacked(one)) for one in elements)
    except ValueError as error:
        raise EngineError.of(error) from None
    return (*arguments[:place], found, *arguments[place:])


def _sequences(arguments: tuple[Any, ...]) -> list[Any]:
    return [item for argument in arguments if isinstance(argument, tuple) for item in argument]


def _tokens(item: Any) -> int:
    counted = isinstance(item, VerificationRequest | TrainingSequence)
    return len(item.tokens) if counted else 0


def _software() -> str:
    try:
        return f"prime-node/{version('prime-node')}"
    except PackageNotFoundError:
        return "prime-node, not installed"
