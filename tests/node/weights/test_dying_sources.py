"""Swarm with parents that randomly crash, return, lie and stall: the others get the file.

It runs in virtual time on real files: a restarted node continues from its written bytes.
"""

import asyncio
import random
from itertools import chain

import pytest

from tests.node.weights.test_download import (
    ROOT,
    SHARD_BYTES,
    CorruptBlobs,
    StalledBlobs,
    Swarm,
    feeder_of,
)
from tests.worlds.network import LINE_BYTES_PER_SECOND

pytestmark = pytest.mark.virtual

SIZE = 8 * SHARD_BYTES + 1000
ROOT_SECONDS = SIZE / LINE_BYTES_PER_SECOND
"""Time of one transfer of the file over the root's link."""


class Fates:
    """Random fates of the nodes; two of the parents die for good."""

    def __init__(self, world, weights, seed):
        rng = random.Random(seed)
        names = [peer for peer in world.nodes if peer != ROOT]
        rng.shuffle(names)
        parents = [feeder_of(world.members, weights, stripe) for stripe in range(4)]
        line = list(dict.fromkeys([*rng.sample(parents, 2), *names]))
        self.dying, self.back, self.lying, self.stalling = line[:4], line[2:4], line[4:6], line[6:7]
        self.lives_seconds = {name: rng.uniform(0.2, 2.5) * ROOT_SECONDS for name in self.dying}


async def dies(world, name, weights, fates):
    """Download until the node dies, and again if it returns; return its lives."""
    node = world.nodes[name]
    running = asyncio.create_task(world.download(node, weights).run(node.path))
    await asyncio.wait([running], timeout=fates.lives_seconds[name])
    world.hub.remove(name)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    if name not in fates.back:
        return [node]
    here_bytes = node.progress[-1][0] if node.progress else 0
    await asyncio.sleep(ROOT_SECONDS)
    again = await world.add(name)
    await world.run([again], weights)
    assert again.progress[0][0] >= here_bytes
    return [node, again]


async def story(directory, seed):
    """Return the number of liars found."""
    world = Swarm(directory, random.Random(seed).randbytes(SIZE))
    await world.add(ROOT)
    for number in range(10):
        await world.add(f"n{number}")
    weights, _ = await world.publish()
    fates = Fates(world, weights, seed)
    for names, store in ((fates.lying, CorruptBlobs), (fates.stalling, StalledBlobs)):
        for name in names:
            await world.add(name, store)
    living = [node for name, node in world.nodes.items() if name not in (ROOT, *fates.dying)]
    dying = [dies(world, name, weights, fates) for name in fates.dying]
    _, *lives = await asyncio.gather(world.run(living, weights), *dying)
    honest = [node for node in chain(living, *lives) if node.peer not in fates.lying]
    assert {peer for node in honest for peer in node.blamed} <= {*fates.lying}
    assert all(len(node.blamed) == len({*node.blamed}) for node in honest), "named once in a life"
    return sum(len(node.blamed) for node in honest)


async def test_a_peer_that_dies_lies_or_stalls_the_others_get_the_file_and_name_the_liars(tmp_path):
    named = 0
    for seed in range(3):
        (tmp_path / str(seed)).mkdir()
        named += await story(tmp_path / str(seed), seed)
    assert named > 3, "somebody was lied to"
