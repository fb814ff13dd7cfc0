"""Life cycle of a testnet: genesis, start, training, drain and report."""

import asyncio
import contextlib
import shlex
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

from node.founding.expected import expected_curve
from node.local.datadir import DataDir
from node.local.memory import peak_rss_bytes
from node.local.run_pin import load_run
from node.testnet import launcher
from node.testnet.evaluation import greedy_accuracy
from node.testnet.fleet import Fleet, join_command, status_command, tail
from node.testnet.genesis import (
    create_members,
    found_run,
    make_first_policy,
    recipe_for,
    require_task,
)
from node.testnet.picture import draw_reward
from node.testnet.plan import NodePlan, Options, SwarmLayout
from node.testnet.record import SwarmRecord
from node.testnet.report import build_report, write_report
from node.testnet.screen import Screen
from node.testnet.trained import TrainedModel, export_last
from node.testnet.web import SwarmPages
from protocol.core.types import Role
from protocol.run.recipe import Recipe
from roles.ports.storage import weights_name

T = TypeVar("T")

OBSERVE_SECONDS = 1.0
STARTING_OBSERVE_SECONDS = 0.2
FIRST_RELAY_SECONDS = 60.0
COLD_START_SECONDS = 600.0
EPILOGUE_SECONDS = 60.0
EXPORT_SECONDS = 600.0
SETTLE_SECONDS = 5.0
"""Time limit of the last polls, for the last certificates to arrive by gossip."""


class SwarmFailedError(Exception):
    """The testnet cannot continue; the message gives the reason in a few lines."""


@dataclass(frozen=True, slots=True)
class SwarmOutcome:
    """Result of a testnet; ``failure`` is empty on success."""

    report: dict[str, Any]
    failure: str
    model: TrainedModel | None = None


@dataclass(slots=True)
class SwarmRun:
    """One testnet; ``record`` and ``screen`` may be drawn at any time."""

    options: Options
    layout: SwarmLayout
    record: SwarmRecord
    screen: Screen
    recipe: Recipe
    on_end: Callable[[], None] = lambda: None
    """Called after training, before nodes are drained."""
    _plans: list[NodePlan] = field(default_factory=list)
    _addresses: tuple[str, ...] = ()
    _interrupts: int = 0
    _working: "asyncio.Task[None] | None" = None

    @classmethod
    def create(cls, options: Options) -> "SwarmRun":
        """Create the testnet.

        Raises ``OSError`` or ``NodeError`` when its directory, recipe or task is unusable here.
        """
        recipe = recipe_for(options)
        require_task(recipe)
        layout = SwarmLayout(options.directory, options.run)
        record = SwarmRecord(psutil.Process().create_time())
        screen = Screen(
            recipe.environment.name, options.seed, recipe.grpo.steps, options.minutes * 60
        )
        return cls(options, layout, record, screen, recipe)

    async def run(self) -> SwarmOutcome:
        """Run to the end, drain, write the report; Ctrl-C and SIGTERM end it early."""
        failure = ""
        async with httpx.AsyncClient() as client:
            fleet = Fleet(self.layout, self.record, client, self.options)
            pages = SwarmPages(self.record, lambda: f"testnet, {self.screen.environment}")
            with self._signals(fleet):
                try:
                    self.screen.web_url = await pages.start()
                    self._working = asyncio.create_task(self._work(fleet))
                    await self._working
                except asyncio.CancelledError:
                    if not self._interrupts:
                        raise
                except (SwarmFailedError, launcher.ChildError) as error:
                    failure = str(error)
                finally:
                    self.on_end()
                    self.screen.stage = "draining"
                    self.screen.notice = ""
                    await self._drain(fleet)
                    await pages.stop()
                    fleet.close()
                report = await self._epilogue(failure)
                model = None if failure else await self._keep_model()
        self.screen.stage = "failed" if failure else "done"
        return SwarmOutcome(report, failure, model)

    async def _work(self, fleet: Fleet) -> None:
        await self._begin()
        await self._launch(fleet)
        self.screen.stage = "learning"
        await self._learn(fleet)

    async def _begin(self) -> None:
        self._plans = create_members(self.options, self.layout)
        for plan in self._plans:
            self.record.add(plan)
        if self.options.run is not None:
            self.screen.run_id = load_run(self.layout.manifest).manifest.run_id.hex()
            return
        self.screen.stage = "genesis"
        first, peak_bytes = await launcher.call(
            make_first_policy,
            self.recipe,
            self.options.seed,
            self.layout,
            seconds=COLD_START_SECONDS,
        )
        self.record.note_memory("genesis", peak_bytes)
        signed = found_run(self.recipe, first, self._plans, self.layout)
        self.screen.run_id = signed.manifest.run_id.hex()

    async def _launch(self, fleet: Fleet) -> None:
        """Start a first relay, then all other nodes with its address."""
        self.screen.stage = "starting"
        relays = [plan for plan in self._plans if plan.role is Role.RELAY]
        first = relays[0] if relays else self._plans[0]
        await fleet.start(first, ())
        self._addresses = await self._addresses_of(first, fleet)
        self._tell_how_to_join()
        for plan in self._plans:
            if plan is not first:
                await fleet.start(plan, self._addresses)

    def _tell_how_to_join(self) -> None:
        screen, layout = self.screen, self.layout
        page = self.record.trusted_page
        screen.join_command = join_command(self._addresses, screen.run_id, layout.guest, page)
        screen.status_command = status_command(layout.guest)
        layout.join_script.write_text(f"exec {screen.join_command}\n")
        layout.status_script.write_text(f"exec {screen.status_command}\n")
        screen.join_script = shlex.quote(str(layout.join_script))
        screen.status_script = shlex.quote(str(layout.status_script))

    async def _addresses_of(self, plan: NodePlan, fleet: Fleet) -> tuple[str, ...]:
        """Wait for a node to report its address, and return it."""
        node = self.record.nodes[plan.name]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FIRST_RELAY_SECONDS):
                while not fleet.exited(plan):
                    await fleet.observe()
                    if node.status is not None and node.status.addresses:
                        return node.status.addresses[:1]
                    await asyncio.sleep(STARTING_OBSERVE_SECONDS)
        log = self.layout.log(plan.name)
        raise SwarmFailedError(f"{plan.name} did not start; {log}:\n{tail(log)}")

    async def _learn(self, fleet: Fleet) -> None:
        ends_at = self.record.started_at + self.screen.seconds_max
        while self.record.newest_version < self.recipe.grpo.steps and time.time() < ends_at:
            await fleet.observe()
            self._notice(fleet)
            if all(node.condition == "dead" for node in self.record.nodes.values()):
                raise SwarmFailedError("every node is dead; see logs/")
            await asyncio.sleep(OBSERVE_SECONDS)
        await self._settle(fleet)
        if self.record.newest_version < 1:
            raise SwarmFailedError("no version was trained within the time limit; see logs/")

    async def _settle(self, fleet: Fleet) -> None:
        """Poll for up to ``SETTLE_SECONDS`` until all trained rollouts are known as certified."""
        last_look_at = time.time() + SETTLE_SECONDS
        while True:
            await fleet.observe()
            if self.record.trained_without_certificate == 0 or time.time() > last_look_at:
                return
            await asyncio.sleep(OBSERVE_SECONDS)

    def _notice(self, fleet: Fleet) -> None:
        if self.record.trusted_page not in self.screen.join_command:
            self._tell_how_to_join()
        for pid in fleet.engine_pids():
            self.record.note_memory("engine", peak_rss_bytes(pid))
        self.record.note_memory("testnet", peak_rss_bytes(psutil.Process().pid))
        trainers = [node for node in self.record.nodes.values() if node.plan.role is Role.TRAINER]
        dead = [node.plan.name for node in self.record.nodes.values() if node.condition == "dead"]
        if all(node.condition == "dead" for node in trainers):
            path = self.layout.restart_command(trainers[0].plan.name)
            self.screen.notice = f"no trainer is left; restart one: sh {path}"
        else:
            self.screen.notice = f"dead: {', '.join(dead)}" if dead else ""

    async def _epilogue(self, failure: str) -> dict[str, Any]:
        # Evaluating the model of a created run may take hours.
        greedy = None if failure or self.options.run is not None else await self._evaluate()
        report = build_report(
            self.record,
            run_id=self.screen.run_id,
            versions=self.recipe.grpo.steps,
            wall_seconds=time.time() - self.record.started_at,
            greedy_eval_last=greedy,
            curve=()
            if self.options.run is not None
            else expected_curve(self.options.recipe, self.recipe.environment.name),
        )
        write_report(report, self.layout.report)
        if self.record.rewards:
            title = f"{self.screen.environment}, run {self.screen.run_id[:12]}"
            await self._try(
                launcher.call(
                    draw_reward,
                    self.record.rewards,
                    self.record.evaluation,
                    greedy,
                    title,
                    self.layout.reward_picture,
                    seconds=EPILOGUE_SECONDS,
                )
            )
        return report

    async def _drain(self, fleet: Fleet) -> None:
        stuck = await fleet.drain()
        if stuck:
            self.screen.notice = f"killed, because they did not drain in time: {', '.join(stuck)}"

    def _newest_policy(self) -> Path | None:
        """Return the newest weights on a node, trainers first."""
        name = weights_name(self.record.newest_version)
        plans = sorted(self._plans, key=lambda plan: plan.role is not Role.TRAINER)
        paths = (DataDir(plan.directory).weights / name for plan in plans)
        return next((path for path in paths if path.exists()), None)

    async def _evaluate(self) -> float | None:
        path = self._newest_policy()
        if path is None:
            return None
        evaluation = await self._try(
            launcher.call(
                greedy_accuracy, self.layout, path, self.options.seed, seconds=EPILOGUE_SECONDS
            )
        )
        return evaluation[0] if evaluation is not None else None

    async def _keep_model(self) -> TrainedModel | None:
        """Export the newest version on a node; None before the first trained one."""
        if self.record.newest_version < 1:
            return None
        plans = sorted(self._plans, key=lambda plan: plan.role is not Role.TRAINER)
        directories = [plan.directory for plan in plans]
        exported = await self._try(
            launcher.call(export_last, directories, self.layout.trained, seconds=EXPORT_SECONDS)
        )
        return exported[0] if exported is not None else None

    async def _try(self, helper: Awaitable[T]) -> T | None:
        """Return the result of a helper process, or None and an error line if it fails."""
        try:
            return await helper
        except launcher.ChildError as error:
            sys.stderr.write(f"{error}\n")
            return None

    @contextlib.contextmanager
    def _signals(self, fleet: Fleet) -> Iterator[None]:
        """Drain at the first interrupt and kill at the second.

        A closing terminal may send SIGHUP several times; it drains and never kills. An ignored
        SIGHUP (nohup) stays ignored.
        """
        loop = asyncio.get_running_loop()
        kills: list[asyncio.Task[None]] = []

        def interrupt(number: signal.Signals) -> None:
            if number is signal.SIGHUP and self._interrupts:
                return
            self._interrupts += 1
            if self._interrupts == 1 and self._working is not None:
                self._working.cancel()
            else:
                kills.append(asyncio.create_task(fleet.kill()))

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        for number in numbers:
            loop.add_signal_handler(number, interrupt, number)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)
