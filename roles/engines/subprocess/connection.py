"""A conversation with one engine process: its calls in flight, its signs of life, and its end.

It ends for one reason, which every call in flight gets as an ``EngineError``: the process died, was
silent for too long, made no progress with a call, or said what nobody may say. In the last three
cases it is killed: nobody could rely on its state.
"""

import asyncio
from collections.abc import Mapping
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
    """How long an engine process may take, in seconds."""

    start_seconds: float = 180.0
    """Until it has imported its libraries and made the engine: 6 s on an idle machine, 50 when
    eight processes did it at once on two cores (measured), more with a cold disk."""
    silence_seconds: float = 20.0
    """Without any word; heartbeats come ten times as often. A guess: the serving thread may wait
    for one that computes in Python, or for a core of an overloaded machine."""
    call_seconds: float = 300.0
    """For a call, beside its tokens: loading a large policy from a slow disk. A guess."""
    tokens_per_second_min: float = 1.0
    """No engine that is of use computes more slowly; a call gets the time for its tokens."""

    @property
    def heartbeat_seconds(self) -> float:
        """Pause between heartbeats."""
        return self.silence_seconds / 10


@dataclass(slots=True)
class _PendingCall:
    """A call in flight; ``items_expected`` are its result."""

    method: Method
    items_expected: int
    seconds: float
    answer: "asyncio.Future[list[Any]]"
    items: list[Any] = field(default_factory=list)


class EngineConnection:
    """Calls to one engine process; made by ``begin``."""

    def __init__(
        self, process: EngineProcess, methods: Mapping[str, Method], patience: CallTimeouts
    ) -> None:
        self._process = process
        self._methods = methods
        self._patience = patience
        self._pending: dict[int, _PendingCall] = {}
        self._calls = 0
        self._progress_at = self._now()
        """When the oldest call became the oldest, or had an item of its result."""
        self.pid = process.pid
        self.memory_bytes = 0
        """Of the process, as it said last."""
        self.tokens = 0
        """That it had computed by then."""
        self.first_token: FirstToken | None = None
        """Of a policy that it loaded."""
        self.reason = ""
        """Why it has ended; empty while it goes on."""
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def begin(
        cls,
        process: EngineProcess,
        make: wire.Make,
        methods: Mapping[str, Method],
        patience: CallTimeouts,
    ) -> "EngineConnection":
        """Have the engine made; raises ``EngineError``, and the process is killed then."""
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

    async def call(self, name: str, arguments: tuple[Any, ...], items: int, tokens: int) -> Any:
        """Return the ``items`` of a call's result; ``tokens`` are what it has to compute at most.

        Raises what the port documents, else ``EngineError``.
        """
        method, patience = self._methods[name], self._patience
        self._calls += 1
        id_ = self._calls
        question = wire.Call(id=id_, method=name, arguments=arguments)
        try:
            # Batches have millions of numbers: they are written down beside the event loop.
            frame = await asyncio.to_thread(wire.encode, question, wire.QUESTION_BYTES_MAX)
        except wire.WireError as error:
            raise EngineError(str(error)) from None
        if self.reason:
            raise EngineError(self.reason)
        seconds = patience.call_seconds + tokens / patience.tokens_per_second_min
        if not self._pending:
            self._progress_at = self._now()
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._pending[id_] = _PendingCall(method, items, seconds, answer)
        self._process.writer.write(frame)
        try:
            return await answer
        except asyncio.CancelledError:
            # It stays in flight: what computes goes on, and has its deadline as before.
            if not self.reason:
                cancel = wire.encode(wire.CancelCall(id=id_), wire.QUESTION_BYTES_MAX)
                self._process.writer.write(cancel)
            raise

    async def close(self, reason: str = "the engine process was closed") -> None:
        """End the process; calls in flight fail for ``reason``. Idempotent."""
        if self._listening is not None and not self._listening.done():
            self._listening.cancel()
            await asyncio.wait([self._listening])
        if not self.reason:
            await self._end(EngineError(reason[:200]))

    async def _make(self, make: wire.Make) -> None:
        hello = await self._next()
        if not isinstance(hello, wire.Hello):
            raise wire.WireError("it does not say its version")
        if hello.version != wire.VERSION:
            raise EngineError(
                f"the engine process is of another version ({hello.software}, wire "
                f"{hello.version}; ours is {wire.VERSION}); check --engine-python"
            )
        self._process.writer.write(wire.encode(make, wire.QUESTION_BYTES_MAX))
        while True:
            match await self._next():
                case wire.Made():
                    return
                case wire.Failed() as failed:
                    raise EngineError(f"no engine: {failed.reason}"[:300], failed.trace)
                case wire.Heartbeat() as beat:
                    self._take(beat)
                case other:
                    raise wire.WireError(f"{type(other).__name__} before there is an engine")

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
        except Exception as error:  # noqa: BLE001 - who waits is told of any end
            await self._end(error)

    def _take(self, message: wire.EngineMessage) -> None:
        match message:
            case wire.Heartbeat():
                self.memory_bytes = message.memory_bytes
                computed = message.tokens - self.tokens
                self.tokens = message.tokens
                log.debug(
                    "engine process",
                    pid=self.pid,
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
        if not isinstance(message, wire.Heartbeat):
            self._progress_at = self._now()

    def _take_item(self, call: _PendingCall, value: Any) -> None:
        if call.method.item is None or len(call.items) >= call.items_expected:
            raise wire.WireError("more items than a result has")
        try:
            call.items.append(call.method.item.validate_python(value))
        except ValueError as error:
            raise wire.WireError(" ".join(str(error).split())[:200]) from None

    def _check_progress(self) -> None:
        """Raise ``EngineError`` when the oldest call takes too long; heartbeats bring us here."""
        oldest = next(iter(self._pending.values()), None)
        if oldest is not None and self._now() > self._progress_at + oldest.seconds:
            raise EngineError(f"no progress for {oldest.seconds:g} s")

    async def _end(self, error: Exception) -> EngineError:
        """Kill the process, fail what is in flight, and return why."""
        how = await self._process.kill()
        self.reason = self._why(error, how)
        lines = "\n".join(self._process.errors.lines)
        failure = EngineError(self.reason, getattr(error, "trace", "") or lines)
        for call in self._pending.values():
            if not call.answer.done():
                call.answer.set_exception(EngineError(self.reason, failure.trace))
        self._pending.clear()
        return failure

    def _why(self, error: Exception, how: str) -> str:
        """Return one line: what was wrong with what it said, or how it ended by itself."""
        if isinstance(error, EngineError):
            return str(error)
        if isinstance(error, wire.WireError):
            return f"the engine process spoke nonsense: {error}"[:200]
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


def _raised(failed: wire.Failed) -> Exception:
    told = wire.TOLD.get(failed.error)
    return EngineError(failed.reason[:200], failed.trace) if told is None else told(failed.reason)
