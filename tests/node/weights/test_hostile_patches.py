"""Hostile patches and damaged files, each met by a whole swarm."""

import asyncio
import time
import tracemalloc

import numpy as np
import pytest
import zstandard

from protocol.core import codec
from protocol.core.types import Version
from protocol.messages import Encoding
from protocol.shardcast.encodings import block, planes
from roles.ports.engines import Policy
from tests.node.weights import test_library as world
from tests.node.weights.test_patches import (
    arrives,
    away,
    begun,
    has,
    lie_of,
    published,
    received,
    tensors,
    weights,
)
from tests.worlds.network import eventually
from tests.worlds.tensor_files import file_of, policy_of

pytestmark = pytest.mark.virtual

BOMB_BYTES = 1 << 28
PEAK_BYTES_MAX = 24 << 20
"""Memory of all nodes of a swarm, each with a block and its buffers: a tenth of one bomb."""


def bomb(count):
    """Return a block of words whose first plane is a frame that inflates to ``BOMB_BYTES``."""
    compressor = zstandard.ZstdCompressor(1, write_content_size=False)
    plane = compressor.compress(bytes(BOMB_BYTES))
    body = bytes([2]) + len(plane).to_bytes(planes.LENGTH_BYTES, "little") + plane
    head = bytes([block.FULL]) + len(body).to_bytes(block.HEAD_BYTES - 1, "little")
    assert block.body_bytes(head, count, 2) == len(body), "an honest block may be so long"
    return head + body


def preamble(policy, header=b"", elements=5000):
    data = codec.encode({"base": policy, "block_bytes": 2 * elements, "header": header})
    return len(data).to_bytes(4, "little") + data


def larger_header():
    """Return the header of a 1 GB file whose content need not be sent."""
    small = file_of({"a": np.zeros(8, np.uint16)})[:-16]
    return small.replace(b"[8]", b"[536870912]").replace(b"[0, 16]", b"[0, 1073741824]")


async def hostile(swarm, kind):
    """Return the encoding of version 2 that a hostile trainer signs."""
    base = policy_of(tensors(1))
    if kind == "inflates":
        content = preamble(base) + bomb(5000)
    elif kind == "makes a larger file":
        header = larger_header()
        padded = header[8:] + b" " * (-len(header[8:]) % 8)
        content = preamble(b"", len(padded).to_bytes(8, "little") + padded)
    elif kind == "has a head without an end":
        content = (1 << 30).to_bytes(4, "little") + bytes(10_000)
    else:
        content = preamble(base) + bytes(3 * len(weights(0)))
    against = -1 if kind == "makes a larger file" else 1
    return Encoding(
        base_version=against,
        base=b"" if against < 0 else base,
        **await published(swarm.trainers[0], content),
    )


@pytest.mark.parametrize(
    "kind",
    ["inflates", "makes a larger file", "has a head without an end", "is longer than the file"],
)
async def test_everybody_gives_a_bomb_up_for_the_file_within_bounds(tmp_path, kind):
    swarm = await begun(tmp_path, 2, followers=4)
    lie = await hostile(swarm, kind)
    before = [received(node) for node in swarm.followers]
    tracemalloc.start()
    begun_at, spent_at = asyncio.get_running_loop().time(), time.process_time()
    await swarm.step(encodings=(lie,))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < PEAK_BYTES_MAX, f"{peak_bytes >> 20} MiB"
    assert asyncio.get_running_loop().time() - begun_at < 30
    assert time.process_time() - spent_at < 10
    for node, count in zip(swarm.followers, before, strict=True):
        assert received(node) - count < 1.3 * (len(weights(2)) + min(lie.total_bytes, 15_000))
        assert str(node.conditions) == ""
        assert not list(node.directory.glob("*.partial"))
    await swarm.step()
    await swarm.stop()


async def test_one_lie_in_a_chain_of_patches_costs_a_file_of_each_wanted_version_at_most(tmp_path):
    swarm = await begun(tmp_path, 2)
    late = swarm.followers[0]
    others = [node for node in swarm.nodes if node is not late]
    await away(late)
    lie = await lie_of(swarm, "another policy", tmp_path)
    await swarm.step(*others, encodings=(lie,))
    for _ in range(2):
        await swarm.step(*others)
    count = received(late)
    await late.restart()
    await arrives(late, 4)
    assert lie.index in late.library._routes.useless
    await eventually(lambda: all(has(late, version) for version in (2, 3, 4)), 60)
    assert received(late) - count < 4 * len(weights(2))
    count = received(late)
    await swarm.step()
    assert received(late) - count < len(weights(2)) / 10, "patches are trusted again"
    await swarm.stop()


@pytest.mark.parametrize("damage", ["cut off", "empty", "longer"])
async def test_a_version_of_another_length_than_was_signed_is_fetched_again(tmp_path, damage):
    """A disk lost the file's end; a node must not serve the rest as the version."""
    swarm = await begun(tmp_path, 2)
    one = swarm.followers[0]
    path, content = one.library.get(1).path, weights(1)
    damaged = {"cut off": content[:-1000], "empty": b"", "longer": content + b"more"}[damage]
    path.write_bytes(damaged)
    one.running.cancel()
    await asyncio.wait([one.running])
    await one.restart_alone()
    assert one.library.get(1) is None
    assert not path.exists()
    assert one.library.newest_version() == 0
    swarm.introduce()
    await arrives(one, 1)
    await swarm.stop()


async def test_what_is_not_announced_yet_has_no_length_to_be_held_to(tmp_path):
    """A trainer that died between release and announcement continues from its files."""
    swarm = await world.begun(tmp_path, 1)
    trainer = swarm.trainers[0]
    path = trainer.ports.files.weights(1)
    path.write_bytes(world.weights(1))
    policy = Policy(Version(1), world.digest(world.weights(1)), path)
    await trainer.library.release(policy)
    await trainer.restart()
    assert trainer.library._held._held[1] == policy
    await swarm.stop()
