"""Policies held on this machine: files of versions, and their names in the store.

A policy is held when its file is complete and its name is in the store.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import structlog

from node.context import Ports
from node.weights.refused_versions import RefusedVersions
from node.weights.retention import WeightsRetention
from protocol.core.types import Digest, Version
from protocol.messages import CheckpointManifest, Signed
from protocol.replica.replica import Replica
from roles.ports.engines import Policy
from roles.ports.storage import Delete, Put, StorageFullError

log = structlog.get_logger()

_TABLE = "policies"


class HeldPolicies:
    """Policies of which this machine has the file."""

    def __init__(self, ports: Ports, replica: Replica, refused: RefusedVersions) -> None:
        self._ports = ports
        self._replica = replica
        self._refused = refused
        self._retention = WeightsRetention(replica, ports.blobs)
        self._held: dict[int, Policy] = {}
        self._in_use: Counter[int] = Counter()
        self._states_from = 0
        self._final_state = -1
        """Version of the state that is kept for a return to the final version; -1 for none."""

    def get(self, version: int) -> Policy | None:
        """Return the held policy of a version, as the ledger has it; None if it is not here.

        None also for a refused or disputed version.
        """
        policy = self._held.get(version)
        checkpoint = self._replica.ledger.chain.get(version)
        if policy is None or checkpoint is None or checkpoint.message.policy != policy.digest:
            return None
        if self._refused.has(version):
            return None
        return policy

    def newest(self) -> Policy | None:
        """Return the newest held policy; None before the first."""
        return next(filter(None, map(self.get, sorted(self._held, reverse=True))), None)

    @contextmanager
    def in_use(self, policy: Policy) -> Iterator[None]:
        """Keep the files of a policy within this context."""
        self._in_use[policy.version] += 1
        try:
            yield
        finally:
            self._in_use -= Counter([policy.version])  # removes a count of 0

    async def restore(self) -> None:
        """Load the policies held before a restart.

        A file that has not its signed length is deleted: a relay loads no file, and would serve it
        for ever.
        """
        for key, digest in self._ports.store.scan(_TABLE):
            version = _version(key)
            path = self._ports.files.weights(version)
            here_bytes = self._ports.files.size(path)
            checkpoint = self._replica.ledger.chain.get(version)
            signed = checkpoint is not None and checkpoint.message.policy == digest
            if checkpoint is not None and signed and here_bytes != checkpoint.message.total_bytes:
                await self._ports.files.delete(path)
            elif here_bytes is not None:
                self._held[version] = Policy(Version(version), Digest(digest), path)
        self._states_from = min(self._held, default=0)

    async def add(self, policy: Policy) -> None:
        """Hold a policy whose file is complete; raises ``StorageFullError``."""
        name = Put(_TABLE, _key(policy.version), policy.digest)
        await self._ports.store.commit([name])
        self._held[policy.version] = policy

    def remove(self, policy: Policy) -> Signed[CheckpointManifest] | None:
        """Forget a policy and return its manifest; None if it is no longer held."""
        checkpoint = self._replica.ledger.chain.get(policy.version)
        if self._held.get(policy.version) is not policy or checkpoint is None:
            return None
        del self._held[policy.version]
        return checkpoint

    def before(self, version: int) -> Iterator[Policy]:
        """Yield the held policies before a version, newest first."""
        yield from filter(None, map(self.get, range(version - 1, -1, -1)))

    def wanted(self) -> range:
        """Return the versions that rollouts may still use, up to the newest usable one."""
        newest = self._refused.newest_usable()
        return range(max(0, newest - self._replica.manifest.grpo.async_level), newest + 1)

    async def release(self, checkpoint: CheckpointManifest) -> None:
        """Release the blobs of a version that it shares with no held or wanted version."""
        others = {*self._held, *self.wanted()} - {checkpoint.version}
        await self._retention.drop(checkpoint, others)

    async def forget_old(self, bases: Iterable[int]) -> None:
        """Delete versions beyond the retention, and leftovers of interrupted downloads.

        ``bases`` stay, as do versions in use, the final version, and the blobs of wanted versions.
        The retention counts from the newest held version: a trainer that announces versions which
        nobody can hold deletes nothing.
        """
        usable, held = self._refused.newest_usable(), self.newest()
        newest = usable if held is None else held.version
        kept_from = newest - self._replica.manifest.shardcast.versions_kept
        old = [version for version in self._held if version <= kept_from]
        read = {*bases, *self._in_use, self._replica.ledger.chain.final}
        for version in [version for version in old if version not in read]:
            await self._ports.files.delete(self._held.pop(version).path)
            await self._ports.files.delete(self._ports.files.encoding(version))
        await self._delete_old_states(newest)
        kept = self._replica.manifest.shardcast.forms_kept(usable)
        await self._retention.sweep({*self._held, *self.wanted(), *kept}, usable)
        old = [_version(key) for key, _ in self._ports.store.scan(_TABLE)]
        old = [version for version in old if version <= kept_from]
        gone = [Delete(_TABLE, _key(version)) for version in old if version not in self._held]
        try:
            if gone:
                await self._ports.store.commit(gone)
        except StorageFullError as error:  # a row without its file has no effect
            log.warning("old policy rows not deleted", error=str(error))

    async def _delete_old_states(self, newest: int) -> None:
        """Delete old states, except the one from which a trainer resumes at the final version."""
        rules, final = self._replica.manifest.shardcast, self._replica.ledger.chain.final
        final_state = -1 if final < 0 else final - final % rules.state_every
        states_from = rules.states_kept_from(newest)
        passed = {*range(self._states_from, states_from), self._final_state} - {final_state, -1}
        for version in sorted(version for version in passed if version < states_from):
            await self._ports.files.delete(self._ports.files.state(version))
        self._states_from = max(self._states_from, states_from)
        self._final_state = final_state


def _key(version: int) -> bytes:
    return version.to_bytes(8, "big")


def _version(key: bytes) -> int:
    return int.from_bytes(key, "big")
