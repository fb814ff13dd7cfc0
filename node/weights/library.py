"""Policy library of this machine: publication, and download over the forest, newest first.

Every worker and relay holds the newest versions, because every node serves others. The engine that
loads a policy checks its tensors; a rejected policy is fetched again (``discard``).
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
from typing_extensions import override

from node.context import Ports, background_task
from node.network.blobs.exchange import BlobExchange
from node.weights.differences import Differences
from node.weights.download import RemoteWeights, WeightsDownload
from node.weights.download_plan import DownloadPlanner, DownloadStep
from node.weights.downloads import Downloads
from node.weights.held_policies import HeldPolicies
from node.weights.optimizer_states import TrainerStates
from node.weights.publish import offer_file, publish_encoding
from node.weights.refused_versions import RefusedVersions
from node.weights.trainer_files import TrainerFiles
from protocol.core.faults import Fault
from protocol.core.types import Digest, PeerId, Version
from protocol.messages import CheckpointManifest, RoundResult, Signed
from protocol.replica.replica import Replica
from protocol.run.outer_bound import version_bound
from protocol.shardcast.forest import ForestMember
from protocol.shardcast.movement_bound import (
    ExcessiveMovement,
    ExcessiveMovementError,
    MovementBound,
)
from roles.ports.engines import Patch, Policy
from roles.ports.storage import Purpose, StorageFullError, StoredFile
from roles.ports.swarm import Policies, Release
from roles.runtime.context import ChangeSignal, Conditions

log = structlog.get_logger()

REFUSALS_MAX = 3
"""Rejections of one version by engines: the first copy, a second one, and one from the file."""


@dataclass(slots=True)
class _Arriving:
    leg: DownloadStep
    root: PeerId
    members: Sequence[ForestMember]
    weights: WeightsDownload
    task: asyncio.Task[None]


class PolicyLibrary(Policies):
    """Downloader and store of the versions that the swarm uses, newest first."""

    def __init__(
        self,
        ports: Ports,
        replica: Replica,
        exchange: BlobExchange,
        downloads: Downloads,
        changes: ChangeSignal,
        conditions: Conditions,
    ) -> None:
        self._ports = ports
        self._replica = replica
        self._exchange = exchange
        self._downloads = downloads
        self._changes = changes
        self.news = ChangeSignal()
        """Signals a version that arrived or was removed: few of the run's changes."""
        self.saved_bytes = 0
        """Total bytes saved by encodings."""
        self._conditions = conditions
        self._refused = RefusedVersions(ports.store, replica)
        self._held = HeldPolicies(ports, replica, self._refused)
        self._arriving: dict[int, _Arriving] = {}
        self._routes = DownloadPlanner(replica.ledger.chain, replica.manifest.shardcast, self.get)
        self._bases: set[int] = set()
        """Versions needed as bases of wanted versions."""
        self._refusals: dict[Digest, int] = {}
        trainer_files = TrainerFiles(ports, replica, downloads)
        self._states = TrainerStates(
            ports, replica, trainer_files, lambda: not self._arriving, self._refused.newest_usable
        )
        self._differences = Differences(ports, replica, trainer_files, self.newest)

    # Held policies

    @override
    def get(self, version: int) -> Policy | None:
        return self._held.get(version)

    @override
    def newest(self) -> Policy | None:
        return self._held.newest()

    @override
    def hold(self, policy: Policy) -> AbstractContextManager[None]:
        return self._held.in_use(policy)

    async def restore(self) -> None:
        """Load the policies held before a restart, and the refused versions."""
        self._refused.restore()
        await self._held.restore()
        if (checkpoint := self._refused.checkpoint) is not None:  # its blobs, after a crash
            await self._held.release(checkpoint.message)

    @override
    async def discard(self, policy: Policy) -> None:
        """Drop a policy that an engine rejected, and fetch it again.

        The second copy comes in the same form, with every chunk verified; the third is the file. If
        an engine rejects that too, the trainer published other tensors than it signed.
        """
        checkpoint = self._held.remove(policy)
        if checkpoint is None:
            return
        refusals = self._refusals.get(checkpoint.digest, 0) + 1
        self._refusals[checkpoint.digest] = refusals
        log.error("policy rejected by an engine", version=policy.version, times=refusals)
        await self._held.release(checkpoint.message)
        if refusals > 1:
            self._routes.useless |= dict.fromkeys(
                Digest(encoding.index) for encoding in checkpoint.message.encodings
            )
        self._changes.notify()
        self.news.notify()

    # Publication

    @override
    async def release(self, policy: Policy) -> Release:
        rules, blobs, files = self._replica.manifest.shardcast, self._ports.blobs, self._ports.files
        sizes = rules.shard_bytes, rules.chunk_bytes
        base = self.get(policy.version - 1)
        # Concurrent, each reading one or two whole files: publication waits for the slowest.
        encoding = asyncio.create_task(publish_encoding(self._ports, rules, policy, base))
        try:
            stored = await blobs.put_file(policy.path, *sizes, Purpose.WEIGHTS)
            state, path = None, files.state(policy.version)
            heirs = len(self._replica.manifest.genesis.trainers) > 1
            if heirs and not policy.version % rules.state_every and files.size(path):
                state = await blobs.put_file(path, *sizes, Purpose.OPTIMISER_STATE)
        except BaseException:
            encoding.cancel()
            raise
        finally:  # a retry must start after its end
            await asyncio.gather(encoding, return_exceptions=True)
        published = await encoding
        await self._held.add(replace(policy, patch=published.patch))
        encodings = () if published.encoding is None else (published.encoding,)
        return Release(stored, encodings, state)

    @override
    def published_state(self, version: int) -> Signed[CheckpointManifest] | None:
        return self._states.newest(min(version, self._refused.newest_usable()))

    @override
    async def fetch_state(self, manifest: Signed[CheckpointManifest]) -> Path | None:
        return await self._states.fetch(manifest)

    # Rounds of several trainers

    @override
    async def publish_difference(self, path: Path) -> StoredFile:
        return await self._differences.publish(path)

    @override
    async def fetch_difference(self, result: Signed[RoundResult], path: Path) -> bool:
        return await self._differences.fetch(result, path)

    @override
    async def retain_differences(self, version: int, indexes: Collection[Digest]) -> None:
        await self._differences.retain(version, indexes)

    # Downloads

    async def run(self) -> None:
        """Keep the versions that the swarm uses until cancelled."""
        async with background_task(self._states.run()) as states:
            try:
                while True:
                    if states.done():
                        states.result()  # raises a defect
                    seen = self.news.count
                    await self._end_downloads()
                    self._start_download()
                    await self._held.forget_old(self._all_bases())
                    await self.news.wait(self._replica.manifest.epochs.seconds, since=seen)
            finally:
                await self._cancel(list(self._arriving.values()))

    def _all_bases(self) -> set[int]:
        """Return the bases of wanted versions and of running downloads."""
        legs = [arriving.leg for arriving in self._arriving.values()]
        return self._bases | {leg.base.version for leg in legs if leg.base is not None}

    async def _end_downloads(self) -> None:
        """Remove finished downloads; cancel those that are no longer wanted."""
        members = self._downloads.members() if self._arriving else ()
        ended = []
        for version, arriving in list(self._arriving.items()):
            if arriving.task.done():
                del self._arriving[version]
                arriving.task.result()
            elif version not in {*self._held.wanted(), *self._bases} or self._has_changed(arriving):
                del self._arriving[version]
                ended.append(arriving)
            elif members != arriving.members:
                arriving.members = members
                arriving.weights.change_members(members)
        await self._cancel(ended)

    def _has_changed(self, arriving: _Arriving) -> bool:
        """Return whether a later term replaced the policy, or the root is no longer a source."""
        checkpoint = arriving.leg.checkpoint
        current = self._replica.ledger.chain.get(checkpoint.message.version)
        superseded = current is None or current.digest != checkpoint.digest
        return superseded or arriving.root not in self._roots(checkpoint)

    async def _cancel(self, downloads: list[_Arriving]) -> None:
        for download in downloads:
            download.task.cancel()
        await asyncio.gather(*(item.task for item in downloads), return_exceptions=True)

    def _start_download(self) -> None:
        """Start one download, of the newest missing version: the newest has the bandwidth first."""
        self._conditions.clear("policy")
        if reason := self._refused.reason:
            self._conditions.set("policy", reason)
        wanted = reversed(self._held.wanted())
        missing = [version for version in wanted if self.get(version) is None]
        ways = [route.legs for version in missing if (route := self._routes.to(version))]
        # Bases of all routes: a running download needs its base too.
        legs = [leg for way in ways for leg in way]
        self._bases = {leg.version for leg in legs}
        self._bases |= {leg.base.version for leg in legs if leg.base is not None}
        for leg, *_ in ways:
            if leg.version in self._arriving:
                continue
            if self._refusals.get(leg.checkpoint.digest, 0) >= REFUSALS_MAX:
                reason = f"version {leg.version} is not what its trainer signed"
                self._conditions.set("policy", reason)
                continue
            roots = self._roots(leg.checkpoint)
            if roots:
                members = self._downloads.members()
                weights = self._download(leg, roots[0], members)
                task = asyncio.create_task(self._fetch(leg, weights))
                task.add_done_callback(lambda _: self.news.notify())
                self._arriving[leg.version] = _Arriving(leg, roots[0], members, weights, task)
                return

    def _roots(self, checkpoint: Signed[CheckpointManifest]) -> list[PeerId]:
        """Return possible roots: the publisher, or genesis nodes when it is gone.

        Downloads start with the first; a running one keeps its root.
        """
        publisher, version = checkpoint.signer, checkpoint.message.version
        roster, now = self._replica.roster, self._ports.clock.now()
        ours = publisher == self._exchange.peer_id
        if not ours and roster.is_live(publisher, now):
            return [publisher]
        holders = [
            member.peer
            for member in roster.live(now)
            if member.peer not in (publisher, self._exchange.peer_id)
            and self._replica.manifest.is_of_genesis(member.peer)
            and member.record.message.policy_version >= version
        ]
        return holders or ([] if ours else [publisher])

    def _download(
        self, leg: DownloadStep, root: PeerId, members: Sequence[ForestMember]
    ) -> WeightsDownload:
        form = leg.form
        sizes = form.index_bytes, form.total_bytes
        weights = RemoteWeights(
            leg.checkpoint.digest, Digest(form.index), *sizes, root, label=leg.label
        )
        return self._downloads.make(weights, members)

    async def _fetch(self, leg: DownloadStep, weights: WeightsDownload) -> None:
        message = leg.checkpoint.message
        started_at = self._ports.clock.now()
        decoded: list[Digest] = []
        try:
            path = await weights.run(
                self._ports.files.weights(message.version),
                None if leg.encoding is None else partial(self._decode, leg, decoded),
            )
            if isinstance(path, Fault):
                self._give_up(leg, str(path))
                return
            await self._check_movement(leg, path)
            policy = Policy(Version(message.version), Digest(message.policy), path)
            if decoded:
                policy = replace(policy, patch=await self._patch_of(leg, decoded[0]))
            await self._held.add(policy)
        except ExcessiveMovementError as error:
            await self._refuse(leg.checkpoint, error.excess)
            return
        except ValueError as error:  # from the decoder
            self._give_up(leg, str(error))
            return
        except (StorageFullError, LookupError) as error:
            self._conditions.set("weights", f"version {message.version} is not stored: {error}")
            await asyncio.sleep(self._replica.manifest.epochs.seconds)
            return
        self.saved_bytes += leg.saved_bytes
        self._conditions.clear("weights")
        seconds = self._ports.clock.now() - started_at
        log.info(
            "policy arrived",
            version=message.version,
            seconds=round(seconds, 3),
            bytes=leg.form.total_bytes,
            file_bytes=message.total_bytes,
        )
        self._changes.notify()
        rules = self._replica.manifest.shardcast
        if leg.encoding is not None and not message.version % rules.full_every:
            await offer_file(self._ports, rules, policy, Digest(message.index))

    async def _decode(
        self, leg: DownloadStep, decoded: list[Digest], encoding: AsyncIterator[bytes], path: Path
    ) -> None:
        """Make the file of an encoding; add the decoder's digest to ``decoded``."""
        message = leg.checkpoint.message
        arguments = encoding, leg.base, path, Digest(message.policy), message.total_bytes
        bound = None if leg.base is None else self._bound(leg.version, leg.base)
        decoded.append(await self._ports.files.decode(*arguments, bound))

    def _bound(self, version: int, base: Policy) -> MovementBound | None:
        return version_bound(self._replica.manifest.grpo, version - base.version)

    async def _check_movement(self, leg: DownloadStep, path: Path) -> None:
        """Compare a complete file with the newest version held before it.

        Decoding has done so if that is the base. A trainer could choose an older base, from which a
        weight may move farther. Nothing to compare with: the version is accepted, as the members
        that hold the version before it judge it. Raises ``ExcessiveMovementError``.
        """
        for base in self._held.before(leg.version):
            bound = self._bound(leg.version, base)
            if base is leg.base or bound is None:
                return
            try:
                with self._held.in_use(base):
                    await self._ports.files.check_movement(path, base, bound)
            except ExcessiveMovementError:
                raise
            except ValueError as error:  # damaged on this disk, or of no tensors
                log.warning("version not compared", base=base.version, error=str(error))
            else:
                return

    async def _refuse(
        self, checkpoint: Signed[CheckpointManifest], excess: ExcessiveMovement
    ) -> None:
        """Refuse a version, and stop serving it."""
        await self._refused.add(checkpoint, excess)
        await self._ports.files.delete(self._ports.files.weights(checkpoint.message.version))
        await self._held.release(checkpoint.message)
        self._changes.notify()
        self.news.notify()

    async def _patch_of(self, leg: DownloadStep, decoded: Digest) -> Patch | None:
        """Keep the decoded patch for engines, if it is one and there is room."""
        if leg.encoding is None or leg.base is None:
            return None
        files = self._ports.files
        path = files.encoding(leg.version)
        try:
            await files.link(Digest(leg.encoding.index), path)
        except (LookupError, StorageFullError) as error:  # engines load the file
            log.warning("engine patch not stored", version=leg.version, error=str(error))
            return None
        return Patch(leg.base.digest, path, decoded)

    def _give_up(self, leg: DownloadStep, reason: str) -> None:
        """Mark an encoding or a version as unusable although its trainer signed it."""
        log.error("version unusable", version=leg.version, reason=reason)
        if leg.encoding is None:
            self._refusals[leg.checkpoint.digest] = REFUSALS_MAX
        else:
            self._routes.useless[Digest(leg.encoding.index)] = None
