"""What every role shares: a role is a coroutine over a ``RoleContext``."""

import asyncio
from dataclasses import dataclass, field

from protocol.core.crypto import Signer
from protocol.core.types import PeerId, Role
from protocol.replica.replica import Replica
from protocol.run.manifest import RunManifest
from roles.ports.background import Background
from roles.ports.clock import Clock
from roles.ports.storage import Blobs, PolicyFiles, Store
from roles.ports.swarm import Network, Policies
from roles.runtime.metrics import PolicySwapLatency, RolloutHistograms
from roles.runtime.training_steps import TrainingSteps


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


@dataclass(frozen=True, slots=True)
class Health:
    """What work waits for that is on its way: nothing is wrong."""

    reason: str
    share: float | None = None
    """How much of it is here, from 0 to 1; None where nobody can know."""


class Conditions:
    """Why this node is not doing its work at the moment; empty when it is."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._awaited: dict[str, Health] = {}
        self._resigned: dict[Role, None] = {}
        self._preparing: dict[Role, str] = {}

    def set(self, name: str, reason: str) -> None:
        """State that ``name`` holds work up, and what is wrong."""
        self._awaited.pop(name, None)
        self._reasons[name] = reason

    def wait(self, name: str, reason: str, share: float | None = None) -> None:
        """State that ``name`` holds work up until what is on its way is here."""
        self._reasons.pop(name, None)
        self._awaited[name] = Health(reason, share)

    def clear(self, name: str) -> None:
        """State that ``name`` no longer holds work up."""
        self._reasons.pop(name, None)
        self._awaited.pop(name, None)

    def prepare(self, role: Role, what: str) -> None:
        """State that ``role`` cannot do its work before ``what`` has ended."""
        self._preparing[role] = what

    def prepared(self, role: Role) -> None:
        """State that ``role`` can do its work from now on."""
        self._preparing.pop(role, None)

    @property
    def preparing(self) -> str:
        """Reason why a role cannot work yet; empty when all roles can."""
        return next(iter(self._preparing.values()), "")

    def resign(self, role: Role) -> None:
        """State that others should not count on us in ``role``: our record leaves it out."""
        self._resigned[role] = None

    def take_up(self, role: Role) -> None:
        """State that others may count on us in ``role`` again."""
        self._resigned.pop(role, None)

    def has_resigned(self, role: Role) -> bool:
        """Return whether others should not count on us in ``role``."""
        return role in self._resigned

    @property
    def wrong(self) -> str:
        """What is wrong, empty when nothing is."""
        return "; ".join(self._reasons.values())

    @property
    def awaited(self) -> Health | None:
        """What is waited for; the first of several, None when nothing is."""
        return next(iter(self._awaited.values()), None)

    def __getitem__(self, name: str) -> str:
        awaited = self._awaited.get(name)
        return self._reasons.get(name, "") if awaited is None else awaited.reason

    def __str__(self) -> str:
        return "; ".join((*self._reasons.values(), *(one.reason for one in self._awaited.values())))


@dataclass(frozen=True, slots=True)
class RoleContext:
    """Everything that a role flow may touch."""

    signer: Signer
    manifest: RunManifest
    replica: Replica
    clock: Clock
    background: Background
    blobs: Blobs
    files: PolicyFiles
    store: Store
    network: Network
    policies: Policies
    changes: ChangeSignal
    conditions: Conditions
    uptakes: PolicySwapLatency = field(default_factory=PolicySwapLatency)
    durations: RolloutHistograms = field(default_factory=RolloutHistograms)
    training: TrainingSteps = field(default_factory=TrainingSteps)

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
