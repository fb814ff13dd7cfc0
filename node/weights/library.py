"""Policy store of this machine: fetch over the forest, keep, delete.

Every worker and relay holds the newest versions, because every node serves others. A policy is held
when its file is complete and its name is in the store. The engine that loads a policy checks its
tensors; a rejected policy is fetched again (``discard``).

``WeightsRetention`` releases the blobs of versions that are no longer needed.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import structlog
from typing_extensions import override

from node.context import Ports, background_task
from node.network.blobs.exchange import BlobExchange
from node.weights.download import RemoteWeights, WeightsDownload
from node.weights.download_plan import DownloadPlanner, DownloadStep
from node.weights.downloads import Downloads
from node.weights.optimizer_states import TrainerStates, published_states
from node.weights.publish import offer_file, publish_encoding
from protocol.core.faults import Fault
from protocol.core.types import Digest, PeerId, Version
from protocol.messages import CheckpointManifest, Signed
from protocol.replica.replica import Replica
from protocol.run.recipe import STATES_KEPT
from protocol.shardcast.forest import ForestMember
from roles.ports.engines import Patch, Policy
from roles.ports.storage import Blobs, Delete, Owner, Purpose, Put, StorageFullError
from roles.ports.swarm import Policies, Release
from roles.runtime.context import ChangeSignal, Conditions


class WeightsRetention:
    """Retention of the blobs of versions, by the versions that are needed."""

    def __init__(self, replica: Replica, blobs: Blobs) -> None:
        self._replica = replica
        self._blobs = blobs
        self._unnamed_since: dict[Owner, int] = {}
        """Newest version when an owner without a version was first seen; -1 after a version needed
        it."""

    async def sweep(self, weights_kept: Iterable[int]) -> None:
        """Release old states, and the weights of all versions but ``weights_kept``.

        This includes weights that a later term replaced. An owner without a version is being
        published, or its manifest is not yet back after a restart. It is kept until a new version
        comes without it.
        """
        await self._release_all_but(Purpose.WEIGHTS, self._indexes(weights_kept))
        states = published_states(self._replica, self._replica.ledger.version, STATES_KEPT)
        needed = [Digest(checkpoint.message.state) for checkpoint in states]
        await self._release_all_but(Purpose.OPTIMISER_STATE, needed)

    async def drop(self, checkpoint: CheckpointManifest, others: Iterable[int]) -> None:
        """Release the weights of a version, except those that one of ``others`` shares."""
        needed = self._indexes(others)
        for index in indexes_of(checkpoint):
            if index not in needed:
                await self._blobs.release(Owner(Purpose.WEIGHTS, index))

    async def _release_all_but(self, purpose: Purpose, indexes: Iterable[Digest]) -> None:
        newest, here = self._replica.ledger.version, self._blobs.owners(purpose)
        needed = {Owner(purpose, index): -1 for index in indexes}
        since = {owner: self._unnamed_since.get(owner, newest) for owner in here} | needed
        for owner in here:
            if owner not in needed and since[owner] < newest:
                await self._blobs.release(owner)
                del since[owner]
        others = {key: at for key, at in self._unnamed_since.items() if key.purpose is not purpose}
        self._unnamed_since = others | since

    def _indexes(self, versions: Iterable[int]) -> dict[Digest, None]:
        checkpoints = map(self._replica.ledger.checkpoint, versions)
        return {
            index: None
            for item in checkpoints
            if item is not None
            for index in indexes_of(item.message)
        }


def indexes_of(checkpoint: CheckpointManifest) -> list[Digest]:
    """Return the indexes under which a version is stored: its file and each encoding."""
    return [Digest(checkpoint.index), *(Digest(form.index) for form in checkpoint.encodings)]


log = structlog.get_logger()

REFUSALS_MAX = 3
"""Rejections of one version by engines: the first copy, a second one, and one from the file."""

_TABLE = "policies"


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
        self._retention = WeightsRetention(replica, ports.blobs)
        self._held: dict[int, Policy] = {}
        self._in_use: Counter[int] = Counter()
        self._arriving: dict[int, _Arriving] = {}
        self._routes = DownloadPlanner(replica.ledger, replica.manifest.shardcast, self.get)
        self._bases: set[int] = set()
        """Versions needed as bases of wanted versions."""
        self._refusals: dict[Digest, int] = {}
        self._states = TrainerStates(ports, replica, downloads, lambda: not self._arriving)
        self._states_from = 0

    # Held policies

    @override
    def get(self, version: int) -> Policy | None:
        policy = self._held.get(version)
        checkpoint = self._replica.ledger.checkpoint(version)
        if policy is None or checkpoint is None or checkpoint.message.policy != policy.digest:
            return None
        return policy

    @override
    def newest(self) -> Policy | None:
        return next(filter(None, map(self.get, sorted(self._held, reverse=True))), None)

    @override
    @contextmanager
    def hold(self, policy: Policy) -> Iterator[None]:
        self._in_use[policy.version] += 1
        try:
            yield
        finally:
            self._in_use -= Counter([policy.version])  # removes a count of 0

    def newest_version(self) -> int:
        """Return the newest held version, -1 before the first."""
        return -1 if (policy := self.newest()) is None else policy.version

    async def restore(self) -> None:
        """Load the policies held before a restart.

        A file that has not its signed length is deleted: a relay loads no file, and would serve it
        for ever.
        """
        for key, digest in self._ports.store.scan(_TABLE):
            version = _version(key)
            path = self._ports.files.weights(version)
            here_bytes = self._ports.files.size(path)
            checkpoint = self._replica.ledger.checkpoint(version)
            signed = checkpoint is not None and checkpoint.message.policy == digest
            if checkpoint is not None and signed and here_bytes != checkpoint.message.total_bytes:
                await self._ports.files.delete(path)
            elif here_bytes is not None:
                self._held[version] = Policy(Version(version), Digest(digest), path)
        self._states_from = min(self._held, default=0)

    @override
    async def discard(self, policy: Policy) -> None:
        """Drop a policy that an engine rejected, and fetch it again.

        The second copy comes in the same form, with every chunk verified; the third is the file. If
        an engine rejects that too, the trainer published other tensors than it signed.
        """
        version = policy.version
        checkpoint = self._replica.ledger.checkpoint(version)
        if self._held.get(version) is not policy or checkpoint is None:
            return
        del self._held[version]
        refusals = self._refusals.get(checkpoint.digest, 0) + 1
        self._refusals[checkpoint.digest] = refusals
        log.error("policy rejected by an engine", version=version, times=refusals)
        others = {*self._held, *self._wanted()} - {version}
        await self._retention.drop(checkpoint.message, others)
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
        await self._hold(replace(policy, patch=published.patch))
        encodings = () if published.encoding is None else (published.encoding,)
        return Release(stored, encodings, state)

    @override
    def published_state(self, version: int) -> Signed[CheckpointManifest] | None:
        return self._states.newest(version)

    @override
    async def fetch_state(self, manifest: Signed[CheckpointManifest]) -> Path | None:
        return await self._states.fetch(manifest)

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
                    await self._forget_old()
                    await self.news.wait(self._replica.manifest.epochs.seconds, since=seen)
            finally:
                await self._cancel(list(self._arriving.values()))

    def _wanted(self) -> range:
        """Return the versions that rollouts may still use."""
        newest = self._replica.ledger.version
        return range(max(0, newest - self._replica.manifest.grpo.async_level), newest + 1)

    async def _end_downloads(self) -> None:
        """Remove finished downloads; cancel those that are no longer wanted."""
        members = self._downloads.members() if self._arriving else ()
        ended = []
        for version, arriving in list(self._arriving.items()):
            if arriving.task.done():
                del self._arriving[version]
                arriving.task.result()
            elif version not in {*self._wanted(), *self._bases} or self._has_changed(arriving):
                del self._arriving[version]
                ended.append(arriving)
            elif members != arriving.members:
                arriving.members = members
                arriving.weights.change_members(members)
        await self._cancel(ended)

    def _has_changed(self, arriving: _Arriving) -> bool:
        """Return whether a later term replaced the policy, or the root is no longer a source."""
        checkpoint = arriving.leg.checkpoint
        current = self._replica.ledger.checkpoint(checkpoint.message.version)
        superseded = current is None or current.digest != checkpoint.digest
        return superseded or arriving.root not in self._roots(checkpoint)

    async def _cancel(self, downloads: list[_Arriving]) -> None:
        for download in downloads:
            download.task.cancel()
        await asyncio.gather(*(item.task for item in downloads), return_exceptions=True)

    def _start_download(self) -> None:
        """Start one download, of the newest missing version: the newest has the bandwidth first."""
        self._conditions.clear("policy")
        missing = [version for version in reversed(self._wanted()) if self.get(version) is None]
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
            policy = Policy(Version(message.version), Digest(message.policy), path)
            if decoded:
                policy = replace(policy, patch=await self._patch_of(leg, decoded[0]))
            await self._hold(policy)
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
        decoded.append(
            await self._ports.files.decode(
                encoding, leg.base, path, Digest(message.policy), message.total_bytes
            )
        )

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

    async def _hold(self, policy: Policy) -> None:
        name = Put(_TABLE, _key(policy.version), policy.digest)
        await self._ports.store.commit([name])
        self._held[policy.version] = policy

    # Retention

    async def _forget_old(self) -> None:
        """Delete versions beyond the retention, and leftovers of interrupted downloads."""
        newest = self._replica.ledger.version
        kept_from = newest - self._replica.manifest.shardcast.versions_kept
        old = [version for version in self._held if version <= kept_from]
        legs = [arriving.leg for arriving in self._arriving.values()]
        read = self._bases | {leg.base.version for leg in legs if leg.base is not None}
        read |= self._in_use.keys()
        for version in [version for version in old if version not in read]:
            await self._ports.files.delete(self._held.pop(version).path)
            await self._ports.files.delete(self._ports.files.encoding(version))
        states_from = self._replica.manifest.shardcast.states_kept_from(newest)
        for version in range(self._states_from, states_from):
            await self._ports.files.delete(self._ports.files.state(version))
        self._states_from = max(self._states_from, states_from)
        kept = self._replica.manifest.shardcast.forms_kept(newest)
        await self._retention.sweep({*self._held, *self._wanted(), *kept})
        old = [_version(key) for key, _ in self._ports.store.scan(_TABLE)]
        old = [version for version in old if version <= kept_from]
        gone = [Delete(_TABLE, _key(version)) for version in old if version not in self._held]
        try:
            if gone:
                await self._ports.store.commit(gone)
        except StorageFullError as error:  # a row without its file has no effect
            log.warning("old policy rows not deleted", error=str(error))


def _key(version: int) -> bytes:
    return version.to_bytes(8, "big")


def _version(key: bytes) -> int:
    return int.from_bytes(key, "big")
