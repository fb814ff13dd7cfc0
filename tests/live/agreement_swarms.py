"""One small run on real nodes over ``p2pd``, and on simulated nodes in virtual time.

Both sides share keys, manifest, daemon and modelled engines. All else differs: libp2p, hivemind's
directory, SQLite, files, threads and the clock on one side, the models of ``simulations`` on the
other.

Each worker makes a fixed number of rollouts, and the run ends with version 1, so the final state
does not depend on timing. Weights are real bytes here, as simulated ones (``Extent``) cannot pass
through libp2p.
"""

import asyncio
import time
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest

from node.context import Ports
from node.daemon import Daemon
from node.live.hivemind_dht import HivemindDirectory
from node.live.hivemind_p2p import HivemindTransport
from node.local.system import SystemClock, ThreadBackground
from node.membership.announcer import About
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.storage.state import SqliteStore
from protocol.core.rng import Rng
from protocol.core.types import Role
from protocol.membership.directory_buckets import Buckets
from protocol.messages import Hardware, RolloutCommit, envelope_kind
from roles.ports.storage import Purpose
from roles.ports.swarm import RefusedError
from simulations.adversaries.passthrough import OtherEngines
from simulations.adversaries.testnet import edited_tokens, forged_rewards
from simulations.cluster.world import SHORT_NAMES, World
from simulations.ports.blobs import SimBlobs
from simulations.ports.engines import SimEngines
from simulations.ports.storage import Disk, Session
from simulations.ports.sums import policy_seed
from simulations.runtime.content import Extent
from simulations.runtime.loop import START, run_virtual
from simulations.runtime.trace import Trace
from simulations.scenario.scenario import Compute, Workload, parse_scenario

SLOTS = 3
SCENARIO = parse_scenario("""
name = "agreement"
description = "A run of one version: two honest workers, two that lie."
minutes = 5
signatures = "ed25519"
[nodes]
relay = 1
trainer = 1
validator = 3
inference = 4
start_seconds = 2
[workload]
weights_bytes = 20_000
skill = 0.5
[protocol.sampling]
group_size = 2
[protocol.grpo]
steps = 1
rollouts_per_step = 6
[protocol.committee]
size = 3
escalated_size = 3
escalate_after_epochs = 120
expire_after_epochs = 180
[protocol.epochs]
seconds = 3.0  # nine nodes in one process, and a busy machine
record_epochs = 180
refresh_epochs = 6
[protocol.shardcast]
shard_bytes = 8192
chunk_bytes = 2048
""")
HONEST = ("worker-0", "worker-1")
LIARS = {"worker-2": forged_rewards, "worker-3": edited_tokens}
WORKLOAD = Workload(weights_bytes=20_000, skill=0.5)
COMPUTE = Compute(
    generate_tokens_per_second=400,
    check_tokens_per_second=4000,
    train_tokens_per_second=4000,
    load_seconds=0.05,
)
ROLES = {short: Role(role) for role, short in SHORT_NAMES.items()}
SETTLE_SECONDS = 500.0
SINCE = ("incarnation",)
"""Tables with the start time of a node; a validator judges nothing older."""


# Shared engines


def packed(weights):
    """Return modelled weights as real bytes of the same length, after their description."""
    return weights.seed + Rng(weights.seed).bytes(len(weights) - len(weights.seed))


GENESIS = Extent.of(policy_seed(WORKLOAD.skill, b"genesis"), 0, WORKLOAD.weights_bytes)
"""The same as in ``World``, whose manifest both sides use."""


class PackedFiles:
    """The engines' view of files with real bytes; ``read`` returns None for a missing file."""

    def __init__(self, read, write):
        self._read = read
        self._write = write

    def get(self, path, default=None):
        data = self._read(path)
        return default if data is None else _unpacked(data)

    def __getitem__(self, path):
        return _unpacked(self._read(path))

    def __setitem__(self, path, content):
        self._write(path, packed(content) if isinstance(content, Extent) else content)


def _unpacked(data):
    """Return the weights in ``data``; a trainer's state or damaged bytes unchanged."""
    weights = Extent.of(data[: len(GENESIS.seed)], 0, len(data))
    whole = len(data) > len(GENESIS.seed) and data == packed(weights)
    return weights if whole else data


class Bounded:
    """Generation engine that stops after a given number of rollouts."""

    def __init__(self, engine, rollouts):
        self._engine = engine
        self._left = rollouts

    async def start(self):
        await self._engine.start()

    @property
    def tokens_sampled(self):
        return self._engine.tokens_sampled

    @property
    def first_token(self):
        return self._engine.first_token

    async def stage(self, policy):
        return await self._engine.stage(policy)

    async def load(self, policy):
        await self._engine.load(policy)

    async def generate(self, requests, temperature):
        if not self._left:
            raise RefusedError("enough")
        self._left -= 1
        return await self._engine.generate(requests, temperature)


class Engines(OtherEngines):
    """Modelled engines of a node, dishonest ones on a liar."""

    def __init__(self, name, files, rng, rollouts):
        disk = Disk(files=files)
        modelled = SimEngines(disk, COMPUTE, WORKLOAD, rng, lambda *_, **_facts: None)
        engines = LIARS[name](modelled) if name in LIARS else modelled
        super().__init__(engines, generation=lambda engine, _: Bounded(engine, rollouts))


def rollouts_of(name):
    """Return the number of rollouts of a worker: 1 of a liar, which may be caught at any time."""
    return SLOTS if name in HONEST else 1


def is_over(replica):
    """Return whether a node knows the outcome of everything."""
    totals = replica.ledger.workers.totals
    outcomes = (replica.ledger.chain.version, totals.certified, totals.rejected)
    return outcomes == (1, SLOTS * len(HONEST), len(LIARS))


@dataclass
class Side:
    """Final state of a run on one side, per node."""

    names: dict
    """Peer id to name."""
    replicas: dict
    disks: dict = field(default_factory=dict)
    """Stored tables of the nodes: table to key to value."""
    bodies: dict = field(default_factory=dict)
    ended_at: float = 0.0


# Real nodes


class RememberingBlobs(FileBlobs):
    """Blob files, and a copy of the node's own blobs, which are deleted once settled."""

    def __init__(self, directory):
        super().__init__(directory)
        self.bodies = {}

    async def put(self, data, owner):
        key = await super().put(data, owner)
        self.bodies[key] = data
        return key


class LiveNode:
    """Node built as in ``node.process.runner``, with modelled engines."""

    def __init__(self, name, identity, directory):
        self.name = name
        self.identity = identity
        self.directory = directory
        self.role = ROLES[name.partition("-")[0]]
        self.transport = None
        self.task = None

    async def listen(self):
        key = self.directory / "identity.key"
        key.write_bytes(self.identity.to_protobuf())
        self.transport = await HivemindTransport.create(self.identity, key)
        return (await self.transport.addresses())[0]

    async def start(self, manifest, bootstrap):
        run_id = manifest.manifest.run_id
        self.lookups = await HivemindDirectory.create(
            self.transport, self.identity, run_id, Buckets(run_id)
        )
        self.store = SqliteStore(self.directory / "state.sqlite")
        self.blobs = RememberingBlobs(self.directory / "blobs")
        rng = Rng(self.identity.public_key)
        ports = Ports(
            clock=SystemClock(),
            rng=rng.child("daemon"),
            transport=self.transport,
            directory=self.lookups,
            blobs=self.blobs,
            store=self.store,
            files=PolicyDirectory(
                self.directory / "weights",
                self.directory / "genesis.safetensors",
                self.directory / "task",
                self.blobs,
            ),
            background=ThreadBackground(),
        )
        files = PackedFiles(_read_file, Path.write_bytes)
        self.daemon = Daemon(
            manifest,
            self.identity,
            About((self.role,), Hardware(), reachable=True, software="agreement"),
            ports,
            Engines(self.name, files, rng.child("engines"), rollouts_of(self.name)),
            [bootstrap],
        )
        self.task = asyncio.create_task(self.daemon.run(), name=self.name)

    async def drain(self):
        """Stop the daemon in order; return its stored tables before the leaving record."""
        stayed = {name: dict(self.store.scan(name)) for name in SINCE}
        self.daemon.stop()
        await self.task
        return {"messages": dict(self.store.scan("messages"))} | stayed

    async def close(self):
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
            await self.lookups.close()
            self.store.close()
        if self.transport is not None:
            await self.transport.close()


def _read_file(path):
    return path.read_bytes() if path.exists() else None


async def live_run(directory, manifest, identities):
    nodes = [LiveNode(name, one, directory / name) for name, one in identities.items()]
    for node in nodes:
        node.directory.mkdir()
        if node.role is Role.TRAINER:
            (node.directory / "genesis.safetensors").write_bytes(packed(GENESIS))
    try:
        addresses = await asyncio.gather(*(node.listen() for node in nodes))
        for node in nodes:
            await node.start(manifest, addresses[0])
        async with asyncio.timeout(SETTLE_SECONDS):
            while not all(is_over(node.daemon.replica) for node in nodes):
                for node in nodes:
                    assert not node.task.done(), node.task
                await asyncio.sleep(0.1)
        disks = await asyncio.gather(*(node.drain() for node in nodes))
        return Side(
            names={node.identity.peer_id: node.name for node in nodes},
            replicas={node.name: node.daemon.replica for node in nodes},
            disks=dict(zip(identities, disks, strict=True)),
            bodies={key: data for node in nodes for key, data in node.blobs.bodies.items()},
            ended_at=time.time(),
        )
    finally:
        await asyncio.gather(*(node.close() for node in nodes))


# Simulated nodes


class OverError(Exception):
    """Raised to end a finished simulation."""


def founded():
    """Return the manifest and the keys as the simulator makes them."""

    async def found():
        world = World(SCENARIO, 1, Trace())
        identities = {name: machine.signer for name, machine in world.machines.items()}
        return world.manifest, identities

    return run_virtual(found())


def simulated_run(prepare, rollouts=rollouts_of):
    """Run simulated nodes on the disks that ``prepare(world)`` writes."""

    def replaced(name, parts, rng):
        files = parts.disk.files
        engines = Engines(
            name,
            PackedFiles(files.get, files.__setitem__),
            rng,
            rollouts(name),
        )
        return replace(parts, engines=engines)

    async def live():
        behaviours = {}
        world = World(SCENARIO, 1, Trace(), behaviours=behaviours)
        for name, machine in world.machines.items():
            machine.behaviour = name
            behaviours[name] = partial(replaced, name)
        await prepare(world)
        replicas = {}

        async def look(world):
            while True:
                await asyncio.sleep(1)
                daemons = {name: machine.daemon for name, machine in world.machines.items()}
                if all(one is not None and is_over(one.replica) for one in daemons.values()):
                    replicas.update({name: one.replica for name, one in daemons.items()})
                    raise OverError

        with pytest.raises(OverError):
            await world.run([look])
        machines = world.machines.values()
        return Side(
            names={machine.signer.peer_id: machine.name for machine in machines},
            replicas=replicas,
            disks={machine.name: machine.disk.tables for machine in machines},
        )

    return run_virtual(live())


async def give_version_0(world, machine, envelope, manifest):
    """Write a version, as its publisher announced it, to a simulated disk."""
    disk, path = machine.disk, machine.weights / "v0.safetensors"
    disk.files[path] = packed(GENESIS)
    disk.files[machine.weights / "v0.state"] = GENESIS.seed
    disk.tables.setdefault("messages", {})[bytes(8)] = envelope
    disk.tables["policies"] = {bytes(8): manifest.policy}
    rules = world.manifest.manifest.shardcast
    sizes = rules.shard_bytes, rules.chunk_bytes
    stored = await SimBlobs(disk, Session()).put_file(path, *sizes, Purpose.WEIGHTS)
    assert stored.digest == manifest.index


def simulate_from_version_0(live):
    """Simulate the run from the version 0 that the live trainer published."""
    first = live.replicas["trainer-0"].ledger.chain.get(0)

    async def prepare(world):
        for machine in world.machines.values():  # or the version would be of the future
            machine.host.clock.skew_seconds = first.message.created_at / 1000 - START
        trainer = world.machines["trainer-0"]
        await give_version_0(world, trainer, first.envelope, first.message)

    return simulated_run(prepare)


def simulate_from_live_disks(live):
    """Restart the live nodes in the simulator, with only the inputs of their decisions.

    These are version 0, the commits, and the bodies on the workers' disks. The nodes must make
    verdicts, certificates and version 1 again. No worker generates.
    """
    first = live.replicas["trainer-0"].ledger.chain.get(0)

    async def prepare(world):
        for name, machine in world.machines.items():
            machine.host.clock.skew_seconds = live.ended_at - START
            machine.disk.tables.update({table: dict(live.disks[name][table]) for table in SINCE})
            await give_version_0(world, machine, first.envelope, first.message)
            for key, envelope in live.disks[name]["messages"].items():
                if envelope_kind(envelope) == RolloutCommit.kind:
                    machine.disk.tables["messages"][b"\1" + key[1:]] = envelope
        for entry in live.replicas["trainer-0"].ledger.commits.entries.values():
            worker, key = live.names[entry.commit.signer], entry.commit.message.body
            world.machines[worker].disk.blobs[key] = live.bodies[key]

    return simulated_run(prepare, rollouts=lambda _name: 0)
