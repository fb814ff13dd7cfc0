"""A jail for code that nobody trusts: a Python program under bubblewrap, with limits that add up.

What runs in it sees an interpreter, read-only, and an empty ``/tmp``. It has no network, no home,
fixed environment variables, no new privileges and no namespaces but its own, and it ends with its
whole tree when its deadline passes, when it is killed, and when this process ends.

bubblewrap gives the walls; ``prlimit`` the limits of each process. Two of them do not add up over
processes: memory and the size of files. So one process or few are allowed, and what the tree used
in all is read when it has ended. The kernel never limits how many processes the superuser has:
where this process is the superuser's, ``nobody`` makes the jail.
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
"""verifiers takes 10 s to import (measured), on a machine that does nothing else."""

PROBE_SECONDS = 20
_TOOLS = ("bwrap", "nice", "prlimit", "setarch", "setpriv", "sh", "timeout", "unshare")
_NICENESS = 5
"""The node itself comes first: three times the share of a core."""

STACK_BYTES = 64 << 20
"""Limit of recursion in C: the same depth ends a program on every machine."""

_FILE_BYTES = 4 << 20
_OPEN_FILES = 32


class NoJailError(ValueError):
    """This machine has no jail: what is missing, in one line."""


def jail_slots() -> asyncio.Semaphore:
    """Return room for one jail on every two cores.

    Processor time is what counts, but deadlines must not be met by waiting for a core.
    """
    return asyncio.Semaphore(max(1, (os.cpu_count() or 1) // 2))


class Jailed:
    """A running program in a jail."""

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
        """Give it input; what a program does not read is dropped when it ends."""
        self._entrance.write(data)

    def close_input(self) -> None:
        """Let it find the end of its input."""
        self._entrance.close()

    def kill(self) -> None:
        """End it with its whole tree, and read no more of it; idempotent."""
        self._exit.close()
        if not self._entrance.is_closing():
            self._entrance.abort()
        if not self._ended.done():
            # The group has what was started before it could ask to die with its parent. Nobody else
            # gets its number: the first of it has not been waited for.
            with suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)

    async def wait(self) -> tuple[int, Use]:
        """Return its exit status and what it used, once it has ended."""
        return await asyncio.shield(self._ended)


class Jail:
    """Makes jails on this machine."""

    def __init__(
        self,
        *,
        libraries: bool,
        sources: Mapping[str, Path] | None = None,
        interpreter: Interpreter | None = None,
    ) -> None:
        """Try one; raises ``NoJailError``. Takes a tenth of a second.

        Programs run under ``interpreter``, by default that of this process. With ``libraries`` they
        may import what is installed beside it, and ``sources``, packages by their names.
        """
        tools = {name: shutil.which(name) for name in _TOOLS}
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
            # The kernel's own end of one process is beyond what is over already.
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
        """Run Python source in a jail, and return once it has said ``READY``.

        What is ``lasting`` limits the processor time of its children itself, if of anything.
        Raises ``EngineError`` when it does not: that is a failure of this machine, because nothing
        untrusted has been read yet.
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
            # Nothing is awaited between this and what can end it: a cancelled start leaves nothing.
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
            raise EngineError(f"a jail could not be made: its command ended with status {status}")
        return jailed

    async def run(
        self, program: str, arguments: Sequence[str], given: bytes, limits: JailLimits
    ) -> Ended:
        """Run Python source on ``given`` input to its end or to a limit; see ``start``."""
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
        """Look whether the walls hold; raises ``NoJailError``."""
        hidden = os.path.expanduser("~")  # noqa: PTH111 - text for the other side
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
    """Raise ``NoJailError`` where a program's stack cannot be as large as everywhere."""
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    if hard != resource.RLIM_INFINITY and hard < STACK_BYTES:
        raise NoJailError(
            f"no jail for untrusted code: the hard limit of the stack is {hard >> 10} KiB and must "
            f"be {STACK_BYTES >> 10} KiB or more: raise it (ulimit -Hs, LimitSTACK= of systemd)"
        )


def _program(name: str) -> str:
    """Return the source of a program that runs beside or in a jail."""
    return Path(__file__).with_name("jailed").joinpath(f"{name}.py").read_text()


def _let_open(*ends: int) -> None:
    """Let a program open its standard streams by name, as ``/dev/stdout``, under every user."""
    if os.geteuid() == 0:
        for end in ends:
            os.fchown(end, NOBODY, NOBODY)


def _readable(data: bytes) -> int:
    """Return the reading end of a pipe that holds ``data``, which must be less than a page."""
    reading, writing = os.pipe()
    os.write(writing, data)
    os.close(writing)
    return reading


def _spawn(command: list[str], files: Sequence[int | None]) -> int:
    """Start a process with these files as 0, 1, 2 and so on, None for nothing, and no others."""
    # Our own ends have higher numbers than a program's, so none is overwritten before it is given.
    actions = [
        (os.POSIX_SPAWN_OPEN, place, os.devnull, os.O_RDWR, 0)
        if file is None
        else (os.POSIX_SPAWN_DUP2, file, place)
        for place, file in enumerate(files)
    ]
    # What this process ignores, such as a broken pipe, a program would go on ignoring.
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
"""File descriptor of the system call filter."""

_NO_REPORT = b"137 0 0"
"""The keeper was killed, by us."""
