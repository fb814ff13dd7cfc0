"""Live attacks on a testnet on this machine, compared with the same testnet without attackers.

``python -m benchmarks.attacks_live [--attack NAME ...] [--attackers N] [--steps N] [--json FILE]``

Each run is a testnet of real processes; attackers (``prime-node adversary``) join as soon as it
prints its join command. The bar: at least four fifths of the baseline's certified rollouts per
minute. All processes share this machine's cores, so the figures include the attackers' own work;
``core_s`` is core time of the honest nodes alone per certified rollout.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

PROGRAM = str(Path(sys.executable).with_name("prime-node"))

TIMES = {
    "slow-streams": 1,
    "stream-flood": 4,
    "junk-commits": 40,
    "invalid-signatures": 4,
    "malformed-rpc": 4,
    "graft-flood": 4,
    "slow-rpc": 100,
    "record-spam": 4,
}
"""Factor on the simulations' rates: 20 commits a second, 400 KB/s of slow RPCs to each of four
peers. The other attacks hold all resources they can get, or are banned soon."""

CERTIFIED_SHARE_MIN = 0.8
JOIN = re.compile(r"--run-id (\S+).*?--initial-peers (\S+)", re.DOTALL)
DEADLINE_SECONDS = 600.0
SAMPLE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """Results of one testnet."""

    attack: str
    attackers: int
    certified_per_minute: float
    certified_share: float
    rejected: int
    rejected_reasons: dict[str, int]
    expired: int
    steps: int
    wall_s: float
    peak_rss_mb: float
    core_s_per_rollout: float


def play(attack: str, attackers: int, steps: int, folder: Path) -> dict[str, Any]:
    """Run a testnet and attack it once it accepts peers; return its report and its cost."""
    command = [PROGRAM, "testnet", "--json", "--no-view", "--keep", "--steps", str(steps)]
    command += ["--minutes", "8", "--data-dir", str(folder / "swarm")]
    with ExitStack() as stack:
        said = stack.enter_context((folder / "said").open("w+"))
        report = stack.enter_context((folder / "report").open("w+"))
        swarm = stack.enter_context(ended(command, stdout=report, stderr=said))
        run_id, peers = joined(folder / "said", swarm)
        for number in range(attackers if attack else 0):
            home = folder / f"attacker-{number}"
            orders = [PROGRAM, "adversary", attack, "--times", str(TIMES[attack])]
            orders += ["--initial-peers", peers, "--data-dir", str(home), "--host", "127.0.0.1"]
            log = stack.enter_context((folder / f"log-{number}").open("w"))
            environment = {**os.environ, "PRIME_NODE_RUN_ID": run_id}
            stack.enter_context(ended(orders, stdout=log, stderr=log, env=environment))
        taken: dict[int, float] = {}
        deadline = time.monotonic() + DEADLINE_SECONDS
        while swarm.poll() is None and time.monotonic() < deadline:
            taken |= core_seconds(swarm.pid)
            time.sleep(SAMPLE_SECONDS)
    found: dict[str, Any] = json.loads((folder / "report").read_text())
    return {**found, "core_s": sum(taken.values())}


@contextmanager
def ended(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Yield a process, and end it afterwards in any case."""
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def joined(said: Path, swarm: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait until a testnet prints its join command; return run id and address."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline and swarm.poll() is None:
        if (found := JOIN.search(said.read_text())) is not None:
            return found[1], found[2]
        time.sleep(0.2)
    raise SystemExit(f"the testnet did not begin:\n{said.read_text()[-2000:]}")


def core_seconds(pid: int) -> dict[int, float]:
    """Return the core seconds of each live process of a testnet."""
    times: dict[int, float] = {}
    for process in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.Error):
            used = process.cpu_times()
            times[process.pid] = used.user + used.system
    return times


def row(attack: str, attackers: int, found: dict[str, Any], usual_per_minute: float) -> Row:
    """Compare a report with the baseline."""
    rollouts = found["rollouts"]
    per_minute = 60 * rollouts["certified"] / found["wall_s"]
    return Row(
        attack or "none",
        attackers if attack else 0,
        round(per_minute, 1),
        round(per_minute / (usual_per_minute or per_minute), 3),
        rollouts["rejected"],
        rollouts["rejected_reasons"],
        rollouts["expired"],
        found["steps"],
        found["wall_s"],
        max(found["peak_rss_mb"].values()),
        round(found["core_s"] / max(1, rollouts["certified"]), 3),
    )


def main() -> None:
    """Run the testnets one after the other and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", nargs="+", choices=[*TIMES], default=[*TIMES])
    parser.add_argument("--attackers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Otherwise the attackers, which no other process knows, would outlive this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    rows: list[Row] = []
    for attack in ("", *options.attack):
        with tempfile.TemporaryDirectory(prefix="prime-node-attacks-") as folder:
            found = play(attack, options.attackers, options.steps, Path(folder))
        rows.append(
            row(attack, options.attackers, found, rows[0].certified_per_minute if rows else 0.0)
        )
        mark = "" if rows[-1].certified_share >= CERTIFIED_SHARE_MIN else " !"
        print(" ".join(f"{name}={value}" for name, value in asdict(rows[-1]).items()) + mark)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(one) for one in rows], indent=2) + "\n")


if __name__ == "__main__":
    main()
