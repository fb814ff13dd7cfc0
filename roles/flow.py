"""What every role shares: the view of the swarm, and the few things a role can do to it.

A role flow is a plain coroutine over a ``RoleContext``. It reads the replica, computes with an
engine, and publishes signed messages; it never sees a socket, a file or a clock of its own.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol.assignment import SequenceAssignment
from protocol.crypto import Signer
from protocol.manifest import RunManifest
from protocol.messages import CheckpointManifest, MessageT, Signed
from protocol.replica import Replica
from protocol.rollout import REWARD_SCALE
from protocol.types import Digest, PeerId, Topic
from roles.ports import Blobs, Clock, Environment, Policy, Store


class Pulse:
    """Wakes everyone who waits whenever something about the run has changed."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.beats = 0
        """How often it has beaten: read before looking, given to ``wait`` after it."""

    def beat(self) -> None:
        """Wake all current waiters."""
        self.beats += 1
        for future in self._waiting:
            _wake(future)

    async def wait(self, seconds: float, since: int) -> None:
        """Return at the first beat after ``since`` of them, or after ``seconds``."""
        if self.beats != since:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting[future] = None
        timer = loop.call_later(seconds, _wake, future)
        try:
            await future
        finally:
            timer.cancel()
            del self._waiting[future]


def _wake(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


class Conditions:
    """Why this node is not doing its work at the moment; empty when it is."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def set(self, name: str, reason: str) -> None:
        """State that ``name`` holds work up, and why."""
        self._reasons[name] = reason

    def clear(self, name: str) -> None:
        """State that ``name`` no longer holds work up."""
        self._reasons.pop(name, None)

    def __getitem__(self, name: str) -> str:
        return self._reasons.get(name, "")

    def __str__(self) -> str:
        """Join the reasons for people."""
        return "; ".join(self._reasons.values())


class Network(Protocol):
    """What a role can say and ask."""

    @property
    def synchronised(self) -> bool:
        """Whether a peer has told us since our start what we had missed."""

    @property
    def forgetful(self) -> bool:
        """Whether this key was here before with a disk that is lost."""

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

    async def fetch(
        self, digest: Digest, bytes_max: int, sources: Sequence[PeerId]
    ) -> bytes | None:
        """Return a blob from here or from the first source that has it; None when none does."""


@dataclass(frozen=True, slots=True)
class Release:
    """Where a new version's bytes are, as its checkpoint manifest states it."""

    index: Digest
    index_bytes: int
    total_bytes: int
    state: Digest | None
    state_bytes: int


class Policies(Protocol):
    """The policies whose weights are on this machine."""

    def get(self, version: int) -> Policy | None:
        """Return a version if it is here completely."""

    def newest(self) -> Policy | None:
        """Return the newest version that is here."""

    def genesis_path(self) -> Path | None:
        """Return the genesis weights if the run's creator left them here."""

    def weights_path(self, version: int) -> Path:
        """Return where the weights of a version that is being made belong."""

    def state_path(self, version: int) -> Path:
        """Return where the trainer's state (model, optimiser, progress) of a version belongs."""

    async def release(self, policy: Policy) -> Release:
        """Cut a finished version into blobs; raises ``StorageFullError``."""

    async def fetch_state(self, manifest: Signed[CheckpointManifest]) -> Path | None:
        """Return another trainer's published state, or None when it cannot be had.

        Raises ``StorageFullError``.
        """

    async def discard(self, policy: Policy) -> None:
        """Drop a policy that an engine refused, and get it another way if there is one."""


class RefusedError(Exception):
    """Our own replica refused a message that we were about to publish."""


@dataclass(frozen=True, slots=True)
class RoleContext:
    """Everything that a role flow may touch."""

    signer: Signer
    manifest: RunManifest
    replica: Replica
    clock: Clock
    blobs: Blobs
    store: Store
    network: Network
    policies: Policies
    pulse: Pulse
    conditions: Conditions

    @property
    def peer_id(self) -> PeerId:
        """Our own id."""
        return self.signer.peer_id

    @property
    def epoch_seconds(self) -> float:
        """Length of an epoch."""
        return self.manifest.epochs.seconds

    def epoch(self) -> int:
        """Return the epoch that it is now."""
        return self.manifest.epoch_at(self.clock.now())

    async def tick(self, since: int) -> None:
        """Wait for news after ``since`` beats of the pulse, or half an epoch."""
        await self.pulse.wait(self.epoch_seconds / 2, since)


def reward(
    manifest: RunManifest,
    environment: Environment,
    assignment: SequenceAssignment,
    tokens: Sequence[int],
) -> int:
    """Return the reward of a sequence in millionths: the task's, less the length penalty.

    ``R = task - penalty * |length - target|`` as in INTELLECT-2, never below zero.
    """
    value = environment.score(assignment.problem_seed, tokens)
    if assignment.length_target is not None:
        value -= manifest.sampling.length_penalty * abs(len(tokens) - assignment.length_target)
    return round(min(1.0, max(0.0, value)) * REWARD_SCALE)
