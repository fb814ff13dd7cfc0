"""Fuzz every parser of untrusted bytes: no crash, bounded time and memory.

``python -m tests.fuzz [--minutes N | --inputs N] [--targets a,b]`` runs each target in its own
process. The first pass uses mutators that know the formats and sign again. If atheris is installed
(``pip install '.[fuzz]'``), a second pass is guided by coverage. A crash is written to a file, and
the command that repeats it is printed. Without ``--minutes`` every target gets ``--inputs``.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.fuzz import guided

ENGINES = ("own", "atheris")
EVERY_INPUT = 1 << 60
GRACE_SECONDS = 900.0
"""Time for import, session and end of a process, beyond its share; busy machines are slow."""


def main() -> int:
    """Fuzz and print the results; return 1 after a crash."""
    arguments = _arguments()
    if arguments.worker:
        _work(arguments)
        return 0
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - a guided worker's come later

    if arguments.repeat:
        from tests.fuzz.running import repeated  # noqa: PLC0415 - as above

        growth_bytes = repeated(Path(arguments.repeat), TARGETS)
        print(f"nothing crashed; {growth_bytes / 2**20:.1f} MiB more than before")
        return 0
    names = arguments.targets.split(",") if arguments.targets else list(TARGETS)
    unknown = [name for name in names if name not in TARGETS]
    if unknown:
        print(f"no target {unknown[0]}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    engines = [arguments.engine] if arguments.engine else list(ENGINES)
    if not guided.is_there():
        engines = [engine for engine in engines if engine != "atheris"]
    jobs = [
        (name, engine)
        for engine in engines
        for name in names
        if engine == "own" or not TARGETS[name].lasting
    ]
    found = _all(jobs, arguments)
    print(json.dumps(found) if arguments.json else _table(found))
    return int(any(row["crashes"] for row in found))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, help="for all targets together")
    parser.add_argument("--inputs", type=int, default=20_000, help="for each target")
    parser.add_argument("--targets", default="", help="names, with commas between them")
    parser.add_argument("--engine", choices=ENGINES, help="only this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--crashes", type=Path, default=Path("fuzz-crashes"))
    parser.add_argument("--repeat", help="a file of a crash")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    return parser.parse_args()


def _all(jobs: list[tuple[str, str]], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Run all jobs, some at once; later jobs get the time that earlier ones leave."""
    processes = arguments.processes
    ends_at = time.monotonic() + 60 * (arguments.minutes or 0)
    left = len(jobs)

    def one(job: tuple[str, str]) -> dict[str, Any]:
        nonlocal left
        seconds = 3600.0
        if arguments.minutes:
            seconds = max(1.0, (ends_at - time.monotonic()) * processes / max(left, processes))
        left -= 1
        row = _child(*job, seconds, arguments)
        print(_line(row), file=sys.stderr, flush=True)
        return row

    with ThreadPoolExecutor(processes) as pool:
        return list(pool.map(one, jobs))


def _child(name: str, engine: str, seconds: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the findings of a child process; its abnormal exit is a crash."""
    inputs = EVERY_INPUT if arguments.minutes else arguments.inputs
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        command = [sys.executable, "-m", "tests.fuzz", "--worker", f"{name}/{directory}"]
        command += ["--engine", engine, "--inputs", str(inputs), "--seconds", str(seconds)]
        command += ["--seed", str(arguments.seed), "--crashes", str(arguments.crashes)]
        try:
            done = subprocess.run(
                command,
                cwd=Path(__file__).parents[2],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                timeout=seconds + GRACE_SECONDS,
                check=False,
            )
            status, said = done.returncode, done.stderr
        except subprocess.TimeoutExpired as error:
            status, said = -1, (error.stderr or b"").decode(errors="replace")
        row = json.loads(result.read_text()) if result.exists() else _nothing(name, engine)
        if row["crashes"]:
            sys.stderr.write(said)
        if status or not result.exists():
            sys.stderr.write(said[-4000:])
            row["crashes"][f"ended with {status}"] = _kept(name, Path(directory), arguments.crashes)
        return dict(row)


def _nothing(name: str, engine: str) -> dict[str, Any]:
    from tests.fuzz.running import Found  # noqa: PLC0415 - as in ``main``

    return Found(name, engine).as_json()


def _kept(name: str, directory: Path, crashes: Path) -> str:
    """Save the last input of a process that died."""
    from tests.fuzz.running import left_in, repeat_command, written  # noqa: PLC0415
    from tests.fuzz.targets import TARGETS  # noqa: PLC0415

    scratch = directory / "input"
    if not scratch.exists():
        return ""
    path = written(crashes, TARGETS[name], [left_in(scratch)])
    sys.stderr.write(repeat_command(path) + "\n")
    return str(path)


def _work(arguments: argparse.Namespace) -> None:
    """Fuzz one target in this process and write the findings."""
    name, _, place = arguments.worker.partition("/")
    directory = Path("/" + place.lstrip("/"))
    if arguments.engine == "atheris":
        target = guided.instrumented(name)
    else:
        from tests.fuzz.targets import TARGETS  # noqa: PLC0415 - as in ``main``

        target = TARGETS[name]
    from tests.fuzz.running import Run, fuzzed, limit_room  # noqa: PLC0415 - as in ``main``

    run = Run(target, arguments.engine, arguments.crashes, directory / "input")
    limit_room()
    result = directory / "result.json"
    if arguments.engine == "atheris":
        guided.fuzz(run, arguments.inputs, arguments.seconds, arguments.seed, result)
        return
    found = fuzzed(run, arguments.inputs, arguments.seconds, arguments.seed)
    result.write_text(json.dumps(found.as_json()))


HEADINGS = ("target", "engine", "inputs", "inputs/s", "accepted", "slowest", "growth", "crashes")
"""Times of one core."""


def _line(row: dict[str, Any]) -> str:
    per_second = row["inputs"] / row["seconds"] if row["seconds"] else 0.0
    accepted = row["accepted"] / row["inputs"] if row["inputs"] else 0.0
    cells = (
        row["target"],
        row["engine"],
        f"{row['inputs']:,}",
        f"{per_second:,.0f}",
        f"{accepted:.1%}",
        f"{1000 * row['slowest_seconds']:,.0f} ms",
        f"{row['growth_bytes'] / 2**20:.1f} MiB",
        str(len(row["crashes"])),
    )
    return "| " + " | ".join(cells) + " |"


def _table(rows: list[dict[str, Any]]) -> str:
    inputs = sum(row["inputs"] for row in rows)
    crashes = sum(len(row["crashes"]) for row in rows)
    lines = ["| " + " | ".join(HEADINGS) + " |", "|" + "---|" * len(HEADINGS)]
    return "\n".join((*lines, *map(_line, rows), f"{inputs:,} inputs, {crashes} crashes"))


if __name__ == "__main__":
    sys.exit(main())
