"""The policies on this machine (``roles.flow.Policies``): fetched over the forest, kept, forgotten.

Every node that works or relays holds the newest versions, because everyone feeds others. A policy
counts as here when its file is whole and its name is in the store; which tensors it holds is
checked by the engine that loads it.
"""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import structlog

from node.exchange import BlobExchange
from node.ports import Ports
from node.weights import Weights, WeightsDownload, forget, publish_file
from protocol.messages import CheckpointManifest, Signed
from protocol.replica import Replica
from protocol.shardcast import index as shard_index
from protocol.shardcast.forest import Member as ForestMember
from protocol.types import Digest, Fault, PeerId, Role, Version
from roles.flow import Conditions, Pulse, Release
from roles.ports import Policy, Put, StorageFullError

log = structlog.get_logger()

STATE_SECONDS = 60.0
_TABLE = "policies"


class PolicyLibrary:
    """Downloads what the swarm uses, one version at a time, the newest first."""

    def __init__(
        self,
        ports: Ports,
        replica: Replica,
        exchange: BlobExchange,
        pulse: Pulse,
        conditions: Conditions,
    ) -> None:
        self._ports = ports
        self._replica = replica
        self._exchange = exchange
        self._pulse = pulse
        self._conditions = conditions
        self._held: dict[int, Policy] = {}
        self._downloads: dict[int, asyncio.Task[None]] = {}

    # What is here

    def get(self, version: int) -> Policy | None:
        """Return a version if it is here completely and still the one that the swarm means."""
        policy = self._held.get(version)
        checkpoint = self._replica.ledger.checkpoint(version)
        if policy is None or checkpoint is None or checkpoint.message.policy != policy.digest:
            return None
        return policy

    def newest(self) -> Policy | None:
        """Return the newest version that is here."""
        return next(filter(None, map(self.get, sorted(self._held, reverse=True))), None)

    def newest_version(self) -> int:
        """Return the newest version that is here, -1 before the first."""
        policy = self.newest()
        return -1 if policy is None else policy.version

    def genesis_path(self) -> Path | None:
        """Return the genesis weights if the run's creator left them here."""
        here = self._ports.blobs.file_bytes(self._ports.genesis) is not None
        return self._ports.genesis if here else None

    def weights_path(self, version: int) -> Path:
        """Return where the weights of a version belong."""
        return self._ports.weights / f"v{version}.safetensors"

    def state_path(self, version: int) -> Path:
        """Return where the trainer's state of a version belongs."""
        return self._ports.weights / f"v{version}.state"

    async def restore(self) -> None:
        """Find what an earlier life of this node left."""
        for key, digest in self._ports.store.scan(_TABLE):
            version = int.from_bytes(key, "big")
            if self._ports.blobs.file_bytes(self.weights_path(version)) is not None:
                self._held[version] = Policy(
                    Version(version), Digest(digest), self.weights_path(version)
                )

    # What is made here

    async def release(self, policy: Policy) -> Release:
        """Cut a finished version into blobs; raises ``StorageFullError``."""
        rules = self._replica.manifest.shardcast
        digest, index = await publish_file(
            policy.path, self._ports.blobs, rules.shard_bytes, rules.chunk_bytes
        )
        state, state_bytes = None, 0
        path = self.state_path(policy.version)
        if len(self._replica.manifest.genesis.trainers) > 1:
            state_bytes = self._ports.blobs.file_bytes(path) or 0
            state = await self._ports.blobs.put_file(path, 0, state_bytes)
        await self._hold(policy)
        return Release(
            digest, len(shard_index.encode(index)), index.total_bytes, state, state_bytes
        )

    async def fetch_state(self, manifest: Signed[CheckpointManifest]) -> Path | None:
        """Return another trainer's published state, or None when it cannot be had."""
        message = manifest.message
        digest = Digest(message.state)
        data = await self._exchange.fetch(
            digest, message.state_bytes, [manifest.signer, *self._trainers()], STATE_SECONDS
        )
        if data is None:
            return None
        path = self.state_path(message.version)
        await self._ports.blobs.put(data)
        await self._ports.blobs.concatenate([digest], path)
        return path

    def _trainers(self) -> list[PeerId]:
        return [
            member.peer
            for member in self._replica.roster.live(self._ports.clock.now())
            if member.holds(Role.TRAINER)
        ]

    # What others made

    async def run(self) -> None:
        """Keep what the swarm uses until cancelled."""
        try:
            while True:
                self._start_downloads()
                await self._forget_old()
                await self._pulse.wait(self._replica.manifest.epochs.seconds)
        finally:
            for task in self._downloads.values():
                task.cancel()

    def _wanted(self) -> list[int]:
        """Return the versions that rollouts may still be of, newest first."""
        newest = self._replica.ledger.version
        oldest = max(0, newest - self._replica.manifest.grpo.async_level)
        return list(range(newest, oldest - 1, -1))

    def _start_downloads(self) -> None:
        for version, task in list(self._downloads.items()):
            if task.done():
                del self._downloads[version]
                if not task.cancelled():
                    task.result()
        wanted = self._wanted()
        for version, task in self._downloads.items():
            if version not in wanted:
                task.cancel()
        for version in wanted:
            checkpoint = self._replica.ledger.checkpoint(version)
            if checkpoint is None or checkpoint.signer == self._exchange.peer_id:
                continue
            if self.get(version) is None and version not in self._downloads:
                self._downloads[version] = asyncio.create_task(self._download(checkpoint))
                return  # one new one at a time: the newest version has the line for itself first

    async def _download(self, checkpoint: Signed[CheckpointManifest]) -> None:
        message = checkpoint.message
        rules = self._replica.manifest.shardcast
        download = WeightsDownload(
            self._exchange,
            self._ports.blobs,
            Weights(
                checkpoint.digest, Digest(message.index), message.index_bytes, checkpoint.signer
            ),
            self._forest_members(),
            stripes=rules.stripes,
            fanout=rules.fanout,
            on_blame=lambda peer, fault: log.warning("bad weights", peer=peer, fault=str(fault)),
        )
        started_at = self._ports.clock.now()
        try:
            path = await download.run(self.weights_path(message.version))
            if isinstance(path, Fault):
                log.error("a trainer published weights that cannot be", fault=str(path))
                return
            await self._hold(Policy(Version(message.version), Digest(message.policy), path))
        except asyncio.CancelledError:
            if message.version not in self._wanted():
                await self._drop_arrivals(message.version)
            raise
        except StorageFullError as error:
            self._conditions.set("weights", f"disk full: {error}; waiting for room")
            await asyncio.sleep(self._replica.manifest.epochs.seconds)
            return
        self._conditions.clear("weights")
        seconds = self._ports.clock.now() - started_at
        log.info("policy arrived", version=message.version, seconds=round(seconds, 3))
        self._pulse.beat()

    async def _drop_arrivals(self, version: int) -> None:
        """Give back the room of a version that the swarm went past before it was here."""
        index = await self._index(version)
        if index is not None:
            await forget(self._ports.blobs, index, await self._kept_indices(self._held))

    async def _kept_indices(self, versions: Iterable[int]) -> list[shard_index.ShardIndex]:
        return [index for version in versions if (index := await self._index(version))]

    def _forest_members(self) -> list[ForestMember]:
        return [
            ForestMember(
                member.peer,
                member.record.message.upload_bytes_per_second,
                member.record.message.reachable,
            )
            for member in self._replica.roster.live(self._ports.clock.now())
        ]

    async def _hold(self, policy: Policy) -> None:
        await self._ports.store.commit(
            [Put(_TABLE, policy.version.to_bytes(8, "big"), policy.digest)]
        )
        self._held[policy.version] = policy

    async def _forget_old(self) -> None:
        """Delete versions beyond the retention, and the blobs that only they use."""
        kept_from = self._replica.ledger.version - self._replica.manifest.shardcast.versions_kept
        old = [version for version in sorted(self._held) if version <= kept_from]
        if not old:
            return
        kept = await self._kept_indices([item for item in self._held if item > kept_from])
        for version in old:
            index = await self._index(version)
            if index is not None:
                await forget(self._ports.blobs, index, kept)
            checkpoint = self._replica.ledger.checkpoint(version)
            if checkpoint is not None and checkpoint.message.state:
                await self._ports.blobs.delete(Digest(checkpoint.message.state))
            self._ports.blobs.delete_file(self._held.pop(version).path)
            self._ports.blobs.delete_file(self.state_path(version))

    async def _index(self, version: int) -> shard_index.ShardIndex | None:
        checkpoint = self._replica.ledger.checkpoint(version)
        if checkpoint is None:
            return None
        data = await self._ports.blobs.get(Digest(checkpoint.message.index))
        index = None if data is None else shard_index.decode(data)
        return index if isinstance(index, shard_index.ShardIndex) else None
