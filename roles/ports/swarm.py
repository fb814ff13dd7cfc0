"""What a role can say to the swarm and ask of it, and the policies that it can use."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.core.types import PeerId, Topic
from protocol.messages import CheckpointManifest, Encoding, MessageT, RolloutCommit, Signed
from roles.ports.engines import Policy
from roles.ports.storage import StoredFile


class RefusedError(Exception):
    """Our own replica refused a message that we were about to publish."""


class Network(Protocol):
    """What a role can say and ask."""

    @property
    def synchronised(self) -> bool:
        """Whether a peer has told us since our start what we had missed."""

    def may_have_used(self, version: int) -> bool:
        """Return whether we may have used slots of a version that this disk does not know of."""

    def may_have_judged(self, epoch: int) -> bool:
        """Return whether we may have signed verdicts on commits of ``epoch`` with another disk."""

    async def publish(self, topic: Topic, message: MessageT) -> Signed[MessageT]:
        """Sign, store durably, apply to our own replica, and gossip; in this order.

        Raises ``RefusedError`` when our own replica refuses it, ``StorageFullError`` when it cannot
        be stored; then it was not said.
        """

    async def record(self, message: MessageT) -> Signed[MessageT]:
        """Sign, store durably and apply to our own replica, without gossip; raises alike."""

    async def announce(self, topic: Topic, envelope: bytes) -> None:
        """Gossip a message that is already stored."""

    async def send(self, peer: PeerId, envelope: bytes) -> bool:
        """Hand a signed message to one peer; False when it could not be delivered in time."""

    async def fetch_body(
        self, commit: Signed[RolloutCommit], sources: Sequence[PeerId]
    ) -> bytes | None:
        """Return a commit's body from here or from the first source that has it, else None."""


@dataclass(frozen=True, slots=True)
class Release:
    """Where a new version's bytes are, as its checkpoint manifest states it."""

    weights: StoredFile
    encodings: tuple[Encoding, ...]
    state: StoredFile | None


class Policies(Protocol):
    """The policies whose weights are on this machine."""

    def get(self, version: int) -> Policy | None:
        """Return a version if it is here completely and still the one that the swarm means."""

    def newest(self) -> Policy | None:
        """Return the newest version that is here."""

    def hold(self, policy: Policy) -> AbstractContextManager[None]:
        """Keep the files of a policy, even if it is old by then, until the context ends.

        An engine opens them some time after a role has chosen the policy.
        """

    async def release(self, policy: Policy) -> Release:
        """Cut a finished version into blobs; raises ``StorageFullError``."""

    def published_state(self, version: int) -> Signed[CheckpointManifest] | None:
        """Return the newest version up to ``version`` whose optimiser state is published."""

    async def fetch_state(self, manifest: Signed[CheckpointManifest]) -> Path | None:
        """Return a published state, None when it cannot be had; raises ``StorageFullError``."""

    async def discard(self, policy: Policy) -> None:
        """Drop a policy that an engine refused, and get it another way if there is one."""
