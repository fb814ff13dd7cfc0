"""Waiting times of a large run: versions of 62 GB, sent as patches to a hundred workers.

The whole daemon in virtual time, with the recipe of INTELLECT-2 (``configs/runs/intellect2.toml``).
Lines are 590 Mbit/s both ways, at which its 62 GB file took 14 minutes. Home workers have 100
Mbit/s down and 40 up, half of them behind NAT. Per version of a run:

* *publish*: from the end of a step to the announcement of its version. This covers the weights'
  digest, by which the next batch is drawn. During the next step it covers writing the weights and,
  every ``state_every`` versions, the state, and the digests of file and patch;
* *half*, *last*: from there until so many nodes hold the decoded weights;
* *idle*: the share of the trainer's time without a step: computing the digest, or waiting for
  rollouts or, within a step, for the previous weights to be written.

One pass over the weights (digest, writing, encoding, decoding) has one speed, ``--speed``: one
thread does 1 GB/s, and eight are used where there are cores. All nodes hold the first version at
the start. Prompts and answers have a few tokens that stand for thousands, so rollout bodies are
tiny.

Usage: ``python benchmarks/shardcast/large_run.py [--lines NAME ...] [--speed GB_PER_SECOND ...]
[--state-gigabytes N] [--versions N] [--seed S] [--json]``
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import tomlkit

from protocol.run.recipe import Recipe
from protocol.run.toml import load_recipe
from roles.ports.storage import weights_name
from simulations.checkers import CheckerTolerances
from simulations.cluster.world import World
from simulations.runtime.content import policy_digest
from simulations.runtime.loop import START
from simulations.runtime.trace import Event
from simulations.study.study import RunOutcome, RunPlan, run_plan

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "intellect2.toml"

ASSUMED: dict[str, float] = {
    "workers": 100,
    "validators": 12,
    "relays": 4,
    "weights_gigabytes": 62,
    # At 1 % changed; 306 at 0.46 % and 126 at 1.30 % were measured (docs/shardcast.md).
    "patch_ratio": 150,
    # INTELLECT-2: 21 to 22 minutes.
    "step_seconds": 22 * 60,
    # Workers' production over the trainer's consumption, as in the scenarios: a guess.
    "generation_margin": 1.5,
    # For a rollout of 32 sequences; a guess for a prefill on eight GPUs.
    "check_seconds": 20,
    # For loading 62 GB from disk into an engine: a guess.
    "load_seconds": 60,
}

STATE_GIGABYTES = 372.0
"""float32 weights and two moments: 12 bytes per parameter."""

SPEEDS = [1.0, 8.0]

WARM_STEPS = 2
"""Excluded: there are no rollouts before the first step; the last version is still in transit."""

SETTLED_SECONDS = 400.0
"""Versions announced later than this before the end are excluded."""

PATIENCE = CheckerTolerances(converge_epochs=24, progress_epochs=90)
"""An epoch is a minute: four steps, of which the first waits for rollouts."""

OURS = ("model", "environment", "admission")
"""Recipe sections that the simulator replaces: end token, vocabulary, task, and proof of work,
which it computes for every key. The recipe's takes minutes of a core and makes untrusted nodes wait
an hour before the first rollout."""

SEQUENCE_TOKENS = 12
"""Mean of the requested length; one more token ends a sequence."""

FAST = {"name": "fast", "share": 1.0, "upload_mbit": 590.0, "download_mbit": 590.0}
HOME = {
    "name": "home",
    "share": 1.0,
    "upload_mbit": 40.0,
    "download_mbit": 100.0,
    "nat_share": 0.5,
    "roles": ["inference"],
}
LINES: dict[str, list[dict[str, Any]]] = {
    "590/590": [FAST],
    "home": [HOME, FAST | {"roles": ["relay", "trainer", "validator"]}],
}


@dataclass(frozen=True)
class Row:
    """One run; seconds are medians over versions, except ``last_max_seconds``."""

    lines: str
    gb_per_second: float
    versions: int
    publish_seconds: float
    half_seconds: float
    last_seconds: float
    last_max_seconds: float
    whole_file_seconds_min: float
    """Lower bound for sending the whole file to all nodes on these lines."""
    idle_share: float
    violations: int
    wall_seconds: float


@dataclass
class History:
    """Events in virtual seconds: ends of steps, and arrivals of versions per node."""

    steps: list[tuple[float, float]] = field(default_factory=list)
    """(end, duration) of each step."""
    arrivals: dict[int, list[float]] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Record a trace event."""
        if event.kind == "trained":
            self.steps.append((event.at, float(event.facts["seconds"] or 0)))
        elif event.kind == "weights":
            self.arrivals.setdefault(int(event.facts["version"] or 0), []).append(event.at)

    @property
    def pauses(self) -> list[float]:
        """Time between the ends of successive steps, minus the later one's duration."""
        pairs = zip(self.steps, self.steps[1:], strict=False)
        return [ended - seconds - before for (before, _), (ended, seconds) in pairs]


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--lines", nargs="+", choices=LINES, default=list(LINES))
    parser.add_argument("--speed", nargs="+", type=float, default=SPEEDS, help="GB/s of weights")
    parser.add_argument("--state-gigabytes", type=float, default=STATE_GIGABYTES)
    parser.add_argument("--versions", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for speed in options.speed:
        for lines in options.lines:
            rows.append(measured(lines, speed, options))
            print(rows[-1], file=sys.stderr)
    assumed = ASSUMED | {"state_gigabytes": options.state_gigabytes, "seed": options.seed}
    if options.json:
        print(json.dumps({"assumed": assumed, "rows": [asdict(row) for row in rows]}, indent=2))
        return
    for name, value in assumed.items():
        print(f"{name:<28}{value:>12g}")
    for name in asdict(rows[0]):
        print(f"{name:<28}", *(f"{getattr(row, name):>12}" for row in rows))


def measured(lines: str, speed: float, options: argparse.Namespace) -> Row:
    """Simulate one run; return its results."""
    history = History()

    async def prepare(world: World) -> None:
        world.trace.listen(history.see)
        give_first_version(world)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large-run.toml"
        path.write_text(tomlkit.dumps(scenario(lines, speed, options)))
        outcome = run_plan(
            RunPlan(str(path), options.seed),
            clock=time.perf_counter,
            actors=[prepare],
            patience=PATIENCE,
        )
    return row(lines, speed, history, outcome)


def scenario(lines: str, speed: float, options: argparse.Namespace) -> dict[str, Any]:
    """Return the scenario: the recipe's run on machines with the assumed speeds."""
    recipe = load_recipe(RECIPE.read_text())
    sampling, step_seconds = recipe.sampling, ASSUMED["step_seconds"]
    rollout_tokens = sampling.group_size * sampling.prompts_per_rollout * (SEQUENCE_TOKENS + 1)
    step_tokens = rollout_tokens * recipe.grpo.rollouts_per_step
    worker_rate = step_tokens / step_seconds * ASSUMED["generation_margin"] / ASSUMED["workers"]
    anybody = {
        "share": 1.0,
        "load_seconds": ASSUMED["load_seconds"],
        "weights_bytes_per_second": speed * 1e9,
    }
    version_seconds = step_seconds + ASSUMED["weights_gigabytes"] / speed  # for the digest
    worker = {"generate_tokens_per_second": worker_rate, "rollouts_at_once": 1}
    return {
        "name": "large-run",
        "description": "The recipe of INTELLECT-2.",
        "minutes": (WARM_STEPS * step_seconds + options.versions * version_seconds) / 60,
        "sample_seconds": 600.0,
        "nodes": {
            "relay": ASSUMED["relays"],
            "validator": ASSUMED["validators"],
            "inference": ASSUMED["workers"],
            "start_seconds": 60.0,
        },
        "lines": LINES[lines],
        "compute": [
            anybody | {"name": "worker", "roles": ["inference"]} | worker,
            anybody
            | {"name": "checker", "roles": ["validator"]}
            | {"check_tokens_per_second": rollout_tokens / ASSUMED["check_seconds"]},
            anybody
            | {"name": "learner", "roles": ["trainer"]}
            | {"train_tokens_per_second": step_tokens / step_seconds},
        ],
        "workload": {
            "weights_bytes": int(ASSUMED["weights_gigabytes"] * 1e9),
            "patch_share": 1 / ASSUMED["patch_ratio"],
            "state_bytes": int(options.state_gigabytes * 1e9),
            "tokens_mean": SEQUENCE_TOKENS,
        },
        "protocol": sections(recipe),
    }


def sections(recipe: Recipe) -> dict[str, dict[str, Any]]:
    """Return a recipe's tables without keys that are None, which TOML cannot express."""
    return {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in recipe.model_dump().items()
        if isinstance(section, dict) and name not in OURS
    }


def give_first_version(world: World) -> None:
    """Put the initial model on all disks: fetching it is not simulated."""
    trainer = world.machines["trainer-0"]
    first = trainer.disk.files[trainer.genesis]
    for machine in world.machines.values():
        if machine is not trainer:
            machine.disk.files[machine.weights / weights_name(0)] = first
            machine.disk.tables["policies"] = {bytes(8): policy_digest(first)}


def row(lines: str, speed: float, history: History, outcome: RunOutcome) -> Row:
    """Return the results of a run; version ``n`` comes from step ``n``."""
    assert outcome.series is not None
    end = START + outcome.result.virtual_s - SETTLED_SECONDS
    spreads = [it for it in outcome.series.makespans if it.published_at < end]
    made = dict(enumerate((ended for ended, _ in history.steps), 1))
    halves = [
        sorted(history.arrivals[it.version])[it.nodes // 2] - it.published_at for it in spreads
    ]
    span = history.steps[-1][0] - history.steps[0][0]  # as many steps as pauses
    return Row(
        lines=lines,
        gb_per_second=speed,
        versions=len(spreads),
        publish_seconds=round(median(it.published_at - made[it.version] for it in spreads), 1),
        half_seconds=round(median(halves), 1),
        last_seconds=round(median(it.seconds for it in spreads), 1),
        last_max_seconds=round(max(it.seconds for it in spreads), 1),
        whole_file_seconds_min=round(max(it.ideal_seconds for it in spreads), 1),
        idle_share=round(sum(history.pauses) / span, 4),
        violations=len(outcome.result.violations),
        wall_seconds=round(outcome.result.wall_s, 1),
    )


if __name__ == "__main__":
    main()
