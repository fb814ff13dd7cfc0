"""Every attack of the catalogue, compared with the same swarm without attackers.

``python -m benchmarks.attacks [--attack NAME ...] [--ratio 0 1 10] [--nodes N] [--seed N ...]
[--after MINUTES] [--worker-speed TIMES]``

Each scenario ``attack-NAME`` runs at each ratio of attackers to honest nodes, in a process of its
own; ratio 0, the baseline, always runs. The project's bars, with an exclamation mark at a figure
that exceeds one:

* attacks by untrusted keys take at most a fifth of the certified rollouts, and do not double the
  99th percentile of gossip coverage time;
* versions reach the last working node within three epochs (the second figure includes relays
  without reputation, the third is the baseline);
* all tables stay within their limits;
* each honest node dials an unreachable peer at most five times a minute;
* ten epochs after the attack the swarm certifies at the baseline's rate.

``fed`` is the share of honest nodes' positions in the weight forests below an attacker.
"""

import argparse
import json
import math
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from simulations.checkers.limits import LIMITS
from simulations.metrics.under_attack import AttackNumbers
from simulations.runtime.loop import START
from simulations.scenario.scenario import load_scenario, scenario_names
from simulations.study.study import RunPlan, run_plan

PREFIX = "attack-"

CERTIFIED_SHARE_MIN = 0.8
COVERAGE_P99_RATIO_MAX = 2.0
SPREAD_EPOCHS_MAX = 3.0
MISDIALS_PER_NODE_MAX = 5
RECOVERY_EPOCHS_MAX = 10
BACK_SHARE = 0.9
"""The bars; the last is the share of the baseline's rate that counts as recovered."""

WINDOW_EPOCHS = 12
"""Window of a certification rate: some twenty rollouts, with random variation. The baseline is
therefore its slowest such window."""


@dataclass(frozen=True, slots=True)
class Played:
    """One run; ``certified`` is cumulative by epoch."""

    attack: str
    ratio: float
    nodes: int
    seed: int
    epoch_seconds: float
    certified: Sequence[tuple[float, int]]
    spread_s: Sequence[tuple[float, float, float]]
    """For each version: publication time, and the delays to the last node that trains, verifies or
    generates, and to the last node of all."""
    borne: AttackNumbers
    violation: str | None
    wall_s: float

    def spread_seconds(self) -> tuple[float, float]:
        """Return the mean delays, during the attack, of versions to the last honest nodes."""
        first, last = self.borne.from_s, self.borne.until_s
        times = [times for at, *times in self.spread_s if first <= at <= last]
        working, relays = zip(*times, strict=True) if times else ((math.nan,), (math.nan,))
        return fmean(working), fmean(relays)

    def within(self, since: float, until: float) -> int:
        """Return the number of rollouts certified between two times."""
        counts = [count for at, count in self.certified if since <= at <= until]
        return counts[-1] - counts[0] if counts else 0

    def recovered_epochs(self, plain: "Played") -> int | None:
        """Return the epochs from the end of the attack to the first window at the baseline's rate.

        None if there is no such window before the end of the run.
        """
        usual = min(plain.windows(self.borne.from_s))
        for epoch, count in enumerate(self.windows(self.borne.until_s)):
            if count >= BACK_SHARE * usual:
                return epoch
        return None

    def windows(self, since: float) -> list[int]:
        """Return the certified rollouts of the window that begins at each epoch from ``since``."""
        end, seconds = self.certified[-1][0], WINDOW_EPOCHS * self.epoch_seconds
        begins = [at for at, _ in self.certified if since <= at <= end - seconds]
        return [self.within(at, at + seconds) for at in begins]


@dataclass(frozen=True, slots=True)
class Row:
    """Results of an attack over its seeds."""

    attack: str
    ratio: float
    nodes: int
    certified_share: float
    """Share of the baseline's certified rollouts during the attack."""
    coverage_p50_s: float
    coverage_p99_s: float
    coverage_p99_ratio: float
    spread_s: float
    """Delay of a version to the last working node, the same with relays, and the baseline."""
    spread_relays_s: float
    spread_plain_s: float
    spread_epochs: float
    fed_share: float
    misdials_per_minute: int
    core_share_mean: float
    core_share_max: float
    recovery_epochs: int | None
    peaks: dict[str, int]
    violations: list[str]
    wall_s: float

    def broken(self) -> list[str]:
        """Return the bars that it exceeds."""
        late = self.recovery_epochs is None or self.recovery_epochs > RECOVERY_EPOCHS_MAX
        found = {
            "certified": self.certified_share < CERTIFIED_SHARE_MIN,
            "coverage": not self.coverage_p99_ratio <= COVERAGE_P99_RATIO_MAX,
            "spread": self.spread_epochs > SPREAD_EPOCHS_MAX,
            "misdials": self.misdials_per_minute > MISDIALS_PER_NODE_MAX * self.nodes,
            "recovery": late,
            "rules": bool(self.violations),
        }
        return [name for name, is_broken in found.items() if is_broken]


def play(plan: RunPlan) -> Played:
    """Run one plan to its end."""
    outcome = run_plan(plan, clock=time.perf_counter)
    if outcome.attack is None or outcome.series is None:
        raise SystemExit(f"{plan.scenario} has no adversaries that begin or end")
    return Played(
        plan.scenario.removeprefix(PREFIX),
        plan.untrusted_per_node or 0.0,
        plan.load().nodes.total,
        plan.seed,
        load_scenario(plan.scenario).recipe().epochs.seconds,
        [(moment.at, moment.certified) for moment in outcome.series.moments],
        [
            (one.published_at - START, one.working_seconds, one.seconds)
            for one in outcome.series.makespans
        ],
        outcome.attack,
        None if outcome.violation is None else str(outcome.violation),
        outcome.result.wall_s,
    )


def row(played: Sequence[Played], plain: Sequence[Played]) -> Row:
    """Compare runs with the baseline runs of the same seeds."""
    began, ended = played[0].borne.from_s, played[0].borne.until_s
    usual = sum(one.within(began, ended) for one in plain)
    recoveries = [one.recovered_epochs(other) for one, other in zip(played, plain, strict=True)]
    known = [epochs for epochs in recoveries if epochs is not None]
    p99 = fmean(one.borne.coverage_p99_s for one in played)
    names = played[0].borne.peaks
    spreads = [one.spread_seconds() for one in played]
    spread_s = fmean(working for working, _ in spreads)
    return Row(
        played[0].attack,
        played[0].ratio,
        played[0].nodes,
        sum(one.within(began, ended) for one in played) / max(1, usual),
        fmean(one.borne.coverage_p50_s for one in played),
        p99,
        p99 / fmean(one.borne.coverage_p99_s for one in plain),
        spread_s,
        fmean(relays for _, relays in spreads),
        fmean(one.spread_seconds()[0] for one in plain),
        spread_s / played[0].epoch_seconds,
        fmean(one.borne.fed_share for one in played),
        max(one.borne.misdials_per_minute for one in played),
        fmean(one.borne.core_share_mean for one in played),
        max(one.borne.core_share_max for one in played),
        max(known) if len(known) == len(recoveries) else None,
        {name: max(one.borne.peaks[name] for one in played) for name in names},
        [one.violation for one in played if one.violation is not None],
        fmean(one.wall_s for one in played),
    )


def main() -> None:
    """Run the selected attacks and print the table."""
    attacks = [name.removeprefix(PREFIX) for name in scenario_names() if name.startswith(PREFIX)]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--attack", nargs="+", choices=attacks, default=attacks)
    parser.add_argument("--ratio", nargs="+", type=float, default=[1.0])
    parser.add_argument("--seed", nargs="+", type=int, default=[0])
    parser.add_argument("--nodes", type=int, help="honest nodes (default: the scenario's)")
    parser.add_argument("--after", type=float, help="minutes before the attack begins")
    parser.add_argument("--worker-speed", type=float, help="factor on the workers' speed")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(
        "| attack | per node | certified | coverage p50, p99 (s) | p99 ratio | weights (s) "
        "| fed | misdials per minute | core mean, most | recovery (epochs) | tables | wall (s) |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    # A process for each run, so that caches and memory of one do not affect the next. If the kernel
    # kills one for its memory, this process fails, where a ``Pool`` would wait forever.
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=fresh, max_tasks_per_child=1) as pool:
        for attack in arguments.attack:
            plain: list[Played] = []
            for ratio in sorted({0.0, *arguments.ratio}):
                plans = [
                    RunPlan(
                        PREFIX + attack,
                        seed,
                        arguments.nodes,
                        untrusted_per_node=ratio,
                        untrusted_after_minutes=arguments.after,
                        worker_speed=arguments.worker_speed,
                    )
                    for seed in arguments.seed
                ]
                played = list(pool.map(play, plans))
                plain = plain or played
                rows.append(row(played, plain))
                print(line(rows[-1]), flush=True)
    if arguments.json:
        values = [{**asdict(each), "broken": each.broken()} for each in rows]
        arguments.json.write_text(json.dumps(values, indent=1))


def line(found: Row) -> str:
    """Return a table row; the fullest tables are named with their share of the limit."""
    broken = found.broken()

    def mark(bar: str) -> str:
        return " !" if bar in broken else ""

    recovery = "none" if found.recovery_epochs is None else str(found.recovery_epochs)
    cells = (
        found.attack,
        f"{found.ratio:g}",
        f"{found.certified_share:.0%}" + mark("certified"),
        f"{found.coverage_p50_s:.3f}, {found.coverage_p99_s:.3f}",
        f"{found.coverage_p99_ratio:.1f}" + mark("coverage"),
        f"{found.spread_s:.2f}, {found.spread_relays_s:.2f}, {found.spread_plain_s:.2f}"
        + mark("spread"),
        f"{found.fed_share:.1%}",
        str(found.misdials_per_minute) + mark("misdials"),
        f"{found.core_share_mean:.2%}, {found.core_share_max:.2%}",
        recovery + mark("recovery"),
        fullest(found.peaks) + "".join(f"; {each}" for each in found.violations),
        f"{found.wall_s:.0f}",
    )
    return f"| {' | '.join(cells)} |"


def fullest(peaks: dict[str, int]) -> str:
    """Return the three tables closest to their limits."""
    shares = sorted(((peaks[name] / LIMITS[name], name) for name in peaks), reverse=True)[:3]
    return ", ".join(f"{name} {peaks[name]} ({share:.0%})" for share, name in shares)


if __name__ == "__main__":
    main()
