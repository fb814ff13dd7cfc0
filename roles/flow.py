"""What every role shares: a role is a coroutine over a ``RoleContext``."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.assignment import SequenceAssignment
from protocol.crypto import Signer
from protocol.manifest import RunManifest
from protocol.replica import Replica
from protocol.rollout import reward_of
from protocol.types import PeerId
from roles.ports.clock import Clock
from roles.ports.engines import Environment
from roles.ports.storage import Blobs, PolicyFiles, Store
from roles.ports.swarm import Network, Policies


class ChangeSignal:
    """Wakes everyone who waits whenever something about the run has changed."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.count = 0
        """How many there were: read before looking, given to ``wait`` after it."""

    def notify(self) -> None:
        """Wake all current waiters."""
        self.count += 1
        for future in self._waiting:
            _wake(future)

    async def wait(self, seconds: float, since: int) -> None:
        """Return at the first change after ``since`` of them, or after ``seconds``."""
        if self.count != since:
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
        return "; ".join(self._reasons.values())


@dataclass(frozen=True, slots=True)
class RoleContext:
    """Everything that a role flow may touch."""

    signer: Signer
    manifest: RunManifest
    replica: Replica
    clock: Clock
    blobs: Blobs
    files: PolicyFiles
    store: Store
    network: Network
    policies: Policies
    changes: ChangeSignal
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
        """Wait for news after ``since`` changes, or half an epoch."""
        await self.changes.wait(self.epoch_seconds / 2, since)


def reward(
    manifest: RunManifest,
    environment: Environment,
    assignment: SequenceAssignment,
    tokens: Sequence[int],
) -> int:
    """Return what a sequence earns, in millionths: what the task gives it, less the length's cost.

    A task that gives what it may not (or no number) is held to its bounds: all nodes do the same.
    """
    score = min(1.0, max(0.0, environment.score(assignment.problem_seed, tokens)))
    return reward_of(manifest.sampling, score, len(tokens), assignment.length_target)
