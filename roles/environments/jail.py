"""Sandbox for untrusted code: a Python program under bubblewrap, with limits for its process tree.

The program sees a read-only interpreter and an empty ``/tmp``. It has no network, no home, fixed
environment variables, no new privileges and its own namespaces. Its whole process tree is killed at
the deadline, on request, and when this process ends.

bubblewrap isolates; ``prlimit`` limits each process. Memory and file size are limited per process,
not per tree, so few processes are allowed, and the use of the whole tree is read at its end. The
kernel does not limit the number of root's processes: as root, user ``nobody`` creates the jail.
"""

import asyncio
import os
import resource
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from roles.environments.jailed.serve import READY
from roles.environments.limits import Ended, JailLimits, Use
from roles.environments.runtime import Interpreter, own_interpreter
from roles.environments.seccomp import one_process
from roles.environments.walls import NOBODY, VARIABLES, Shown, make_walls
from roles.ports.engines import EngineError

START_SECONDS_MAX = 180.0
"""Importing verifiers takes 10 s on an idle machine (measured)."""

PROBE_SECONDS = 20
TOOLS = ("bwrap", "nice", "prlimit", "setarch", "setpriv", "sh", "timeout", "unshare")
_NICENESS = 5
"""Gives the node three times a jail's share of a core."""

STACK_BYTES = 64 << 20
"""Stack size, which limits recursion in C to the same depth on every machine."""

_FILE_BYTES = 4 << 20
_OPEN_FILES = 32


class NoJailError(ValueError):
    """This machine cannot create a jail; the message names the reason in one line."""


def jail_slots() -> asyncio.Semaphore:
    """Return a semaphore with one jail slot per two cores.

    Limits are in CPU time; the slots keep jails from reaching wall-clock deadlines while they wait
    for a core.
    """
    return asyncio.Semaphore(max(1, (os.cpu_count() or 1) // 2))


class Jailed:
    """Running program in a jail."""

    def __init__(
        self,
        pid: int,
        report: int,
        output: asyncio.StreamReader,
        exit_: asyncio.ReadTransport,
        entrance: asyncio.WriteTransport,
    ) -> None:
        self._pid = pid
        self._report = report
        self._exit = exit_
        self._pidfd = os.pidfd_open(pid)
        self._entrance = entrance
        self._ended: asyncio.Future[tuple[int, Use]] = asyncio.get_running_loop().create_future()
        self.output = output
        asyncio.get_running_loop().add_reader(self._pidfd, self._reap)

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        os.waitpid(self._pid, 0)
        status, cpu_seconds, memory_kib = (os.read(self._report, 64) or _NO_REPORT).split()
        os.close(self._report)
        self._entrance.close()
        if not self._ended.done():
            use = Use(float(cpu_seconds), int(memory_kib) << 10)
            self._ended.set_result((int(status), use))

    def write(self, data: bytes) -> None:
        """Write to its input; unread input is dropped when the program ends."""
        self._entrance.write(data)

    def close_input(self) -> None:
        """Close its input."""
        self._entrance.close()

    def kill(self) -> None:
        """Kill its process tree and stop reading its output; idempotent."""
        self._exit.close()
        if not self._entrance.is_closing():
            self._entrance.abort()
        if not self._ended.done():
            # The group includes processes without a parent-death signal yet. Its id cannot be
            # reused: its leader has not been waited for.
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    async def wait(self) -> tuple[int, Use]:
        """Wait for its end; return its exit status and resource use."""
        return await asyncio.shield(self._ended)


class Jail:
    """Factory of jails on this machine."""

    def __init__(
        self,
        *,
        libraries: bool,
        sources: Mapping[str, Path] | None = None,
        interpreter: Interpreter | None = None,
    ) -> None:
        """Verify that jails work here; raises ``NoJailError``. Takes 0.1 s.

        Programs run under ``interpreter``, by default that of this process. With ``libraries`` they
        may import its installed packages, and the packages in ``sources``, by name.
        """
        tools = {name: shutil.which(name) for name in TOOLS}
        missing = [name for name, path in tools.items() if path is None]
        if missing:
            raise NoJailError(f"no jail for untrusted code: {', '.join(missing)} not installed")
        self._tools = {name: str(path) for name, path in tools.items()}
        chosen = interpreter or own_interpreter()
        directories = (chosen.prefix, chosen.base_prefix) if libraries else (chosen.base_prefix,)
        python = str(chosen.executable if libraries else chosen.bare)
        self._walls = make_walls(
            self._tools, Shown(python, directories, sources or {}, libraries=libraries)
        )
        options = "-PsB" if libraries else "-PsSB"
        self._keeper = [self._tools["nice"], "-n", str(_NICENESS)]
        self._keeper += [self._tools["setpriv"], "--pdeathsig=KILL", "--"]
        self._keeper += [str(own_interpreter().bare), "-IS", "-c", _program("keeper")]
        self._python = [python, options, "-c"]
        self._filter = _filter()
        _require_stack()
        for limits in (_PROBE_TREE, _PROBE_THREADS):
            self._prove(limits)

    def _command(
        self, limits: JailLimits, program: str, arguments: Sequence[str], *, lasting: bool = False
    ) -> list[str]:
        ceilings = {
            "as": limits.address_space_bytes,
            # The kernel's limit per process lies above the hard limit of the tree.
            "cpu": "unlimited" if lasting else limits.cpu_hard_seconds + 1,
            "nproc": max(limits.processes_max, limits.threads_max),
            "stack": STACK_BYTES,
            "fsize": _FILE_BYTES,
            "nofile": _OPEN_FILES,
            "core": 0,
            "memlock": 0,
            "msgqueue": 0,
            "sigpending": 64,
        }
        prlimit = [self._tools["prlimit"], *(f"--{key}={value}" for key, value in ceilings.items())]
        inside = [*prlimit, "--", self._tools["setarch"], "-R", *self._python, program]
        walls = self._walls
        if limits.processes_max == 1:
            walls = [*walls[:-1], "--seccomp", str(_FILTER_PLACE), "--"]
        return [*walls, *inside, *arguments]

    async def start(
        self, program: str, arguments: Sequence[str], limits: JailLimits, *, lasting: bool = False
    ) -> Jailed:
        """Run Python source in a jail, and return once it has written ``READY``.

        A ``lasting`` program limits the CPU time of its children itself. Raises ``EngineError`` if
        it does not start: the program has read no untrusted input yet, so this machine is at fault.
        """
        loop = asyncio.get_running_loop()
        command = self._command(limits, program, arguments, lasting=lasting)
        input_end, entrance_end = os.pipe()
        output_end, exit_end = os.pipe()
        report_end, told_end = os.pipe()
        filter_end = _readable(self._filter)
        _let_open(input_end, exit_end)
        output = asyncio.StreamReader(limit=1 << 16)
        ours: list[asyncio.BaseTransport] = []
        unused = {entrance_end, output_end, report_end}
        try:
            unused.discard(output_end)
            exit_, _ = await loop.connect_read_pipe(
                lambda: asyncio.StreamReaderProtocol(output), os.fdopen(output_end, "rb", 0)
            )
            ours.append(exit_)
            unused.discard(entrance_end)
            entrance, _ = await loop.connect_write_pipe(
                asyncio.BaseProtocol, os.fdopen(entrance_end, "wb", 0)
            )
            ours.append(entrance)
            # No await follows before ``Jailed`` can kill it: a cancelled start leaves no process.
            pid = _spawn(
                [*self._keeper, *command], (input_end, exit_end, None, told_end, filter_end)
            )
        except BaseException as error:
            for transport in ours:
                transport.close()
            for end in unused:
                os.close(end)
            if isinstance(error, OSError):
                raise EngineError.of(error) from None
            raise
        finally:
            for end in (input_end, exit_end, told_end, filter_end):
                os.close(end)
        jailed = Jailed(pid, report_end, output, exit_, entrance)
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                said = await output.readexactly(len(READY))
        except (asyncio.IncompleteReadError, TimeoutError):
            said = b""
        except BaseException:
            jailed.kill()
            raise
        if said != READY:
            jailed.kill()
            status, _ = await jailed.wait()
            raise EngineError(f"cannot start a jail: its command exited with status {status}")
        return jailed

    async def run(
        self, program: str, arguments: Sequence[str], given: bytes, limits: JailLimits
    ) -> Ended:
        """Run Python source on ``given`` input until it ends or reaches a limit; see ``start``."""
        jailed = await self.start(program, arguments, limits)
        output = bytearray()
        expired = False
        try:
            jailed.write(given)
            jailed.close_input()
            async with asyncio.timeout(limits.wall_seconds):
                while len(output) <= limits.output_bytes_max:
                    piece = await jailed.output.read(1 << 16)
                    if not piece:
                        await jailed.wait()
                        break
                    output += piece
        except TimeoutError:
            expired = True
        finally:
            jailed.kill()
        status, use = await jailed.wait()
        flooded = len(output) > limits.output_bytes_max
        return Ended(status, bytes(output), use, flooded=flooded, expired=expired)

    def _prove(self, limits: JailLimits) -> None:
        """Verify that the jail isolates a program; raises ``NoJailError``."""
        hidden = os.path.expanduser("~")  # noqa: PTH111 - text for the program inside
        tasks = [str(limits.processes_max), str(limits.threads_max)]
        arguments = [hidden, *tasks, ",".join(VARIABLES)]
        deadline = [self._tools["timeout"], "-s", "KILL", str(PROBE_SECONDS)]
        command = [*deadline, *self._command(limits, _program("probe"), arguments)]
        output_end, exit_end = os.pipe()
        filter_end = _readable(self._filter)
        with open(os.devnull, "rb") as nothing, os.fdopen(output_end, "rb") as output:  # noqa: PTH123
            try:
                files = (nothing.fileno(), exit_end, exit_end, None, filter_end)
                pid = _spawn(command, files)
            finally:
                os.close(exit_end)
                os.close(filter_end)
            said = output.read(4096).decode(errors="replace")
        os.waitpid(pid, 0)
        if said != "holds\n":
            reason = " ".join(said.split())[:200] or f"no answer within {PROBE_SECONDS} s"
            raise NoJailError(f"no jail for untrusted code: {reason}")


def _filter() -> bytes:
    try:
        return one_process(os.uname().machine)
    except ValueError as error:
        raise NoJailError(f"no jail for untrusted code: {error}") from None


def _require_stack() -> None:
    """Raise ``NoJailError`` if the stack limit cannot be set to ``STACK_BYTES``."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    if hard != resource.RLIM_INFINITY and hard < STACK_BYTES:
        raise NoJailError(
            f"no jail for untrusted code: the hard limit of the stack is {hard >> 10} KiB and must "
            f"be {STACK_BYTES >> 10} KiB or more: raise it (ulimit -Hs, LimitSTACK= of systemd)"
        )


def _program(name: str) -> str:
    """Return the source of a program in ``jailed``."""
    return Path(__file__).with_name("jailed").joinpath(f"{name}.py").read_text()


def _let_open(*ends: int) -> None:
    """Allow every user to open a program's standard streams by name, as ``/dev/stdout``."""
    if os.geteuid() == 0:
        for end in ends:
            os.fchown(end, NOBODY, NOBODY)


def _readable(data: bytes) -> int:
    """Return the read end of a pipe that holds ``data``, at most one page."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


def _spawn(command: list[str], files: Sequence[int | None]) -> int:
    """Start a process with exactly ``files`` as descriptors 0, 1, 2 and so on, None for none."""
    # This process's ends have higher numbers, so none is overwritten before it is passed on.
    actions = [
        (os.POSIX_SPAWN_OPEN, place, os.devnull, os.O_RDWR, 0)
        if file is None
        else (os.POSIX_SPAWN_DUP2, file, place)
        for place, file in enumerate(files)
    ]
    # A program would inherit ignored signals, such as SIGPIPE.
    return os.posix_spawn(
        command[0],
        command,
        {},
        file_actions=actions,
        setpgroup=0,
        setsigmask=[],
        setsigdef=[signal.SIGPIPE, signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
    )


_PROBE_TREE = JailLimits(5, 10, 64 << 20, 128 << 20, PROBE_SECONDS, 4096)
_PROBE_THREADS = replace(_PROBE_TREE, processes_max=1, threads_max=8)

_FILTER_PLACE = 4
"""File descriptor of the seccomp filter."""

_NO_REPORT = b"137 0 0"
"""Report when this process killed the keeper."""
