"""A small swarm whose disks, engines, clocks and networks fail on order, and a witness of it.

The witness hears every message that one node takes from another. What it holds against them: a
message was announced that its author had not stored; a worker committed twice for one slot; a
validator gave two verdicts on one commit; a trainer used a version number twice in one term.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgpack

from node.daemon import Daemon
from protocol.codec import decode
from protocol.crypto import digest
from protocol.manifest import RunManifest
from protocol.messages import (
    Certificate,
    CheckpointManifest,
    NodeRecord,
    RolloutCommit,
    Verdict,
)
from protocol.types import Digest, Role
from roles.ports.engines import Policy
from roles.ports.storage import Delete, Owner, Put, StorageFullError
from roles.ports.transport import TransportError
from tests.worlds.memory_transport import LoopClock, eventually
from tests.worlds.swarm_world import (
    Machine,
    MemoryBlobs,
    MemoryFiles,
    MemoryStore,
    SwarmWorld,
    ToyEngine,
    ToyEngines,
    ToyTrainer,
)

TINY = [
    ("trainer", Role.TRAINER),
    ("worker", Role.INFERENCE),
    ("validator-0", Role.VALIDATOR),
    ("validator-1", Role.VALIDATOR),
]
QUICK = {"sampling__group_size": 4, "sampling__prompts_per_rollout": 2, "grpo__steps": 200}


@dataclass
class Fate:
    """When a machine dies, and whether its disk is full; every touch of the disk is counted."""

    die: Callable[[], Awaitable[None]]
    touches: int = 0
    dies_at: int | None = None
    full: bool = False

    async def touch(self) -> None:
        self.touches += 1
        if self.touches == self.dies_at:
            await self.die()

    async def write(self) -> None:
        await self.touch()
        if self.full:
            raise StorageFullError("the disk is full")


class FateStore(MemoryStore):
    def __init__(self, fate: Fate) -> None:
        super().__init__()
        self.fate = fate
        self.ever: dict[bytes, None] = {}

    async def commit(self, changes: Sequence[Put | Delete]) -> None:
        await self.fate.write()
        await super().commit(changes)
        self.ever.update((item.value, None) for item in changes if isinstance(item, Put))
        await self.fate.touch()


class FateBlobs(MemoryBlobs):
    def __init__(self, fate: Fate) -> None:
        super().__init__()
        self.fate = fate
        self.withheld: dict[Digest, None] = {}
        """Promised to whoever asks, and never delivered."""

    def size(self, key: Digest) -> int | None:
        return 1000 if key in self.withheld else super().size(key)

    async def stream(self, key: Digest, offset: int, length: int):
        if key in self.withheld:
            await asyncio.Event().wait()
        async for piece in super().stream(key, offset, length):
            yield piece

    async def put(self, data: bytes, owner: Owner) -> Digest:
        await self.fate.write()
        key = await super().put(data, owner)
        await self.fate.touch()
        return key

    async def open_partial(self, *arguments):
        await self.fate.write()
        return await super().open_partial(*arguments)


class FateFiles(MemoryFiles):
    async def assemble(self, digests: Sequence[Digest], path: Path) -> None:
        await self._blobs.fate.write()
        await super().assemble(digests, path)


class FateTrainer(ToyTrainer):
    def __init__(self, fate: Fate) -> None:
        super().__init__()
        self.fate = fate

    async def write_policy(self, path: Path) -> Digest:
        await self.fate.write()
        return await super().write_policy(path)

    async def save_state(self, path: Path) -> None:
        await self.fate.write()
        await super().save_state(path)
        await self.fate.touch()

    async def load_policy(self, policy: Policy) -> None:
        if digest(policy.path.read_bytes()) != policy.digest:
            raise ValueError("not this policy")
        await super().load_policy(policy)

    async def load_state(self, path: Path, policy: Digest) -> None:
        if len(path.read_bytes()) != 32:
            raise ValueError("a damaged state")
        await super().load_state(path, policy)


class StrictEngine(ToyEngine):
    """As the real ones: refuses other tensors than named, keeps the policies it got last."""

    kept = 4

    async def load(self, policy: Policy) -> None:
        await asyncio.sleep(self.seconds)
        if digest(policy.path.read_bytes()) != policy.digest:
            raise ValueError("not this policy")
        self.policies.pop(policy.version, None)
        await super().load(policy)
        while len(self.policies) > self.kept:
            del self.policies[next(iter(self.policies))]


class FateEngines(ToyEngines):
    def __init__(self, fate: Fate) -> None:
        self.fate = fate
        self.seconds = 0.05

    def generation(self, manifest: RunManifest) -> StrictEngine:
        return StrictEngine(self.seconds)

    def verification(self, manifest: RunManifest) -> StrictEngine:
        return StrictEngine(self.seconds)

    def training(self, manifest: RunManifest) -> FateTrainer:
        return FateTrainer(self.fate)


@dataclass
class ShiftedClock:
    """A wall clock that can be set."""

    offset: float = 0.0

    def now(self) -> float:
        return LoopClock().now() + self.offset


@dataclass
class Witness:
    """What nodes took from each other, and what is wrong with it."""

    machines: dict[str, Machine]
    wrongs: list[str] = field(default_factory=list)
    said: dict[tuple[object, ...], bytes] = field(default_factory=dict)

    def attend(self, name: str, daemon: Daemon) -> None:
        receive = daemon.replica.receive
        own = self.machines[name].identity.peer_id

        def hear(envelope: bytes, now: float, **options):
            received = receive(envelope, now, **options)
            if received.signed is not None and received.signed.signer != own:
                self.hear(envelope)
            return received

        daemon.replica.receive = hear

    def hear(self, envelope: bytes) -> None:
        fields = msgpack.unpackb(envelope)
        kind, payload, signer = fields["kind"], fields["payload"], fields["signer"]
        message = decode(payload, bytes_max=1 << 20)
        if kind == NodeRecord.kind:
            return
        machine = next(m for m in self.machines.values() if m.identity.peer_id == signer)
        if isinstance(machine.store, FateStore) and envelope not in machine.store.ever:
            self.wrongs.append(f"{machine.name} announced a {kind} that it had not stored")
        if kind == Certificate.kind:
            for verdict in message["verdicts"]:
                self.hear(verdict)
            return
        about = {
            RolloutCommit.kind: ("checkpoint", "slot"),
            Verdict.kind: ("commit",),
            CheckpointManifest.kind: ("version", "term"),
        }[kind]
        key = (kind, signer, *(message.get(name) for name in about))
        if self.said.setdefault(key, payload) != payload:
            self.wrongs.append(f"{machine.name} contradicts itself: {kind} {about}")


class FaultWorld(SwarmWorld):
    """Every machine has a fate."""

    files = FateFiles

    def __init__(self, directory: Path, machines=TINY, **changes: object) -> None:
        changes = QUICK | {"committee__escalated_size": 2} | changes
        super().__init__(directory, machines, **changes)
        self.witness = Witness(self.machines)
        self.fates: dict[str, Fate] = {}
        self._burials: dict[str, asyncio.Task[None]] = {}
        for name, machine in self.machines.items():
            fate = self.fates[name] = Fate(lambda name=name: self._die(name))
            machine.store, machine.blobs = FateStore(fate), FateBlobs(fate)
            machine.engines = FateEngines(fate)

    def start(self, name: str, **options: object) -> Daemon:
        daemon = super().start(name, **options)
        self.witness.attend(name, daemon)
        return daemon

    async def _die(self, name: str) -> None:
        """The machine stops at this very moment: its caller goes no further."""
        self._burials[name] = asyncio.create_task(self._bury(name, *self._freeze(name)))
        await asyncio.Event().wait()

    def _freeze(self, name: str) -> tuple[dict, dict, dict, dict]:
        machine = self.machines[name]
        self.hub.remove(machine.identity.peer_id)
        tables = {table: dict(rows) for table, rows in machine.store.tables.items()}
        owned = {owner: dict(keys) for owner, keys in machine.blobs.owned.items()}
        return tables, dict(machine.blobs.complete), owned, dict(machine.store.ever)

    async def _bury(self, name: str, tables: dict, complete: dict, owned: dict, ever: dict) -> None:
        machine = self.machines[name]
        machine.task.cancel()
        await asyncio.wait([machine.task])
        machine.store.tables, machine.blobs.complete, machine.store.ever = tables, complete, ever
        machine.blobs.owned = owned

    async def crash(self, name: str) -> None:
        await self._bury(name, *self._freeze(name))

    async def buried(self, name: str) -> None:
        """Wait until a machine that was to die has."""
        await eventually(lambda: name in self._burials, 300)
        await self._burials.pop(name)

    def replica(self, name: str = "trainer"):
        return self.machines[name].daemon.replica

    async def reach(self, version: int, name: str = "trainer", seconds: float = 300) -> None:
        await eventually(lambda: self.replica(name).ledger.version >= version, seconds)

    async def more(self, versions: int, name: str = "trainer", seconds: float = 300) -> None:
        await self.reach(self.replica(name).ledger.version + versions, name, seconds)

    async def finish(self) -> None:
        """Stop everybody; raises what a daemon failed with, and what the witness has seen."""
        await self.stop()
        assert self.witness.wrongs == []


def outage(machine: Machine) -> Callable[[], None]:
    """Make every call of a machine's transport fail, as while p2pd is restarted; return the end."""
    transport = machine.transport
    names = ("addresses", "connect", "peers", "open_stream", "disconnect")

    async def fail(*_arguments):
        raise TransportError("p2pd is being restarted")

    for name in names:
        setattr(transport, name, fail)

    def end() -> None:
        for name in names:
            delattr(transport, name)

    return end
