"""What a large run waits for: versions of 62 GB as patches, on their way to a hundred workers.

The whole daemon in virtual time, with the recipe of INTELLECT-2 (``configs/runs/intellect2.toml``),
on lines of 590 Mbit/s both ways, as its file of 62 GB took 14 minutes, and with workers at home,
100 Mbit/s down and 40 up, half of them behind NAT. Of the versions of a run:

* *publish*: from the end of a step until its version is announced: the digest of the weights, by
  which the next batch is drawn, and beside the next step the writing of weights and, every
  ``state_every`` versions, of the state, the digests of the file and the patch;
* *half*, *last*: from there until so many nodes hold the decoded weights;
* *idle*: the share of the trainer's time in which it does not compute a step: it makes the digest,
  waits for rollouts, or waits in a step because the weights before it are not written yet.

Going once through the weights (their digest, writing, encoding, decoding) has one speed,
``--speed``: 1 GB/s is what one thread does, and eight are used where there are cores. Everybody
holds the first version when the run begins. Prompts and answers are some tokens each that stand for
thousands, so bodies of rollouts take nearly nothing.

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
    # So much more than the trainer learns from do the workers make, as in the scenarios: a guess.
    "generation_margin": 1.5,
    # For a rollout of 32 sequences: a guess for a prefill on eight GPUs.
    "check_seconds": 20,
    # For 62 GB from the disk into an engine: a guess.
    "load_seconds": 60,
}

STATE_GIGABYTES = 372.0
"""float32 weights and two moments: 12 bytes a parameter."""

SPEEDS = [1.0, 8.0]

WARM_STEPS = 2
"""Before the first step there are no rollouts, and after the last the version is on its way."""

SETTLED_SECONDS = 400.0
"""A version that was announced later than this before the end is left out."""

PATIENCE = CheckerTolerances(converge_epochs=24, progress_epochs=90)
"""An epoch is a minute: four steps, of which the first waits for rollouts."""

OURS = ("model", "environment", "admission")
"""Sections of a recipe that the simulator has its own of: end token, vocabulary, task. And proof of
work, which it computes for every key: that of the recipe takes minutes of a core, and has newcomers
wait for an hour before the first rollout."""

SEQUENCE_TOKENS = 12
"""In the mean, of what is asked for; one more ends a sequence."""

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
    """One run; seconds are medians over its versions, but for ``last_max_seconds``."""

    lines: str
    gb_per_second: float
    versions: int
    publish_seconds: float
    half_seconds: float
    last_seconds: float
    last_max_seconds: float
    whole_file_seconds_min: float
    """In which the lines could bring the whole file to everybody at best."""
    idle_share: float
    violations: int
    wall_seconds: float


@dataclass
class History:
    """What happened, in virtual seconds: steps that ended, and who had a version when."""

    steps: list[tuple[float, float]] = field(default_factory=list)
    """When each ended and how long it took."""
    arrivals: dict[int, list[float]] = field(default_factory=dict)

    def see(self, event: Event) -> None:
        """Take an event of the trace."""
        if event.kind == "trained":
            self.steps.append((event.at, float(event.facts["seconds"] or 0)))
        elif event.kind == "weights":
            self.arrivals.setdefault(int(event.facts["version"] or 0), []).append(event.at)

    @property
    def pauses(self) -> list[float]:
        """From the end of each step to that of the next, without what that computed."""
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
    """Simulate one run; return its figures."""
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
    """Return the scenario: the recipe's run on machines that compute as fast as assumed."""
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
    version_seconds = step_seconds + ASSUMED["weights_gigabytes"] / speed  # their digest
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
    """Return the tables of a recipe without keys that have no value, which TOML does not know."""
    return {
        name: {key: value for key, value in section.items() if value is not None}
        for name, section in recipe.model_dump().items()
        if isinstance(section, dict) and name not in OURS
    }


def give_first_version(world: World) -> None:
    """Put the model that the run begins with on all disks: nobody fetches that at 590 Mbit/s."""
    trainer = world.machines["trainer-0"]
    first = trainer.disk.files[trainer.genesis]
    for machine in world.machines.values():
        if machine is not trainer:
            machine.disk.files[machine.weights / weights_name(0)] = first
            machine.disk.tables["policies"] = {bytes(8): policy_digest(first)}


def row(lines: str, speed: float, history: History, outcome: RunOutcome) -> Row:
    """Return the figures of a run; version ``n`` comes from step ``n``."""
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
