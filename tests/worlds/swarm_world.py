"""A swarm of real daemons in one process and in virtual time, on memory and modelled compute.

The daemons, role flows, gossip, forest and protocol are the ones that run live; only what touches
the outside is replaced, and compute is a digest in place of a model.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from node.context import Ports
from node.daemon import Daemon
from node.membership.announcer import About
from node.storage.policy_files import PolicyDirectory, index_of
from protocol.audit import Measurement
from protocol.crypto import Identity, digest
from protocol.manifest import Genesis, RunManifest, SignedManifest, load_recipe, sign_manifest
from protocol.messages import Hardware
from protocol.rng import Rng
from protocol.shardcast.index import ShardIndex
from protocol.toploc.proof import ChunkResult
from protocol.types import Digest, PeerId, Role, Version
from roles.ports.clock import Clock
from roles.ports.engines import (
    Generation,
    GenerationRequest,
    Policy,
    StepMetrics,
    TrainingSequence,
    VerificationRequest,
)
from roles.ports.storage import Delete, Owner, Purpose, Put
from tests.worlds.memory_transport import Hub, LoopClock, MemoryTransport

RECIPE = Path(__file__).parents[2] / "configs" / "runs" / "testnet.toml"


class MemoryPartial:
    def __init__(self, length: int, chunk_bytes: int, chunks: Sequence[Digest]) -> None:
        self.length = length
        self.chunk_bytes = chunk_bytes
        self.digests = list(chunks)
        self.data: list[bytes | None] = [None] * len(chunks)
        self.changed = asyncio.Event()

    def missing(self) -> list[int]:
        return [index for index, chunk in enumerate(self.data) if chunk is None]

    async def write_chunk(self, index: int, data: bytes) -> bool:
        if digest(data) != self.digests[index]:
            return False
        self.data[index] = data
        self.changed.set()
        self.changed = asyncio.Event()
        return True


class MemoryBlobs:
    def __init__(self) -> None:
        self.complete: dict[Digest, bytes] = {}
        self.partial: dict[Digest, MemoryPartial] = {}
        self.owned: dict[Owner, dict[Digest, None]] = {}

    async def put(self, data: bytes, owner: Owner) -> Digest:
        key = digest(data)
        self.complete[key] = bytes(data)
        self.owned.setdefault(owner, {})[key] = None
        return key

    async def put_file(self, path: Path, offset: int, length: int, owner: Owner) -> Digest:
        return await self.put(path.read_bytes()[offset : offset + length], owner)

    async def get(self, key: Digest) -> bytes | None:
        self._finish(key)
        return self.complete.get(key)

    def size(self, key: Digest) -> int | None:
        if key in self.complete:
            return len(self.complete[key])
        return self.partial[key].length if key in self.partial else None

    def has(self, key: Digest) -> bool:
        self._finish(key)
        return key in self.complete

    async def open_partial(
        self, key: Digest, length: int, chunk_bytes: int, chunks: Sequence[Digest], owner: Owner
    ) -> MemoryPartial:
        self.owned.setdefault(owner, {})[key] = None
        partial = self.partial.setdefault(key, MemoryPartial(length, chunk_bytes, chunks))
        if key in self.complete:
            data = self.complete[key]
            partial.data = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
        return partial

    def _finish(self, key: Digest) -> None:
        partial = self.partial.get(key)
        if partial is not None and not partial.missing():
            self.complete[key] = b"".join(chunk for chunk in partial.data if chunk is not None)

    async def stream(self, key: Digest, offset: int, length: int) -> AsyncIterator[bytes]:
        self._finish(key)
        if key in self.complete:
            yield self.complete[key][offset : offset + length]
            return
        partial = self.partial[key]
        end = min(offset + length, partial.length)
        while offset < end:
            index = offset // partial.chunk_bytes
            while partial.data[index] is None:
                await partial.changed.wait()
            chunk = partial.data[index]
            assert chunk is not None
            start = index * partial.chunk_bytes
            piece = chunk[offset - start : end - start]
            offset += len(piece)
            yield piece

    def owners(self, purpose: Purpose) -> list[Owner]:
        return [owner for owner in self.owned if owner.purpose is purpose]

    async def release(self, owner: Owner) -> None:
        for key in self.owned.pop(owner, {}):
            if not any(key in others for others in self.owned.values()):
                self.complete.pop(key, None)
                self.partial.pop(key, None)


class MemoryFiles(PolicyDirectory):
    """Files in a directory, assembled from blobs in memory; without threads."""

    async def index(self, path: Path, shard_bytes: int, chunk_bytes: int) -> ShardIndex:
        return index_of(path, path.stat().st_size, shard_bytes, chunk_bytes)

    async def assemble(self, digests: Sequence[Digest], path: Path) -> None:
        path.write_bytes(b"".join([await self._blobs.get(key) or b"" for key in digests]))


class MemoryStore:
    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {}

    async def commit(self, changes: Sequence[Put | Delete]) -> None:
        for change in changes:
            table = self.tables.setdefault(change.table, {})
            if isinstance(change, Put):
                table[change.key] = change.value
            else:
                table.pop(change.key, None)

    def get(self, table: str, key: bytes) -> bytes | None:
        return self.tables.get(table, {}).get(key)

    def scan(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        yield from sorted(self.tables.get(table, {}).items())


class MemoryDirectory:
    """One node's end of a map that everybody shares."""

    def __init__(self, shared: dict[str, dict[PeerId, bytes]], owner: PeerId) -> None:
        self._shared = shared
        self._owner = owner

    async def publish(self, key: str, value: bytes, expires_at: float) -> bool:
        self._shared.setdefault(key, {})[self._owner] = value
        return True

    async def lookup(self, key: str) -> Mapping[PeerId, bytes]:
        return dict(self._shared.get(key, {}))


class ToyTask:
    """Right when the sequence's first token is even."""

    name = "toy"
    vocabulary = ("", "\n", *"abcdefgh")

    def prompt(self, seed: int) -> tuple[int, ...]:
        return (2 + seed % 8,)

    def score(self, seed: int, completion: Sequence[int]) -> float:
        return float(completion[0] % 2 == 0)


def toy_tokens(policy: Digest, seed: int) -> tuple[int, ...]:
    """Return what the toy model of ``policy`` samples with noise ``seed``."""
    draw = digest(policy + seed.to_bytes(8, "big"))
    return (2 + draw[0] % 8, 1)


class ToyEngine:
    """Generation and verification: a policy is its digest, a proof repeats it."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.seconds = seconds
        self.policies: dict[int, Digest] = {}
        self.newest: Policy | None = None

    async def load(self, policy: Policy) -> None:
        assert digest(policy.path.read_bytes()) == policy.digest
        self.policies[policy.version] = policy.digest
        self.newest = policy

    async def generate(
        self, requests: Sequence[GenerationRequest], temperature: float
    ) -> list[Generation]:
        await asyncio.sleep(self.seconds)
        assert self.newest is not None
        policy = self.newest.digest
        return [
            Generation(toy_tokens(policy, request.seed), (-0.5, -0.5), (policy,))
            for request in requests
        ]

    async def measure(
        self, version: Version, requests: Sequence[VerificationRequest], temperature: float
    ) -> list[Measurement]:
        await asyncio.sleep(self.seconds / 2)
        policy = self.policies[version]
        return [
            Measurement(
                None,
                (ChunkResult(0 if request.proofs == (policy,) else 120, 0.0, 0.0),),
                0.0,
                0.0 if request.tokens == toy_tokens(policy, request.seed) else 9.0,
                0.5,
            )
            for request in requests
        ]


class ToyTrainer:
    """Each step makes other weights; they are 200 kB so that the forest has shards to carry."""

    def __init__(self, seconds: float = 0.3) -> None:
        self.seconds = seconds
        self.state = b""

    async def load_policy(self, policy: Policy) -> None:
        self.state = policy.path.read_bytes()[:32]

    async def step(self, batch: Sequence[TrainingSequence]) -> StepMetrics:
        await asyncio.sleep(self.seconds)
        self.state = digest(self.state + repr(batch).encode())
        return StepMetrics(True, 0.0, 1.0, 0.0, 1.0, len(batch))

    async def write_policy(self, path: Path) -> Digest:
        path.write_bytes(toy_weights(self.state))
        return digest(toy_weights(self.state))

    async def save_state(self, path: Path) -> None:
        path.write_bytes(self.state)

    @property
    def state_bytes_max(self) -> int:
        return 32

    async def load_state(self, path: Path, policy: Digest) -> None:
        state = path.read_bytes()
        if digest(toy_weights(state)) != policy:
            raise ValueError("the state of another policy")
        self.state = state

    async def evaluate(
        self, prompts: Sequence[tuple[int, ...]], tokens_max: int
    ) -> list[tuple[int, ...]]:
        return [(2, 1) for _ in prompts]


def toy_weights(state: bytes) -> bytes:
    return state + Rng(state).bytes(200_000)


class ToyEngines:
    def environment(self, manifest: RunManifest) -> ToyTask:
        return ToyTask()

    def generation(self, manifest: RunManifest) -> ToyEngine:
        return ToyEngine()

    def verification(self, manifest: RunManifest) -> ToyEngine:
        return ToyEngine()

    def training(self, manifest: RunManifest) -> ToyTrainer:
        return ToyTrainer()


@dataclass
class Machine:
    """What survives a crash of its daemon: key, store, blobs, files."""

    name: str
    identity: Identity
    roles: tuple[Role, ...]
    directory: Path
    blobs: MemoryBlobs = field(default_factory=MemoryBlobs)
    store: MemoryStore = field(default_factory=MemoryStore)
    engines: ToyEngines = field(default_factory=ToyEngines)
    clock: Clock = field(default_factory=LoopClock)
    daemon: Daemon | None = None
    task: "asyncio.Task[None] | None" = None
    transport: MemoryTransport | None = None


class SwarmWorld:
    """Starts, crashes and restarts machines of one run."""

    files: type[MemoryFiles] = MemoryFiles

    def __init__(
        self, directory: Path, machines: Sequence[tuple[str, Role]], **changes: object
    ) -> None:
        self.hub = Hub()
        self.shared: dict[str, dict[PeerId, bytes]] = {}
        self.machines = {
            name: Machine(name, Identity(digest(name.encode())), (role,), directory / name)
            for name, role in machines
        }
        creator = Identity(digest(b"creator"))
        genesis = toy_weights(digest(b"genesis"))
        recipe = load_recipe(RECIPE.read_text()).model_dump()
        for path, value in changes.items():
            section, _, key = path.partition("__")
            recipe[section][key] = value
        manifest = RunManifest(
            **recipe,
            genesis=Genesis(
                creator=creator.peer_id,
                created_at=round(LoopClock().now()),
                policy=digest(genesis).hex(),
                trainers=self._ids(Role.TRAINER),
                validators=self._ids(Role.VALIDATOR),
            ),
        )
        self.manifest: SignedManifest = sign_manifest(manifest, creator)
        for machine in self.machines.values():
            (machine.directory / "weights").mkdir(parents=True)
            if Role.TRAINER in machine.roles:
                (machine.directory / "genesis.safetensors").write_bytes(genesis)

    def _ids(self, role: Role) -> tuple[str, ...]:
        return tuple(m.identity.peer_id for m in self.machines.values() if role in m.roles)

    def start(self, name: str) -> Daemon:
        machine = self.machines[name]
        machine.transport = self.hub.transport(machine.identity.peer_id)
        clock = machine.clock
        rng = Rng(machine.identity.public_key)
        first = next(iter(self.machines.values())).identity.peer_id
        address = f"/memory/{first}/p2p/{first}"
        machine.daemon = Daemon(
            self.manifest,
            machine.identity,
            About(machine.roles, Hardware(), reachable=True, software="test"),
            Ports(
                clock=clock,
                rng=rng,
                transport=machine.transport,
                directory=MemoryDirectory(self.shared, machine.identity.peer_id),
                blobs=machine.blobs,
                store=machine.store,
                files=self.files(
                    machine.directory / "weights",
                    machine.directory / "genesis.safetensors",
                    machine.blobs,
                ),
            ),
            machine.engines,
            [address],
        )
        machine.task = asyncio.create_task(machine.daemon.run(), name=name)
        return machine.daemon

    def start_all(self) -> None:
        for name in self.machines:
            self.start(name)

    async def crash(self, name: str) -> None:
        """End a daemon as ``kill -9`` does: nothing is said, nothing more is written."""
        machine = self.machines[name]
        assert machine.task is not None and machine.transport is not None
        tables = {name: dict(table) for name, table in machine.store.tables.items()}
        complete = dict(machine.blobs.complete)
        owned = {owner: dict(keys) for owner, keys in machine.blobs.owned.items()}
        self.hub.remove(machine.identity.peer_id)
        machine.task.cancel()
        await asyncio.wait([machine.task])
        machine.store.tables, machine.blobs.complete = tables, complete
        machine.blobs.owned = owned

    async def stop(self) -> None:
        for machine in self.machines.values():
            if machine.daemon is not None and machine.task is not None and not machine.task.done():
                machine.daemon.stop()
        tasks = [m.task for m in self.machines.values() if m.task is not None]
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.result()
