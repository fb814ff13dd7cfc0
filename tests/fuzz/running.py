"""Run one target in its own process; measure time and memory of each input.

The process's memory limit is little more than the target may grow by. Each input is first copied to
a memory-mapped file, so it survives any end of the process.
"""

import contextlib
import mmap
import resource
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgpack

from tests.fuzz.target import INPUT_BYTES_MAX, Session, Target

SLOW_SECONDS = 1.0
"""CPU seconds, so that a busy machine makes no input slow."""

HANG_SECONDS = 120
"""Wall-clock seconds."""

ROOM_BYTES = 1 << 30
"""Address space beyond the session's own; more raises ``MemoryError``, which is a crash."""

_PAGE_BYTES = resource.getpagesize()
_LENGTH_BYTES = 4


class HangError(BaseException):
    """Timeout of an input; not an ``Exception``, which the code might catch."""


@dataclass(slots=True)
class Found:
    """Results of one target's inputs."""

    target: str
    engine: str
    inputs: int = 0
    accepted: int = 0
    seconds: float = 0.0
    """CPU seconds of the whole run, including the drawing of inputs."""
    slowest_seconds: float = 0.0
    growth_bytes: int = 0
    crashes: dict[str, str] = field(default_factory=dict)
    """Description of a crash to the file that repeats it; one crash per code location."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class Run:
    """A session of a target and its inputs."""

    def __init__(self, target: Target, engine: str, crashes: Path, scratch: Path) -> None:
        self.target, self.found = target, Found(target.name, engine)
        self._directory = crashes
        with scratch.open("w+b") as file:
            file.truncate(_LENGTH_BYTES + INPUT_BYTES_MAX)
            self._scratch = mmap.mmap(file.fileno(), 0)
        self._history: list[bytes] = []
        self.session: Session = target.start()
        self._peak_kib = _begin_peak()
        signal.signal(signal.SIGALRM, _hangs)

    def take(self, data: bytes) -> None:
        """Pass one input and record the result."""
        self._scratch[: _LENGTH_BYTES + len(data)] = len(data).to_bytes(4, "little") + data
        if self.target.lasting:
            self._history.append(data)
        signal.setitimer(signal.ITIMER_REAL, HANG_SECONDS)
        self._peak_kib = _peak_kib()  # drawing an input may have used more memory than its run
        began = time.process_time()
        try:
            self.found.accepted += self.session.take(data)
        except (Exception, HangError) as error:  # noqa: BLE001 - that is what is looked for
            self._crashed(error, data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        seconds = time.process_time() - began
        self.found.inputs += 1
        self.found.slowest_seconds = max(self.found.slowest_seconds, seconds)
        if seconds > SLOW_SECONDS:
            self._note(f"slow: {self.target.name} takes {seconds:.0f} s", "", data)
        self._watch(data)
        if self.target.lasting and len(self._history) >= self.target.lasting:
            self.look()
            self._begin_again()

    def _watch(self, data: bytes) -> None:
        """Record the growth of the process if its peak has moved."""
        peak_kib = _peak_kib()
        if peak_kib <= self._peak_kib:
            return
        growth_bytes = (peak_kib - self._peak_kib) << 10
        self._peak_kib = peak_kib
        self.found.growth_bytes = max(self.found.growth_bytes, growth_bytes)
        if growth_bytes > self.target.growth_bytes_max:
            self._note(f"growth: {self.target.name} by {growth_bytes >> 20} MiB", "", data)

    def look(self) -> None:
        """Check the state that the inputs have left."""
        try:
            self.session.check()
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            self._crashed(error, b"")

    def _crashed(self, error: BaseException, data: bytes) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        places = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in frames[-3:]]
        key = f"{type(error).__name__} at {' '.join(places)}"
        self._note(key, "".join(traceback.format_exception(error)), data)
        if self.target.lasting and data:
            self._begin_again()

    def _begin_again(self) -> None:
        with contextlib.suppress(Exception):  # a broken session may fail to close
            self.session.close()
        self._history.clear()
        self.session = self.target.start()
        self._peak_kib = _begin_peak()

    def _note(self, key: str, text: str, data: bytes) -> None:
        if key in self.found.crashes or len(self.found.crashes) >= 20:
            return
        path = written(self._directory, self.target, [*self._history] or [data])
        self.found.crashes[key] = str(path)
        sys.stderr.write(f"\n{key}\n{text}{repeat_command(path)}\n")


def fuzzed(run: Run, inputs: int, seconds: float, seed: int) -> Found:
    """Draw inputs until the limit of inputs or of time."""
    rng = Random(f"{seed}/{run.target.name}")
    began, spent = time.perf_counter(), time.process_time()
    ends_at = began + seconds
    while run.found.inputs < inputs and time.perf_counter() < ends_at:
        try:
            data = run.session.draw(rng)[:INPUT_BYTES_MAX]
        except BaseException as error:
            raise RuntimeError(f"{run.target.name} cannot draw: {error!r}") from error
        run.take(data)
    run.look()
    run.found.seconds = time.process_time() - spent
    return run.found


def left_in(scratch: Path) -> bytes:
    """Return the last input."""
    data = scratch.read_bytes()
    length = int.from_bytes(data[:_LENGTH_BYTES], "little")
    return data[_LENGTH_BYTES : _LENGTH_BYTES + length]


def written(directory: Path, target: Target, inputs: list[bytes]) -> Path:
    """Write the file that repeats a crash; return its path."""
    directory.mkdir(parents=True, exist_ok=True)
    number = len(list(directory.glob(f"{target.name}-*.crash")))
    path = directory / f"{target.name}-{number}.crash"
    path.write_bytes(msgpack.packb({"target": target.name, "inputs": inputs}))
    return path


def repeat_command(path: Path) -> str:
    """Return the command that repeats a crash."""
    return f"repeat with: python -m tests.fuzz --repeat {path}"


def repeated(path: Path, targets: dict[str, Target]) -> int:
    """Repeat the inputs of a file and raise their error; return the memory growth."""
    content = msgpack.unpackb(path.read_bytes())
    session = targets[content["target"]].start()
    before_kib = _begin_peak()
    try:
        for data in content["inputs"]:
            session.take(data)
        session.check()
        return (_peak_kib() - before_kib) << 10
    finally:
        with contextlib.suppress(Exception):
            session.close()


def limit_room() -> None:
    """Limit this process to slightly more memory than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * _PAGE_BYTES + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _begin_peak() -> int:
    """Reset the memory peak of this process; return the present value in KiB."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_kib()


def _peak_kib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _hangs(_signal: int, _frame: Any) -> None:
    raise HangError(f"no end after {HANG_SECONDS} s")
