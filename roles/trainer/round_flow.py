"""Flow of a trainer in a run whose trainers train at the same time.

The leader plans a round from the newest version, trains its own part of the batch, collects the
differences of the other trainers, takes the outer step, and publishes the version. The others train
their parts, and repeat the outer step of each version. A trainer takes part in a round once it has
reported the version that the round begins from: it has the same weights and outer momentum then.

A trainer that is lost costs its part of one round: the next one begins without it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import structlog
from typing_extensions import override

from protocol.core.types import Digest, PeerId, Role, Topic
from protocol.messages import CheckpointManifest, RoundPlan, RoundResult, Signed
from roles.ports.engines import EngineError, Environment, StepMetrics, TrainingEngine
from roles.ports.storage import StorageFullError
from roles.ports.swarm import RefusedError
from roles.runtime.context import RoleContext
from roles.trainer.batching import BatchDraw, TrainingBatch
from roles.trainer.flow import TrainerFlow
from roles.trainer.publication import until_stored
from roles.trainer.round_files import DifferenceFile, OuterRepetition, RoundFiles
from roles.trainer.shadowing import Shadow
from roles.trainer.statistics import merged

log = structlog.get_logger()

QUIET_EPOCHS = 2
"""Epochs after which a wait for other trainers is a condition that people see. A guess."""

RESULT_EPOCHS = 3
"""Epochs that the leader waits for the results of others, in addition to the time of its own part:
so trainers half as fast still take part. A guess: bodies and results travel meanwhile."""

REPORT_EPOCHS = 3
REPORT_STEPS = 2
"""Epochs and own outer steps that the leader waits for the others to repeat a version. A guess."""

FETCH_SECONDS = 60.0
"""Time for the files of results, in addition to that of the leader's own part. A guess."""


LEFT_OUT_ROUNDS_MAX = 16
"""Most rounds for which a leader leaves a trainer out that made no usable result: 1, 2, 4, ... as
this repeats. Each such trainer costs a wait, and the rollouts of its part. A guess."""


class _Absences:
    """Trainers that made no usable result lately, as the leader saw it."""

    def __init__(self) -> None:
        self._misses: Counter[PeerId] = Counter()
        """Rounds in a row without a usable result."""
        self._until: dict[PeerId, int] = {}
        """First version in whose round a trainer may take part again."""

    def note(self, version: int, planned: Sequence[PeerId], used: Collection[PeerId]) -> None:
        """Note which trainers planned for the round of a version have made a usable result."""
        for trainer in planned:
            if trainer in used:
                del self._misses[trainer]
            else:
                rounds = min(1 << self._misses[trainer], LEFT_OUT_ROUNDS_MAX)
                self._misses[trainer] += 1
                self._until[trainer] = version + 1 + rounds

    def leave_out(self, trainer: PeerId, version: int) -> bool:
        """Return whether a trainer should take no part in the round of a version."""
        return self._until.get(trainer, 0) > version


class RoundFlow(TrainerFlow):
    """Flow of one of several trainers that train at the same time."""

    def __init__(
        self, context: RoleContext, engine: TrainingEngine, environment: Environment
    ) -> None:
        super().__init__(context, engine, environment)
        assert context.manifest.grpo.outer is not None
        self._inner_steps = context.manifest.grpo.outer.inner_steps
        self._trainers_max = context.manifest.grpo.outer.trainers
        self._genesis = [PeerId(one) for one in context.manifest.genesis.trainers]
        self._chain, self._rounds = context.replica.ledger.chain, context.replica.rounds
        self._differences = RoundFiles(context, engine)
        repetition = OuterRepetition(context, engine, self._differences)
        self._shadow = Shadow(context, self._leadership, repetition)
        context.shadow.trains = True
        self._done: Digest | None = None
        """The plan whose part this trainer made last, or gave up."""
        self._saved: Digest | None = None
        """The version whose state this trainer saved last, while it did not lead."""
        self._absences = _Absences()
        self._published_at = 0.0
        self._outer_seconds = 0.0
        """Duration of this trainer's last outer step."""

    @override
    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._differences.watch())
            await super().run()

    # As the leader

    @override
    async def _lead(self) -> None:
        self._timer.start()
        self._published_at = _now()
        while self._is_current() and self._publication.version < self._steps:
            seen = self._context.changes.count
            try:
                made = await self._make_version()
            except RefusedError as error:  # the term has ended
                log.info("round refused", error=str(error))
                return
            if made is None:
                await self._context.tick(seen)
            elif not made:
                return

    async def _make_version(self) -> bool | None:
        """Make the next version by a round; None while it cannot begin, False to resume anew."""
        version = self._publication.version
        head = self._chain.get(version)
        if head is None or head.digest != self._publication.parent:
            return False
        trainers = self._ready(head)
        if trainers is None:
            return None
        steps = self._context.manifest.grpo.batch_steps(len(trainers))
        draw = await self._batching.draw(version, self._publication.policy, steps)
        if draw is None:
            return None
        plan, began_at = await self._plan(head, draw, trainers), _now()
        own = await self._train(version, _part(draw, len(trainers)), self._is_current)
        if own is None:
            return False
        await self._differences.publish(plan, version + 1)
        own_seconds = _now() - began_at
        results = await self._collect(plan, own_seconds)
        files = await self._usable(results, version + 1, own_seconds + FETCH_SECONDS)
        if not (files and self._is_current() and self._batching.conforms(version, draw, steps)):
            return False
        planned = [self._genesis[place] for place in plan.message.trainers]
        self._absences.note(version + 1, planned, files)
        await self._take_outer_step(list(files.values()))
        await self._record(version + 1, *own)
        made_by = self._rounds.training_round(plan, {one: results[one] for one in files})
        await self._publication.begin(draw, made_by)
        settled = await self._publication.settle()
        self._published_at = _now()
        return settled

    def _ready(self, head: Signed[CheckpointManifest]) -> list[PeerId] | None:
        """Return the trainers of the next round, this one first; None while others may be ready.

        Those are ready that have repeated the newest version. The trainers that were planned for
        its round are expected to be, and all live ones at version 0.
        """
        context, version, made = self._context, head.message.version, head.message.round
        live = {one.peer for one in context.replica.roster.live(context.clock.now(), Role.TRAINER)}
        others = [
            one
            for one in self._genesis
            if one in live and one != context.peer_id
            if not self._absences.leave_out(one, version + 1)
        ]
        confirmed = context.replica.shadows.confirmed(head.digest)
        expected = others if made is None else [self._genesis[place] for place in made.trainers]
        late = [one for one in others if one in expected and one not in confirmed]
        patience = REPORT_EPOCHS * context.epoch_seconds + REPORT_STEPS * self._outer_seconds
        if late and _now() < self._published_at + patience:
            reason = f"waiting for {len(late)} trainers to repeat version {version}"
            self._wait(reason, self._published_at)
            return None
        context.conditions.clear("trainer")
        ready = [one for one in others if one in confirmed]
        return [context.peer_id, *ready][: self._trainers_max]

    async def _plan(
        self, head: Signed[CheckpointManifest], draw: BatchDraw, trainers: list[PeerId]
    ) -> Signed[RoundPlan]:
        context = self._context
        plan = RoundPlan(
            parent=head.digest,
            term=self._publication.term,
            batch=draw.commits,
            page=draw.page,
            omitted=draw.omitted,
            trainers=tuple(map(self._genesis.index, trainers)),
            reloaded=self._publication.reloaded,
            planned_at=round(context.clock.now() * 1000),
        )
        log.info("round planned", version=head.message.version + 1, trainers=len(trainers))
        return await until_stored(context, lambda: context.network.publish(Topic.CHECKPOINTS, plan))

    async def _collect(
        self, plan: Signed[RoundPlan], own_seconds: float
    ) -> dict[PeerId, Signed[RoundResult]]:
        """Return the results of a round once all are here, or after some time."""
        context, planned = self._context, len(plan.message.trainers)
        since = _now()
        until = since + RESULT_EPOCHS * context.epoch_seconds + own_seconds
        while True:
            seen, results = context.changes.count, self._rounds.results(plan.digest)
            if len(results) == planned or _now() >= until or not self._is_current():
                context.conditions.clear("trainer")
                return results
            self._wait(f"waiting for the results of {planned - len(results)} trainers", since)
            await context.tick(seen)

    async def _usable(
        self, results: dict[PeerId, Signed[RoundResult]], version: int, seconds_max: float
    ) -> dict[PeerId, DifferenceFile]:
        """Return the files of results that are here and can be right."""
        found = await self._differences.files(list(results.values()), version, seconds_max)
        usable: dict[PeerId, DifferenceFile] = {}
        for trainer, file in zip(results, found, strict=True):
            if file is None:
                log.warning("difference missing", trainer=trainer, version=version)
                continue
            try:
                await self._engine.check_difference(*file)
            except ValueError as error:
                log.warning("difference refused", trainer=trainer, error=str(error))
            else:
                usable[trainer] = file
        return usable

    async def _take_outer_step(self, files: list[DifferenceFile]) -> None:
        context, began_at = self._context, _now()
        try:
            with context.durations.steps.part(context.clock.now()):
                await self._engine.apply_differences(files)
        except ValueError as error:  # each has been checked
            raise EngineError.of(error) from None
        self._failures.end()
        self._outer_seconds = _now() - began_at

    @override
    async def _resume(self, term: int) -> bool:
        """Repeat what was published since this trainer's own state, which has the momentum."""
        if self._chain.head is not None:
            try:
                await self._shadow.catch_up()
            except StorageFullError as error:
                self._context.conditions.set("trainer", f"disk full: {error}; waiting for room")
                return False
        return await super()._resume(term)

    # As another trainer

    async def _save(self) -> None:
        """Save the state of the version that was repeated, to return to it when later ones go."""
        at, files = self._shadow.at, self._context.files
        version = None if at is None else self._chain.place(at)
        if version is None or at == self._saved:
            return
        self._saved = at
        if version % self._context.manifest.shardcast.state_every:
            return
        try:
            await self._engine.save_state(files.state(version))
        except StorageFullError as error:
            log.warning("state not stored", version=version, error=str(error))

    @override
    async def _follow(self) -> bool:
        if await self._shadow.follow():
            await self._save()
            return True
        at, head = self._shadow.at, self._chain.head
        if at is None or head is None or head.digest != at:
            return False
        if head.message.version == 0:  # nothing to repeat: the state is that of the genesis
            await self._shadow.report(head, Digest(head.message.policy))
        plan = self._rounds.plan(at)
        if plan is None or plan.digest == self._done:
            return False
        own, place = self._context.peer_id, self._genesis.index(self._context.peer_id)
        if place not in plan.message.trainers or own in self._rounds.results(plan.digest):
            return False
        try:
            return await self._take_part(plan, head, plan.message.trainers.index(place))
        except EngineError:
            self._shadow.forget()
            raise

    async def _take_part(
        self, plan: Signed[RoundPlan], head: Signed[CheckpointManifest], number: int
    ) -> bool:
        """Train a part of a round, and publish the result; False while rollouts are missing."""
        message, version = plan.message, head.message.version

        def is_open() -> bool:
            now, newest = self._rounds.plan(head.digest), self._chain.head
            is_newest = newest is not None and newest.digest == head.digest
            is_planned = now is not None and now.digest == plan.digest
            return is_newest and is_planned and self._leadership.term is None

        part = await self._batching.fetch(message.batch[number :: len(message.trainers)])
        if part is None:
            return False
        if message.reloaded and not await self._begin_anew(version):
            return False
        self._timer.start()
        own = await self._train(version, part, is_open)
        self._done = plan.digest
        if own is None:
            log.info("round given up", version=version + 1)
            return True
        self._failures.end()
        await self._record(version + 1, *own)
        try:
            await self._differences.publish(plan, version + 1)
        except RefusedError as error:  # the round is over
            log.info("result not published", version=version + 1, error=str(error))
        return True

    async def _begin_anew(self, version: int) -> bool:
        """Load the weights of a version without momentum, as the leader has."""
        policy = self._context.policies.get(version)
        return policy is not None and await self._leadership.load_policy(policy)

    # As both

    async def _train(
        self, version: int, part: BatchDraw, is_open: Callable[[], bool]
    ) -> tuple[TrainingBatch, StepMetrics] | None:
        """Make the steps of a round from ``version``; None once it is not open any more."""
        context, commits = self._context, part.commits
        batches: list[TrainingBatch] = []
        metrics: list[StepMetrics] = []
        with context.durations.steps.part(context.clock.now()):
            await self._engine.begin_round()
        while len(batches) < self._inner_steps:
            seen = context.changes.count
            if not is_open():
                return None
            own = commits[len(batches) :: self._inner_steps]
            batch = await self._batching.batch(
                version, part, {commit: part.rollouts[commit] for commit in own}
            )
            if batch is None:
                await context.tick(seen)
                continue
            with context.durations.steps.part(context.clock.now()):
                await self._engine.begin_step(batch.sequences)
                metrics.append(await self._engine.end_step())
            batches.append(batch)
        return _joined(part, batches), merged(metrics)

    def _wait(self, reason: str, since: float) -> None:
        if _now() >= since + QUIET_EPOCHS * self._context.epoch_seconds:
            self._context.conditions.wait("trainer", reason)


def _part(draw: BatchDraw, trainers: int) -> BatchDraw:
    """Return the leader's part of a batch that trainers share."""
    own = draw.commits[::trainers]
    return replace(draw, rollouts={commit: draw.rollouts[commit] for commit in own})


def _joined(part: BatchDraw, batches: list[TrainingBatch]) -> TrainingBatch:
    """Return the batches of several steps as one, with distinct groups."""
    groups, sequences = 0, []
    for batch in batches:
        sequences += [replace(one, group=one.group + groups) for one in batch.sequences]
        groups = 1 + max(one.group for one in sequences)
    staleness = tuple(age for batch in batches for age in batch.staleness_versions)
    return TrainingBatch(part, sequences, staleness)


def _now() -> float:
    return asyncio.get_running_loop().time()
