"""Disk work of a trainer: write, publish and announce versions, and delete old ones."""

import asyncio
from itertools import count
from pathlib import Path

from node.context import Ports
from node.storage import files as disk
from node.storage.blobs import FileBlobs
from node.storage.policy_files import PolicyDirectory
from node.storage.state import SqliteStore
from node.weights.publish import publish_encoding
from protocol.core.types import Digest, Version
from roles.ports.engines import Policy
from roles.ports.storage import Delete, Owner, Purpose, Put
from tests.node.weights.test_patches import tensors, weights
from tests.worlds.messages import run_manifest
from tests.worlds.mortal import say
from tests.worlds.tensor_files import policy_of

SHARD_BYTES, CHUNK_BYTES = 8192, 2048
RULES = run_manifest(shardcast={"shard_bytes": SHARD_BYTES, "chunk_bytes": CHUNK_BYTES}).shardcast
KEPT = 2
TABLE = "announced"


def machine(directory: Path) -> Ports:
    blobs = FileBlobs(directory / "blobs")
    return Ports(
        clock=None,
        rng=None,
        transport=None,
        directory=None,
        blobs=blobs,
        store=SqliteStore(directory / "state.sqlite"),
        files=PolicyDirectory(
            directory / "weights", directory / "genesis", directory / "task", blobs
        ),
        background=None,
    )


def announced(ports: Ports) -> dict[int, list[Digest]]:
    """Return the indexes of each version announced and not forgotten."""
    return {
        int(key): [Digest(value[start : start + 32]) for start in range(0, len(value), 32)]
        for key, value in ports.store.scan(TABLE)
    }


async def publish(ports: Ports, version: int) -> None:
    path, base = ports.files.weights(version), ports.files.weights(version - 1)
    partial = path.with_name(path.name + ".partial")
    disk.write_synced(partial, weights(version))
    disk.promote(partial, path)
    policy = Policy(Version(version), policy_of(tensors(version)), path)
    before = None
    if version:
        before = Policy(Version(version - 1), policy_of(tensors(version - 1)), base)
    stored = await ports.blobs.put_file(path, SHARD_BYTES, CHUNK_BYTES, Purpose.WEIGHTS)
    encoding, _ = await publish_encoding(ports, RULES, policy, before)
    assert encoding is not None
    named = stored.digest + encoding.index
    await ports.store.commit([Put(TABLE, b"%06d" % version, named)])
    say("announced", version)


async def forget(ports: Ports, version: int) -> None:
    for index in announced(ports).get(version, ()):
        await ports.blobs.release(Owner(Purpose.WEIGHTS, index))
    await ports.files.delete(ports.files.weights(version))
    await ports.files.delete(ports.files.encoding(version))
    await ports.store.commit([Delete(TABLE, b"%06d" % version)])


async def live(directory: Path) -> None:
    ports = machine(directory)
    for version in count(max(announced(ports), default=-1) + 1):
        await publish(ports, version)
        for old in [one for one in announced(ports) if one <= version - KEPT]:
            say("forgets", old)
            await forget(ports, old)


def main(directory: str) -> None:
    asyncio.run(live(Path(directory)))
