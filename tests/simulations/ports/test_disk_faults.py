"""Disk faults: a session ends at any write, and a quota is used up."""

import asyncio
from pathlib import Path

import pytest

from protocol.core.crypto import digest
from protocol.core.rng import Rng
from protocol.shardcast.index import encode
from roles.ports.storage import Owner, Purpose, Put, StorageFullError
from simulations.ports.blobs import SimBlobs
from simulations.ports.engines import SimEngines
from simulations.ports.policy_files import SimPolicyFiles
from simulations.ports.storage import Disk, Session, SimStore
from simulations.runtime.loop import VirtualLoop
from simulations.scenario.scenario import Compute, Workload
from tests.node.storage.blob_stores import name_of, one_shard

pytestmark = pytest.mark.virtual(loop=VirtualLoop)

OWNER = Owner(Purpose.WEIGHTS, digest(b"index"))
PATH = Path("v1.safetensors")
INDEX = name_of(one_shard(b"part", 4))
WORKLOAD = Workload(weights_bytes=4096, tokens_mean=4, skill=0.3, learning_rate=0.1)


async def commit(disk, session):
    await SimStore(disk, session).commit([Put("table", b"key", b"value")])


async def put(disk, session):
    await SimBlobs(disk, session).put(b"blob", OWNER)


async def link(disk, session):
    disk.blobs |= {digest(b"part"): b"part", INDEX: encode(one_shard(b"part", 4))}
    await SimPolicyFiles(disk, session, Path(), Path(), Path()).link(INDEX, PATH)


async def write_policy(disk, session):
    engines = SimEngines(disk, Compute(), WORKLOAD, Rng(b""), lambda *_, **__: 0, session)
    await engines.training(MANIFEST).write_policy(PATH)


class MANIFEST:
    class sampling:  # noqa: N801 - a section of a manifest
        prompts_per_rollout = 1

    class grpo:  # noqa: N801 - the same
        updates_per_version = 1
        outer = None


WRITES = pytest.mark.parametrize("write", [commit, put, link, write_policy])


def written(disk):
    kept = dict(disk.blobs)
    for made in (digest(b"part"), INDEX):
        kept.pop(made, None)
    return bool(disk.tables.get("table") or kept or disk.files)


@WRITES
@pytest.mark.parametrize("touch", [1, 2])
async def test_a_life_that_ends_before_a_write_leaves_nothing_and_one_after_it_everything(
    write, touch
):
    disk, session, touches = Disk(), Session(), 0

    async def die():
        nonlocal touches
        touches += 1
        if touches == touch:
            session.alive = False
            await asyncio.Event().wait()

    session.at_write = die
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(write(disk, session), 10)
    assert written(disk) == (touch == 2)


@WRITES
async def test_a_disk_without_room_takes_no_write(write):
    disk = Disk(quota_bytes=0)
    with pytest.raises(StorageFullError):
        await write(disk, Session())
    assert not written(disk)
    disk.quota_bytes = None
    await write(disk, Session())
    assert written(disk)
