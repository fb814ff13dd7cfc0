"""Hostile completions scored by several machines' scorers: damage, delay and disagreement.

A few dozen templates produce programs and mathematics answers that try to escape, hang, exhaust
memory, flood output and cheat. Each scorer has its own jails. The report has the event loop's
delay, anything touched outside a jail, and scorers that disagree (no score counts as no other
score).

    python benchmarks/environments/hostile.py --count 1000 --json
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import structlog

from node.local.system import ThreadBackground
from node.process.loop_lag import LoopLagMonitor
from roles.environments.checker import LIMITS as MATH_LIMITS
from roles.environments.checker import Checker
from roles.environments.code import LIMITS as CODE_LIMITS
from roles.environments.code import Code
from roles.environments.jail import Jail
from roles.environments.math import Math
from roles.environments.text import TextTask
from roles.ports.engines import Score, Unscorable
from roles.ports.text import ChatMessage

DELAY_SECONDS_MAX = 0.05
"""Maximum delay caused by the loop itself, excluding time without a core."""

PROGRAMS = {
    "fork bomb": "import os\nwhile True:\n    os.fork()",
    "fork and wait": "import os, time\nfor _ in range({n}):\n    if os.fork() == 0: time.sleep(99)",
    "double fork": "import os\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        while True: pass\nprint({n})",
    "threads": "import threading, time\nfor _ in range({n}):\n"
    "    threading.Thread(target=time.sleep, args=(99,)).start()",
    "memory": "a = []\nwhile True:\n    a.append(bytearray({n} << 16))",
    "memory at once": "bytearray({n} << 30)",
    "memory by power": "x = 2 ** (10 ** 9 * {n})",
    "memory of children": "import os\nos.fork(); os.fork()\nx = bytearray({n} << 22)",
    "memory of threads": "import threading\nthreading.stack_size(1 << 20)\n"
    "for _ in range(20 + {n}):\n"
    "    threading.Thread(target=lambda: bytearray(64 << 20).count(1)).start()",
    "memory of files": "import os\nwhile True:\n"
    "    os.write(os.memfd_create('x{n}'), bytes(4 << 20))",
    "threads without an end": "import threading\ndef f():\n    threading.Thread(target=f).start()\n"
    "    while True: {n}\nf()",
    "processes by system call": "import ctypes\nc = ctypes.CDLL(None)\n"
    "print([c.syscall(call, 17, 0, 0, 0, {n} * 0) for call in (56, 57, 58, 435)].count(-1))",
    "recursion": "def f(n): return f(n + {n})\nf(0)",
    "deep recursion": "import sys\nsys.setrecursionlimit(10**9)\ndef f(n): return f(n + {n})\nf(0)",
    "nested source": "(" * 5000 + "{n}" + ")" * 5000,
    "output": "while True: print('{n}' * 10000)",
    "errors": "import sys\nfor _ in range(1000): sys.stderr.write('{n}' * 10000)",
    "loop": "while True: {n}",
    "loop in C": "sum(range({n} * 10**10))",
    "border": "import time\nwhile time.process_time() < {border}: pass\nprint(7)",
    "ignores signals": "import signal\nfor s in range(1, 32):\n"
    "    try: signal.signal(s, signal.SIG_IGN)\n    except OSError: pass\nwhile True: {n}",
    "signals": "import os, signal\nfor pid in [*range(2, 5000), {victim}, -1, 1, {parent}]:\n"
    "    try: os.kill(pid, signal.SIGKILL)\n    except OSError: pass\nprint({n})",
    "stops": "import os, signal\nos.kill(0, signal.SIGSTOP)\nprint({n})",
    "writes": "for path in ['{canary}', '/etc/passwd', '/usr/bin/x{n}', '/x{n}', '/dev/x{n}']:\n"
    "    try: open(path, 'w').write('{n}')\n    except OSError: pass\nprint(7)",
    "deletes": "import shutil\nfor path in ['{directory}', '/usr', '/']:\n"
    "    shutil.rmtree(path, ignore_errors=True)\nprint({n})",
    "reads": "import os\nprint(open('{canary}').read(), os.listdir('{directory}'), {n})",
    "symlink": "import os\nos.symlink('{canary}', '/tmp/x{n}')\nopen('/tmp/x{n}', 'w').write('x')",
    "symlink to walls": "import os\nos.symlink('/proc/1/root{canary}', 'x')\n"
    "open('x', 'a').write('{n}')",
    "fills scratch": "n = 0\nwhile True:\n"
    "    open(f'/tmp/{{n}}', 'wb').write(bytes(1 << 20)); n += {n}",
    "fills shared memory": "n = 0\nwhile True:\n"
    "    open(f'/dev/shm/{{n}}', 'wb').write(bytes(1 << 20)); n += {n}",
    "large file": "open('x', 'wb').truncate({n} << 40)",
    "network": "import socket\nsocket.create_connection(('127.0.0.1', {port}), {n}).send(b'x')",
    "name server": "import socket\nsocket.getaddrinfo('example.org', {n})",
    "listens": "import socket\ns = socket.create_server(('', 8000 + {n}))\ns.accept()",
    "unix socket": "import socket\nsocket.socket(socket.AF_UNIX).connect('{directory}/socket{n}')",
    "environment": "import os\nprint(os.environ['HOME'], {n})",
    "descriptors": "import os\nwhile True:\n    os.open('/dev/null', {n} * 0)",
    "other descriptors": "import os\nfor fd in range(3, 1000):\n"
    "    try: os.write(fd, b'7\\n' * {n})\n    except OSError: pass",
    "namespaces": "import ctypes\nprint(ctypes.CDLL(None).unshare(0x10000000), {n})",
    "mounts": "import ctypes\nc = ctypes.CDLL(None)\n"
    "print(c.mount(b'x', b'/tmp', b'tmpfs', {n} * 0, 0))",
    "ptrace": "import ctypes\nprint(ctypes.CDLL(None).ptrace(16, {parent}, 0, 0), {n})",
    "debugger of itself": "import ctypes\nctypes.string_at({n})",
    "dies": "import os\nos.abort() if {n} else 0",
    "kills itself": "import os\nos.kill(os.getpid(), 9)\nprint({n})",
    "exits": "import os\nos._exit(0 * {n})",
    "exit in the way": "raise SystemExit(0 * {n})",
    "sleeps": "import time\ntime.sleep(10 ** {n})",
    "reads for ever": "while True: input({n})",
    "chance": "import random, os, secrets\n"
    "print(7 if random.random() + random.Random().random() + os.urandom(1)[0] > {n} else 8)",
    "addresses": "print(7 if id(object()) % 32 < {n} else 8)",
    "regular expression": "import re\nre.match('(a+)+$', 'a' * (28 + {n}) + 'b')",
    "not text": "print(open('/dev/urandom', 'rb').read({n}))",
    "null": "print('\\0' * {n})",
    "no program": "this is {n} no program",
    "right": "import sys\nprint(sum(map(int, sys.stdin.read().split())) + 0 * {n})",
}
"""Programs for the sum of two numbers, 3 and 4."""

SLOW_PROGRAMS = (
    "threads without an end",
    "loop",
    "loop in C",
    "ignores signals",
    "sleeps",
    "listens",
    "regular expression",
    "border",
    "double fork",
    "stops",
    "memory by power",
)

ANSWERS = {
    "tower": "$9^{{9^{{9^{{9^{{{n}}}}}}}}}$",
    "plain tower": "9**9**9**9**{n}",
    "power": "$10^{{10^{{{n}0}}}}$",
    "factorial": "${n}00000000!$",
    "factorials": "$(({n}!)!)!$",
    "sum": "$\\sum_{{i=1}}^{{{n}000000000}} \\sqrt{{i}}$",
    "product": "$\\prod_{{i=1}}^{{{n}00000000}} i^i$",
    "integral": "$\\int_0^{{{n}}} e^{{e^{{e^x}}}} \\sin(x^x) dx$",
    "expansion": "$(1+x)^{{{n}00000}}$",
    "braces": "$" + "{{" * 700 + "{n}" + "}}" * 700 + "$",
    "parentheses": "(" * 3000 + "{n}",
    "boxes": "\\boxed{{" * 200 + "{n}" + "}}" * 200,
    "open boxes": "\\boxed{{" * 400 + "{n}",
    "roots": "$" + "\\sqrt{{" * 100 + "{n}" + "}}" * 100 + "$",
    "fractions": "$" + "\\frac{{1}}{{" * 60 + "{n}" + "}}" * 60 + "$",
    "long fraction": "$" + "\\frac" * 900 + "{n}$",
    "digits": "{n}" * 4000,
    "long number": "$" + "9" * 3900 + "^{n}$",
    "long sum": "$" + "{n}+" * 1200 + "1$",
    "dollars": "$" * 3000 + "{n}",
    "white space": "\\boxed" + " " * 3900 + "{n}",
    "backslashes": "\\" * 3999 + "{n}",
    "matrix": "$\\begin{{pmatrix}}" + "{n}&" * 800 + "1\\end{{pmatrix}}^{{100}}$",
    "set": "$\\{{" + "{n}," * 1000 + "1\\}}$",
    "interval": "$(" + "{n},(" * 500 + "$",
    "python": "__import__('os').system('touch {canary}{n}')",
    "python in latex": "$\\text{{__import__('os').kill({parent}, 9)}} {n}$",
    "class": "\\boxed{{().__class__.__base__.__subclasses__(){n}}}",
    "infinity": "$\\frac{{{n}}}{{0}}$",
    "not a number": "\\boxed{{nan{n}}}",
    "modulus": "$7^{{10^{{{n}0}}}} \\bmod 10$",
    "null": "\0" * 2000 + "{n}",
    "right": "Not {n}, but \\boxed{{7}}",
    "right, long": "so " * 60_000 + "not {n}, but \\boxed{{\\frac{{14}}{{2}}}}",
}
"""Answers to a question whose answer is 7."""

SLOW_ANSWERS = (
    "tower",
    "power",
    "factorial",
    "factorials",
    "sum",
    "product",
    "integral",
    "expansion",
    "braces",
    "roots",
    "fractions",
)


@dataclass(frozen=True, slots=True)
class Hostile:
    """One completion."""

    task: str
    kind: str
    text: str


@dataclass(slots=True)
class Outside:
    """Targets that must not be touched: files, a server, a process; all on this machine."""

    directory: Path
    port: int
    victim: int

    def values(self) -> dict[str, str | int]:
        """Return the values for templates."""
        return {
            "directory": str(self.directory),
            "canary": str(self.directory / "canary"),
            "port": self.port,
            "victim": self.victim,
            "parent": os.getpid(),
        }


@dataclass(slots=True)
class Report:
    """Results of an attack."""

    completions: int
    scorers: int
    seconds: float = 0.0
    delay_seconds_max: float = 0.0
    own_delay_seconds_max: float = 0.0
    disagreements: list[str] = field(default_factory=list)
    touched: list[str] = field(default_factory=list)
    scores: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def harmless(self) -> bool:
        """True if nothing was damaged."""
        blocked = self.own_delay_seconds_max > DELAY_SECONDS_MAX
        return not (blocked or self.disagreements or self.touched)


def completions(count: int, outside: Outside, *, slow_every: int = 4) -> list[Hostile]:
    """Return ``count`` completions from all templates; slow ones every ``slow_every``-th round."""
    found: list[Hostile] = []
    number = 0
    while len(found) < count:
        number += 1
        for task, templates, slow in (
            ("code", PROGRAMS, SLOW_PROGRAMS),
            ("math", ANSWERS, SLOW_ANSWERS),
        ):
            for kind, template in templates.items():
                if kind in slow and (number - 1) % slow_every:
                    continue
                border = CODE_LIMITS_HERE.cpu_soft_seconds * (0.7 + 0.1 * number)
                text = template.format(n=number, border=border, **outside.values())
                if task == "code":
                    text = f"I think.</think>\n```python\n{text}\n```"
                found.append(Hostile(task, kind, text))
    return found[:count]


CODE_LIMITS_HERE = replace(CODE_LIMITS, cpu_soft_seconds=0.4, cpu_hard_seconds=1, wall_seconds=8.0)
MATH_LIMITS_HERE = replace(MATH_LIMITS, cpu_soft_seconds=0.5, cpu_hard_seconds=1, wall_seconds=20.0)
"""Shorter than in a run, so that a thousand bombs end soon; the rule is the same."""


class Text:
    """A tokenizer whose tokens are characters."""

    vocabulary_size = 0x110000

    def encode_chat(self, question: str, before: Sequence[ChatMessage] = ()) -> tuple[int, ...]:
        """Return code points."""
        del before
        return tuple(map(ord, question))

    def decode(self, tokens: tuple[int, ...]) -> str:
        """Return code points as text."""
        return "".join(map(chr, tokens))


class OneRow:
    """A data set of one row."""

    count = 1

    def __init__(self, **columns: str) -> None:
        self._columns = columns

    def row(self, index: int) -> dict[str, str]:
        """Return the row."""
        del index
        return self._columns


class Scorer:
    """One machine's scorers."""

    def __init__(self) -> None:
        self._background = ThreadBackground()
        self._checker = Checker("math", MATH_LIMITS_HERE)
        tests = json.dumps([{"input": "3 4", "output": "7"}])
        self._tasks: dict[str, TextTask] = {
            "code": Code(
                "code/sums",
                lambda: OneRow(prompt="", tests=tests),
                Text,
                self._background,
                Jail(libraries=False),
                CODE_LIMITS_HERE,
            ),
            "math": Math(
                "math/sums",
                {},
                lambda: OneRow(prompt="", answer="7"),
                Text,
                self._background,
                self._checker,
            ),
        }

    async def open(self) -> "Scorer":
        """Open its tasks."""
        for task in self._tasks.values():
            await task.open()
        return self

    async def score(self, items: Sequence[Hostile]) -> list[Score]:
        """Score completions, those of the two tasks concurrently."""
        scores: dict[int, Score] = {}

        async def of(task: str) -> None:
            for place, item in enumerate(items):
                if item.task == task:
                    answer = item.text.rpartition("</think>")[2]
                    scores[place] = await self._tasks[task].grade(0, answer)

        await asyncio.gather(*map(of, self._tasks))
        return [scores[place] for place in range(len(items))]

    async def close(self) -> None:
        """Close the tasks."""
        await self._checker.close()
        self._background.close()


async def attack(items: Sequence[Hostile], scorers: int) -> Report:
    """Score all completions with each of several scorers at once."""
    report = Report(len(items), scorers)
    machines = [Scorer() for _ in range(scorers)]
    for machine in machines:
        await machine.open()
    watch = LoopLagMonitor()
    watch.start()
    started_at = time.monotonic()
    try:
        found = await asyncio.gather(*(machine.score(items) for machine in machines))
    finally:
        watch.stop()
        for machine in machines:
            await machine.close()
    report.seconds = round(time.monotonic() - started_at, 1)
    report.delay_seconds_max = round(watch.status().delay_seconds_max, 4)
    report.own_delay_seconds_max = round(watch.status().own_delay_seconds_max, 4)
    tallies: dict[str, Counter[str]] = {}
    for item, scores in zip(items, zip(*found, strict=True), strict=True):
        given = {score for score in scores if not isinstance(score, Unscorable)}
        if len(given) > 1:
            report.disagreements.append(f"{item.task}, {item.kind}: {scores}")
        words = ("none" if isinstance(one, Unscorable) else f"{one:g}" for one in scores)
        tallies.setdefault(f"{item.task}, {item.kind}", Counter()).update(words)
    report.scores = {kind: dict(tally) for kind, tally in tallies.items()}
    return report


@contextmanager
def outside() -> Iterator[tuple[Outside, list[str]]]:
    """Make the targets; at the end the list has those that were touched."""
    touched: list[str] = []
    with (
        tempfile.TemporaryDirectory() as made,
        socket.create_server(("127.0.0.1", 0)) as server,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as victim,
    ):
        directory = Path(made)
        directory.chmod(0o777)
        canary = directory / "canary"
        canary.write_text("sings")
        canary.chmod(0o666)
        server.setblocking(False)
        before = set(Path("/tmp").iterdir())
        yield Outside(directory, server.getsockname()[1], victim.pid), touched
        if [*directory.iterdir()] != [canary] or canary.read_text() != "sings":
            touched.append(f"files: {[*directory.iterdir()]}")
        if victim.poll() is not None:
            touched.append("a process was ended")
        try:
            server.accept()
            touched.append("a server was reached")
        except BlockingIOError:
            pass
        left = [path.name for path in set(Path("/tmp").iterdir()) - before if path.name[:1] == "x"]
        if left:
            touched.append(f"left in /tmp: {left}")
        victim.kill()


def main() -> None:
    """Attack and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="completions to skip")
    parser.add_argument("--scorers", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    with outside() as (around, touched):
        items = completions(options.first + options.count, around)[options.first :]
        report = asyncio.run(attack(items, options.scorers))
    report.touched = touched
    if options.json:
        print(json.dumps(asdict(report), indent=2))
    else:
        for kind, tally in report.scores.items():
            print(f"{kind:32}", tally)
        print(f"{report.completions} completions, {report.scorers} scorers, {report.seconds} s")
        own, late = report.own_delay_seconds_max, report.delay_seconds_max
        print(f"event loop delay: {own} s at most, {late} s with waits for a core")
        print("different scores:", report.disagreements or "none")
        print("touched outside:", report.touched or "nothing")
    sys.exit(not report.harmless)


if __name__ == "__main__":
    main()
