"""Discrete-event asyncio loop: the clock jumps, so a sleep of an hour costs nothing.

There is no selector and no thread. Ready callbacks run in order. If there are none, the clock jumps
to the earliest timer; timers of one moment run in the order in which they were set.

The clock starts at zero; wall clocks add ``START``. A double of today's unix time has steps
of 0.24 microseconds, which would swallow short timers.
"""

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, NoReturn, TypeVar

from typing_extensions import override

from roles.ports.background import Background

T = TypeVar("T")

START = 1_700_000_000.0
"""Unix seconds at which every simulation begins."""

TICKS_PER_SECOND = 1000
"""Granularity of ``call_about``: calls within a millisecond run together."""

_COMPACT_AT = 256
"""Heap size from which cancelled timers are swept once they are the majority. Nearly all of them
are deadlines that were met, and they slow down every heap operation."""


class DeadlockError(RuntimeError):
    """No task is ready and no timer is set."""


class UnsimulatedError(RuntimeError):
    """Simulated code used a thread, a socket or a process."""


def _refuse(what: str) -> Any:
    """Return a method that raises ``UnsimulatedError`` for ``what``."""

    def refuse(*_args: Any, **_options: Any) -> NoReturn:
        raise UnsimulatedError(f"simulated code used {what}: only ports are allowed")

    return refuse


class _Handle:
    """Handle of ``call_soon`` and ``call_at``: ``asyncio.Handle`` without debug state."""

    __slots__ = ("args", "callback", "context", "loop")

    loop: "VirtualLoop | None"
    callback: Callable[..., object] | None
    args: tuple[Any, ...]
    context: Context | None

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = None
            self.args = ()
            self.context = None
            if self.loop is not None:
                self.loop.timer_cancelled()

    def cancelled(self) -> bool:
        return self.callback is None


_new_handle = _Handle.__new__
"""Without ``__init__``: saves one call per event."""


class VirtualLoop(asyncio.BaseEventLoop):
    """Runs coroutines in virtual time, which begins at zero."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """The result of ``time`` without a call: it is read a dozen times per message."""
        self._runnable: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._timers_set = 0
        self._timers_cancelled = 0
        self._ticks: list[int] = []
        self._at_tick: dict[int, list[tuple[Callable[[Any], None], Any]]] = {}

    def time(self) -> float:
        """Return virtual seconds since the start."""
        return self.now

    def call_soon(  # type: ignore[override] # our handle is what asyncio uses of asyncio.Handle
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        """Run ``callback`` after all ready callbacks."""
        handle = _new_handle(_Handle)
        handle.loop, handle.callback, handle.args, handle.context = None, callback, args, context
        self._runnable.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override] # as above
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> _Handle:
        """Run ``callback`` soon; raises ``UnsimulatedError`` outside of the loop's thread.

        asyncio itself calls it, in the loop's thread, to close forgotten generators.
        """
        if self.is_running() and threading.get_ident() != self._thread_id:  # type: ignore[attr-defined]
            raise UnsimulatedError("a thread called the loop")
        return self.call_soon(callback, *args, context=context)

    def call_at(  # type: ignore[override] # as above
        self,
        when: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Handle:
        """Run ``callback`` at virtual time ``when``, or at once if that has passed."""
        handle = _new_handle(_Handle)
        handle.loop, handle.callback, handle.args, handle.context = self, callback, args, context
        self._timers_set += 1
        heapq.heappush(self._timers, (when, self._timers_set, handle))
        return handle

    def call_later(  # type: ignore[override] # as above
        self,
        delay: float,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> _Handle:
        """Run ``callback`` after ``delay`` virtual seconds."""
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_about(self, when: float, callback: Callable[[Any], None], argument: Any) -> float:
        """Run ``callback(argument)`` at ``when``, rounded up to a tick; return that time.

        It cannot be cancelled, and runs before timers of the same moment. Meant for millions of
        calls: a list per tick costs a fraction of a heap of timers.
        """
        tick = int(when * TICKS_PER_SECOND) + 1
        calls = self._at_tick.get(tick)
        if calls is None:
            calls = self._at_tick[tick] = []
            heapq.heappush(self._ticks, tick)
        calls.append((callback, argument))
        return tick / TICKS_PER_SECOND

    get_debug = bool  # False, and no call of Python for every future and task

    def create_future(self) -> "asyncio.Future[Any]":
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def timer_cancelled(self) -> None:
        """Count a cancelled timer in the heap; sweep once they are the majority."""
        self._timers_cancelled += 1
        if len(self._timers) > _COMPACT_AT and 2 * self._timers_cancelled > len(self._timers):
            self._timers = [item for item in self._timers if item[2].callback is not None]
            heapq.heapify(self._timers)
            self._timers_cancelled = 0

    def _run_once(self) -> None:
        """Run ready callbacks and timers until ``stop``: returning in between costs a call."""
        runnable = self._runnable
        while not self._stopping:  # type: ignore[attr-defined] # asyncio's own
            if not runnable:
                self._jump()
                continue
            handle = runnable.popleft()
            callback, context = handle.callback, handle.context
            if callback is None:
                continue
            try:
                if context is None:
                    callback(*handle.args)
                else:
                    context.run(callback, *handle.args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 - as asyncio: the loop outlives callbacks
                self.call_exception_handler(
                    {"message": f"exception in callback {callback!r}", "exception": error}
                )

    def _jump(self) -> None:
        """Move the clock to the earliest timer and make all timers of that moment runnable."""
        timers = self._timers
        while timers and timers[0][2].callback is None:
            heapq.heappop(timers)
            self._timers_cancelled -= 1
        if self._ticks and (not timers or self._ticks[0] / TICKS_PER_SECOND <= timers[0][0]):
            self._tick()
            return
        if not timers:
            raise DeadlockError("no task is ready and no timer is set")
        now = timers[0][0]
        if now < self.now:  # noqa: PLR1730 - a call for every moment
            now = self.now
        self.now = now
        while timers and timers[0][0] <= now:
            handle = heapq.heappop(timers)[2]
            if handle.callback is None:
                self._timers_cancelled -= 1
            else:
                handle.loop = None  # no longer in the heap: a late cancel is not counted
                self._runnable.append(handle)

    def _tick(self) -> None:
        """Move the clock to the earliest tick and run its calls."""
        tick = heapq.heappop(self._ticks)
        self.now = max(self.now, tick / TICKS_PER_SECOND)
        for callback, argument in self._at_tick.pop(tick):
            try:
                callback(argument)
            except Exception as error:  # noqa: BLE001 - as in ``_run_once``
                self.call_exception_handler(
                    {"message": f"exception in callback {callback!r}", "exception": error}
                )

    # Unused by simulations

    def _process_events(self, event_list: Any) -> None:
        raise NotImplementedError("there is no selector")

    def _write_to_self(self) -> None:
        """Do nothing: the loop never blocks, so it needs no waking."""

    run_in_executor = _refuse("a thread")
    add_reader = _refuse("a descriptor")
    add_writer = _refuse("a descriptor")
    add_signal_handler = _refuse("a signal")
    getaddrinfo = _refuse("a name service")
    create_connection = _refuse("a socket")
    create_server = _refuse("a socket")
    create_unix_connection = _refuse("a socket")
    create_unix_server = _refuse("a socket")
    create_datagram_endpoint = _refuse("a socket")
    sock_accept = _refuse("a socket")
    sock_connect = _refuse("a socket")
    sock_recv = _refuse("a socket")
    sock_sendall = _refuse("a socket")
    subprocess_exec = _refuse("a process")
    subprocess_shell = _refuse("a process")


def run_virtual(
    main: Coroutine[Any, Any, T], make_loop: Callable[[], VirtualLoop] = VirtualLoop
) -> T:
    """Run ``main`` to its end in virtual time, then cancel every task that it left."""
    loop = make_loop()
    try:
        return loop.run_until_complete(loop.create_task(main))
    finally:
        _cancel_all(loop)
        loop.close()


def _cancel_all(loop: VirtualLoop) -> None:
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        with suppress(DeadlockError):  # the error that ended the run explains more
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


class SimBackground(Background):
    """Runs work at once and without duration, so the order of events depends on the seed only."""

    @override
    async def run(self, function: Callable[[], T]) -> T:
        return function()
