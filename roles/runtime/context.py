"""Context of a role: a role is a coroutine over a ``RoleContext``."""

import asyncio
from dataclasses import dataclass, field

from protocol.core.crypto import Signer
from protocol.core.types import PeerId, Role
from protocol.replica.replica import Replica
from protocol.run.manifest import RunManifest
from roles.ports.background import Background
from roles.ports.clock import Clock
from roles.ports.storage import BatchRows, Blobs, PolicyFiles, Store
from roles.ports.swarm import Network, Policies
from roles.runtime.metrics import PolicySwapLatency, RolloutHistograms
from roles.runtime.shadow_progress import ShadowProgress
from roles.runtime.training_steps import TrainingSteps


class ChangeSignal:
    """Wakes all waiting coroutines when the state of the run changes."""

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}
        self.count = 0
        """Number of changes: read it before checking the state, then pass it to ``wait``."""

    def notify(self) -> None:
        """Count a change and wake all waiters."""
        self.count += 1
        for future in self._waiting:
            _wake(future)

    async def wait(self, seconds: float, since: int) -> None:
        """Return at the first change after number ``since``, or after ``seconds``."""
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
    """Progress that work waits for, such as a download; not an error."""

    reason: str
    share: float | None = None
    """Completed fraction from 0 to 1; None if unknown."""


class Conditions:
    """Reasons for which the roles of this node do not work at the moment."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}
        self._awaited: dict[str, Health] = {}
        self._resigned: dict[Role, None] = {}
        self._preparing: dict[Role, str] = {}

    def set(self, name: str, reason: str) -> None:
        """Report that ``name`` blocks work because of an error."""
        self._awaited.pop(name, None)
        self._reasons[name] = reason

    def wait(self, name: str, reason: str, share: float | None = None) -> None:
        """Report that ``name`` blocks work until the progress in ``reason`` completes."""
        self._reasons.pop(name, None)
        self._awaited[name] = Health(reason, share)

    def clear(self, name: str) -> None:
        """Report that ``name`` no longer blocks work."""
        self._reasons.pop(name, None)
        self._awaited.pop(name, None)

    def prepare(self, role: Role, what: str) -> None:
        """Report that ``role`` cannot work before ``what`` has ended."""
        self._preparing[role] = what

    def prepared(self, role: Role) -> None:
        """Report that ``role`` can work from now on."""
        self._preparing.pop(role, None)

    @property
    def preparing(self) -> str:
        """Reason why a role cannot work yet; empty when all roles can."""
        return next(iter(self._preparing.values()), "")

    def resign(self, role: Role) -> None:
        """Withdraw ``role`` from this node's record, so that peers do not count on it."""
        self._resigned[role] = None

    def take_up(self, role: Role) -> None:
        """Offer ``role`` in this node's record again."""
        self._resigned.pop(role, None)

    def has_resigned(self, role: Role) -> bool:
        """Return whether ``role`` is withdrawn."""
        return role in self._resigned

    @property
    def wrong(self) -> str:
        """All errors in one line; empty when there are none."""
        return "; ".join(self._reasons.values())

    @property
    def awaited(self) -> Health | None:
        """First progress that work waits for, else None."""
        return next(iter(self._awaited.values()), None)

    def __getitem__(self, name: str) -> str:
        awaited = self._awaited.get(name)
        return self._reasons.get(name, "") if awaited is None else awaited.reason

    def __str__(self) -> str:
        return "; ".join((*self._reasons.values(), *(one.reason for one in self._awaited.values())))


@dataclass(frozen=True, slots=True)
class RoleContext:
    """All dependencies of a role's flow."""

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
    rows: BatchRows = field(default_factory=BatchRows)
    policy_swaps: PolicySwapLatency = field(default_factory=PolicySwapLatency)
    durations: RolloutHistograms = field(default_factory=RolloutHistograms)
    training: TrainingSteps = field(default_factory=TrainingSteps)
    shadow: ShadowProgress = field(default_factory=ShadowProgress)

    @property
    def peer_id(self) -> PeerId:
        """Peer id of this node."""
        return self.signer.peer_id

    @property
    def epoch_seconds(self) -> float:
        """Length of an epoch in seconds."""
        return self.manifest.epochs.seconds

    def epoch(self) -> int:
        """Return the current epoch."""
        return self.manifest.epoch_at(self.clock.now())

    async def tick(self, since: int) -> None:
        """Wait for a change after number ``since``, at most half an epoch."""
        await self.changes.wait(self.epoch_seconds / 2, since)
