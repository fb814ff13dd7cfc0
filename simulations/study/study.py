"""One simulation: a plan in, numbers and a history out."""

import gc
import logging
import resource
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import structlog

from simulations.adversaries import BEHAVIOURS
from simulations.checkers import CheckerTolerances, Violation, Watch, attach_checkers
from simulations.cluster.calm import announce_attack, announce_calm
from simulations.cluster.churn import churn_actor
from simulations.cluster.faults import fault_actor
from simulations.cluster.world import Actor, NodeFailedError, World
from simulations.metrics.numbers import RunMeter, RunResult
from simulations.metrics.series import Series
from simulations.metrics.under_attack import AttackNumbers, UnderAttack
from simulations.runtime.loop import run_virtual
from simulations.runtime.trace import Event, Trace
from simulations.scenario.plans import Adversaries
from simulations.scenario.scenario import Nodes, Scenario, load_scenario

PATIENCE = CheckerTolerances(converge_epochs=24, progress_epochs=36)
"""Guesses. Converging takes three rounds of the synchronisation that repairs lost gossip. Progress
takes the lifetime of a record, until a trainer takes over, and several steps that wait for
rollouts."""

PROGRESS_EVENTS = 512
"""Events between two progress reports."""

Progress = Callable[[float, float], None]
"""``(virtual seconds so far, virtual seconds in all)``."""


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A scenario by name or path, and all overrides of its file.

    Each field but ``scenario`` is an option of ``simulate run``. Results and regressions keep all
    fields by name.
    """

    scenario: str
    seed: int = field(default=0, metadata={"option": "--seed"})
    nodes: int | None = field(default=None, metadata={"option": "--nodes"})
    minutes: float | None = field(default=None, metadata={"option": "--minutes"})
    untrusted_per_node: float | None = field(
        default=None, metadata={"option": "--untrusted-per-node"}
    )
    untrusted_after_minutes: float | None = field(
        default=None, metadata={"option": "--untrusted-after"}
    )
    """Minutes by which additional adversaries start later; the run lasts as much longer."""
    worker_speed: float | None = field(default=None, metadata={"option": "--worker-speed"})

    @property
    def command(self) -> str:
        """The command that repeats this run."""
        words = ["prime-node", "simulate", "run", self.scenario]
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name != "scenario" and value is not None:
                words += [each.metadata["option"], _number_text(value)]
        return shlex.join(words)

    @classmethod
    def of_values(cls, values: Mapping[str, Any]) -> "RunPlan":
        """Return the plan from the fields in ``values``; other keys are ignored.

        Raises ``KeyError`` if scenario or seed are missing.
        """
        given = {each.name: values[each.name] for each in fields(cls) if each.name in values}
        return cls(**{"scenario": values["scenario"], "seed": values["seed"]} | given)

    def load(self) -> Scenario:
        """Return the scenario; raises ``ScenarioError``."""
        scenario = load_scenario(self.scenario)
        changes: dict[str, object] = {}
        if self.minutes is not None:
            changes["minutes"] = self.minutes
        if self.nodes is not None:
            changes["nodes"] = resized(scenario.nodes, self.nodes)
        if self.untrusted_after_minutes is not None:
            changes["minutes"] = (self.minutes or scenario.minutes) + self.untrusted_after_minutes
        if self.worker_speed is not None:
            changes["compute"] = tuple(
                kind.faster_generation(self.worker_speed) for kind in scenario.compute
            )
        changes["adversaries"] = tuple(
            plan if plan.per_node is None else self._untrusted(plan)
            for plan in scenario.adversaries
        )
        return scenario.model_copy(update=changes)

    def _untrusted(self, plan: Adversaries) -> Adversaries:
        """Return the additional adversaries with this plan's overrides."""
        if self.untrusted_per_node is not None:
            plan = plan.model_copy(update={"per_node": self.untrusted_per_node})
        return plan.put_off(self.untrusted_after_minutes or 0.0)


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """Result of a run."""

    plan: RunPlan
    result: RunResult
    series: Series | None
    """None for a run of a sweep."""
    attack: AttackNumbers | None = None
    """None for a run of a sweep, and without timed adversaries."""

    @property
    def violation(self) -> Violation | None:
        """The violated rule, if any."""
        return next(iter(self.result.violations), None)


class ViolationError(Exception):
    """Ends a simulation that violated a rule."""


def run_plan(
    plan: RunPlan,
    *,
    clock: Callable[[], float],
    on_progress: Progress = lambda _now, _end: None,
    actors: Sequence[Actor] = (),
    patience: CheckerTolerances = PATIENCE,
) -> RunOutcome:
    """Run a plan to its end or first violation, timed by ``clock``; raises ``ScenarioError``."""
    scenario = plan.load()
    trace, watch = Trace(), Watch(_end_simulation)
    meter = RunMeter(
        watch, attach_checkers(watch, patience), scenario.network.mean_round_trip_seconds
    )
    attack = scenario.attack_seconds
    under_attack = None if attack is None else UnderAttack(watch, attack)
    trace.listen(watch.see)

    def report(event: Event) -> None:
        if trace.events % PROGRESS_EVENTS == 0:
            on_progress(event.at - watch.started_at, scenario.seconds)

    trace.listen(report)
    began = clock()
    try:
        with _many_nodes():
            run_virtual(_live(scenario, plan.seed, trace, actors))
        watch.finish(watch.started_at + scenario.seconds)
    except ViolationError:
        pass  # recorded by the watch
    except NodeFailedError as error:
        watch.note_failure(str(error))
    result = meter.result(
        asdict(plan),
        nodes=scenario.nodes.total,
        wall_s=clock() - began,
        events=trace.events,
        trace_digest=trace.digest,
        peak_rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    )
    borne = None if under_attack is None else under_attack.numbers()
    return RunOutcome(plan, result, meter.series, borne)


@contextmanager
def _many_nodes() -> Iterator[None]:
    """Silence logs and reduce garbage collection for many nodes in one process."""
    logging_before = structlog.get_config()
    nothing = structlog.make_filtering_bound_logger(logging.CRITICAL)
    structlog.configure(wrapper_class=nothing, cache_logger_on_first_use=False)
    thresholds = gc.get_threshold()
    gc.set_threshold(1_000_000, 20, 100)  # cycles are few; collecting takes a tenth of the time
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        structlog.configure(**logging_before)


async def _live(scenario: Scenario, seed: int, trace: Trace, actors: Sequence[Actor]) -> None:
    plans = (
        announce_calm,
        announce_attack,
        *(churn_actor(plan, number) for number, plan in enumerate(scenario.churn)),
        *(fault_actor(plan, number) for number, plan in enumerate(scenario.faults)),
    )
    await World(scenario, seed, trace, behaviours=BEHAVIOURS).run((*plans, *actors))


def _end_simulation(violation: Violation) -> None:
    raise ViolationError(str(violation))


def _number_text(value: float) -> str:
    """Return the shortest text that parses to exactly this number."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def resized(nodes: Nodes, total: int) -> Nodes:
    """Scale ``nodes`` to ``total`` in the same proportions; the number of trainers stays."""
    share = total / nodes.total
    relays = max(1, round(nodes.relay * share))
    validators = max(min(nodes.validator, 4), round(nodes.validator * share))
    workers = max(0, total - nodes.trainer - relays - validators)
    return nodes.model_copy(update={"relay": relays, "validator": validators, "inference": workers})
