"""Engine processes seen from the daemon: forked, watched by a lifeline socket, killed.

``EngineProcesses`` is the client of a fork server: its own, or one shared by several daemons of a
machine. Its own starts with the first fork, and again if it died.
"""

import asyncio
import os
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from roles.engines.factory import EngineName
from roles.ports.engines import EngineError

log = structlog.get_logger()

KILL_SECONDS = 5.0
"""A killed process is gone within milliseconds, unless a driver blocks it."""

_LAST_LINES_SECONDS = 0.5

_LINES_KEPT = 20
_LINE_CHARACTERS_MAX = 500
_STREAM_BYTES = 1 << 16
_SHOWN_CHARACTERS_MAX = 120

_PASSED_ON = (
    "PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH",
    "VIRTUAL_ENV",
)  # fmt: skip
_PASSED_ON_PREFIXES = ("CUDA_", "NVIDIA_", "PYTORCH_", "TORCH_", "NCCL_")
"""Environment variables that an engine may need; a user's tokens and passwords are not passed."""


HEAP = "glibc.malloc.hugetlb=1"
"""Settings of glibc's heap in an engine's process: ask for huge pages.

Each step allocates its gradients and activations anew, and has a ninth of the page faults then
(measured: SmolLM2-135M, float32). Element-wise operations with a new result take half the time.
"""


class ErrorLines:
    """Last lines that a process wrote to its standard error, which is ``socket``."""

    def __init__(self) -> None:
        self._ours, self.socket = socket.socketpair()
        self.lines: deque[str] = deque(maxlen=_LINES_KEPT)
        self._reading = asyncio.create_task(self._read())

    @property
    def last(self) -> str:
        """The last line, cut for an error message; empty if there is none."""
        return self.lines[-1][:_SHOWN_CHARACTERS_MAX] if self.lines else ""

    async def end(self) -> None:
        """Read the remaining output of an ended process for a moment, then close."""
        self.socket.close()
        await asyncio.wait([self._reading], timeout=_LAST_LINES_SECONDS)
        self.close()

    def close(self) -> None:
        """Stop reading; idempotent."""
        self._reading.cancel()
        self.socket.close()

    async def _read(self) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=self._ours, limit=_STREAM_BYTES)
        try:
            while True:
                try:
                    line = await reader.readline()
                except ValueError:  # longer than the reader's limit: drop the line
                    continue
                except OSError:
                    return
                if not line:
                    return
                text = line.decode(errors="replace").strip()[:_LINE_CHARACTERS_MAX]
                if text:
                    self.lines.append(text)
                    log.debug("engine process output", line=text)
        finally:
            writer.close()


class EngineProcess:
    """One engine process; ``reader`` and ``writer`` are its channel."""

    def __init__(
        self,
        pid: int,
        channel: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        leash: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        errors: ErrorLines,
    ) -> None:
        self.pid = pid
        self.reader, self.writer = channel
        self.errors = errors
        self._leash = leash[1]
        self._ended = asyncio.create_task(_ending(leash[0]))

    async def kill(self) -> str:
        """Kill the process and close its sockets; return how it had ended by itself, or nothing.

        Waits for at most ``KILL_SECONDS``. A process that closed its channel gets a moment to exit.
        """
        try:
            await asyncio.wait([self._ended], timeout=KILL_SECONDS / 10)
            known = self._ended.done() and not self._ended.cancelled()
            own = self._ended.result() if known else ""
            with suppress(OSError):
                self._leash.write(b"kill\n")
            await asyncio.wait([self._ended], timeout=KILL_SECONDS)
        finally:
            self._ended.cancel()
            self.writer.close()
            self._leash.close()  # kills the process, also when this task is cancelled
            await self.errors.end()
        return own


class EngineProcesses:
    """Fork engine processes.

    ``python`` is the interpreter of its own fork server, which imports the modules of ``engine``;
    ``shared`` is the socket of another fork server.
    """

    def __init__(
        self,
        python: Path | None = None,
        shared: Path | None = None,
        engine: EngineName = "builtin",
    ) -> None:
        self._python = python or Path(sys.executable)
        self._engine = engine
        self._shared = shared
        self._server: subprocess.Popen[bytes] | None = None
        self._client: socket.socket | None = None
        self._errors: ErrorLines | None = None

    async def fork(self, seconds: float) -> EngineProcess:
        """Return a new process; raises ``EngineError`` if there is none within ``seconds``."""
        try:
            errors = ErrorLines()
            ours, channel = socket.socketpair()
            holding, leash = socket.socketpair()
            reader, writer = await asyncio.open_unix_connection(sock=holding)
        except OSError as error:  # too many open files
            raise EngineError.of(error) from None
        try:
            with channel, leash:
                descriptors = [one.fileno() for one in (channel, leash, errors.socket)]
                socket.send_fds(self._connected(), [b"f"], descriptors)
            errors.socket.close()
            async with asyncio.timeout(seconds):
                pid = int(await reader.readline())
            return EngineProcess(
                pid, await asyncio.open_unix_connection(sock=ours), (reader, writer), errors
            )
        except (OSError, ValueError, TimeoutError) as error:
            if self._errors is not None:
                await self._errors.end()
            reason = self._why(error)
            self.close()
            writer.close()
            ours.close()
            errors.close()
            raise EngineError(reason) from None
        except asyncio.CancelledError:
            writer.close()  # closing the lifeline kills the process, if it exists
            ours.close()
            errors.close()
            raise

    def close(self) -> None:
        """End its own fork server and all its children; idempotent. ``fork`` starts a new one."""
        if self._client is not None:
            self._client.close()
        if self._server is not None:
            self._server.kill()
            self._server.wait()  # returns at once: it was killed
        if self._errors is not None:
            self._errors.close()
        self._client = self._server = self._errors = None

    def _connected(self) -> socket.socket:
        if self._server is not None and self._server.poll() is not None:
            self.close()
        if self._client is None:
            self._client = self._start() if self._shared is None else _connect(self._shared)
        return self._client

    def _start(self) -> socket.socket:
        self._errors = ErrorLines()
        with self._errors.socket as errors:
            self._server, client = start_fork_server(
                self._python, errors.fileno(), engine=self._engine
            )
        client.setblocking(False)  # a hanging fork server must not block the daemon
        return client

    def _why(self, error: Exception) -> str:
        if self._shared is not None:
            return f"no engine process from {self._shared}: {type(error).__name__}"
        code = None if self._server is None else self._server.poll()
        last = "" if self._errors is None else self._errors.last
        if isinstance(error, TimeoutError):
            return f"{self._python} started no engine process in time: {last}"
        how = str(error) if code is None and not last else last or f"exit code {code}"
        return f"{self._python} started no engine process: {how}"[:200]


def _connect(path: Path) -> socket.socket:
    """Connect to a shared fork server without waiting; raises ``OSError``."""
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.setblocking(False)
    try:
        client.connect(str(path))
    except OSError:
        client.close()
        raise
    return client


def start_fork_server(
    python: Path, errors: int, listen: Path | None = None, engine: EngineName = "builtin"
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a fork server out of reach of terminal signals; return it and its starter's socket.

    It lives until that socket closes, forks for clients that connect to ``listen``, and writes to
    the descriptor ``errors``. Raises ``OSError``.
    """
    client, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    arguments = [str(theirs.fileno()), engine, *([] if listen is None else [str(listen)])]
    with theirs:
        try:
            server = subprocess.Popen(  # noqa: S603 - the operator configured the interpreter
                [str(python), "-P", "-m", "roles.engines.subprocess.forkserver", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=engine_environment(os.environ),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        except OSError:
            client.close()
            raise
    return server, client


def engine_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an engine's environment variables; it computes in one CPU thread.

    Two processes with two threads each on two cores ran 8 to 20 times slower (measured).
    """
    passed_on = {
        name: value
        for name, value in environment.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    # Libraries look for a GPU at import: torch's default check would make CUDA unusable in forked
    # processes; the check through NVML does not.
    own = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    own["GLIBC_TUNABLES"] = HEAP
    return passed_on | own | {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}


async def _ending(leash: asyncio.StreamReader) -> str:
    """Wait until a process has ended; return how, in words."""
    try:
        code = int(await leash.readline())
    except (OSError, ValueError):  # reset, or closed without a status
        return "lost its fork server"
    if code == -9:
        return "was killed by signal 9, perhaps because memory ran out"
    return f"was killed by signal {-code}" if code < 0 else f"exited with code {code}"
