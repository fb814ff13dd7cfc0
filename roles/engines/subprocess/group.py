"""Group of engine processes, the ranks, that compute one engine's calls together.

Every rank gets the same calls in the same order and takes its part of the work; the ranks exchange
what they need among themselves. The result of rank 0 is the result of the call. A rank may wait
for another one for ever, so the group ends as one: when a rank dies, hangs, or fails otherwise than
all others, all are killed.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from roles.engines.subprocess import wire
from roles.engines.subprocess.connection import CallTimeouts, EngineConnection, begin_call
from roles.engines.subprocess.process import EngineProcesses
from roles.engines.subprocess.rpc_methods import METHODS
from roles.ports.engines import EngineError, FirstToken

CLOSED = "the engine processes were closed"

_REASON_CHARACTERS_MAX = 300


class EngineGroup:
    """Connections to all ranks of one engine; made by ``begin``."""

    def __init__(
        self,
        connections: Sequence[EngineConnection],
        directory: "TemporaryDirectory[str]",
        patience: CallTimeouts,
    ) -> None:
        self._connections = connections
        self._directory = directory
        """Contains the file of the rendezvous."""
        self._patience = patience
        self._calls = 0
        self.pids = tuple(pid for one in connections for pid in one.pids)
        """Process ids, in the order of ranks."""
        self.reason = ""
        """Reason of the end; empty while the ranks live."""
        self._trace = ""
        self._ending: asyncio.Task[None] | None = None
        self._results: set[asyncio.Task[list[Any]]] = set()
        self._watches = [asyncio.create_task(self._watch(one)) for one in connections]

    @classmethod
    async def begin(
        cls,
        processes: EngineProcesses,
        make: wire.Make,
        devices: Sequence[str],
        patience: CallTimeouts,
    ) -> "EngineGroup":
        """Make one rank for each device, all at the same time.

        Raises ``EngineError`` with the rank that failed first; all are killed then.
        """
        try:
            directory = TemporaryDirectory(prefix="prime-node-ranks-", ignore_cleanup_errors=True)
        except OSError as error:  # a full disk
            raise EngineError.of(error) from None
        place = {"ranks": len(devices), "rendezvous": str(Path(directory.name, "rendezvous"))}
        ranks = [
            make.model_copy(update={**place, "rank": rank, "device": device})
            for rank, device in enumerate(devices)
        ]
        starts = [asyncio.create_task(connect(processes, one, patience)) for one in ranks]
        try:
            await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
            _require_made(starts)
            return cls([start.result() for start in starts], directory, patience)
        except BaseException:
            await _abandon(starts)
            directory.cleanup()
            raise

    @property
    def memory_bytes(self) -> int:
        """Sum of the ranks' resident memory in their last heartbeats; each counts shared pages."""
        return sum(one.memory_bytes for one in self._connections)

    @property
    def tokens(self) -> int:
        """Tokens computed, in the last heartbeat of rank 0; each rank counts the whole calls."""
        return self._connections[0].tokens

    @property
    def first_token(self) -> FirstToken | None:
        """Time to the first token of the last policy loaded, at rank 0."""
        return self._connections[0].first_token

    async def call(
        self,
        name: str,
        arguments: tuple[Any, ...],
        items: int,
        tokens: int,
        elements: Sequence[Any] = (),
    ) -> Any:
        """Call a method of all ranks as ``EngineConnection.call`` does; return rank 0's result.

        The ranks complete a cancelled call: if one dropped it earlier than another, that one would
        wait for it for ever.
        """
        self._calls += 1
        id_ = self._calls
        call = wire.Call(id=id_, method=name, arguments=arguments)
        try:
            frame = await begin_call(self._connections, call, elements)
        except OSError:  # a rank has ended
            raise await self._end(EngineError(CLOSED)) from None
        if self._ending is not None or any(one.reason for one in self._connections):
            raise await self._end(EngineError(CLOSED))
        answers = [
            one.send(id_, name, frame, 0 if rank else items, tokens)
            for rank, one in enumerate(self._connections)
        ]
        result = asyncio.create_task(self._result(answers))
        self._results.add(result)
        result.add_done_callback(self._forget)
        return await asyncio.shield(result)

    async def close(self, reason: str = CLOSED) -> None:
        """Kill all ranks; calls in flight fail with ``reason``. Idempotent."""
        await self._end(EngineError(reason[:_REASON_CHARACTERS_MAX]))

    def _forget(self, result: asyncio.Task[list[Any]]) -> None:
        self._results.discard(result)
        if not result.cancelled():
            result.exception()  # nobody else may retrieve that of a cancelled call

    async def _result(self, answers: "list[asyncio.Future[list[Any]]]") -> list[Any]:
        """Return rank 0's result when all ranks have one, or raise the error that all have.

        Otherwise the group ends.
        """
        _, late = await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
        if late and not any(isinstance(error, EngineError) for error in _errors(answers)):
            # The other ranks raise the same error soon, or wait for this one for ever.
            await asyncio.wait(late, timeout=self._patience.silence_seconds)
        errors = _errors(answers)
        if not any(errors):
            return answers[0].result()
        kinds = {type(error) for error in errors}
        if len(kinds) == 1 and EngineError not in kinds and errors[0] is not None:
            raise errors[0]
        raise await self._end(_cause(errors))

    async def _watch(self, connection: EngineConnection) -> None:
        """End the group with one of its ranks."""
        try:
            await connection.ended()
        except asyncio.CancelledError:  # the daemon ends, and its processes with it
            self._directory.cleanup()
            raise
        await self._end(EngineError(CLOSED))

    async def _end(self, error: EngineError) -> EngineError:
        """Kill all ranks, and return the error of the calls: ``error``, or that of an earlier end.

        The error of a rank that ended by itself takes precedence: it is the cause.
        """
        if self._ending is None:
            self._ending = asyncio.create_task(self._kill(error))
        await asyncio.shield(self._ending)
        return EngineError(self.reason, self._trace)

    async def _kill(self, error: EngineError) -> None:
        await asyncio.gather(*(one.close(CLOSED) for one in self._connections))
        self._directory.cleanup()
        for rank, one in enumerate(self._connections):
            if one.reason != CLOSED:
                own = EngineError(one.reason, one.trace)
                error = _of_rank(rank, len(self._connections), own)
                break
        self._trace, self.reason = error.trace, str(error)


async def begin(
    processes: EngineProcesses, make: wire.Make, devices: Sequence[str], patience: CallTimeouts
) -> EngineConnection | EngineGroup:
    """Make the engine, with one rank on each device; one rank needs no group."""
    if len(devices) == 1:
        return await connect(processes, make.model_copy(update={"device": devices[0]}), patience)
    return await EngineGroup.begin(processes, make, devices, patience)


async def connect(
    processes: EngineProcesses, make: wire.Make, patience: CallTimeouts
) -> EngineConnection:
    """Fork a process and make its engine; raises ``EngineError``."""
    process = await processes.fork(patience.start_seconds)
    return await EngineConnection.begin(process, make, METHODS[make.kind], patience)


def _require_made(starts: Sequence[asyncio.Task[EngineConnection]]) -> None:
    """Raise the ``EngineError`` of the first rank that could not be made, if any."""
    for rank, start in enumerate(starts):
        if start.done() and (error := start.exception()) is not None:
            raise _of_rank(rank, len(starts), EngineError.of(error))


async def _abandon(starts: Sequence[asyncio.Task[EngineConnection]]) -> None:
    """Kill the ranks of a group that cannot begin."""
    for start in starts:
        start.cancel()
    made = await asyncio.gather(*starts, return_exceptions=True)
    await asyncio.gather(*(one.close() for one in made if isinstance(one, EngineConnection)))


def _errors(answers: "Sequence[asyncio.Future[list[Any]]]") -> list[BaseException | None]:
    """Return the error of each rank so far; None for a result, or while there is none."""
    return [one.exception() if one.done() else None for one in answers]


def _cause(errors: Sequence[BaseException | None]) -> EngineError:
    """Return the error of a call that the ranks did not end alike."""
    failed = [(rank, error) for rank, error in enumerate(errors) if error is not None]
    rank, error = next((one for one in failed if isinstance(one[1], EngineError)), failed[0])
    if isinstance(error, EngineError):
        return _of_rank(rank, len(errors), error)
    alone = EngineError(f"{type(error).__name__}, unlike other ranks: {error}")
    return _of_rank(rank, len(errors), alone)


def _of_rank(rank: int, ranks: int, error: EngineError) -> EngineError:
    reason = f"rank {rank} of {ranks}: {error}"[:_REASON_CHARACTERS_MAX]
    return EngineError(reason, error.trace)
