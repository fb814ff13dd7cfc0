"""Interface of a role to the swarm: messages to publish and policies to use."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.core.types import Digest, PeerId, Topic
from protocol.messages import (
    CheckpointManifest,
    Encoding,
    MessageT,
    RolloutCommit,
    RoundResult,
    Signed,
)
from roles.ports.engines import Policy
from roles.ports.storage import StoredFile


class RefusedError(Exception):
    """This node's own replica rejected a message before its publication."""


class Network(Protocol):
    """Publishes and sends messages, and fetches bodies of rollouts."""

    @property
    def synchronised(self) -> bool:
        """True after the first synchronisation with a peer since the start of this node."""

    @property
    def first_slot(self) -> int | None:
        """First training slot that this key has not used, as far as this disk records.

        None while an earlier disk of the key may have used any.
        """

    def may_have_evaluated(self, version: int) -> bool:
        """Tell whether an earlier disk of this key may have used evaluation slots of a version."""

    def may_have_judged(self, epoch: int) -> bool:
        """Tell whether this key may have signed verdicts of ``epoch`` recorded on another disk."""

    def may_have_voted(self, epoch: int) -> bool:
        """Tell whether this key may have voted on a page of ``epoch`` recorded on another disk."""

    async def publish(self, topic: Topic, message: MessageT) -> Signed[MessageT]:
        """Sign, store durably, apply to this node's replica, and gossip, in this order.

        Raises ``RefusedError`` when the replica rejects it, ``StorageFullError`` when it cannot be
        stored; in both cases nothing is sent.
        """

    async def record(self, message: MessageT) -> Signed[MessageT]:
        """Do as ``publish`` without gossip; raises the same errors."""

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        """Gossip a message that is already stored."""

    async def send(self, peer: PeerId, envelope: bytes) -> bool:
        """Send a signed message to one peer; False on a failure or timeout."""

    async def catch_up(self, peer: PeerId) -> None:
        """Fetch the messages that a peer has and this node lacks."""

    async def fetch_body(
        self, commit: Signed[RolloutCommit], sources: Sequence[PeerId]
    ) -> bytes | None:
        """Return a commit's body from this node or the first source that has it, else None."""


@dataclass(frozen=True, slots=True)
class Release:
    """Blobs of a new version, as its checkpoint manifest lists them."""

    weights: StoredFile
    encodings: tuple[Encoding, ...]
    state: StoredFile | None


class Policies(Protocol):
    """Policies whose weights are on this node."""

    def get(self, version: int) -> Policy | None:
        """Return a version if it is complete and still on the canonical chain."""

    def newest(self) -> Policy | None:
        """Return the newest version on this node."""

    def newest_version(self) -> int:
        """Return the number of the newest version on this node, -1 before the first."""
        return -1 if (policy := self.newest()) is None else policy.version

    def hold(self, policy: Policy) -> AbstractContextManager[None]:
        """Keep the files of a policy until the context ends, even if it becomes obsolete.

        An engine opens them some time after a role has selected the policy.
        """

    async def release(self, policy: Policy) -> Release:
        """Store a finished version as blobs; raises ``StorageFullError``."""

    def published_state(self, version: int) -> Signed[CheckpointManifest] | None:
        """Return the newest version up to ``version`` whose optimiser state is published."""

    async def fetch_state(self, manifest: Signed[CheckpointManifest]) -> Path | None:
        """Return a published state, None if no peer serves it; raises ``StorageFullError``."""

    async def publish_difference(self, path: Path) -> StoredFile:
        """Store this trainer's difference as blobs, for others; raises ``StorageFullError``."""

    async def fetch_difference(self, result: Signed[RoundResult], path: Path) -> bool:
        """Fetch a trainer's difference to ``path``; False if no peer serves it.

        A larger file than a difference can be is refused. Raises ``StorageFullError``.
        """

    async def retain_differences(self, version: int, indexes: Collection[Digest]) -> None:
        """Delete the differences of versions before ``version``.

        Release the blobs of all but those of ``indexes``.
        """

    async def discard(self, policy: Policy) -> None:
        """Drop a policy that an engine rejected; try its other encoding, if it has one."""
