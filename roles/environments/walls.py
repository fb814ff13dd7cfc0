"""Bubblewrap command line of a jail: files, devices and namespaces visible to a program.

A program sees the same files on every machine: the interpreter, shared libraries and two tools that
set limits. Locales, time zones, word lists and shells differ between machines, so they are hidden.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NOBODY = 65534
HOSTNAME = "jail"

SCRATCH = ("/dev/shm", "/tmp")  # noqa: S108 - the jail's own
SCRATCH_BYTES = 16 << 20

SHARED_PREFIXES = (Path("/usr"), Path("/usr/local"))
"""Prefixes that an interpreter shares with other software: only its own files are visible."""

VARIABLES = {
    "LC_ALL": "C",
    "MPMATH_NOGMPY": "1",  # disables gmpy, which may or may not be installed
    "SYMPY_GROUND_TYPES": "python",
    "MALLOC_ARENA_MAX": "1",  # else each thread maps a heap of 64 MiB
    "OPENBLAS_NUM_THREADS": "1",  # each of its threads would map memory
    "PYTHONHASHSEED": "0",
    "PYTHONINTMAXSTRDIGITS": "0",  # the CPU limits suffice
    "PYTHONIOENCODING": "utf-8:strict",
    "PYTHONPATH": "/sources",
    "PYTHONUTF8": "1",
    "TZ": "UTC0",
}
"""All environment variables of a program, except PWD."""

_MASKED_DIRECTORIES = ("/usr/lib/locale", "/usr/lib64/locale")
_PACKAGE_DIRECTORIES = ("site-packages", "dist-packages")

_MASKED_IN_PROC = (
    "buddyinfo",
    "cmdline",
    "config.gz",
    "consoles",
    "cpuinfo",
    "crypto",
    "devices",
    "diskstats",
    "filesystems",
    "interrupts",
    "iomem",
    "ioports",
    "kallsyms",
    "loadavg",
    "meminfo",
    "misc",
    "modules",
    "pagetypeinfo",
    "partitions",
    "schedstat",
    "slabinfo",
    "softirqs",
    "stat",
    "swaps",
    "uptime",
    "version",
    "version_signature",
    "vmallocinfo",
    "vmstat",
    "zoneinfo",
)
"""Kernel files that describe the machine; opening one fails with EACCES."""

_STAGE = "/mnt"

_STAGED = f"""
mount -t tmpfs -o mode=755 stage {_STAGE}
number=0
while [ "$1" != -- ]; do
    mkdir {_STAGE}/$number
    mount --bind "$1" {_STAGE}/$number
    number=$((number + 1))
    shift
done
shift
exec "$@"
"""
"""Makes directories visible to user ``nobody``, which may not enter root's home, by bind mounts in
a mount namespace."""


@dataclass(frozen=True, slots=True)
class Shown:
    """Files of this machine that are visible in a jail, all read-only."""

    python: str
    directories: Sequence[Path]
    """Prefixes of the interpreter and of its packages."""
    sources: Mapping[str, Path]
    libraries: bool
    """True if programs may import installed packages."""


def make_walls(tools: Mapping[str, str], shown: Shown) -> list[str]:
    """Return the command prefix that runs the command after it in a jail.

    As root, user ``nobody`` creates the jail.
    """
    own = [path for path in shown.directories if path not in SHARED_PREFIXES]
    seen = {str(path): path for path in own}
    seen |= {f"/sources/{name}": path for name, path in shown.sources.items()}
    walls: list[str] = []
    if os.geteuid() == 0:
        staged = {inside: Path(_STAGE, str(n)) for n, inside in enumerate(seen)}
        walls += [tools["unshare"], "--mount", "--", tools["sh"], "-ec", _STAGED]
        walls += ["sh", *(str(path.resolve()) for path in seen.values()), "--"]
        walls += [tools["setpriv"], f"--reuid={NOBODY}", f"--regid={NOBODY}"]
        walls += ["--clear-groups", "--"]
        seen = staged
    walls += [tools["bwrap"], "--unshare-all", "--unshare-user", "--disable-userns"]
    # As process 1 the program itself is waited for, which includes the use of its tree.
    walls += ["--as-pid-1", "--die-with-parent", "--new-session", "--clearenv"]
    walls += ["--hostname", HOSTNAME, "--uid", str(NOBODY), "--gid", str(NOBODY)]
    walls += _system(tools, shown)
    walls += ["--proc", "/proc", "--dev", "/dev"]
    for name in _MASKED_IN_PROC:
        if Path("/proc", name).exists():
            walls += ["--ro-bind", os.devnull, f"/proc/{name}"]
    for scratch in SCRATCH:
        walls += ["--size", str(SCRATCH_BYTES), "--tmpfs", scratch]
    # After the scratch directories: packages may be installed below ``/tmp``.
    for inside, path in seen.items():
        walls += ["--ro-bind", str(path), inside]
    for masked in _masked(shown):
        walls += ["--tmpfs", str(masked), "--remount-ro", str(masked)]
    walls += ["--chdir", "/tmp", "--remount-ro", "/dev", "--remount-ro", "/"]  # noqa: S108
    for name, value in VARIABLES.items():
        walls += ["--setenv", name, value]
    return [*walls, "--"]


def _system(tools: Mapping[str, str], shown: Shown) -> list[str]:
    """Return the binds of shared libraries and of single programs."""
    binds = []
    for path in _libraries(Path("/usr"), Path("/usr/lib", f"{os.uname().machine}-linux-gnu")):
        binds += ["--ro-bind", str(path), str(path)]
    if shown.libraries or SHARED_PREFIXES[1] in shown.directories:
        for path in sorted(SHARED_PREFIXES[1].glob("lib*")):
            binds += ["--ro-bind", str(path), str(path)]
    for path in map(Path, ("/lib", "/lib64")):
        if path.exists():
            link = path.is_symlink()
            binds += ["--symlink", str(path.readlink())] if link else ["--ro-bind", str(path)]
            binds.append(str(path))
    programs = [Path(tools["prlimit"]), Path(tools["setarch"]), *_links(Path(shown.python))]
    own = [path for path in shown.directories if path not in SHARED_PREFIXES]
    for program in programs:
        if not any(path in program.parents for path in own):
            binds += ["--ro-bind", str(program.resolve()), str(program)]
    return binds


def _libraries(usr: Path, multiarch: Path) -> Iterable[Path]:
    """Return the paths of the system's shared libraries and of its Python's standard library."""
    if not multiarch.is_dir():
        yield usr / "lib"
    else:
        yield multiarch
        yield from sorted(multiarch.parent.glob("ld-*"))
        yield from sorted(multiarch.parent.glob("python3*"))
    if (usr / "lib64").is_dir():
        yield usr / "lib64"


def _links(program: Path) -> list[Path]:
    """Return a program's path, the links on the way to its file, and the file."""
    found = [program]
    while found[-1].is_symlink():
        found.append(found[-1].parent / found[-1].readlink())
    return found


def _masked(shown: Shown) -> Iterable[Path]:
    """Return directories that appear empty."""
    yield from (path for path in map(Path, _MASKED_DIRECTORIES) if path.is_dir())
    if shown.libraries:
        return
    places = [Path("/usr"), *shown.directories]
    for place in dict.fromkeys(places):
        for name in _PACKAGE_DIRECTORIES:
            yield from (path for path in place.glob(f"lib*/python3*/{name}") if path.is_dir())
