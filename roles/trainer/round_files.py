"""Differences of a round's trainers: this trainer's own, and those of the others as they arrive.

Every trainer fetches the files of all results as soon as it has these, since the next version's
outer step needs them.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import structlog
from typing_extensions import override

from protocol.core.types import Digest, PeerId, Topic
from protocol.messages import CheckpointManifest, RoundPlan, RoundResult, Signed
from roles.ports.engines import TrainingEngine
from roles.ports.storage import StorageFullError
from roles.runtime.context import RoleContext
from roles.trainer.publication import until_stored
from roles.trainer.repetition import Repetition

log = structlog.get_logger()

DifferenceFile = tuple[Digest, Path]
"""Digest of a difference's tensors, and its file."""


class _Fetch(NamedTuple):
    """Fetch of the file of a signed result, which has this digest."""

    result: Digest
    task: asyncio.Task[bool]

    @property
    def has_failed(self) -> bool:
        """True if it has ended without the file."""
        return self.task.done() and (self.task.cancelled() or not self.task.result())


class RoundFiles:
    """Files of the rounds in progress, and of the newest versions."""

    def __init__(self, context: RoleContext, engine: TrainingEngine) -> None:
        self._context, self._engine = context, engine
        self._chain, self._rounds = context.replica.ledger.chain, context.replica.rounds
        trainers = context.manifest.genesis.trainers
        self._places = {PeerId(trainer): place for place, trainer in enumerate(trainers)}
        self._fetches: dict[Path, _Fetch] = {}
        self._kept_from = -1

    # This trainer's own

    async def publish(self, plan: Signed[RoundPlan], version: int) -> None:
        """Write and publish what this trainer's steps of a round have moved.

        ``version``: the one that the round makes. Raises ``EngineError``, and ``RefusedError`` if
        the round is over.
        """
        context = self._context
        path = context.files.difference(version, self._places[context.peer_id])
        digest = await until_stored(context, lambda: self._engine.write_difference(path))
        stored = await until_stored(context, lambda: context.policies.publish_difference(path))
        result = RoundResult(
            plan=plan.digest,
            difference=digest,
            index=stored.digest,
            index_bytes=stored.index_bytes,
            total_bytes=stored.total_bytes,
        )
        await until_stored(context, lambda: context.network.publish(Topic.CHECKPOINTS, result))
        log.info("difference published", version=version, bytes=stored.total_bytes)

    # Those of others

    async def watch(self) -> None:
        """Fetch the differences of the rounds from the newest version until cancelled."""
        context = self._context
        try:
            while True:
                seen, head = context.changes.count, self._chain.head
                plan = None if head is None else self._rounds.plan(head.digest)
                results = [] if plan is None else list(self._rounds.results(plan.digest).values())
                version = self._chain.version + 1
                for result in results:
                    self._fetch(result, version)
                await self._retain(results)
                await context.tick(seen)
        finally:
            tasks = [fetch.task for fetch in self._fetches.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def files(
        self,
        results: Sequence[Signed[RoundResult]],
        version: int,
        seconds_max: float | None = None,
    ) -> list[DifferenceFile | None]:
        """Return the files of some results for a version, in order; None for one that is missing.

        Wait for ``seconds_max`` at most; None: while they arrive.
        """
        fetches = [self._fetch(result, version) for result in results]
        if fetches:
            await asyncio.wait(fetches, timeout=seconds_max)
        return [
            (Digest(result.message.difference), self._path(result, version))
            if fetch.done() and not fetch.cancelled() and fetch.result()
            else None
            for result, fetch in zip(results, fetches, strict=True)
        ]

    def _path(self, result: Signed[RoundResult], version: int) -> Path:
        return self._context.files.difference(version, self._places[result.signer])

    def _fetch(self, result: Signed[RoundResult], version: int) -> asyncio.Task[bool]:
        """Return the fetch of a result's file; begin it if there is none, or it has failed.

        A result of an earlier plan for the version has the same path; its fetch ends first.
        """
        path = self._path(result, version)
        fetch = self._fetches.get(path)
        if fetch is None or fetch.result != result.digest or fetch.has_failed:
            task = asyncio.create_task(self._fetched(result, path, fetch))
            fetch = self._fetches[path] = _Fetch(result.digest, task)
        return fetch.task

    async def _fetched(
        self, result: Signed[RoundResult], path: Path, earlier: "_Fetch | None"
    ) -> bool:
        if earlier is not None:
            earlier.task.cancel()
            await asyncio.gather(earlier.task, return_exceptions=True)
        try:
            return await self._context.policies.fetch_difference(result, path)
        except StorageFullError as error:
            log.warning("difference not stored", trainer=result.signer, error=str(error))
            return False

    async def _retain(self, results: Sequence[Signed[RoundResult]]) -> None:
        """Delete the differences of old versions, and the fetches of ended rounds.

        Those stay that lead from a kept state to the newest version, and those of one version more,
        for a trainer that loads such a state meanwhile.
        """
        newest = self._chain.version
        kept_from = max(0, self._context.manifest.shardcast.states_kept_from(newest))
        if kept_from == self._kept_from:
            return
        self._kept_from = kept_from
        versions = filter(None, map(self._chain.get, range(kept_from, newest + 1)))
        indexes = {Digest(result.message.index) for result in results}
        for version in versions:
            made_by = version.message.round
            if made_by is not None:
                indexes |= {Digest(one.index) for one in made_by.contributions}
        await self._context.policies.retain_differences(kept_from, indexes)
        kept = {self._path(result, newest + 1) for result in results}
        ended = [path for path, fetch in self._fetches.items() if fetch.task.done()]
        for path in ended:
            if path not in kept:
                del self._fetches[path]


class OuterRepetition(Repetition[list[DifferenceFile]]):
    """Repetition of an outer step from the differences that a version names."""

    def __init__(
        self, context: RoleContext, engine: TrainingEngine, differences: RoundFiles
    ) -> None:
        self._context, self._engine, self._differences = context, engine, differences

    @override
    def can_repeat(self, version: Signed[CheckpointManifest]) -> bool:
        return True  # the outer step has the same bits with any number of ranks

    @override
    async def gather(self, version: Signed[CheckpointManifest]) -> list[DifferenceFile] | None:
        rounds, made_by = self._context.replica.rounds, version.message.round
        assert made_by is not None
        results = [rounds.contribution(version, one.trainer) for one in made_by.contributions]
        found = await self._differences.files(results, version.message.version)
        files = [one for one in found if one is not None]
        return files if len(files) == len(results) else None

    @override
    async def begin(
        self, version: Signed[CheckpointManifest], gathered: list[DifferenceFile]
    ) -> bool:
        del version, gathered
        return True

    @override
    async def end(self, gathered: list[DifferenceFile]) -> Digest | None:
        try:
            await self._engine.apply_differences(gathered)
        except ValueError as error:
            log.warning("outer step refused", error=str(error))
            return None
        return await self._engine.policy_digest()
