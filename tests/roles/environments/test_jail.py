import asyncio
import fcntl
import os
import signal
import struct
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path

import pytest

from roles.environments import jail as jails
from roles.environments.jail import Jail, NoJailError
from roles.environments.limits import JailLimits, Use
from roles.environments.seccomp import one_process
from roles.environments.walls import VARIABLES
from roles.ports.engines import EngineError, Unscorable
from tests.worlds.text import needs_jail

pytestmark = needs_jail

MIB = 1 << 20
SLEEP = b"import time; time.sleep(99)"
LIMITS = JailLimits(1.0, 1, 64 * MIB, 128 * MIB, 60.0, 100_000)
MARK = f"jail of {os.getpid()}"
RUN = f"import os, sys\n{MARK!r}\nos.write(1, b'ready\\n')\nexec(sys.stdin.read())"


@pytest.fixture(scope="module")
def jail():
    return Jail(libraries=False)


async def ran(jail, program, limits=LIMITS):
    return await jail.run(RUN, [], textwrap.dedent(program).encode(), limits)


async def said(jail, program):
    """Return the output of a program that exits normally."""
    ended = await ran(jail, program)
    assert ended.status == 0, ended
    assert not ended.expired and not ended.flooded
    return ended.output.decode()


def jailed_processes():
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True
    )
    return [line for line in listed.stdout.splitlines() if MARK in line]


async def test_a_program_gets_its_input_and_its_output_is_returned(jail):
    assert await said(jail, "print(6 * 7)") == "42\n"
    ended = await ran(jail, "sys.exit(3)")
    assert (ended.status, ended.output) == (3, b"")


async def test_nothing_of_this_machine_is_there(jail, tmp_path):
    """Files, variables, processes, network and users are all hidden."""
    (tmp_path / "secret").write_text("secret")
    os.environ["SECRET"] = "secret"
    told = await said(
        jail,
        f"""
        import socket
        print(os.path.exists({str(tmp_path / "secret")!r}), os.path.exists("/etc/passwd"))
        print("SECRET" in os.environ, os.getuid(), [p for p in os.listdir("/proc") if p.isdigit()])
        print(os.listdir("/tmp"), [name for _, name in socket.if_nameindex()])
        print(open("/proc/self/status").read().split("NoNewPrivs:")[1][:2].strip())
        """,
    )
    del os.environ["SECRET"]
    assert told.splitlines() == ["False False", "False 65534 ['1']", "[] ['lo']", "1"]


async def test_no_two_programs_meet(jail):
    await said(jail, "open('/tmp/left', 'w').write('x'); open('/dev/shm/left', 'w').write('x')")
    assert await said(jail, "print(os.listdir('/tmp'), os.listdir('/dev/shm'))") == "[] []\n"


@pytest.mark.parametrize("where", ["/", "/usr", "/dev", "/proc", sys.base_prefix])
async def test_only_scratch_can_be_written(jail, where):
    program = f"""
        try:
            open({where!r} + "/made", "w")
        except OSError:
            print("refused")
    """
    assert await said(jail, program) == "refused\n"


async def test_limits_of_one_process_hold(jail):
    program = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        for name in ("AS", "NPROC", "FSIZE", "NOFILE", "CORE", "CPU"):
            print(name, resource.getrlimit(getattr(resource, "RLIMIT_" + name)))
        for size in (1 << 30, 20 << 20):
            try:
                open("/tmp/large", "wb").truncate(size)
            except OSError as error:
                print(error.errno)
    """
    told = (await said(jail, program)).splitlines()
    assert told[:6] == [
        f"AS ({160 * MIB}, {160 * MIB})",
        "NPROC (8, 8)",
        f"FSIZE ({4 * MIB}, {4 * MIB})",
        "NOFILE (32, 32)",
        "CORE (0, 0)",
        "CPU (2, 2)",
    ]
    assert told[6:] == ["27", "27"]


async def test_processor_time_of_the_whole_tree_is_counted(jail):
    """The count includes children that were not waited for."""
    burn = """
        import time
        children = []
        for _ in range(2):
            children.append(os.fork())
            if children[-1] == 0:
                while time.process_time() < 0.4:
                    pass
                os._exit(0)
        for child in children:
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    """
    ended = await ran(jail, burn)
    assert 0.75 < ended.use.cpu_seconds < 1.2
    assert ended.use.over(JailLimits(0.1, 0.5, MIB, 1 << 40, 1, 1))


async def test_who_loops_is_ended_by_processor_time(jail):
    ended = await ran(jail, "import signal\nsignal.signal(24, signal.SIG_IGN)\nwhile True: pass")
    assert ended.status == 128 + signal.SIGKILL
    assert ended.use.over(LIMITS)
    assert not ended.expired


async def test_who_sleeps_is_ended_by_the_deadline_with_its_whole_tree(jail):
    program = "import time\nos.fork(); os.setsid() if os.fork() == 0 else 0\ntime.sleep(99)"
    limits = JailLimits(1.0, 1, 64 * MIB, 128 * MIB, 0.5, 1000)
    ended = await ran(jail, program, limits)
    assert ended.expired and not ended.use.over(limits)
    for _ in range(100):
        if not jailed_processes():
            break
        await asyncio.sleep(0.05)
    assert jailed_processes() == []


async def test_who_floods_is_ended_and_no_more_is_read(jail):
    ended = await ran(jail, "while True: print('x' * 1000)")
    assert ended.flooded
    assert len(ended.output) <= LIMITS.output_bytes_max + (1 << 16)


async def test_memory_of_the_largest_process_is_counted_and_limited(jail):
    ended = await ran(jail, "x = bytearray(100 << 20)\nx[::4096] = b'x' * len(x[::4096])")
    assert 100 * MIB < ended.use.memory_bytes < 128 * MIB
    small = await ran(jail, "pass")
    assert small.use.memory_bytes < 32 * MIB, "that of this process counts"
    assert (await ran(jail, "bytearray(200 << 20)")).status == 1


def test_a_jail_ends_with_the_process_that_made_it():
    script = f"""
        import asyncio
        from roles.environments.jail import Jail
        from roles.environments.limits import JailLimits
        async def main():
            jail = Jail(libraries=False)
            limits = JailLimits(1, 1, 1 << 26, 1 << 27, 99, 1000)
            running = asyncio.create_task(jail.run({RUN!r}, [], {SLEEP!r}, limits))
            await asyncio.sleep(1)
            print("runs", flush=True)
            await running
        asyncio.run(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout.readline() == "runs\n"
        assert jailed_processes()
        maker.kill()
    for _ in range(100):
        if not jailed_processes():
            break
        time.sleep(0.05)
    assert jailed_processes() == []


@pytest.mark.parametrize("after_seconds", [0.0, 0.003, 0.01, 0.03, 0.1, 0.5])
async def test_a_cancelled_run_leaves_nothing(jail, after_seconds):
    running = asyncio.create_task(ran(jail, "import time; time.sleep(99)"))
    await asyncio.sleep(after_seconds)
    running.cancel()
    await asyncio.wait([running])
    until = time.monotonic() + 20
    while jailed_processes() and time.monotonic() < until:  # noqa: ASYNC110 - they tell nobody
        await asyncio.sleep(0.05)
    assert jailed_processes() == []


@pytest.mark.slow
def test_what_is_installed_may_lie_where_a_jail_has_its_scratch(tmp_path, monkeypatch):
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True
    )
    assert Path("/tmp") in tmp_path.parents
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    Jail(libraries=True)


async def test_a_program_that_cannot_begin_is_a_failure_of_this_machine(jail):
    with pytest.raises(EngineError, match="cannot start a jail"):
        await jail.run("import nothing_such", [], b"", LIMITS)


def test_a_machine_without_the_tools_says_which(monkeypatch):
    monkeypatch.setattr(jails.shutil, "which", lambda name: None if name == "bwrap" else name)
    with pytest.raises(NoJailError, match=r"^no jail for untrusted code: bwrap not installed$"):
        Jail(libraries=False)


@pytest.mark.parametrize(
    ("left_out", "hole"),
    [
        (("--remount-ro", "/"), "a writable root"),
        (("--remount-ro", "/dev"), "writable devices"),
    ],
)
def test_walls_with_a_hole_are_noticed_at_the_start(monkeypatch, left_out, hole):
    honest = jails.make_walls

    def walls(*arguments):
        made = honest(*arguments)
        for at in range(len(made)):
            if tuple(made[at : at + len(left_out)]) == left_out:
                return made[:at] + made[at + len(left_out) :]
        raise AssertionError(left_out)

    monkeypatch.setattr(jails, "make_walls", walls)
    with pytest.raises(NoJailError, match=hole):
        Jail(libraries=False)


def test_processes_without_a_limit_are_noticed_at_the_start(monkeypatch):
    honest = Jail._command

    def command(self, *arguments, **options):
        return [one for one in honest(self, *arguments, **options) if "--nproc" not in one]

    monkeypatch.setattr(Jail, "_command", command)
    with pytest.raises(
        NoJailError, match=r"^no jail for untrusted code: processes without a limit$"
    ):
        Jail(libraries=False)


def test_a_jail_whose_filter_lets_processes_start_is_noticed(monkeypatch):
    allow = struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000)
    monkeypatch.setattr(jails, "one_process", lambda machine: allow)
    with pytest.raises(NoJailError, match="processes of a program that may have one"):
        Jail(libraries=False)


def test_a_machine_that_grants_fewer_threads_is_noticed(monkeypatch):
    honest = Jail._command

    def command(self, limits, *arguments, **options):
        fewer = replace(limits, threads_max=limits.threads_max - 1)
        return honest(self, fewer, *arguments, **options)

    monkeypatch.setattr(Jail, "_command", command)
    with pytest.raises(NoJailError, match="fewer threads than anywhere else"):
        Jail(libraries=False)


def test_a_machine_with_a_smaller_stack_says_so():
    script = "from roles.environments.jail import Jail; Jail(libraries=False)"
    limited = ["prlimit", f"--stack={8 * MIB}:{32 * MIB}", sys.executable, "-c", script]
    ended = subprocess.run(limited, capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines()[-1] == (
        "roles.environments.jail.NoJailError: no jail for untrusted code: the hard limit of the "
        "stack is 32768 KiB and must be 65536 KiB or more: raise it (ulimit -Hs, LimitSTACK= of "
        "systemd)"
    )


def test_a_processor_without_a_filter_says_so():
    with pytest.raises(ValueError, match=r"^no system call filter for riscv64, only for x86_64,"):
        one_process("riscv64")


ONE = replace(LIMITS, processes_max=1, threads_max=12)


@pytest.mark.parametrize(
    "attempt",
    [
        "os.fork()",
        "os.posix_spawn(sys.executable, [sys.executable, '-c', ''], {})",
        "import subprocess; subprocess.run([sys.executable, '-c', ''])",
        "import subprocess; subprocess.run('true', shell=True, preexec_fn=lambda: None)",
        "import multiprocessing; multiprocessing.Process(target=print).start()",
        "import ctypes; raise PermissionError if ctypes.CDLL(None).vfork() == -1 else Exception",
    ],
)
async def test_a_program_that_may_have_one_process_starts_no_other(jail, attempt):
    program = f"try:\n    {attempt}\nexcept PermissionError:\n    print('refused')"
    ended = await ran(jail, program, ONE)
    assert (ended.status, ended.output) == (0, b"refused\n")


async def test_what_this_process_was_left_is_not_for_a_program(jail):
    reading, writing = os.pipe()
    kept = fcntl.fcntl(reading, fcntl.F_DUPFD, 100)
    os.set_inheritable(kept, True)
    try:
        program = "print([name for name in os.listdir('/proc/self/fd') if int(name) > 10])"
        assert await said(jail, program) == "[]\n"
    finally:
        for end in (reading, writing, kept):
            os.close(end)


async def test_threads_are_limited_by_their_number(jail):
    program = """
        import _thread
        _thread.stack_size(1 << 20)
        lock = _thread.allocate_lock()
        lock.acquire()
        started = 1
        try:
            while started < 99:
                _thread.start_new_thread(lock.acquire, ())
                started += 1
        except RuntimeError:
            print(started, flush=True)
        os._exit(0)
    """
    assert (await ran(jail, program, ONE)).output == b"12\n"


async def test_what_a_program_sees_does_not_depend_on_the_machine(jail):
    told = await said(
        jail,
        """
        import locale, resource, socket, time, zoneinfo
        print(resource.getrlimit(resource.RLIMIT_STACK), socket.gethostname())
        print(*map(os.path.exists, ["/usr/share", "/bin/sh"]), os.listdir("/usr/lib/locale"))
        print(sorted(os.environ))
        print(time.tzname, time.localtime(0).tm_hour, zoneinfo.available_timezones())
        print(sys.getdefaultencoding(), sys.stdout.encoding, sys.stdout.errors)
        print(locale.setlocale(locale.LC_ALL, ""), sys.get_int_max_str_digits(), hash("x"))
        try:
            locale.setlocale(locale.LC_ALL, "en_US.UTF-8")
        except locale.Error:
            print("no locale")
        for name in ("cpuinfo", "meminfo", "stat", "version", "uptime"):
            try:
                open("/proc/" + name)
            except PermissionError:
                print("refused")
        """,
    )
    lines = told.splitlines()
    assert lines[0] == f"({64 * MIB}, {64 * MIB}) jail"
    assert lines[1] == "False False []"
    assert lines[2] == str(sorted([*VARIABLES, "PWD"]))
    assert lines[3] == "('UTC', 'UTC') 0 set()"
    assert lines[4] == "utf-8 utf-8 strict"
    assert lines[5].startswith("C 0 ")
    assert lines[6:] == ["no locale", *["refused"] * 5]


def test_between_the_limits_machines_may_differ():
    limits = JailLimits(1.0, 4, 10 * MIB, 20 * MIB, 1, 1)
    assert Use(0.9, 9 * MIB).between(limits) is None
    assert Use(1.0, 0).between(limits) == Unscorable("1.0 s of processor time")
    assert Use(0.0, 10 * MIB).between(limits) == Unscorable("10 MiB of memory")
    assert not Use(3.9, 19 * MIB).over(limits)
    assert Use(4.0, 0).over(limits)
    assert Use(0.0, 20 * MIB).over(limits)
    assert Use(0.5, 7).and_then(Use(0.75, 5)) == Use(1.25, 7)
