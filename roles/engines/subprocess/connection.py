"""Connection to one engine process: calls in flight, heartbeats, and failure.

It ends for one reason, which every call in flight gets as an ``EngineError``: the process died,
sent nothing for too long, made no progress with a call, or sent an invalid message. In the last
three cases it is killed, because its state cannot be trusted.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from protocol.core.types import Version
from roles.engines.subprocess import wire
from roles.engines.subprocess.process import EngineProcess
from roles.engines.subprocess.rpc_methods import Method
from roles.ports.engines import EngineError, FirstToken

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CallTimeouts:
    """Timeouts of an engine process, in seconds."""

    start_seconds: float = 180.0
    """To import its libraries and make the engine: 6 s on an idle machine, 50 s when eight
    processes did it at once on two cores (measured), more with a cold disk."""
    silence_seconds: float = 20.0
    """Without any message; heartbeats come ten times as often. A guess: the serving thread may
    wait for the interpreter lock or for a core of an overloaded machine."""
    call_seconds: float = 300.0
    """For a call, plus the time of its tokens: to load a large policy from a slow disk. A guess."""
    tokens_per_second_min: float = 1.0
    """A call gets the time for its tokens at this rate; every useful engine is faster."""

    @property
    def heartbeat_seconds(self) -> float:
        """Interval between heartbeats."""
        return self.silence_seconds / 10


@dataclass(slots=True)
class _PendingCall:
    """A call in flight; its result has ``items_expected`` items."""

    method: Method
    items_expected: int
    seconds: float
    answer: "asyncio.Future[list[Any]]"
    items: list[Any] = field(default_factory=list)


class EngineConnection:
    """RPC connection to one engine process; made by ``begin``."""

    def __init__(
        self, process: EngineProcess, methods: Mapping[str, Method], patience: CallTimeouts
    ) -> None:
        self._process = process
        self._methods = methods
        self._patience = patience
        self._pending: dict[int, _PendingCall] = {}
        self._calls = 0
        self._progress_at = self._now()
        """Time when the oldest call became the oldest, or received an item of its result."""
        self.pids = (process.pid,)
        self.memory_bytes = 0
        """Resident memory in the last heartbeat."""
        self.tokens = 0
        """Tokens computed, in the last heartbeat."""
        self.first_token: FirstToken | None = None
        """Time to the first token of the last policy loaded."""
        self.reason = ""
        """Reason of the end; empty while the connection is open."""
        self.trace = ""
        """Traceback of the end, or the last lines of the process's standard error."""
        self._is_ending = False
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def begin(
        cls,
        process: EngineProcess,
        make: wire.Make,
        methods: Mapping[str, Method],
        patience: CallTimeouts,
    ) -> "EngineConnection":
        """Make the engine; on failure the process is killed and ``EngineError`` raised."""
        conversation = cls(process, methods, patience)
        try:
            async with asyncio.timeout(patience.start_seconds):
                await conversation._make(make)
        except (EngineError, wire.WireError, EOFError, OSError, TimeoutError) as error:
            raise await conversation._end(error) from None
        except asyncio.CancelledError:
            await process.kill()
            raise
        conversation._listening = asyncio.create_task(conversation._listen())
        return conversation

    async def call(
        self,
        name: str,
        arguments: tuple[Any, ...],
        items: int,
        tokens: int,
        elements: Sequence[Any] = (),
    ) -> Any:
        """Return the ``items`` of a call's result; it computes at most ``tokens``.

        ``elements`` are those of the method's long argument. Raises the errors that the port
        documents; any other failure is an ``EngineError``.
        """
        self._calls += 1
        id_ = self._calls
        call = wire.Call(id=id_, method=name, arguments=arguments)
        try:
            frame = await begin_call([self], call, elements)
        except OSError as error:  # the process ended; why, the listener knows
            await self.ended()
            raise EngineError(self.reason or str(error)) from None
        answer = self.send(id_, name, frame, items, tokens)
        try:
            return await answer
        except asyncio.CancelledError:
            # The call stays in flight with its deadline: the process continues to compute.
            self.cancel(id_)
            raise

    async def write(self, frame: bytes) -> None:
        """Send a part of a call, when there is room; raises ``OSError`` if the process ended."""
        if self.reason:
            raise ConnectionError(self.reason)
        self._process.writer.write(frame)
        await self._process.writer.drain()

    def send(
        self, id_: int, name: str, frame: bytes, items: int, tokens: int
    ) -> "asyncio.Future[list[Any]]":
        """Send the frame of a call with a new id, and return its future result."""
        if self.reason:
            raise EngineError(self.reason)
        seconds = self._patience.call_seconds + tokens / self._patience.tokens_per_second_min
        if not self._pending:
            self._progress_at = self._now()
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._pending[id_] = _PendingCall(self._methods[name], items, seconds, answer)
        self._process.writer.write(frame)
        return answer

    def cancel(self, id_: int) -> None:
        """Cancel a call, or drop the parts of one that has not begun."""
        if not self.reason:
            message = wire.encode(wire.CancelCall(id=id_), wire.QUESTION_BYTES_MAX)
            self._process.writer.write(message)

    async def ended(self) -> None:
        """Wait for the end of the connection, of which ``reason`` then has the reason."""
        if self._listening is not None:
            await asyncio.wait([self._listening])

    async def close(self, reason: str = "the engine process was closed") -> None:
        """Kill the process; calls in flight fail with ``reason``. Idempotent."""
        if self._listening is not None and not self._listening.done():
            if not self._is_ending:
                self._listening.cancel()
            await asyncio.wait([self._listening])
        if not self.reason:
            await self._end(EngineError(reason[:200]))

    async def _make(self, make: wire.Make) -> None:
        hello = await self._next()
        if not isinstance(hello, wire.Hello):
            raise wire.WireError("its first message is not Hello")
        if hello.version != wire.VERSION:
            raise EngineError(
                f"the engine process has another version ({hello.software}, wire "
                f"{hello.version}; ours is {wire.VERSION}); check --engine-python"
            )
        self._process.writer.write(wire.encode(make, wire.QUESTION_BYTES_MAX))
        while True:
            match await self._next():
                case wire.Made():
                    return
                case wire.Failed() as failed:
                    raise EngineError(f"no engine: {failed.reason}"[:300], failed.trace)
                case wire.EngineHeartbeat() as beat:
                    self._take(beat)
                case other:
                    raise wire.WireError(f"{type(other).__name__} before Made")

    async def _next(self) -> wire.EngineMessage:
        return await wire.read(self._process.reader, wire.ANSWERS, wire.ANSWER_BYTES_MAX)

    async def _listen(self) -> None:
        silence_seconds = self._patience.silence_seconds
        try:
            while True:
                async with asyncio.timeout(silence_seconds):
                    message = await self._next()
                self._take(message)
                self._check_progress()
        except TimeoutError:
            await self._end(EngineError(f"no heartbeat for {silence_seconds:g} s"))
        except Exception as error:  # noqa: BLE001 - calls in flight fail with any error
            await self._end(error)

    def _take(self, message: wire.EngineMessage) -> None:
        match message:
            case wire.EngineHeartbeat():
                self.memory_bytes = message.memory_bytes
                computed = message.tokens - self.tokens
                self.tokens = message.tokens
                log.debug(
                    "engine process heartbeat",
                    pid=self._process.pid,
                    memory_bytes=message.memory_bytes,
                    tokens_per_second=round(computed / self._patience.heartbeat_seconds),
                )
            case wire.FirstTokenNotice():
                self.first_token = FirstToken(Version(message.version), message.seconds)
            case wire.Item(id=id_) if id_ in self._pending:
                self._take_item(self._pending[id_], message.value)
            case wire.CallDone(id=id_) if id_ in self._pending:
                call = self._pending[id_]
                if len(call.items) != call.items_expected:
                    raise wire.WireError(f"{len(call.items)} items of {call.items_expected}")
                del self._pending[id_]
                if not call.answer.done():
                    call.answer.set_result(call.items)
            case wire.Failed(id=int(id_)) if id_ in self._pending:
                call = self._pending.pop(id_)
                if not call.answer.done():
                    call.answer.set_exception(_raised(message))
            case _:
                raise wire.WireError(f"unexpected {type(message).__name__}")
        if not isinstance(message, wire.EngineHeartbeat):
            self._progress_at = self._now()

    def _take_item(self, call: _PendingCall, value: Any) -> None:
        if call.method.item is None or len(call.items) >= call.items_expected:
            raise wire.WireError("more items than expected")
        try:
            call.items.append(call.method.item.validate_python(value))
        except ValueError as error:
            raise wire.WireError(" ".join(str(error).split())[:200]) from None

    def _check_progress(self) -> None:
        """Raise ``EngineError`` when the oldest call takes too long; runs with each heartbeat."""
        oldest = next(iter(self._pending.values()), None)
        if oldest is not None and self._now() > self._progress_at + oldest.seconds:
            raise EngineError(f"no progress for {oldest.seconds:g} s")

    async def _end(self, error: Exception) -> EngineError:
        """Kill the process, fail all calls in flight, and return the error."""
        self._is_ending = True
        how = await self._process.kill()
        self.reason = self._why(error, how)
        self.trace = getattr(error, "trace", "") or "\n".join(self._process.errors.lines)
        for call in self._pending.values():
            if not call.answer.done():
                call.answer.set_exception(EngineError(self.reason, self.trace))
        self._pending.clear()
        return EngineError(self.reason, self.trace)

    def _why(self, error: Exception, how: str) -> str:
        """Return one line: the protocol error, or how the process ended by itself."""
        if isinstance(error, EngineError):
            return str(error)
        if isinstance(error, wire.WireError):
            return f"the engine process sent an invalid message: {error}"[:200]
        if not isinstance(error, EOFError | OSError):
            return str(EngineError.of(error))
        if isinstance(error, TimeoutError):
            return f"the engine was not made within {self._patience.start_seconds:g} s"
        size = f" at {self.memory_bytes / 1e6:.0f} MB" if self.memory_bytes else ""
        last = self._process.errors.last
        said = f": {last}" if last else ""
        return f"the engine process {how or 'closed its socket'}{size}{said}"

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


async def begin_call(
    connections: Sequence[EngineConnection], call: wire.Call, elements: Sequence[Any]
) -> bytes:
    """Send the elements of a call's long argument to all connections; return the call's frame.

    Each frame is encoded once. After an error, or a cancellation, the parts are dropped. Raises
    ``EngineError`` if something cannot be encoded, and ``OSError`` if a process has ended.
    """
    frames = wire.call_parts(call.id, elements)
    try:
        # A frame may have a million numbers: encode it outside the event loop.
        while (frame := await asyncio.to_thread(next, frames, None)) is not None:
            for one in connections:
                await one.write(frame)
        return wire.encode(call, wire.QUESTION_BYTES_MAX)
    except (wire.WireError, asyncio.CancelledError) as error:
        for one in connections:
            one.cancel(call.id)
        if isinstance(error, wire.WireError):
            raise EngineError(str(error)) from None
        raise


def _raised(failed: wire.Failed) -> Exception:
    told = wire.TOLD.get(failed.error)
    return EngineError(failed.reason[:200], failed.trace) if told is None else told(failed.reason)
